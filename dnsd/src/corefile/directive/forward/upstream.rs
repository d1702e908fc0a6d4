//! Who is asked: `[dns://|tls://]ADDRESS[%SERVERNAME][:PORT]`, a name in place of the address, or a file like
//! /etc/resolv.conf.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use crate::message::WireName;
use crate::plan::{Protocol, Upstream, UpstreamHost};

use super::super::super::place::Error;
use super::super::super::syntax::Token;

const ACCEPTED: &str =
    "[dns://|tls://]ADDRESS[:PORT], a name in place of the address, or a file like /etc/resolv.conf";

/// Ways that CoreDNS knows, some of them as upstreams.
const REFUSED: [&str; 6] = ["https", "https3", "grpc", "quic", "unix", "tcp"];

pub(super) fn read(token: &Token) -> Result<Upstream, Error> {
    let (protocol, text) = match token.text.split_once("://") {
        Some(("dns", rest)) => (Protocol::Dns, rest),
        Some(("tls", rest)) => (Protocol::Tls, rest),
        Some((scheme, _)) if REFUSED.contains(&scheme) => {
            return Err(token.error(
                format!("forward: upstreams are not asked over {scheme}"),
                "dns:// or tls:// or no scheme (option force_tcp for TCP)",
            ));
        }
        Some((scheme, _)) => return Err(token.error(format!("forward: {scheme}:// is not known"), ACCEPTED)),
        None => (Protocol::Dns, token.text.as_str()),
    };
    let (text, server_name) = part_server_name(text);
    if protocol != Protocol::Tls && server_name.is_some() {
        return Err(token.error(
            format!(
                "forward: {:?}: a % names an interface or a certificate",
                token.text
            ),
            "an address without it, or tls://ADDRESS%SERVERNAME[:PORT]",
        ));
    }
    Ok(Upstream {
        host: host(&text, protocol, token)?,
        protocol,
        server_name,
    })
}

/// `9.9.9.9%dns.quad9.net:853` is `9.9.9.9:853` and `dns.quad9.net`; so is `[2620:fe::fe%dns.quad9.net]:853`.
fn part_server_name(text: &str) -> (String, Option<String>) {
    let Some((address, behind)) = text.rsplit_once('%') else {
        return (text.to_owned(), None);
    };
    let (name, port) = match behind.rsplit_once(':') {
        Some((name, port)) => (name, format!(":{port}")),
        None => (behind, String::new()),
    };
    let closing = if address.starts_with('[') { "]" } else { "" };
    let name = name.trim_end_matches(']').to_owned();
    (format!("{address}{closing}{port}"), Some(name))
}

fn host(text: &str, protocol: Protocol, token: &Token) -> Result<UpstreamHost, Error> {
    let default = match protocol {
        Protocol::Dns | Protocol::Tcp => 53,
        Protocol::Tls => 853,
    };
    if let Some(address) = endpoint(text, default) {
        return Ok(UpstreamHost::Address(address));
    }
    if text.contains('/') {
        return Ok(UpstreamHost::ResolvConf(PathBuf::from(text)));
    }
    let (name, port) = token.without_port(text)?;
    let name = WireName::parse(name).ok().filter(|_| is_host_name(name));
    match name {
        Some(name) => Ok(UpstreamHost::Name(name, port.unwrap_or(default))),
        None => Err(token.error(format!("forward: {:?} cannot be asked", token.text), ACCEPTED)),
    }
}

/// An address with a port or without.
fn endpoint(text: &str, default: u16) -> Option<SocketAddr> {
    let bare = text.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
    let address: Option<IpAddr> = bare.unwrap_or(text).parse().ok();
    address
        .map(|address| SocketAddr::new(address, default))
        .or_else(|| {
            text.parse()
                .ok()
                .filter(|endpoint: &SocketAddr| endpoint.port() > 0)
        })
}

/// Letters, digits, hyphens and underscores (RFC 952, and what Kubernetes' services may have), and no number at the
/// end, which is a mistyped address (RFC 3696 §2).
fn is_host_name(text: &str) -> bool {
    let text = text.trim_end_matches('.');
    let last = text.rsplit('.').next().unwrap_or_default();
    !text.is_empty()
        && !last.bytes().all(|octet| octet.is_ascii_digit())
        && text
            .bytes()
            .all(|octet| octet.is_ascii_alphanumeric() || matches!(octet, b'-' | b'_' | b'.'))
}

/// Addresses with a port or without.
pub(super) fn resolvers(tokens: &[Token]) -> Result<Vec<SocketAddr>, Error> {
    tokens
        .iter()
        .map(|token| {
            endpoint(&token.text, 53)
                .ok_or_else(|| token.error(format!("resolver: {:?}", token.text), "IP or IP:PORT"))
        })
        .collect()
}
