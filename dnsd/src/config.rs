//! The configuration: `RawConfig` is as written, on the command line and in the file; `Config` is complete, with every
//! value in its range.

/// The fields of a struct of options, and those of `below` that are unset; behind the semicolon fields that are such structs.
macro_rules! over {
    ($self:ident, $below:ident: $($field:ident)+; $($nested:ident)*) => {
        Self { $($field: $self.$field.or($below.$field),)+ $($nested: $self.$nested.over($below.$nested),)* }
    };
}

pub mod model;
pub mod corefile;
pub mod check;
pub mod convert;
pub mod environment;
mod values;
mod options;
mod lower;
mod corefile_blocks;
mod servers;
mod nxdomain_cut;
mod host;
pub mod host_setup;
pub mod node_cache;
mod intercept;

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use egret_shared::net::IpNet;
use egret_shared::rt::config::{ConfigError, load};

use crate::config::model::{Forward, Plan, Zone};
use crate::dns::answer::TtlLimits;
use crate::dns::message::WireName;
use crate::enforcement::gate::GateLimits;
use crate::enforcement::records::RecordLimits;
use crate::limits::permits::PermitLimits;
use crate::limits::rate::RateLimits;
pub use model::{CutZone, ZoneKind};

use host_setup::{HostSetup, Interception};

pub use host::{FallbackKind, HostOptions};
pub use intercept::{InterceptOptions, InterceptUpstream, MarkBits};
pub use options::{Args, RawConfig};
pub use values::{ByteSize, InvalidValue, MillisDuration, OnStall, Upstream};

/// A valid configuration.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// The part that needs a restart to change.
    pub fixed: StartupConfig,
    /// The server blocks.
    pub plan: Plan,
    /// Warnings, for the log.
    pub warnings: Vec<String>,
    /// The timeout of all upstreams together.
    pub total_timeout: Duration,
    /// The limits of queries that wait for upstreams.
    pub waiting: PermitLimits,
    /// The limits of queries a second.
    pub queries_per_second: RateLimits,
    /// The largest datagram, to clients and from upstreams, in octets.
    pub max_udp_size: u16,
    /// What happens to an answer that cannot be held any longer.
    pub on_stall: OnStall,
    /// The limits of held answers and records.
    pub hold: GateLimits,
    /// The bounds of TTLs.
    pub ttl: TtlLimits,
    /// Limits of TCP.
    pub tcp: TcpLimits,
    /// Networks whose addresses are never recorded.
    pub protected: Vec<IpNet>,
    /// Zones whose names are never sent to resolvers outside the cluster.
    pub cluster_domains: Vec<Zone>,
    /// Zones with NXDOMAIN cuts.
    pub cut_zones: Vec<CutZone>,
    /// With `intercept.upstream` original: the trusted resolvers.
    pub trusted_originals: Option<BTreeSet<IpAddr>>,
}

/// The part of the configuration that needs a restart to change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StartupConfig {
    /// The enforcer's socket.
    pub link: PathBuf,
    /// The address of the operators' pages.
    pub admin: SocketAddr,
    /// The memory of the cache, in octets.
    pub cache_size: usize,
    /// Threads that answer.
    pub threads: usize,
    /// The setup of the host, if there is one.
    pub host: Option<HostSetup>,
    /// The takeover socket.
    pub handover: Option<PathBuf>,
    /// The directory of the enforcer's permits, if the kernel is to answer.
    pub kernel_answers: Option<PathBuf>,
    /// The address of node-cache's setup metrics.
    pub setup_metrics: Option<SocketAddr>,
}

/// Limits of TCP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TcpLimits {
    /// The limits of open connections.
    pub connections: PermitLimits,
    /// The idle timeout of a connection.
    pub idle: Duration,
}

