//! The metrics, as handles that are held: a look-up by name costs more than the rest of a cached answer.

use std::time::Duration;

use metrics::{Counter, Gauge, Histogram, Unit, counter, gauge, histogram};

use crate::config::OnStall;
use crate::enforcement::client::Unattributed;
use crate::enforcement::gate::Stall;
use crate::limits::rate::OverRate;
use crate::upstream::Failure;
use crate::upstream::pending_query::Mismatch;

/// Upper bounds of the histograms, in seconds: from a fast upstream on the node to the end of patience.
pub const BUCKETS: [f64; 14] = [
    0.000_1, 0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.2, 0.5, 1.0, 5.0,
];

/// Upper bounds of the histograms that CoreDNS has, too, as it has them (its `TimeBuckets` and `SlimTimeBuckets`): dashboards
/// go on working.
pub const COREDNS_BUCKETS: [(&str, &[f64]); 3] = [
    ("coredns_proxy_request_duration_seconds", &TIME_BUCKETS),
    ("coredns_forward_request_duration_seconds", &TIME_BUCKETS),
    (
        "coredns_health_request_duration_seconds",
        &[0.000_25, 0.002_5, 0.025, 0.25, 2.5],
    ),
];

const TIME_BUCKETS: [f64; 16] = [
    0.000_25, 0.000_5, 0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.064, 0.128, 0.256, 0.512, 1.024, 2.048,
    4.096, 8.192,
];

/// How a query came in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// In a datagram.
    Udp,
    /// On a connection, encrypted or not.
    Tcp,
    /// On a stream of QUIC: counted as UDP, as CoreDNS has it, and answered whole as over TCP.
    Quic,
}

impl Transport {
    /// Those that are counted apart.
    pub const ALL: [Self; 2] = [Self::Udp, Self::Tcp];

    /// The place in `ALL`.
    #[must_use]
    pub const fn counted(self) -> usize {
        match self {
            Self::Udp | Self::Quic => 0,
            Self::Tcp => 1,
        }
    }

    /// Whether a reply of any length can be given.
    #[must_use]
    pub const fn is_stream(self) -> bool {
        match self {
            Self::Udp => false,
            Self::Tcp | Self::Quic => true,
        }
    }

    /// The label.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::Udp | Self::Quic => "udp",
            Self::Tcp => "tcp",
        }
    }
}

/// Whom a question is asked of that was caught.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Intercepted {
    /// Whom others' questions are asked of.
    Ours,
    /// Whom the client asked.
    Original,
}

impl Intercepted {
    /// All of them.
    pub const ALL: [Self; 2] = [Self::Ours, Self::Original];

    /// The label of the metric.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::Ours => "ours",
            Self::Original => "original",
        }
    }
}

/// Why an upstream had to be asked again, or another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Retry {
    /// Its answer was cut: over TCP.
    Truncated,
    /// It does not keep the case of the question: over TCP.
    Case,
    /// It has no TCP either: in lower case.
    Plain,
    /// It failed, or refused: the next one.
    Failed,
    /// It does not know EDNS: without.
    Edns,
    /// It closed a connection that nobody used: over another one.
    Closed,
    /// It is slower than usual: it, or another one, is asked as well.
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

/// What became of a question for the name above others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CutInquiry {
    /// There is no such name: nor is there any below.
    Denied,
    /// There is.
    Exists,
    /// It is not known.
    Failed,
}

impl CutInquiry {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Denied, Self::Exists, Self::Failed];

    /// The label of the metric.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::Denied => "denied",
            Self::Exists => "exists",
            Self::Failed => "failed",
        }
    }
}

const RCODES: [&str; 7] = [
    "NOERROR", "FORMERR", "SERVFAIL", "NXDOMAIN", "NOTIMP", "REFUSED", "OTHER",
];

