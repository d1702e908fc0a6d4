//! What is said of directives that are not accepted.

use super::super::place::Error;
use super::super::syntax::Token;

/// Those that are.
const ACCEPTED: &str = "timeouts, reload, bufsize, bind, debug, trace, health, pprof, \
     prometheus, errors, log, dns64, loadbalance, cache, rewrite, template, hosts, loop, forward, whoami";

/// Plugins of CoreDNS that node-local-dns is built without (its plugin.cfg).
const NOT_COMPILED_IN: &str = "acl any auto autopath azure cancel chaos clouddns deprecated dnssec dnstap erratic etcd \
     file geoip grpc grpc_server header https https3 k8s_external kubernetes local metadata minimal multisocket \
     nomad nsid on proxyproto quic ready root route53 secondary shed sign tls transfer tsig view";

pub(super) fn unknown(name: &Token) -> Error {
    let is_plugin = NOT_COMPILED_IN
        .split_whitespace()
        .any(|plugin| plugin == name.text);
    let reason = if is_plugin {
        "node-local-dns does not compile it in"
    } else {
        "there is no such directive"
    };
    name.error(format!("{}: {reason}", name.text), ACCEPTED)
}
