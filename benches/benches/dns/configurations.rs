//! How the servers are configured: as far as they let themselves, the same. They forward, keep what they got, and validate no
//! signatures; one thread, a cache that holds what is asked, and a receive buffer of 4 MiB where there is an option.

use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicU16, Ordering};

use egret_integration::node::DNS;

/// What a server that reads a Corefile is configured with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Configuration {
    /// Room for every name of the bench.
    Large,
    /// The Corefile that node-local-dns comes with.
    Stock,
}

/// Ports of a server and of its upstream.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ports {
    pub(crate) own: u16,
    pub(crate) upstream: u16,
}

/// Of the echo and of upstreams, each of which has its own: their threads last as long as the bench.
static NEXT: AtomicU16 = AtomicU16::new(5_400);

impl Ports {
    pub(crate) fn of(own: u16) -> Self {
        Self {
            own,
            upstream: next_port(),
        }
    }
}

pub(crate) fn next_port() -> u16 {
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// `nodelocaldns.yaml` of kubernetes/kubernetes; or with more room, and one answer of 4,096 octets.
pub(crate) fn corefile(configuration: Configuration, ports: Ports) -> String {
    let (cluster, rest) = match configuration {
        Configuration::Stock => ("cache {\n success 9984 30\n denial 9984 5\n }", "cache 30"),
        Configuration::Large => (
            "cache {\n success 400000 30\n denial 400000 30\n }\n bufsize 4096",
            "cache {\n success 400000 3600\n denial 400000 30\n }\n bufsize 4096",
        ),
    };
    let block = |zone: &str, cache: &str, tcp: &str| {
        format!(
            "{zone}:{} {{\n errors\n {cache}\n loop\n bind {DNS}\n forward . {}:{} {tcp}\n prometheus 127.0.0.1:{}\n}}\n",
            ports.own,
            Ipv4Addr::LOCALHOST,
            ports.upstream,
            // Its metrics are on, as they are on nodes; nobody reads them here.
            ports.upstream + 1_000
        )
    };
    let force = "{\n force_tcp\n }";
    [block("cluster.local", cluster, force), block(".", rest, "")].concat()
}

/// Of unbound.
pub(crate) fn unbound(ports: Ports) -> String {
    format!(
        "server:\n  interface: {DNS}\n  port: {}\n  access-control: 0.0.0.0/0 allow\n  num-threads: 1\n  \
         module-config: iterator\n  do-not-query-localhost: no\n  do-daemonize: no\n  use-syslog: no\n  \
         username: \"\"\n  chroot: \"\"\n  directory: \"/\"\n  pidfile: \"\"\n  qname-minimisation: no\n  \
         so-rcvbuf: 4m\n  outgoing-range: 8192\n  num-queries-per-thread: 4096\n  msg-cache-size: 64m\n  \
         rrset-cache-size: 128m\n  max-udp-size: 4096\n  local-zone: \"test.\" transparent\n  do-ip6: no\n\
         remote-control:\n  control-enable: no\n\
         forward-zone:\n  name: \".\"\n  forward-addr: {}@{}\n",
        ports.own,
        Ipv4Addr::LOCALHOST,
        ports.upstream
    )
}

/// Of dnsdist.
pub(crate) fn dnsdist(ports: Ports) -> String {
    format!(
        "setLocal(\"{DNS}:{}\")\nsetACL({{\"0.0.0.0/0\"}})\nsetUDPMultipleMessagesVectorSize(32)\n\
         setSecurityPollSuffix(\"\")\nnewServer({{address=\"{}:{}\", checkInterval=60}})\n\
         cache = newPacketCache(400000, {{maxTTL=86400, keepStaleData=false}})\ngetPool(\"\"):setCache(cache)\n",
        ports.own,
        Ipv4Addr::LOCALHOST,
        ports.upstream
    )
}
