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

labels! { PreQueryResult: Denied => "denied", Exists => "exists", Failed => "failed" }

/// The counters of all server blocks together.
#[derive(Debug)]
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
    /// Certificates whose changed files cannot be used.
    pub certificate_reload_failed: Counter,
    /// Panics that ended one answer.
    pub panics: Counter,
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
            certificate_reload_failed: counter!("egret_dnsd_certificate_reload_failed_total"),
            panics: counter!("coredns_panics_total"),
        }
    }

    /// Counts a pre-query.
    pub fn pre_query(&self, outcome: PreQueryResult) {
        self.pre_queries[outcome as usize].increment(1);
    }
}

fn describe() {
    describe! {
        counter "egret_dnsd_cache_evictions_total": "Live answers evicted from the cache.";
        counter "egret_dnsd_nxdomain_cut_answers_total": "Queries answered by an NXDOMAIN cut.";
        counter "egret_dnsd_nxdomain_cut_inquiries_total": "Queries of dnsd itself for the name above denied ones, by outcome.";
        counter "egret_dnsd_unreadable_answers_total": "Answers whose records cannot be read: relayed, not recorded.";
        counter "egret_dnsd_certificate_reload_failed_total": "Certificates whose files changed and cannot be used; the earlier one stays.";
        counter "coredns_dns_https_responses_total": "Counter of DoH responses per server and http status code.";
        counter "coredns_dns_quic_responses_total": "Counter of DoQ responses per server and QUIC application code.";
        counter "egret_dnsd_protected_total": "Protected addresses in answers: not recorded.";
        counter "egret_dnsd_log_lines_lost_total": "Lines of the query log that were lost because the reader was too slow.";
        gauge "egret_dnsd_loop": "1 while queries to a zone's upstreams return to dnsd, else 0.";
        counter "coredns_panics_total": "A metrics that counts the number of panics.";
        gauge "coredns_hosts_entries": "The combined number of entries in hosts and Corefile.";
        gauge "coredns_hosts_reload_timestamp_seconds": "The timestamp of the last reload of hosts file.";
        counter "coredns_template_matches_total": "Counter of template regex matches.";
        counter "coredns_template_template_failures_total": "Counter of go template failures.";
        counter "coredns_template_rr_failures_total": "Counter of mis-templated RRs.";
        counter "coredns_dns64_requests_translated_total": "Counter of DNS requests translated by dns64.";
    }
}
