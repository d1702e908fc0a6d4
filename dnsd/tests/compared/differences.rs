//! Intended differences from CoreDNS, with reasons; and options without visible effect.

pub(crate) struct Difference {
    pub(crate) row: &'static str,
    pub(crate) reason: &'static str,
}

pub(crate) const DIFFERENCES: &[Difference] = &[
    Difference {
        row: "rewrite edns0: edns0 local",
        reason: "CoreDNS sends the option that it added for upstreams to the client, too, which did not ask for it",
    },
    Difference {
        row: "rewrite edns0: edns0 local replace",
        reason: "the same",
    },
    Difference {
        row: "rewrite edns0: edns0 local unset",
        reason: "the same, where it is not unset",
    },
    Difference {
        row: "bufsize",
        reason: "dnsd asks upstreams for 1232 octets where nothing is said (no fragments), and an answer that is cut has the \
                 records that fit; CoreDNS' has none",
    },
    Difference {
        row: "bufsize: SIZE",
        reason: "an answer that is cut has the records that fit; CoreDNS' has none",
    },
    Difference {
        row: "loop",
        reason: "CoreDNS ends itself, and starts again and again; dnsd refuses what comes back, and answers the rest",
    },
    Difference {
        row: "debug",
        reason: "dnsd says why a question failed where there is no directive errors; CoreDNS says what some plugins do",
    },
    Difference {
        row: "prometheus: plugin",
        reason: "CoreDNS counts what passes its cache as the cache's; dnsd says which part made the answer",
    },
];

/// Option, why no row is about it.
pub(crate) const UNOBSERVABLE: &[(&str, &str)] = &[
    ("trace", "says that it does nothing"),
    ("trace every", "as trace"),
    ("trace service", "as trace"),
    ("trace client_server", "as trace"),
    ("trace datadog_analytics_rate", "as trace"),
    ("trace zipkin_max_backlog_size", "as trace"),
    ("trace zipkin_max_batch_size", "as trace"),
    ("trace zipkin_max_batch_interval", "as trace"),
    ("pprof", "says that it does nothing"),
    ("pprof block", "as pprof"),
    (
        "prometheus runtime_metrics",
        "says that it does nothing: there is no Go runtime",
    ),
    (
        "errors stacktrace",
        "what is told of a panic, which is not provoked in CoreDNS: faults.rs",
    ),
    ("template upstream", "does nothing in CoreDNS either"),
    ("timeouts write", "a client that reads nothing: blocks.rs"),
    (
        "forward max_idle_conns",
        "dnsd asks several questions on one connection: forwarding/connections.rs",
    ),
    ("forward tls", "authorities and certificates: forwarding/tls.rs"),
    ("forward tls_servername", "the same"),
    (
        "tls",
        "what is shown to clients, and what they have to show: encrypted/tls.rs",
    ),
    ("tls client_auth", "the same"),
    ("timeouts", "has no words of its own"),
    ("rewrite", "has no words of its own"),
];
