//! The accepted directives and options, and the errors for others.

use super::super::syntax::{Directive, Line, Token};
use crate::config::corefile::position::Error;

/// The directives and their options. Others are refused. Tests have a row for each. For `rewrite`: the fields that a
/// rule changes.
pub const ACCEPTED: &[(&str, &[&str])] = &[
    ("timeouts", &["read", "write", "idle", "maxtcpqueries"]),
    ("reload", &[]),
    ("bufsize", &[]),
    ("bind", &["except"]),
    ("tls", &["client_auth"]),
    ("debug", &[]),
    (
        "trace",
        &[
            "every",
            "service",
            "client_server",
            "datadog_analytics_rate",
            "zipkin_max_backlog_size",
            "zipkin_max_batch_size",
            "zipkin_max_batch_interval",
        ],
    ),
    ("health", &["lameduck"]),
    ("pprof", &["block"]),
    ("prometheus", &["runtime_metrics"]),
    ("errors", &["stacktrace", "consolidate"]),
    ("log", &["class"]),
    ("dns64", &["prefix", "translate_all", "allow_ipv4"]),
    ("loadbalance", &["prefer", "reload"]),
    (
        "cache",
        &[
            "success",
            "denial",
            "prefetch",
            "serve_stale",
            "serve_stale_policy",
            "servfail",
            "disable",
            "keepttl",
        ],
    ),
    (
        "rewrite",
        &["name", "type", "class", "edns0", "ttl", "cname", "rcode"],
    ),
    (
        "template",
        &[
            "match",
            "answer",
            "additional",
            "authority",
            "rcode",
            "ederror",
            "fallthrough",
            "upstream",
        ],
    ),
    (
        "hosts",
        &[
            "ttl",
            "no_reverse",
            "reload",
            "fallthrough",
            "fallthrough_unsupported",
        ],
    ),
    ("loop", &[]),
    (
        "forward",
        &[
            "except",
            "force_tcp",
            "prefer_udp",
            "expire",
            "max_age",
            "max_idle_conns",
            "read_timeout",
            "max_fails",
            "max_connect_attempts",
            "tls",
            "tls_servername",
            "policy",
            "health_check",
            "max_concurrent",
            "next",
            "next_on_nodata",
            "failfast_all_unhealthy_upstreams",
            "failover",
            "source_address",
            "resolver",
        ],
    ),
    ("whoami", &[]),
];

/// The options of a directive, for messages.
pub(in super::super) fn options(directive: &str) -> String {
    let said = ACCEPTED.iter().find(|(name, _)| *name == directive);
    said.map(|(_, options)| options.join(", ")).unwrap_or_default()
}

/// Refuses an option that is read but not in [`ACCEPTED`].
pub(super) fn check(directive: &Directive) -> Result<(), Error> {
    let name = directive.head.name.text.as_str();
    let Some((_, options)) = ACCEPTED.iter().find(|(accepted, _)| *accepted == name) else {
        return Err(unknown(&directive.head.name));
    };
    let is_option = |line: &Line| options.contains(&line.name.text.as_str());
    let is_other = |line: &&Line| match name {
        // Their blocks have addresses, and the rest of a rule.
        "hosts" | "rewrite" => false,
        _directive => !is_option(line),
    };
    match directive.options().iter().find(is_other) {
        Some(line) => Err(line.unknown(name)),
        None => Ok(()),
    }
}

/// CoreDNS plugins that node-local-dns does not compile in (its plugin.cfg).
const NOT_COMPILED_IN: &str = "acl any auto autopath azure cancel chaos clouddns deprecated dnssec dnstap erratic etcd \
     file geoip grpc grpc_server header https https3 k8s_external kubernetes local metadata minimal multisocket \
     nomad nsid on proxyproto quic ready root route53 secondary shed sign transfer tsig view";

pub(super) fn unknown(name: &Token) -> Error {
    let is_plugin = NOT_COMPILED_IN
        .split_whitespace()
        .any(|plugin| plugin == name.text);
    let reason = if is_plugin {
        "node-local-dns does not compile it in"
    } else {
        "there is no such directive"
    };
    let accepted: Vec<&str> = ACCEPTED.iter().map(|(name, _)| *name).collect();
    name.error(format!("{}: {reason}", name.text), accepted.join(", "))
}
