//! The configuration as written: each option of the command line is a field of the file.

use std::net::SocketAddr;
use std::path::PathBuf;

use egret_shared::net::IpNet;
use serde::Deserialize;

use crate::config::model::{Block, Health, Reload};
use crate::config::node_cache::Flags;

use super::host::HostOptions;
use super::intercept::InterceptOptions;
use crate::config::values::{ByteSize, MillisDuration, OnStall, Upstream};

/// The command line of a serving dnsd.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// The configuration file (YAML).
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    #[command(flatten)]
    pub raw: RawConfig,
    /// The flags of node-cache, if dnsd is called by that name.
    #[arg(skip)]
    pub node_cache: Option<Box<Flags>>,
}

/// The fields; all are optional.
#[derive(Clone, Debug, Default, Deserialize, clap::Args)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct RawConfig {
    /// The server blocks as CoreDNS writes them, instead of --listen and --upstream
    #[arg(long, value_name = "FILE")]
    pub corefile: Option<PathBuf>,
    /// Addresses where dnsd serves clients, over UDP and TCP; 0.0.0.0 and :: for all (required)
    #[arg(long, value_name = "ADDR:PORT", num_args = 1 ..)]
    pub listen: Option<Vec<SocketAddr>>,
    /// Upstream servers, in order of preference (required)
    #[arg(long = "upstream", value_name = "[tcp://]ADDR:PORT", num_args = 1 ..)]
    pub upstreams: Option<Vec<Upstream>>,
    /// The enforcer's Unix socket [default: /run/egret/link.sock]
    #[arg(long, value_name = "PATH")]
    pub link: Option<PathBuf>,
    /// Address of /healthz, /readyz and /metrics [default: 127.0.0.1:9253]
    #[arg(long, value_name = "ADDR:PORT")]
    pub admin: Option<SocketAddr>,
    /// What happens to an answer that cannot be held any longer [default: release]
    #[arg(long, value_name = "ACTION")]
    pub on_stall: Option<OnStall>,
    /// The longest time that an answer is held: 1ms to 4s [default: 200ms]
    #[arg(long, value_name = "SPAN")]
    pub stall_deadline: Option<MillisDuration>,
    /// Answers held for one client: 1 to 10000000 [default: 200]
    #[arg(long, value_name = "COUNT")]
    pub held_per_client: Option<usize>,
    /// Addresses recorded for one client: 1 to 10000000 [default: 10000]
    #[arg(long, value_name = "COUNT")]
    pub records_per_client: Option<usize>,
    /// Addresses recorded for all clients: 1 to 10000000 [default: 200000]
    #[arg(long, value_name = "COUNT")]
    pub records_total: Option<usize>,
    /// How long after its TTL an address is still sent to an enforcer that comes back: 0s to 24h [default: 30s]
    #[arg(long, value_name = "SPAN")]
    pub record_grace: Option<MillisDuration>,
    /// Query all upstreams over TCP [default: false]
    #[arg(long, num_args = 0 ..= 1, require_equals = true, default_missing_value = "true", value_name = "BOOL")]
    pub force_tcp: Option<bool>,
    /// Timeout of one upstream: 50ms to 30s [default: 2s]
    #[arg(long, value_name = "SPAN")]
    pub try_timeout: Option<MillisDuration>,
    /// Timeout of all upstreams together, then SERVFAIL: 50ms to 60s [default: 4500ms]
    #[arg(long, value_name = "SPAN")]
    pub total_timeout: Option<MillisDuration>,
    /// Queries of one client that wait for upstreams: 1 to 10000000 [default: 1024]
    #[arg(long, value_name = "COUNT")]
    pub waiting_per_client: Option<usize>,
    /// Queries of all clients that wait for upstreams: 1 to 10000000 [default: 4096]
    #[arg(long, value_name = "COUNT")]
    pub waiting_total: Option<usize>,
    /// Queries of one client in a second, above which it gets REFUSED: 1 to 10000000 [default: no limit]
    #[arg(long = "queries-per-second-per-client", value_name = "COUNT")]
    #[serde(rename = "queriesPerSecondPerClient")]
    pub queries_per_second: Option<u32>,
    /// Queries of all clients in a second, above which they get REFUSED: 1 to 10000000 [default: no limit]
    #[arg(long, value_name = "COUNT")]
    pub queries_per_second_total: Option<u32>,
    /// The largest datagram, to clients and from upstreams, in octets: 512 to 4096 [default: 1232]
    #[arg(long, value_name = "OCTETS")]
    pub max_udp_size: Option<u16>,
    /// Memory of the cache: 1MiB to 16GiB [default: 32MiB]
    #[arg(long, value_name = "SIZE")]
    pub cache_size: Option<ByteSize>,
    /// Threads that answer queries over UDP: 1 to 16 [default: 1]
    #[arg(long, value_name = "COUNT")]
    pub threads: Option<usize>,
    /// Lower bound of TTLs: 0s to 168h [default: 0s]
    #[arg(long, value_name = "SPAN")]
    pub min_ttl: Option<MillisDuration>,
    /// Upper bound of TTLs: 0s to 168h [default: 24h]
    #[arg(long, value_name = "SPAN")]
    pub max_ttl: Option<MillisDuration>,
    /// Upper bound of the TTL of a negative answer: 0s to 24h [default: 1h]
    #[arg(long, value_name = "SPAN")]
    pub max_negative_ttl: Option<MillisDuration>,
    /// TCP connections of all clients: 1 to 10000000 [default: 1000]
    #[arg(long, value_name = "COUNT")]
    pub tcp_connections: Option<usize>,
    /// TCP connections of one client: 1 to 10000000 [default: 100]
    #[arg(long, value_name = "COUNT")]
    pub tcp_connections_per_client: Option<usize>,
    /// Idle timeout of a TCP connection: 100ms to 10m [default: 10s]
    #[arg(long, value_name = "SPAN")]
    pub tcp_idle: Option<MillisDuration>,
    /// Networks whose addresses are never recorded [default: 127.0.0.0/8 169.254.0.0/16 ::1/128 fe80::/10]
    #[arg(long, value_name = "CIDR", num_args = 1 ..)]
    pub protected: Option<Vec<IpNet>>,
    /// Domains whose names are never sent to resolvers outside the cluster [default: cluster.local with server blocks,
    /// none with --upstream]
    #[arg(long = "cluster-domain", value_name = "NAME", num_args = 1 ..)]
    pub cluster_domains: Option<Vec<String>>,
    /// Answer NXDOMAIN below a name of a cluster domain that the upstream denied [default: true]
    #[arg(long, num_args = 0 ..= 1, require_equals = true, default_missing_value = "true", value_name = "BOOL")]
    pub nxdomain_cut: Option<bool>,
    /// Further zones with an NXDOMAIN cut, such as the host's search domain; only if their servers deny no name that
    /// has names below it [default: none]
    #[arg(long = "nxdomain-cut-zone", value_name = "NAME", num_args = 1 ..)]
    pub nxdomain_cut_zones: Option<Vec<String>>,
    /// A file whose search domains become such zones if a cloud names its machines in them (ec2.internal and the like),
    /// or none [default: /etc/resolv.conf]
    #[arg(long, value_name = "FILE")]
    pub nxdomain_cut_search: Option<String>,
    /// Server blocks, instead of listen and upstreams (only in the file)
    #[arg(skip)]
    pub servers: Option<Vec<Block>>,
    /// How often the file is checked (only in the file, beside servers)
    #[arg(skip)]
    pub reload: Option<Reload>,
    /// Addresses of /health (only in the file, beside servers)
    #[arg(skip)]
    pub health: Option<Vec<Health>>,
    /// Addresses of CoreDNS' metrics (only in the file, beside servers)
    #[arg(skip)]
    pub prometheus: Option<Vec<SocketAddr>>,
    /// The setup of the host
    #[command(flatten)]
    #[serde(default)]
    pub host: HostOptions,
    /// Interception of queries to other resolvers
    #[command(flatten)]
    #[serde(default)]
    pub intercept: InterceptOptions,
}

impl RawConfig {
    /// These fields; `below` has the values of unset ones.
    #[must_use]
    pub fn over(self, below: Self) -> Self {
        over! {
            self, below:
            corefile listen upstreams link admin on_stall stall_deadline held_per_client
            records_per_client records_total record_grace force_tcp try_timeout total_timeout
            waiting_per_client waiting_total queries_per_second queries_per_second_total
            max_udp_size cache_size threads min_ttl max_ttl max_negative_ttl tcp_connections
            tcp_connections_per_client tcp_idle protected cluster_domains nxdomain_cut
            nxdomain_cut_zones nxdomain_cut_search servers reload health prometheus; host intercept
        }
    }
}
