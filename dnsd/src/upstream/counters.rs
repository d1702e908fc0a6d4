//! The metrics of upstreams, by CoreDNS' names: handles that are looked up once.
//!
//! The names with `coredns_forward_` and labels are those of CoreDNS up to 1.10, which dashboards still ask for.

use std::net::SocketAddr;
use std::sync::OnceLock;
use std::time::Duration;

use metrics::{Counter, Histogram, counter, histogram};

use crate::dns::message::rcode_label;

/// Codes of a header.
const RCODES: usize = 16;

/// The protocol to an upstream, as CoreDNS labels it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ConnectionKind {
    /// Datagrams.
    Udp,
    /// A connection.
    Tcp,
    /// A TLS connection.
    Tls,
}

impl ConnectionKind {
    const fn label(self) -> &'static str {
        match self {
            Self::Udp => "udp",
            Self::Tcp => "tcp",
            Self::Tls => "tcp-tls",
        }
    }
}

/// The metrics of all upstreams together.
#[derive(Debug)]
pub(super) struct ForwardMetrics {
    /// Queries while all upstreams are down.
    pub(super) broken: Counter,
    /// Queries above `max_concurrent`.
    pub(super) rejected: Counter,
}

impl ForwardMetrics {
    pub(super) fn register() -> Self {
        Self {
            broken: counter!("coredns_forward_healthcheck_broken_total"),
            rejected: counter!("coredns_forward_max_concurrent_rejects_total"),
        }
    }
}

/// The metrics of one upstream. A code or protocol without an event has no series, as in CoreDNS.
#[derive(Debug)]
pub(super) struct UpstreamMetrics {
    to: String,
    requests: Counter,
    failed_checks: [Counter; 2],
    answers: [OnceLock<Answers>; RCODES],
    reused: [OnceLock<[Counter; 2]>; 3],
    opened: [OnceLock<[Counter; 2]>; 3],
}

#[derive(Debug)]
struct Answers {
    responses: Counter,
    seconds: Histogram,
    seconds_of_old: Histogram,
}

impl UpstreamMetrics {
    pub(super) fn register(address: SocketAddr) -> Self {
        let to = address.to_string();
        Self {
            requests: counter!("coredns_forward_requests_total", "to" => to.clone()),
            failed_checks: [
                counter!("coredns_proxy_healthcheck_failures_total", "proxy_name" => "forward", "to" => to.clone()),
                counter!("coredns_forward_healthcheck_failures_total", "to" => to.clone()),
            ],
            answers: Default::default(),
            reused: Default::default(),
            opened: Default::default(),
            to,
        }
    }

    /// Counts a query.
    pub(super) fn asked(&self) {
        self.requests.increment(1);
    }

    /// Counts a response.
    pub(super) fn answered(&self, code: u8, span: Duration) {
        let answers =
            self.answers[usize::from(code & 0xf)].get_or_init(|| Answers::register(&self.to, code & 0xf));
        answers.responses.increment(1);
        answers.seconds.record(span.as_secs_f64());
        answers.seconds_of_old.record(span.as_secs_f64());
    }

    /// Counts a failed health check.
    pub(super) fn check_failed(&self) {
        for counter in &self.failed_checks {
            counter.increment(1);
        }
    }

    /// Counts a reused socket or connection.
    pub(super) fn reused(&self, connection_kind: ConnectionKind) {
        const NAMES: [&str; 2] = [
            "coredns_proxy_conn_cache_hits_total",
            "coredns_forward_conn_cache_hits_total",
        ];
        self.connection(&self.reused[connection_kind as usize], NAMES, connection_kind);
    }

    /// Counts an opened one.
    pub(super) fn opened(&self, connection_kind: ConnectionKind) {
        const NAMES: [&str; 2] = [
            "coredns_proxy_conn_cache_misses_total",
            "coredns_forward_conn_cache_misses_total",
        ];
        self.connection(&self.opened[connection_kind as usize], NAMES, connection_kind);
    }

    fn connection(
        &self,
        of: &OnceLock<[Counter; 2]>,
        [new, old]: [&'static str; 2],
        connection_kind: ConnectionKind,
    ) {
        let (to, proto) = (self.to.clone(), connection_kind.label());
        let counters = of.get_or_init(|| {
            [
                counter!(new, "proxy_name" => "forward", "to" => to.clone(), "proto" => proto),
                counter!(old, "to" => to, "proto" => proto),
            ]
        });
        for counter in counters {
            counter.increment(1);
        }
    }
}

impl Answers {
    fn register(to: &str, code: u8) -> Self {
        let (to, code) = (to.to_owned(), rcode_label(code));
        Self {
            responses: counter!("coredns_forward_responses_total", "to" => to.clone(), "rcode" => code.clone()),
            seconds: histogram!(
                "coredns_proxy_request_duration_seconds",
                "proxy_name" => "forward", "to" => to.clone(), "rcode" => code.clone()
            ),
            seconds_of_old: histogram!("coredns_forward_request_duration_seconds", "to" => to, "rcode" => code),
        }
    }
}
