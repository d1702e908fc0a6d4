//! What is counted of upstreams.

use metrics::{Counter, Histogram, counter, histogram};

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

labels! {
    Retry: Truncated => "truncated", Case => "case", Plain => "plain", Failed => "failed", Edns => "edns",
    Closed => "closed", Slow => "slow"
}

/// The counters of all upstreams together.
#[derive(Debug)]
pub struct Metrics {
    mismatches: [Counter; 5],
    retries: [Counter; 7],
    errors: [Counter; 7],
    /// How long upstreams took.
    pub seconds: Histogram,
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

fn describe() {
    describe! {
        seconds "egret_dnsd_upstream_seconds": "Time from a query to an upstream to its answer.";
        counter "egret_dnsd_upstream_errors_total": "Queries to an upstream without an answer, by reason.";
        counter "egret_dnsd_upstream_retries_total": "Queries sent again, to the same or another upstream, by reason.";
        counter "egret_dnsd_upstream_mismatches_total": "Messages that arrived in place of an answer and did not match, by reason.";
        counter "coredns_forward_healthcheck_broken_total": "Counter of the number of complete failures of the healthchecks.";
        counter "coredns_forward_max_concurrent_rejects_total": "Counter of the number of queries rejected because the concurrent queries were at maximum.";
        counter "coredns_forward_requests_total": "Counter of requests made per upstream.";
        counter "coredns_forward_responses_total": "Counter of responses received per upstream.";
        counter "coredns_forward_healthcheck_failures_total": "Counter of the number of failed healthchecks.";
        counter "coredns_proxy_healthcheck_failures_total": "Counter of the number of failed healthchecks.";
        counter "coredns_proxy_conn_cache_hits_total": "Counter of connection cache hits per upstream and protocol.";
        counter "coredns_proxy_conn_cache_misses_total": "Counter of connection cache misses per upstream and protocol.";
        counter "coredns_forward_conn_cache_hits_total": "Counter of connection cache hits per upstream and protocol.";
        counter "coredns_forward_conn_cache_misses_total": "Counter of connection cache misses per upstream and protocol.";
        seconds "coredns_proxy_request_duration_seconds": "Histogram of the time each request to an upstream took.";
        seconds "coredns_forward_request_duration_seconds": "Histogram of the time each request to an upstream took.";
    }
}
