//! Histogram buckets, and gauges: figures of other rooms, read at each scrape.

use metrics::{Gauge, gauge};

/// Upper bounds of the histograms, in seconds: from a fast upstream on the node to the longest time-out.
pub const BUCKETS: [f64; 14] = [
    0.000_1, 0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.2, 0.5, 1.0, 5.0,
];

/// Upper bounds of CoreDNS' histograms (`TimeBuckets` and `SlimTimeBuckets`), so that its dashboards keep working.
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

/// The gauges.
#[derive(Debug)]
pub struct Gauges {
    pub(super) cache_entries: Gauge,
    pub(super) cache_bytes: Gauge,
    pub(super) cache_limit_bytes: Gauge,
    pub(super) cut_names: Gauge,
    pub(super) cut_limit_names: Gauge,
    pub(super) waiting_queries: Gauge,
    pub(super) waiting_limit: Gauge,
    pub(super) held_answers: Gauge,
    pub(super) held_limit: Gauge,
    pub(super) recorded_addresses: Gauge,
    pub(super) recorded_limit: Gauge,
    pub(super) link_connected: Gauge,
    pub(super) interested_clients: Gauge,
    pub(super) tcp_connections: Gauge,
}

impl Gauges {
    /// Registers them.
    #[must_use]
    pub fn register() -> Self {
        describe();
        Self {
            cache_entries: gauge!("egret_dnsd_cache_entries"),
            cache_bytes: gauge!("egret_dnsd_cache_bytes"),
            cache_limit_bytes: gauge!("egret_dnsd_cache_limit_bytes"),
            cut_names: gauge!("egret_dnsd_nxdomain_cut_names"),
            cut_limit_names: gauge!("egret_dnsd_nxdomain_cut_names_limit"),
            waiting_queries: gauge!("egret_dnsd_waiting_queries"),
            waiting_limit: gauge!("egret_dnsd_waiting_queries_limit"),
            held_answers: gauge!("egret_dnsd_held_answers"),
            held_limit: gauge!("egret_dnsd_held_answers_limit"),
            recorded_addresses: gauge!("egret_dnsd_ledger_entries"),
            recorded_limit: gauge!("egret_dnsd_ledger_entries_limit"),
            link_connected: gauge!("egret_dnsd_link_connected"),
            interested_clients: gauge!("egret_dnsd_interested_clients"),
            tcp_connections: gauge!("egret_dnsd_tcp_connections"),
        }
    }
}

fn describe() {
    describe! {
        gauge "egret_dnsd_cache_entries": "Answers in the cache.";
        bytes "egret_dnsd_cache_bytes": "Memory of the cache.";
        bytes "egret_dnsd_cache_limit_bytes": "The limit of the cache's memory.";
        gauge "egret_dnsd_nxdomain_cut_names": "Names known to have or not to have names below them.";
        gauge "egret_dnsd_nxdomain_cut_names_limit": "The limit of such names.";
        gauge "egret_dnsd_waiting_queries": "Queries that wait for upstreams.";
        gauge "egret_dnsd_waiting_queries_limit": "The limit of queries that wait for upstreams.";
        gauge "egret_dnsd_held_answers": "Answers held until the enforcer has realized them.";
        gauge "egret_dnsd_held_answers_limit": "The limit of held answers.";
        gauge "egret_dnsd_ledger_entries": "Live recorded addresses.";
        gauge "egret_dnsd_ledger_entries_limit": "The limit of recorded addresses.";
        gauge "egret_dnsd_link_connected": "1 while an enforcer is connected, else 0.";
        gauge "egret_dnsd_interested_clients": "Pod addresses whose policies mention names.";
        gauge "egret_dnsd_tcp_connections": "TCP connections of clients.";
        seconds "coredns_health_request_duration_seconds": "Histogram of the time (in seconds) each request took.";
        counter "coredns_health_request_failures_total": "The number of times the health check failed.";
    }
}
