//! What is counted of server blocks: caches, NXDOMAIN cuts, what answers teach.

use metrics::{Counter, counter};

/// The outcome of a pre-query for the name above others (RFC 8020); the label `outcome`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PreQueryResult {
    /// The name does not exist, nor does any below it.
    Denied,
    /// The name exists.
    Exists,
    /// There was no usable answer.
    Failed,
}

impl PreQueryResult {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Denied, Self::Exists, Self::Failed];

    /// The label.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::Denied => "denied",
            Self::Exists => "exists",
            Self::Failed => "failed",
        }
    }
}

/// The counters of all server blocks together.
pub struct Metrics {
    /// Live answers evicted from caches.
    pub cache_evictions: Counter,
    /// Queries answered by an NXDOMAIN cut.
    pub cut_answers: Counter,
    pre_queries: [Counter; 3],
    /// Answers that cannot be read beyond the question: relayed, not learned.
    pub unreadable_answers: Counter,
    /// Addresses that were not learned, since they are protected.
    pub protected: Counter,
    /// Panics that ended one answer.
    pub panics: Counter,
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
            cache_evictions: counter!("egret_dnsd_cache_evictions_total"),
            cut_answers: counter!("egret_dnsd_nxdomain_cut_answers_total"),
            pre_queries: PreQueryResult::ALL.map(
                |outcome| counter!("egret_dnsd_nxdomain_cut_inquiries_total", "outcome" => outcome.label()),
            ),
            unreadable_answers: counter!("egret_dnsd_unreadable_answers_total"),
            protected: counter!("egret_dnsd_protected_total"),
            panics: counter!("coredns_panics_total"),
        }
    }

    /// Counts a pre-query.
    pub fn pre_query(&self, outcome: PreQueryResult) {
        self.pre_queries[outcome as usize].increment(1);
    }
}

fn describe() {
    use metrics::{describe_counter as total, describe_gauge as now};
    total!(
        "egret_dnsd_cache_evictions_total",
        "Live answers removed from the cache to make room."
    );
    total!(
        "egret_dnsd_nxdomain_cut_answers_total",
        "Queries answered without asking, since a name above theirs was denied."
    );
    total!(
        "egret_dnsd_nxdomain_cut_inquiries_total",
        "Questions of dnsd's own for the name above denied ones, by outcome."
    );
    total!(
        "egret_dnsd_unreadable_answers_total",
        "Answers whose records cannot be read: relayed, not learned."
    );
    total!(
        "egret_dnsd_protected_total",
        "Addresses in answers that were not learned, being protected."
    );
    total!(
        "egret_dnsd_log_lines_lost_total",
        "Lines about queries that nobody wrote down in time."
    );
    now!(
        "egret_dnsd_loop",
        "1 while what a zone's upstreams are asked comes back here, else 0."
    );
    total!(
        "coredns_panics_total",
        "A metrics that counts the number of panics."
    );
    now!(
        "coredns_hosts_entries",
        "The combined number of entries in hosts and Corefile."
    );
    now!(
        "coredns_hosts_reload_timestamp_seconds",
        "The timestamp of the last reload of hosts file."
    );
    total!(
        "coredns_template_matches_total",
        "Counter of template regex matches."
    );
    total!(
        "coredns_template_template_failures_total",
        "Counter of go template failures."
    );
    total!(
        "coredns_template_rr_failures_total",
        "Counter of mis-templated RRs."
    );
    total!(
        "coredns_dns64_requests_translated_total",
        "Counter of DNS requests translated by dns64."
    );
}
