//! Builds upstreams from a `forward` of the configuration.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;

use tokio_rustls::rustls::ClientConfig;

use super::dial::Dial;
use super::pool_limits::PoolLimits;
use super::resolv;
use super::tls::{self, Proof, TlsError};
use crate::config::model::{self, Protocol, Tls, UpstreamHost};
use crate::upstream::Metrics;
use crate::upstream::health_check::Check;
use crate::upstream::selection::MAX_UPSTREAMS;
use crate::upstream::server::{Upstream, UpstreamOptions};

/// Why a `forward` cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum InvalidForward {
    /// The file with the upstreams cannot be read.
    #[error("{origin}: {}: {source}", .path.display())]
    File {
        /// Where the plan was written.
        origin: String,
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// There is no upstream.
    #[error(
        "{origin}: there is no upstream; want 1 to {MAX_UPSTREAMS} addresses, or a file with `nameserver` lines"
    )]
    Nobody {
        /// Where the plan was written.
        origin: String,
    },
    /// There are too many.
    #[error("{origin}: {count} upstreams; 1 to {MAX_UPSTREAMS} are accepted")]
    TooMany {
        /// Where the plan was written.
        origin: String,
        /// How many.
        count: usize,
    },
    /// An upstream is of another address family than `source_address`.
    #[error("{origin}: {upstream} cannot be asked from {from}; want addresses of one family")]
    Source {
        /// Where the plan was written.
        origin: String,
        /// The upstream.
        upstream: SocketAddr,
        /// The address to ask from.
        from: IpAddr,
    },
    /// The name of an upstream has no address.
    #[error("{origin}: the address of {name} is not known")]
    Name {
        /// Where the plan was written.
        origin: String,
        /// The name.
        name: String,
    },
    /// The TLS options cannot be used.
    #[error("{origin}: {source}")]
    Tls {
        /// Where the plan was written.
        origin: String,
        /// Why.
        source: TlsError,
    },
}

/// The upstreams of a plan.
pub(super) fn upstreams(
    plan: &model::Forward,
    metrics: &Arc<Metrics>,
) -> Result<Vec<Arc<Upstream>>, InvalidForward> {
    let tls = client_config(plan)?;
    let mut upstreams = Vec::<Arc<Upstream>>::new();
    for written in &plan.to {
        for address in addresses(plan, written)? {
            check_source(plan, address)?;
            let dial = Dial {
                to: address,
                source: plan.source,
                proof: proof(plan, written, address, tls.as_ref())?,
            };
            let upstream = Upstream::new(dial, options(plan, written), Arc::clone(metrics));
            upstreams.push(Arc::new(upstream));
        }
    }
    let origin = plan.origin.clone();
    match upstreams.len() {
        0 => Err(InvalidForward::Nobody { origin }),
        1..=MAX_UPSTREAMS => Ok(upstreams),
        count => Err(InvalidForward::TooMany { origin, count }),
    }
}

fn addresses(plan: &model::Forward, written: &model::Upstream) -> Result<Vec<SocketAddr>, InvalidForward> {
    match &written.host {
        UpstreamHost::Address(address) => Ok(vec![*address]),
        UpstreamHost::ResolvConf(path) => {
            resolv::read(path, written.protocol).map_err(|source| InvalidForward::File {
                origin: plan.origin.clone(),
                path: path.clone(),
                source,
            })
        }
        UpstreamHost::Name(name, _port) => Err(InvalidForward::Name {
            origin: plan.origin.clone(),
            name: name.to_string(),
        }),
    }
}

fn check_source(plan: &model::Forward, upstream: SocketAddr) -> Result<(), InvalidForward> {
    match plan.source {
        Some(from) if from.is_ipv4() != upstream.is_ipv4() => Err(InvalidForward::Source {
            origin: plan.origin.clone(),
            upstream,
            from,
        }),
        Some(_) | None => Ok(()),
    }
}

/// Files are read even if no upstream uses TLS: a wrong one is reported at once.
fn client_config(plan: &model::Forward) -> Result<Option<Arc<ClientConfig>>, InvalidForward> {
    let is_tls = |upstream: &model::Upstream| upstream.protocol == Protocol::Tls;
    if !plan.to.iter().any(is_tls) && plan.tls == Tls::default() {
        return Ok(None);
    }
    tls::config(&plan.tls)
        .map(Some)
        .map_err(|source| invalid_tls(plan, source))
}

/// The TLS identity of an upstream: the name after its address, or the common one, or its address.
fn proof(
    plan: &model::Forward,
    written: &model::Upstream,
    address: SocketAddr,
    config: Option<&Arc<ClientConfig>>,
) -> Result<Option<Proof>, InvalidForward> {
    let (Protocol::Tls, Some(config)) = (written.protocol, config) else {
        return Ok(None);
    };
    let name = written.server_name.as_ref().or(plan.tls.server_name.as_ref());
    let name = name.map_or_else(
        || address.ip().to_string(),
        |name| name.trim_end_matches('.').to_owned(),
    );
    Proof::new(config, &name)
        .map(Some)
        .map_err(|source| invalid_tls(plan, source))
}

fn invalid_tls(plan: &model::Forward, source: TlsError) -> InvalidForward {
    InvalidForward::Tls {
        origin: plan.origin.clone(),
        source,
    }
}

fn options(plan: &model::Forward, written: &model::Upstream) -> UpstreamOptions {
    UpstreamOptions {
        protocol: written.protocol,
        force_tcp: plan.force_tcp,
        prefer_udp: plan.prefer_udp,
        pool: PoolLimits {
            expire: plan.expire,
            max_age: plan.max_age,
            most_idle: plan.max_idle_connections,
        },
        read_timeout: plan.read_timeout,
        max_fails: plan.max_fails,
        check: Check::new(plan.health_check),
    }
}