/// Why a configuration is refused.
#[derive(Debug, thiserror::Error)]
pub enum Invalid {
    /// The file cannot be read.
    #[error(transparent)]
    File(#[from] ConfigError),
    /// A required field is missing.
    #[error("{field} is missing: {wanted}")]
    Missing {
        /// The field.
        field: &'static str,
        /// What is accepted.
        wanted: &'static str,
    },
    /// A value outside its range.
    #[error("{field}: {value} is not accepted; {range} is")]
    Range {
        /// The field.
        field: &'static str,
        /// The value.
        value: String,
        /// What is accepted.
        range: String,
    },
    /// Two fields contradict each other.
    #[error("{0}")]
    Contradiction(&'static str),
    /// A field of the simple form beside server blocks.
    #[error("{0} is said by the server blocks: leave it out")]
    InBlocks(&'static str),
    /// A field of a server block.
    #[error("{field}: {wrong}; accepted: {accepted}")]
    Block {
        /// The field, such as `servers[0].forward[1]`.
        field: String,
        /// What is wrong.
        wrong: String,
        /// What is accepted.
        accepted: String,
    },
    /// Errors of the Corefile.
    #[error("{}",.0.join("\n"))]
    Corefile(Vec<String>),
}

/// Answers held for all clients: ten clients that use the whole of `heldPerClient`.
const MAX_HELD: usize = 2_000;
/// The takeover socket of node-cache, which has no flag for it.
pub(crate) const DEFAULT_HANDOVER: &str = "/run/egret/dnsd-handover.sock";

impl Config {
    /// Reads the command line, and the file that it names.
    ///
    /// # Errors
    /// With the field, or the file, line and column.
    pub fn load(args: &Args) -> Result<Self, Invalid> {
        let file = match &args.config {
            Some(path) => load::<RawConfig>(path)?,
            None => RawConfig::default(),
        };
        let raw = args.raw.clone().over(file);
        let (host, intercept) = (raw.host.clone(), raw.intercept.clone());
        let searched = nxdomain_cut::searched(raw.nxdomain_cut, raw.nxdomain_cut_search.as_deref())?;
        let mut config = raw.with_corefile(args)?;
        config.search_in(searched);
        match &args.node_cache {
            Some(flags) => {
                config.fixed.host = Some(flags.setup(host.fallback()?));
                config.fixed.setup_metrics = flags.metrics_address;
                config.fixed.handover = host.handover.or_else(|| Some(PathBuf::from(DEFAULT_HANDOVER)));
            }
            None => config.fixed.host = host.setup(&config.plan)?,
        }
        config.trusted_originals = intercept.trusted()?;
        config.fixed.host = intercept.apply(config.fixed.host)?;
        let has_rules = config.fixed.host.as_ref().is_some_and(|setup| setup.rules);
        if config.fixed.kernel_answers.is_some() && !has_rules {
            return Err(Invalid::Contradiction(
                "host.kernelAnswers needs host.rules: true",
            ));
        }
        Ok(config)
    }

    /// Adds the zones of the search list that are not configured otherwise.
    fn search_in(&mut self, searched: Vec<CutZone>) {
        for zone in searched {
            if self.cut_zones.iter().all(|said| said.zone != zone.zone) {
                self.cut_zones.push(zone);
            }
        }
    }

    /// Whether intercepted queries are delivered to the sockets of this address.
    #[must_use]
    pub fn intercepts_at(&self, address: SocketAddr) -> bool {
        self.interception()
            .is_some_and(|interception| interception.is_at(address))
    }

    /// How a trusted resolver that a pod chose is queried.
    #[must_use]
    pub fn forward_to_trusted(&self, server: IpAddr) -> Forward {
        lower::to_trusted(server, self)
    }

    /// The interception, if it is enabled.
    #[must_use]
    pub fn interception(&self) -> Option<&Interception> {
        let setup = self.fixed.host.as_ref()?;
        setup.settings.intercept.as_ref()
    }

    /// The fields that differ and need a restart.
    #[must_use]
    pub fn needs_restart(&self, other: &Self) -> Vec<&'static str> {
        let (mine, theirs) = (&self.fixed, &other.fixed);
        [
            ("link", mine.link != theirs.link),
            ("admin", mine.admin != theirs.admin),
            ("cacheSize", mine.cache_size != theirs.cache_size),
            ("threads", mine.threads != theirs.threads),
            ("host", mine.host != theirs.host),
            ("host.kernelAnswers", mine.kernel_answers != theirs.kernel_answers),
            ("host.handover", mine.handover != theirs.handover),
        ]
        .into_iter()
        .filter_map(|(field, differs)| differs.then_some(field))
        .collect()
    }
}

impl RawConfig {
    /// Validates, with the blocks of the Corefile if one is named.
    fn with_corefile(self, args: &Args) -> Result<Config, Invalid> {
        let Some(path) = self.corefile.clone() else {
            return self.validate();
        };
        let port = args
            .node_cache
            .as_ref()
            .map_or(corefile_blocks::PORT, |flags| flags.dns_port);
        let (plan, warnings) = corefile_blocks::load(&path, port)?;
        let config = self.validate_with(Some(plan))?;
        Ok(Config { warnings, ..config })
    }

    /// The configuration, with the defaults of unset fields.
    ///
    /// # Errors
    /// With the field.
    pub fn validate(mut self) -> Result<Config, Invalid> {
        let blocks = self.take_servers().map(servers::Servers::plan).transpose()?;
        self.validate_with(blocks)
    }

    /// Takes the server blocks and the fields beside them, if there are blocks.
    fn take_servers(&mut self) -> Option<servers::Servers> {
        self.servers.take().map(|servers| servers::Servers {
            servers,
            reload: self.reload.take(),
            health: self.health.take().unwrap_or_default(),
            prometheus: self.prometheus.take().unwrap_or_default(),
        })
    }

    /// As [`validate`](Self::validate); `blocks` replace the simple form.
    fn validate_with(self, blocks: Option<Plan>) -> Result<Config, Invalid> {
        let ttl = self.ttl_limits()?;
        let simple = match &blocks {
            Some(_) => self.is_without_simple_form().map(|()| None)?,
            None => self
                .is_without_blocks()
                .and_then(|()| self.simple_form())
                .map(Some)?,
        };
        let cluster_domains = self
            .cluster_domains
            .clone()
            .unwrap_or_else(|| blocks.iter().map(|_| "cluster.local".to_owned()).collect());
        let cluster_domains = zones("clusterDomains", cluster_domains)?;
        let cut_zones = nxdomain_cut::zones(
            self.nxdomain_cut,
            self.nxdomain_cut_zones.clone().unwrap_or_default(),
            &cluster_domains,
        )?;
        let records = RecordLimits {
            per_client: count("recordsPerClient", self.records_per_client, 10_000)?,
            total: count("recordsTotal", self.records_total, 200_000)?,
            grace: span("recordGrace", self.record_grace, 30_000, 0, 86_400_000)?,
        };
        let hold = GateLimits {
            deadline: span("stallDeadline", self.stall_deadline, 200, 1, 4_000)?,
            per_client: count("heldPerClient", self.held_per_client, 200)?,
            total: MAX_HELD,
            records,
        };
        let config = Config {
            fixed: StartupConfig {
                link: self.link.unwrap_or_else(|| PathBuf::from("/run/egret/link.sock")),
                admin: self
                    .admin
                    .unwrap_or_else(|| SocketAddr::from(([127, 0, 0, 1], 9253))),
                cache_size: size("cacheSize", self.cache_size)?,
                threads: within("threads", self.threads, 1, 1, 16)?,
                host: None,
                handover: self.host.handover.clone(),
                kernel_answers: self.host.kernel_answers.clone(),
                setup_metrics: None,
            },
            plan: blocks.unwrap_or(Plan {
                blocks: Vec::new(),
                reload: None,
                health: Vec::new(),
                prometheus: Vec::new(),
            }),
            warnings: Vec::new(),
            total_timeout: span("totalTimeout", self.total_timeout, 4_500, 50, 60_000)?,
            waiting: PermitLimits {
                per_client: count("waitingPerClient", self.waiting_per_client, 1_024)?,
                total: count("waitingTotal", self.waiting_total, 4_096)?,
            },
            queries_per_second: RateLimits {
                per_client: rate("queriesPerSecondPerClient", self.queries_per_second)?,
                total: rate("queriesPerSecondTotal", self.queries_per_second_total)?,
            },
            max_udp_size: within("maxUdpSize", self.max_udp_size, 1_232, 512, 4_096)?,
            on_stall: self.on_stall.unwrap_or(OnStall::Release),
            hold,
            ttl,
            tcp: TcpLimits {
                connections: PermitLimits {
                    per_client: count("tcpConnectionsPerClient", self.tcp_connections_per_client, 100)?,
                    total: count("tcpConnections", self.tcp_connections, 1_000)?,
                },
                idle: span("tcpIdle", self.tcp_idle, 10_000, 100, 600_000)?,
            },
            protected: self.protected.unwrap_or_else(default_protected),
            cluster_domains,
            cut_zones,
            trusted_originals: None,
        };
        match simple {
            Some(simple) => Config {
                plan: lower::plan(&simple, &config)?,
                ..config
            }
            .check(),
            None => config.check(),
        }
    }

    fn simple_form(&self) -> Result<lower::SimpleForm, Invalid> {
        Ok(lower::SimpleForm {
            listen: some("listen", self.listen.clone(), "one or more ADDRESS:PORT")?,
            upstreams: some(
                "upstreams",
                self.upstreams.clone(),
                "one or more [tcp://]ADDRESS:PORT",
            )?,
            force_tcp: self.force_tcp.unwrap_or(false),
            try_timeout: span("tryTimeout", self.try_timeout, 2_000, 50, 30_000)?,
            max_negative_ttl: span("maxNegativeTtl", self.max_negative_ttl, 3_600_000, 0, 86_400_000)?,
        })
    }

    /// Refuses fields of the simple form beside blocks.
    fn is_without_simple_form(&self) -> Result<(), Invalid> {
        let fields = [
            ("listen", self.listen.is_some()),
            ("upstreams", self.upstreams.is_some()),
            ("forceTcp", self.force_tcp.is_some()),
            ("tryTimeout", self.try_timeout.is_some()),
            ("maxNegativeTtl", self.max_negative_ttl.is_some()),
            ("servers", self.servers.is_some()),
            ("reload", self.reload.is_some()),
            ("health", self.health.is_some()),
            ("prometheus", self.prometheus.is_some()),
        ];
        match fields.into_iter().find(|(_, is_there)| *is_there) {
            Some((field, _)) => Err(Invalid::InBlocks(field)),
            None => Ok(()),
        }
    }

    /// Refuses fields that have no effect without blocks.
    fn is_without_blocks(&self) -> Result<(), Invalid> {
        let fields = [
            ("reload", self.reload.is_some()),
            ("health", self.health.is_some()),
            ("prometheus", self.prometheus.is_some()),
        ];
        match fields.into_iter().find(|(_, is_there)| *is_there) {
            Some((field, _)) => Err(Invalid::Block {
                field: field.to_owned(),
                wrong: "there are no server blocks".to_owned(),
                accepted: "it beside servers".to_owned(),
            }),
            None => Ok(()),
        }
    }

    fn ttl_limits(&self) -> Result<TtlLimits, Invalid> {
        let seconds = |field, value, default: u64| {
            span(field, value, default * 1000, 0, 604_800_000)
                .map(|span| u32::try_from(span.as_secs()).expect("a week has fewer than 2^32 seconds"))
        };
        Ok(TtlLimits {
            at_least: seconds("minTtl", self.min_ttl, 0)?,
            at_most: seconds("maxTtl", self.max_ttl, 86_400)?,
        })
    }
}

impl Config {
    /// Whether both query upstreams and cache answers alike, apart from the blocks.
    #[must_use]
    pub fn asks_like(&self, other: &Self) -> bool {
        let whole = |config: &Self| (config.total_timeout, config.max_udp_size, config.ttl);
        whole(self) == whole(other) && self.protected == other.protected && self.cut_zones == other.cut_zones
    }

    fn check(self) -> Result<Self, Invalid> {
        if self.ttl.at_least > self.ttl.at_most {
            return Err(Invalid::Contradiction("minTtl is above maxTtl"));
        }
        Ok(self)
    }
}

/// Loopback and link-local: the host itself, and the cloud's metadata service.
fn default_protected() -> Vec<IpNet> {
    ["127.0.0.0/8", "169.254.0.0/16", "::1/128", "fe80::/10"]
        .map(|text| text.parse().expect("these are networks"))
        .to_vec()
}

fn some<T>(field: &'static str, value: Option<Vec<T>>, wanted: &'static str) -> Result<Vec<T>, Invalid> {
    value
        .filter(|list| !list.is_empty())
        .ok_or(Invalid::Missing { field, wanted })
}

fn zones(field: &'static str, names: Vec<String>) -> Result<Vec<Zone>, Invalid> {
    let zone = |name: String| match WireName::parse(&name) {
        Ok(apex) => Ok(Zone::new(apex)),
        Err(error) => Err(Invalid::Range {
            field,
            value: format!("{name:?} ({error})"),
            range: "a name like cluster.local".to_owned(),
        }),
    };
    names.into_iter().map(zone).collect()
}

fn count(field: &'static str, value: Option<usize>, default: usize) -> Result<usize, Invalid> {
    within(field, value, default, 1, 10_000_000)
}

fn rate(field: &'static str, value: Option<u32>) -> Result<Option<u32>, Invalid> {
    let checked = value.map(|rate| within(field, Some(rate), 1, 1, 10_000_000));
    checked.transpose()
}

fn within<T: PartialOrd + std::fmt::Display>(
    field: &'static str,
    value: Option<T>,
    default: T,
    least: T,
    most: T,
) -> Result<T, Invalid> {
    let value = value.unwrap_or(default);
    if (&least..=&most).contains(&&value) {
        return Ok(value);
    }
    Err(Invalid::Range {
        field,
        value: value.to_string(),
        range: format!("{least} to {most}"),
    })
}

fn span(
    field: &'static str,
    value: Option<MillisDuration>,
    default: u64,
    least: u64,
    most: u64,
) -> Result<Duration, Invalid> {
    let [default, least, most] = [default, least, most].map(MillisDuration::from_millis);
    within(field, value, default, least, most).map(MillisDuration::as_duration)
}

fn size(field: &'static str, value: Option<ByteSize>) -> Result<usize, Invalid> {
    let [default, least, most] = [32 << 20, 1 << 20, 16 << 30].map(ByteSize::from_octets);
    within(field, value, default, least, most).map(ByteSize::as_octets)
}

/// The path of the file, for logs.
#[must_use]
pub fn file_name(args: &Args) -> &Path {
    args.config.as_deref().unwrap_or_else(|| Path::new("(no file)"))
}