/// All metrics of dnsd.
pub struct Metrics {
    queries: [[Counter; 2]; 2],
    responses: [Counter; 7],
    unattributed: [Counter; 4],
    mismatches: [Counter; 5],
    retries: [Counter; 7],
    upstream_errors: [Counter; 7],
    stalls: [[Counter; 5]; 3],
    /// Datagrams that further threads read.
    pub helped: Counter,
    /// Queries that no reply was given to, since they were none.
    pub ignored: Counter,
    /// Answers from the cache.
    pub cache_hits: Counter,
    /// Answers that were not in the cache.
    pub cache_misses: Counter,
    /// Live answers that had to leave the cache.
    pub cache_evictions: Counter,
    /// Questions that were answered since a name above theirs was denied.
    pub cut_answers: Counter,
    cut_inquiries: [Counter; 3],
    /// Names of which it is known whether something is below them.
    pub cut_names: Gauge,
    /// How many there may be.
    pub cut_limit_names: Gauge,
    /// Answers in the cache.
    pub cache_entries: Gauge,
    /// Octets of the cache.
    pub cache_bytes: Gauge,
    /// Octets that the cache may take.
    pub cache_limit_bytes: Gauge,
    /// Queries that wait for upstreams.
    pub waiting_queries: Gauge,
    /// How many may.
    pub waiting_limit: Gauge,
    /// How long upstreams took.
    pub upstream_seconds: Histogram,
    /// Answers with addresses given to attributed clients.
    pub observations: Counter,
    /// Addresses that were not learned, since they are protected.
    pub protected: Counter,
    /// Answers that cannot be read beyond the question: relayed, not learned.
    pub unreadable_answers: Counter,
    /// Answers held now.
    pub held_answers: Gauge,
    /// How many may be.
    pub held_limit: Gauge,
    /// How long answers were held.
    pub held_seconds: Histogram,
    /// Addresses told and live.
    pub ledger_entries: Gauge,
    /// How many may be.
    pub ledger_limit_entries: Gauge,
    /// Live addresses that had to leave the ledger.
    pub ledger_evictions: Counter,
    /// Whether an enforcer is connected.
    pub link_connected: Gauge,
    /// Connections to an enforcer.
    pub link_connections: Counter,
    /// Observations sent, those of a resync included.
    pub link_observations_sent: Counter,
    /// Resyncs begun.
    pub link_resyncs: Counter,
    /// Pods that wait for some names.
    pub interested_clients: Gauge,
    /// TCP connections of clients.
    pub tcp_connections: Gauge,
    /// TCP connections that were closed at once.
    pub tcp_refused: Counter,
    /// TCP connections of clients that left too much unread.
    pub tcp_cut: Counter,
    over_rate: [Counter; 2],
    /// Questions that were caught.
    intercepted: [Counter; 2],
    /// Certificates that could not be read again.
    pub certificate_reload_failed: Counter,
    /// Plans that could not be put in force while dnsd ran.
    pub reload_failed: Counter,
    /// Faults of dnsd's own.
    pub panics: Counter,
}

impl std::fmt::Debug for Metrics {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Metrics").finish_non_exhaustive()
    }
}

impl Metrics {
    /// Registers every metric, so that all are there from the start, at zero.
    #[must_use]
    pub fn register() -> Self {
        describe();
        Self {
            queries: Transport::ALL.map(|transport| {
                ["IPv4", "IPv6"].map(|family| {
                    counter!("egret_dnsd_queries_total", "transport" => transport.label(), "family" => family)
                })
            }),
            responses: RCODES.map(|rcode| counter!("egret_dnsd_responses_total", "rcode" => rcode)),
            unattributed: Unattributed::ALL
                .map(|reason| counter!("egret_dnsd_unattributed_total", "reason" => reason.label())),
            mismatches: Mismatch::ALL
                .map(|reason| counter!("egret_dnsd_upstream_mismatches_total", "reason" => reason.label())),
            retries: Retry::ALL
                .map(|reason| counter!("egret_dnsd_upstream_retries_total", "reason" => reason.label())),
            upstream_errors: Failure::ALL
                .map(|reason| counter!("egret_dnsd_upstream_errors_total", "reason" => reason.label())),
            stalls: OnStall::ALL.map(|action| {
                Stall::ALL.map(|reason| {
                    counter!("egret_dnsd_stalls_total", "action" => action.label(), "reason" => reason.label())
                })
            }),
            ignored: counter!("egret_dnsd_ignored_total"),
            cache_hits: counter!("egret_dnsd_cache_hits_total"),
            cache_misses: counter!("egret_dnsd_cache_misses_total"),
            cache_evictions: counter!("egret_dnsd_cache_evictions_total"),
            helped: counter!("egret_dnsd_further_threads_datagrams_total"),
            cut_answers: counter!("egret_dnsd_nxdomain_cut_answers_total"),
            cut_inquiries: CutInquiry::ALL.map(
                |outcome| counter!("egret_dnsd_nxdomain_cut_inquiries_total", "outcome" => outcome.label()),
            ),
            cut_names: gauge!("egret_dnsd_nxdomain_cut_names"),
            cut_limit_names: gauge!("egret_dnsd_nxdomain_cut_names_limit"),
            cache_entries: gauge!("egret_dnsd_cache_entries"),
            cache_bytes: gauge!("egret_dnsd_cache_bytes"),
            cache_limit_bytes: gauge!("egret_dnsd_cache_limit_bytes"),
            waiting_queries: gauge!("egret_dnsd_waiting_queries"),
            waiting_limit: gauge!("egret_dnsd_waiting_queries_limit"),
            upstream_seconds: histogram!("egret_dnsd_upstream_seconds"),
            observations: counter!("egret_dnsd_observations_total"),
            protected: counter!("egret_dnsd_protected_total"),
            unreadable_answers: counter!("egret_dnsd_unreadable_answers_total"),
            held_answers: gauge!("egret_dnsd_held_answers"),
            held_limit: gauge!("egret_dnsd_held_answers_limit"),
            held_seconds: histogram!("egret_dnsd_held_seconds"),
            ledger_entries: gauge!("egret_dnsd_ledger_entries"),
            ledger_limit_entries: gauge!("egret_dnsd_ledger_entries_limit"),
            ledger_evictions: counter!("egret_dnsd_ledger_evictions_total"),
            link_connected: gauge!("egret_dnsd_link_connected"),
            link_connections: counter!("egret_dnsd_link_connections_total"),
            link_observations_sent: counter!("egret_dnsd_link_observations_sent_total"),
            link_resyncs: counter!("egret_dnsd_link_resyncs_total"),
            interested_clients: gauge!("egret_dnsd_interested_clients"),
            tcp_connections: gauge!("egret_dnsd_tcp_connections"),
            tcp_refused: counter!("egret_dnsd_tcp_refused_total"),
            tcp_cut: counter!("egret_dnsd_tcp_cut_total"),
            over_rate: OverRate::ALL
                .map(|over| counter!("egret_dnsd_over_rate_total", "limit" => over.label())),
            intercepted: Intercepted::ALL
                .map(|upstream| counter!("egret_dnsd_intercepted_total", "upstream" => upstream.label())),
            certificate_reload_failed: counter!("egret_dnsd_certificate_reload_failed_total"),
            reload_failed: counter!("coredns_reload_failed_total"),
            panics: counter!("coredns_panics_total"),
        }
    }

