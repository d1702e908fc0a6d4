//! What is counted of upstreams.

use metrics::{Counter, Histogram, Unit, counter, histogram};

use super::Failure;
use super::pending_query::Mismatch;

/// Why a query is sent to an upstream again; the label `reason`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Retry {
    /// The response was truncated: over TCP.
    Truncated,
    /// The upstream changed the case of the name: over TCP.
    Case,
    /// It has no TCP either: over UDP, in lower case.
    Plain,
    /// It failed or refused: to the next one.
    Failed,
    /// It does not know EDNS: without it.
    Edns,
    /// It closed an idle connection: over another one.
    Closed,
    /// It is slower than usual: to it, or another one, as well.
    Slow,
}

impl Retry {
    /// All of them.
    pub const ALL: [Self; 7] = [
        Self::Truncated,
        Self::Case,
        Self::Plain,
        Self::Failed,
        Self::Edns,
        Self::Closed,
        Self::Slow,
    ];

    /// The label.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::Truncated => "truncated",
            Self::Case => "case",
            Self::Plain => "plain",
            Self::Failed => "failed",
            Self::Edns => "edns",
            Self::Closed => "closed",
            Self::Slow => "slow",
        }
    }
}

/// The counters of all upstreams together.
pub struct Metrics {
    mismatches: [Counter; 5],
    retries: [Counter; 7],
    errors: [Counter; 7],
    /// How long upstreams took.
    pub seconds: Histogram,
}

impl std::fmt::Debug for Metrics {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Metrics").finish_non_exhaustive()
    }
}

impl Metrics {
    /// Registers them at zero.
    #[must_use]
    pub fn register() -> Self {
        describe();
        Self {
            mismatches: Mismatch::ALL
                .map(|reason| counter!("egret_dnsd_upstream_mismatches_total", "reason" => reason.label())),
            retries: Retry::ALL
                .map(|reason| counter!("egret_dnsd_upstream_retries_total", "reason" => reason.label())),
            errors: Failure::ALL
                .map(|reason| counter!("egret_dnsd_upstream_errors_total", "reason" => reason.label())),
            seconds: histogram!("egret_dnsd_upstream_seconds"),
        }
    }

    /// Counts a message that is no response to the query.
    pub fn mismatch(&self, reason: Mismatch) {
        self.mismatches[reason as usize].increment(1);
    }

    /// Counts a query that is sent again.
    pub fn retry(&self, reason: Retry) {
        self.retries[reason as usize].increment(1);
    }

    /// Counts a query without a response.
    pub fn error(&self, reason: Failure) {
        self.errors[reason as usize].increment(1);
    }
}

/// CoreDNS' counters of upstreams, those of its older versions included.
const COREDNS_COUNTERS: [(&str, &str); 10] = [
    (
        "coredns_forward_healthcheck_broken_total",
        "Counter of the number of complete failures of the healthchecks.",
    ),
    (
        "coredns_forward_max_concurrent_rejects_total",
        "Counter of the number of queries rejected because the concurrent queries were at maximum.",
    ),
    (
        "coredns_forward_requests_total",
        "Counter of requests made per upstream.",
    ),
    (
        "coredns_forward_responses_total",
        "Counter of responses received per upstream.",
    ),
    (
        "coredns_forward_healthcheck_failures_total",
        "Counter of the number of failed healthchecks.",
    ),
    (
        "coredns_proxy_healthcheck_failures_total",
        "Counter of the number of failed healthchecks.",
    ),
    (
        "coredns_proxy_conn_cache_hits_total",
        "Counter of connection cache hits per upstream and protocol.",
    ),
    (
        "coredns_proxy_conn_cache_misses_total",
        "Counter of connection cache misses per upstream and protocol.",
    ),
    (
        "coredns_forward_conn_cache_hits_total",
        "Counter of connection cache hits per upstream and protocol.",
    ),
    (
        "coredns_forward_conn_cache_misses_total",
        "Counter of connection cache misses per upstream and protocol.",
    ),
];

fn describe() {
    use metrics::{describe_counter as total, describe_histogram as spans};
    spans!(
        "egret_dnsd_upstream_seconds",
        Unit::Seconds,
        "Time from a question to an upstream to its answer."
    );
    total!(
        "egret_dnsd_upstream_errors_total",
        "Questions to an upstream without an answer, by reason."
    );
    total!(
        "egret_dnsd_upstream_retries_total",
        "Questions asked again, of the same or another upstream, by reason."
    );
    total!(
        "egret_dnsd_upstream_mismatches_total",
        "Messages that came where an answer was expected and did not match, by reason."
    );
    for (name, help) in COREDNS_COUNTERS {
        total!(name, help);
    }
    for name in [
        "coredns_proxy_request_duration_seconds",
        "coredns_forward_request_duration_seconds",
    ] {
        spans!(
            name,
            Unit::Seconds,
            "Histogram of the time each request to an upstream took."
        );
    }
}
