//! The upstreams of `forward`, and the resolvers of their names.

use std::net::SocketAddr;

use crate::config::model::{Protocol, Upstream, endpoint};

use super::super::super::syntax::Token;
use crate::config::corefile::position::Error;

pub(super) fn read(token: &Token) -> Result<Upstream, Error> {
    let upstream: Upstream = token
        .text
        .parse()
        .map_err(|error: crate::config::model::InvalidUpstream| {
            token.error(format!("forward: {}", error.wrong), error.accepted)
        })?;
    match upstream.protocol {
        Protocol::Dns | Protocol::Tls => Ok(upstream),
        Protocol::Tcp => Err(token.error(
            format!("forward: {:?}: a Corefile has no tcp://", token.text),
            "dns:// or tls:// or no scheme, and the option force_tcp",
        )),
    }
}

/// Addresses, with or without port.
pub(super) fn resolvers(tokens: &[Token]) -> Result<Vec<SocketAddr>, Error> {
    tokens
        .iter()
        .map(|token| {
            endpoint(&token.text, 53)
                .ok_or_else(|| token.error(format!("resolver: {:?}", token.text), "IP or IP:PORT"))
        })
        .collect()
}
