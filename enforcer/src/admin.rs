//! What operators are answered. Everything is asked of the engine, so that an engine that hangs is told of.

use std::sync::mpsc::{Receiver, sync_channel};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;

use egret_shared::rt::admin::AdminHandler;
use egret_shared::rt::clock;
use egret_shared::rt::telemetry;
use egret_shared::time::Timestamp;
use tokio::sync::mpsc;

use crate::backend::VerdictCounters;
use crate::engine::{Answer, Input, Question, Report, What};
use crate::metrics;

/// How long the engine may take to answer: longer than the slowest change of rules.
const PATIENCE: Duration = Duration::from_secs(3);
/// How old counters of the kernel may be.
const FRESH: Duration = Duration::from_millis(250);

/// Answers operators.
#[derive(Debug)]
pub struct Operators {
    /// The engine.
    pub engine: mpsc::Sender<Input>,
    /// Counters of verdicts.
    pub counters: Arc<dyn VerdictCounters>,
    /// What was read of the counters; one scrape at a time reads them.
    pub read: Mutex<LastRead>,
    /// What renders the metrics.
    pub recorder: telemetry::Metrics,
    /// How many rules have a series of their own.
    pub rule_metrics: RwLock<usize>,
}

/// What was read of the counters.
#[derive(Debug, Default)]
pub struct LastRead {
    at: Option<Timestamp>,
}

impl Operators {
    fn ask(&self, what: What) -> Result<Answer, String> {
        let (answer, answered) = sync_channel(1);
        self.engine
            .try_send(Input::Ask(Question { what, answer }))
            .map_err(|_full| "the engine does not keep up with its inputs".to_owned())?;
        wait(&answered)
    }

    fn report(&self) -> Result<Report, String> {
        match self.ask(What::Report)? {
            Answer::Report(report) => Ok(*report),
            Answer::Page(_) => Err("the engine answered something else".to_owned()),
        }
    }

    fn read_counters(&self) {
        let mut read = self.read.lock().unwrap_or_else(PoisonError::into_inner);
        let now = clock::now();
        if read.at.is_some_and(|at| now.since(at) < FRESH) {
            return;
        }
        let series = *self.rule_metrics.read().unwrap_or_else(PoisonError::into_inner);
        match self.counters.by_series(series) {
            Ok(counts) => {
                metrics::verdict_counts(&counts, series > 0);
                read.at = Some(now);
            }
            Err(error) => tracing::warn!(%error, "verdicts cannot be counted"),
        }
    }
}

fn wait(answered: &Receiver<Answer>) -> Result<Answer, String> {
    answered
        .recv_timeout(PATIENCE)
        .map_err(|_elapsed| format!("the engine did not answer within {} s", PATIENCE.as_secs()))
}

impl AdminHandler for Operators {
    fn health(&self) -> Result<(), String> {
        self.report().map(|_report| ())
    }

    fn readiness(&self) -> Result<String, String> {
        let report = self.report()?;
        if !report.reasons.is_empty() {
            return Err(report.reasons.join("\n"));
        }
        let mut sentence = format!("ready: {} pods at revision {}", report.pods, report.revision);
        for bad in &report.source.bad {
            sentence += &format!("\nkept as it was: {bad}");
        }
        for gap in &report.outlook.gaps {
            sentence += &format!("\nnot judged: {gap}");
        }
        Ok(sentence)
    }

    fn metrics(&self) -> String {
        match self.report() {
            Ok(report) => metrics::report(&report),
            Err(reason) => tracing::warn!(reason, "a scrape shows what the engine reported last"),
        }
        self.read_counters();
        self.recorder.render()
    }

    fn page(&self, path: &str) -> Option<String> {
        let what = match path {
            "/records" => What::Records,
            "/rules" => What::Rules,
            _ => return None,
        };
        Some(match self.ask(what) {
            Ok(Answer::Page(text)) => text,
            Ok(Answer::Report(_)) => "the engine answered something else\n".to_owned(),
            Err(reason) => reason + "\n",
        })
    }
}
