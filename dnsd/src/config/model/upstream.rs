//! The text of an upstream: `[dns://|tcp://|tls://]ADDRESS[%SERVERNAME][:PORT]`, a name instead of the address, or the
//! path of a file like /etc/resolv.conf.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::str::FromStr;

use crate::dns::message::WireName;

use super::{Protocol, Upstream, UpstreamHost};

/// Why a text is not an upstream.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{wrong}; accepted: {accepted}")]
pub struct InvalidUpstream {
    /// What is wrong.
    pub wrong: String,
    /// What is accepted.
    pub accepted: &'static str,
}

const ACCEPTED: &str = "[dns://|tls://]ADDRESS[:PORT], a name in place of the address, or the path of a file like /etc/resolv.conf";

impl FromStr for Upstream {
    type Err = InvalidUpstream;

    fn from_str(written: &str) -> Result<Self, InvalidUpstream> {
        let (protocol, text) = protocol(written)?;
        let (text, server_name) = part_server_name(text);
        if protocol != Protocol::Tls && server_name.is_some() {
            return Err(InvalidUpstream {
                wrong: format!("{written:?}: a % names an interface or a certificate"),
                accepted: "an address without it, or tls://ADDRESS%SERVERNAME[:PORT]",
            });
        }
        if server_name.as_deref().is_some_and(|name| !is_host_name(name)) {
            return Err(InvalidUpstream {
                wrong: format!("{written:?}: what follows the % is no name of a server"),
                accepted: "tls://ADDRESS%SERVERNAME[:PORT]",
            });
        }
        let host = host(&text, protocol).ok_or_else(|| InvalidUpstream {
            wrong: format!("{written:?} cannot be asked"),
            accepted: ACCEPTED,
        })?;
        if matches!(host, UpstreamHost::ResolvConf(_)) && protocol != Protocol::Dns {
            return Err(InvalidUpstream {
                wrong: format!("{written:?}: servers of a file are asked over UDP and TCP"),
                accepted: "the path alone",
            });
        }
        Ok(Self {
            host,
            protocol,
            server_name,
        })
    }
}

fn protocol(written: &str) -> Result<(Protocol, &str), InvalidUpstream> {
    let Some((scheme, rest)) = written.split_once("://") else {
        return Ok((Protocol::Dns, written));
    };
    match scheme {
        "dns" => Ok((Protocol::Dns, rest)),
        "tcp" => Ok((Protocol::Tcp, rest)),
        "tls" => Ok((Protocol::Tls, rest)),
        "https" | "https3" | "grpc" | "quic" | "unix" => Err(InvalidUpstream {
            wrong: format!("{written:?}: upstreams are not asked over {scheme}"),
            accepted: "dns:// or tls:// or no scheme",
        }),
        _other => Err(InvalidUpstream {
            wrong: format!("{written:?}: {scheme}:// is not known"),
            accepted: ACCEPTED,
        }),
    }
}

/// Splits `9.9.9.9%dns.quad9.net:853` into `9.9.9.9:853` and `dns.quad9.net`; likewise
/// `[2620:fe::fe%dns.quad9.net]:853`.
fn part_server_name(text: &str) -> (String, Option<String>) {
    let Some((address, behind)) = text.rsplit_once('%') else {
        return (text.to_owned(), None);
    };
    let (name, port) = match behind.rsplit_once(':') {
        Some((name, port)) => (name, format!(":{port}")),
        None => (behind, String::new()),
    };
    let name = name.trim_end_matches(']').to_owned();
    let address = address.strip_prefix('[').unwrap_or(address);
    let address = if address.contains(':') {
        format!("[{address}]")
    } else {
        address.to_owned()
    };
    (format!("{address}{port}"), Some(name))
}

fn host(text: &str, protocol: Protocol) -> Option<UpstreamHost> {
    let default = protocol.port();
    if let Some(address) = endpoint(text, default) {
        return Some(UpstreamHost::Address(address));
    }
    if text.contains('/') && !text.contains("://") {
        return Some(UpstreamHost::ResolvConf(PathBuf::from(text)));
    }
    let (name, port) = match text.rsplit_once(':') {
        Some((name, port)) => (name, port.parse().ok().filter(|port| *port > 0)?),
        None => (text, default),
    };
    let is_name = is_host_name(name);
    let name = WireName::parse(name).ok().filter(|_| is_name)?;
    Some(UpstreamHost::Name(name, port))
}

/// An address with or without port.
pub(crate) fn endpoint(text: &str, default: u16) -> Option<SocketAddr> {
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

/// Letters, digits, hyphens and underscores (RFC 952; Kubernetes' Services may have them), and no numeric last label,
/// which is a mistyped address (RFC 3696 §2).
fn is_host_name(text: &str) -> bool {
    let text = text.strip_suffix('.').unwrap_or(text);
    let last = text.rsplit('.').next().unwrap_or_default();
    !last.bytes().all(|octet| octet.is_ascii_digit())
        && text
            .bytes()
            .all(|octet| octet.is_ascii_alphanumeric() || matches!(octet, b'-' | b'_' | b'.'))
}

impl fmt::Display for Upstream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.protocol {
            Protocol::Dns => "",
            Protocol::Tcp => "tcp://",
            Protocol::Tls => "tls://",
        })?;
        let server_name = match &self.server_name {
            Some(name) => format!("%{name}"),
            None => String::new(),
        };
        match &self.host {
            UpstreamHost::Address(SocketAddr::V4(address)) => {
                write!(f, "{}{server_name}:{}", address.ip(), address.port())
            }
            UpstreamHost::Address(SocketAddr::V6(address)) => {
                write!(f, "[{}{server_name}]:{}", address.ip(), address.port())
            }
            UpstreamHost::ResolvConf(path) => write!(f, "{}", path.display()),
            UpstreamHost::Name(name, port) => write!(f, "{name}{server_name}:{port}"),
        }
    }
}

impl TryFrom<String> for Upstream {
    type Error = InvalidUpstream;

    fn try_from(text: String) -> Result<Self, InvalidUpstream> {
        text.parse()
    }
}

impl From<Upstream> for String {
    fn from(upstream: Upstream) -> Self {
        upstream.to_string()
    }
}