    /// So many queries came in.
    pub fn queries(&self, transport: Transport, is_ipv6: bool, count: u64) {
        self.queries[transport.counted()][usize::from(is_ipv6)].increment(count);
    }

    /// A question to somebody else was caught.
    pub fn intercepted(&self, upstream: Intercepted) {
        self.intercepted[upstream as usize].increment(1);
    }

    /// A reply goes out.
    pub fn response(&self, rcode: u8) {
        self.responses(rcode, 1);
    }

    /// So many replies go out.
    pub fn responses(&self, rcode: u8, count: u64) {
        self.responses[usize::from(rcode).min(RCODES.len() - 1)].increment(count);
    }

    /// A query belongs to nobody.
    pub fn unattributed(&self, reason: Unattributed) {
        self.unattributed[reason as usize].increment(1);
    }

    /// A message came where an answer is expected, and was not it.
    pub fn mismatch(&self, reason: Mismatch) {
        self.mismatches[reason as usize].increment(1);
    }

    /// An upstream is asked again.
    pub fn retry(&self, reason: Retry) {
        self.retries[reason as usize].increment(1);
    }

    /// An upstream was asked for the name above others.
    pub fn cut_inquiry(&self, outcome: CutInquiry) {
        self.cut_inquiries[outcome as usize].increment(1);
    }

    /// An upstream gave no answer.
    pub fn upstream_error(&self, reason: Failure) {
        self.upstream_errors[reason as usize].increment(1);
    }

    /// A query was refused.
    pub fn over_rate(&self, over: OverRate) {
        self.over_rate[over as usize].increment(1);
    }

    /// An answer was not waited for any longer.
    pub fn stall(&self, action: OnStall, reason: Stall) {
        self.stalls[action as usize][reason as usize].increment(1);
    }

    /// An answer is not held any longer.
    pub fn held_for(&self, span: Duration) {
        self.held_seconds.record(span.as_secs_f64());
    }
}

