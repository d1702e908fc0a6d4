//! Lines about failed queries (`errors`), as CoreDNS writes them, and consolidated where the plan says so.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use egret_shared::rt::task;

use crate::config::model::{Consolidate, ErrorLog};
use crate::dns::message::Query;

use crate::zones::log_writer::LogWriter;
use crate::zones::type_names::kind_name;

/// The rules of a block.
#[derive(Debug)]
pub(super) struct Rules {
    consolidated: Vec<Arc<Consolidated>>,
    log_writer: LogWriter,
}

/// A `consolidate` pattern and its count.
#[derive(Debug)]
struct Consolidated {
    plan: Consolidate,
    count: AtomicU32,
}

impl Rules {
    pub(super) fn new(plan: &ErrorLog, log_writer: &LogWriter) -> Self {
        let consolidated = plan.consolidate.iter().map(|plan| {
            Arc::new(Consolidated {
                plan: plan.clone(),
                count: AtomicU32::new(0),
            })
        });
        Self {
            consolidated: consolidated.collect(),
            log_writer: log_writer.clone(),
        }
    }

    /// Logs a query that failed.
    pub(super) fn log(&self, query: &Query, code: u8, error: &str) {
        let (name, kind) = (query.question.name, kind_name(query.question.kind));
        let line = format!("plugin/errors: {code} {name} {kind}: {error}");
        let alike = self
            .consolidated
            .iter()
            .find(|alike| alike.plan.errors.regex().is_match(error));
        match alike {
            None => self
                .log_writer
                .write(crate::config::model::LogLevel::Error, &line),
            Some(alike) => {
                let before = alike.count.fetch_add(1, Ordering::Relaxed);
                if before == 0 {
                    drop(task::spawn_brief(
                        Arc::clone(alike).report(self.log_writer.clone()),
                    ));
                    if alike.plan.show_first {
                        self.log_writer.write(alike.plan.level, &line);
                    }
                }
            }
        }
    }
}

impl Consolidated {
    /// Logs after the interval how many there were.
    async fn report(self: Arc<Self>, log_writer: LogWriter) {
        tokio::time::sleep(self.plan.every).await;
        let count = self.count.swap(0, Ordering::Relaxed);
        if count > 1 || !self.plan.show_first {
            let like = self.plan.errors.regex().as_str();
            let every = span(self.plan.every);
            let line = format!("plugin/errors: {count} errors like '{like}' occurred in last {every}");
            log_writer.write(self.plan.level, &line);
        }
    }
}

/// As Go writes spans of whole seconds: `1m30s`, `5m0s`, `30s`.
fn span(span: std::time::Duration) -> String {
    let seconds = span.as_secs();
    match (seconds / 3600, seconds / 60 % 60, seconds % 60) {
        (0, 0, _) => format!("{}s", span.as_secs_f64()),
        (0, minutes, seconds) => format!("{minutes}m{seconds}s"),
        (hours, minutes, seconds) => format!("{hours}h{minutes}m{seconds}s"),
    }
}
