//! The admin endpoints. Every answer comes from the engine, so an engine that hangs is noticed.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::sync_channel;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use egret_shared::rt::admin::AdminHandler;
use egret_shared::rt::clock;
use egret_shared::rt::telemetry;
use egret_shared::time::Timestamp;
use tokio::sync::mpsc;

use crate::backend::VerdictCounters;
use crate::backend::metrics::publish_verdicts;
use crate::engine::{AdminQuery, AdminReply, AdminRequest, Input, Report};

/// How long the engine may take to answer: longer than the slowest change of rules.
const REPLY_TIMEOUT: Duration = Duration::from_secs(3);
/// Counters that were read less than this ago are not read again.
const COUNTERS_MAX_AGE: Duration = Duration::from_millis(250);

/// Answers requests of operators.
#[derive(Debug)]
pub struct EngineAdmin {
    /// The engine's inputs.
    pub engine: mpsc::Sender<Input>,
    /// The kernel's counters of verdicts.
    pub counters: Arc<dyn VerdictCounters>,
    /// When the counters were read last. One scrape at a time reads them.
    pub counters_read: Mutex<Option<Timestamp>>,
    /// Renders the metrics.
    pub recorder: telemetry::Metrics,
    /// How many rules have a series of their own.
    pub rule_metrics: AtomicUsize,
    /// The backend, and why this one.
    pub backend: String,
}

impl EngineAdmin {
    fn ask(&self, query: AdminQuery) -> Result<AdminReply, String> {
        let (reply, replied) = sync_channel(1);
        self.engine
            .try_send(Input::Admin(AdminRequest { query, reply }))
            .map_err(|_full| "the engine does not keep up with its inputs".to_owned())?;
        replied
            .recv_timeout(REPLY_TIMEOUT)
            .map_err(|_elapsed| format!("the engine did not answer within {} s", REPLY_TIMEOUT.as_secs()))
    }

    fn report(&self) -> Result<Report, String> {
        match self.ask(AdminQuery::Report)? {
            AdminReply::Report(report) => Ok(*report),
            AdminReply::Page(_) => Err("the engine answered something else".to_owned()),
        }
    }

    /// Whether all that was read is in the kernel.
    #[must_use]
    pub fn is_in_force(&self) -> bool {
        self.report().is_ok_and(|report| report.behind.is_none())
    }

    fn read_counters(&self) {
        let mut read_at = self.counters_read.lock().unwrap_or_else(PoisonError::into_inner);
        let now = clock::now();
        if read_at.is_some_and(|at| now.since(at) < COUNTERS_MAX_AGE) {
            return;
        }
        let series = self.rule_metrics.load(Ordering::Relaxed);
        match self.counters.by_series(series) {
            Ok(counts) => {
                publish_verdicts(&counts, series > 0);
                *read_at = Some(now);
            }
            Err(error) => tracing::warn!(%error, "verdicts cannot be counted"),
        }
    }
}

impl AdminHandler for EngineAdmin {
    fn health(&self) -> Result<(), String> {
        self.report().map(|_report| ())
    }

    fn readiness(&self) -> Result<String, String> {
        let report = self.report()?;
        if !report.reasons.is_empty() {
            return Err(report.reasons.join("\n"));
        }
        let mut text = format!("ready: {} pods at revision {}", report.pods, report.revision);
        text += &format!("\nbackend: {}", self.backend);
        if let Some(why) = &report.source.outdated {
            text += &format!("\nwhat the source said last is in force: the source cannot be read: {why}");
        }
        for bad in &report.source.bad {
            text += &format!("\nkept as it was: {bad}");
        }
        for bypass in &report.bypass_report.bypasses {
            text += &format!("\nnot judged: {bypass}");
        }
        Ok(text)
    }

    fn metrics(&self) -> String {
        match self.report() {
            Ok(report) => report.publish(),
            Err(reason) => tracing::warn!(reason, "a scrape shows what the engine reported last"),
        }
        self.read_counters();
        self.recorder.render()
    }

    fn page(&self, path: &str) -> Option<String> {
        let query = match path {
            "/records" => AdminQuery::Records,
            "/rules" => AdminQuery::Rules,
            _ => return None,
        };
        Some(match self.ask(query) {
            Ok(AdminReply::Page(text)) => text,
            Ok(AdminReply::Report(_)) => "the engine answered something else\n".to_owned(),
            Err(reason) => reason + "\n",
        })
    }
}