/// What is counted of upstreams by CoreDNS' names, those of its older versions included.
const OF_UPSTREAMS: [(&str, &str); 10] = [
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
    use metrics::{describe_counter as total, describe_gauge as now, describe_histogram as spans};
    total!(
        "egret_dnsd_queries_total",
        "Queries received, by transport and address family."
    );
    total!("egret_dnsd_responses_total", "Replies sent, by response code.");
    total!(
        "egret_dnsd_ignored_total",
        "Messages received that are no queries: not answered."
    );
    total!(
        "egret_dnsd_unattributed_total",
        "Queries that belong to no pod: answered, not recorded; by reason."
    );
    total!(
        "egret_dnsd_further_threads_datagrams_total",
        "Datagrams that further threads read."
    );
    total!("egret_dnsd_cache_hits_total", "Queries answered from the cache.");
    total!(
        "egret_dnsd_cache_misses_total",
        "Queries that were not in the cache."
    );
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
    now!(
        "egret_dnsd_nxdomain_cut_names",
        "Names of which it is known whether something is below them."
    );
    now!(
        "egret_dnsd_nxdomain_cut_names_limit",
        "Names of which that may be known."
    );
    now!("egret_dnsd_cache_entries", "Answers in the cache.");
    now!(
        "egret_dnsd_cache_bytes",
        Unit::Bytes,
        "Memory that the cache takes."
    );
    now!(
        "egret_dnsd_cache_limit_bytes",
        Unit::Bytes,
        "Memory that the cache may take."
    );
    now!("egret_dnsd_waiting_queries", "Queries that wait for upstreams.");
    now!(
        "egret_dnsd_waiting_queries_limit",
        "Queries that may wait for upstreams."
    );
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
    total!(
        "egret_dnsd_unreadable_answers_total",
        "Answers whose records cannot be read: relayed, not learned."
    );
    total!(
        "egret_dnsd_observations_total",
        "Answers with addresses given to pods."
    );
    total!(
        "egret_dnsd_protected_total",
        "Addresses in answers that were not learned, being protected."
    );
    now!(
        "egret_dnsd_held_answers",
        "Answers held until the enforcer has realized them."
    );
    now!("egret_dnsd_held_answers_limit", "Answers that may be held.");
    spans!(
        "egret_dnsd_held_seconds",
        Unit::Seconds,
        "Time that answers were held."
    );
    total!(
        "egret_dnsd_stalls_total",
        "Answers not held any longer though not realized, by what became of them and why."
    );
    now!(
        "egret_dnsd_ledger_entries",
        "Addresses told to pods and still live."
    );
    now!(
        "egret_dnsd_ledger_entries_limit",
        "Addresses told to pods that may be remembered."
    );
    total!(
        "egret_dnsd_ledger_evictions_total",
        "Live addresses forgotten to make room."
    );
    now!(
        "egret_dnsd_link_connected",
        "1 while an enforcer is connected, else 0."
    );
    total!(
        "egret_dnsd_link_connections_total",
        "Connections made to an enforcer."
    );
    total!(
        "egret_dnsd_link_observations_sent_total",
        "Observations sent to the enforcer, those of resyncs included."
    );
    total!(
        "egret_dnsd_link_resyncs_total",
        "Times that everything live was told again."
    );
    now!(
        "egret_dnsd_interested_clients",
        "Pod addresses whose policies mention names."
    );
    now!("egret_dnsd_tcp_connections", "TCP connections of clients.");
    total!(
        "egret_dnsd_tcp_refused_total",
        "TCP connections closed at once, being over a limit."
    );
    total!(
        "egret_dnsd_tcp_cut_total",
        "TCP connections ended, their client having left too much unread."
    );
    total!(
        "coredns_dns_https_responses_total",
        "Counter of DoH responses per server and http status code."
    );
    total!(
        "coredns_dns_quic_responses_total",
        "Counter of DoQ responses per server and QUIC application code."
    );
    total!(
        "egret_dnsd_certificate_reload_failed_total",
        "Certificates whose files changed and cannot be used; what was shown before is shown."
    );
    total!(
        "egret_dnsd_over_rate_total",
        "Queries refused, being more than their client may ask in a second, or all may."
    );
    total!(
        "egret_dnsd_intercepted_total",
        "Questions to other resolvers that were caught, by whom they are asked of."
    );
    total!(
        "egret_dnsd_went_past_total",
        "Pods' questions that were left to the cluster DNS while no dnsd was alive: datagrams, and connections."
    );
    total!(
        "egret_dnsd_log_lines_lost_total",
        "Lines about queries that nobody wrote down in time."
    );
    now!(
        "egret_dnsd_loop",
        "1 while what a zone's upstreams are asked comes back here, else 0."
    );
    for (name, help) in OF_UPSTREAMS {
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
    total!(
        "coredns_nodecache_setup_errors_total",
        "The number of errors during periodic network setup for node-cache."
    );
    total!(
        "coredns_reload_failed_total",
        "Counter of the number of failed reload attempts."
    );
    total!(
        "coredns_panics_total",
        "A metrics that counts the number of panics."
    );
    spans!(
        "coredns_health_request_duration_seconds",
        Unit::Seconds,
        "Histogram of the time (in seconds) each request took."
    );
    total!(
        "coredns_health_request_failures_total",
        "The number of times the health check failed."
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
