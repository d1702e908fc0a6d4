//! A plan that is put in force: whom it names, and how they are spoken to.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;

use tokio_rustls::rustls::ClientConfig;

use super::dial::Dial;
use super::resolv;
use super::tls::{self, Proof, TlsError};
use super::udp::Keeping;
use crate::config::model::{self, Protocol, Tls, UpstreamHost};
use crate::upstream::Metrics;
use crate::upstream::health_check::Check;
use crate::upstream::selection::MOST;
use crate::upstream::server::{Manner, Upstream};

/// Why a plan cannot be put in force.
#[derive(Debug, thiserror::Error)]
pub enum Unusable {
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
    /// There is nobody to ask.
    #[error("{origin}: there is no upstream; want 1 to {MOST} addresses, or a file with `nameserver` lines")]
    Nobody {
        /// Where the plan was written.
        origin: String,
    },
    /// There are too many.
    #[error("{origin}: {count} upstreams; 1 to {MOST} are accepted")]
    TooMany {
        /// Where the plan was written.
        origin: String,
        /// How many.
        count: usize,
    },
    /// One cannot be asked from the address that is to be asked from.
    #[error("{origin}: {upstream} cannot be asked from {from}; want addresses of one family")]
    Source {
        /// Where the plan was written.
        origin: String,
        /// The upstream.
        upstream: SocketAddr,
        /// The address to ask from.
        from: IpAddr,
    },
    /// One is written as a name, and nobody knows its address.
    #[error("{origin}: the address of {name} is not known")]
    Name {
        /// Where the plan was written.
        origin: String,
        /// The name.
        name: String,
    },
    /// Connections cannot be protected as it is written.
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
) -> Result<Vec<Arc<Upstream>>, Unusable> {
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
            let upstream = Upstream::new(dial, manner(plan, written), Arc::clone(metrics));
            upstreams.push(Arc::new(upstream));
        }
    }
    let origin = plan.origin.clone();
    match upstreams.len() {
        0 => Err(Unusable::Nobody { origin }),
        1..=MOST => Ok(upstreams),
        count => Err(Unusable::TooMany { origin, count }),
    }
}

fn addresses(plan: &model::Forward, written: &model::Upstream) -> Result<Vec<SocketAddr>, Unusable> {
    match &written.host {
        UpstreamHost::Address(address) => Ok(vec![*address]),
        UpstreamHost::ResolvConf(path) => {
            resolv::read(path, written.protocol).map_err(|source| Unusable::File {
                origin: plan.origin.clone(),
                path: path.clone(),
                source,
            })
        }
        UpstreamHost::Name(name, _port) => Err(Unusable::Name {
            origin: plan.origin.clone(),
            name: name.to_string(),
        }),
    }
}

fn check_source(plan: &model::Forward, upstream: SocketAddr) -> Result<(), Unusable> {
    match plan.source {
        Some(from) if from.is_ipv4() != upstream.is_ipv4() => Err(Unusable::Source {
            origin: plan.origin.clone(),
            upstream,
            from,
        }),
        Some(_) | None => Ok(()),
    }
}

/// Files that are named are read though no upstream needs them: a wrong one is to be found now.
fn client_config(plan: &model::Forward) -> Result<Option<Arc<ClientConfig>>, Unusable> {
    let is_tls = |upstream: &model::Upstream| upstream.protocol == Protocol::Tls;
    if !plan.to.iter().any(is_tls) && plan.tls == Tls::default() {
        return Ok(None);
    }
    tls::config(&plan.tls)
        .map(Some)
        .map_err(|source| unprotected(plan, source))
}

/// What it must prove: the name behind its address, or that of all, or its address.
fn proof(
    plan: &model::Forward,
    written: &model::Upstream,
    address: SocketAddr,
    config: Option<&Arc<ClientConfig>>,
) -> Result<Option<Proof>, Unusable> {
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
        .map_err(|source| unprotected(plan, source))
}

fn unprotected(plan: &model::Forward, source: TlsError) -> Unusable {
    Unusable::Tls {
        origin: plan.origin.clone(),
        source,
    }
}

fn manner(plan: &model::Forward, written: &model::Upstream) -> Manner {
    Manner {
        protocol: written.protocol,
        force_tcp: plan.force_tcp,
        prefer_udp: plan.prefer_udp,
        keeping: Keeping {
            expire: plan.expire,
            max_age: plan.max_age,
            most_idle: plan.max_idle_connections,
        },
        read_timeout: plan.read_timeout,
        max_fails: plan.max_fails,
        check: Check::new(plan.health_check),
    }
}
