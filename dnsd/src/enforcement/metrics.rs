//! What is counted of observations, held answers and the link.

use std::time::Duration;

use metrics::{Counter, Histogram, counter, histogram};

/// The counters of the response gate and of the link.
#[derive(Debug)]
pub struct Metrics {
    /// Answers with addresses given to attributed clients.
    pub observations: Counter,
    held_seconds: Histogram,
    /// Live addresses evicted from the records.
    pub record_evictions: Counter,
    /// Connections to an enforcer.
    pub link_connections: Counter,
    /// Observations sent, those of resyncs included.
    pub link_observations_sent: Counter,
    /// Resyncs begun.
    pub link_resyncs: Counter,
}

impl Metrics {
    /// Registers them at zero.
    #[must_use]
    pub fn register() -> Self {
        describe();
        Self {
            observations: counter!("egret_dnsd_observations_total"),
            held_seconds: histogram!("egret_dnsd_held_seconds"),
            record_evictions: counter!("egret_dnsd_ledger_evictions_total"),
            link_connections: counter!("egret_dnsd_link_connections_total"),
            link_observations_sent: counter!("egret_dnsd_link_observations_sent_total"),
            link_resyncs: counter!("egret_dnsd_link_resyncs_total"),
        }
    }

    /// Records how long an answer was held.
    pub fn held_for(&self, span: Duration) {
        self.held_seconds.record(span.as_secs_f64());
    }
}

fn describe() {
    describe! {
        counter "egret_dnsd_observations_total": "Answers with addresses given to pods.";
        seconds "egret_dnsd_held_seconds": "Time that answers were held.";
        counter "egret_dnsd_ledger_evictions_total": "Live addresses evicted from the records.";
        counter "egret_dnsd_link_connections_total": "Connections made to an enforcer.";
        counter "egret_dnsd_link_observations_sent_total": "Observations sent to the enforcer, those of resyncs included.";
        counter "egret_dnsd_link_resyncs_total": "Times that all live observations were sent again.";
    }
}
