//! Values in text form: upstreams and keywords. `shared` has durations and sizes.

use std::fmt;
use std::net::SocketAddr;
use std::str::FromStr;

pub use egret_shared::rt::config::{ByteSize, MillisDuration};
use serde::{Deserialize, Serialize};

/// Why a value is invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidValue {
    /// Not an upstream.
    #[error(
        "{0:?} is not an upstream; write ADDRESS:PORT or tcp://ADDRESS:PORT, as in \"192.0.2.53:53\" or \"[2001:db8::53]:53\""
    )]
    Upstream(String),
    /// Not mark bits.
    #[error("{0:?} has no bits of a mark; write some of 32 in hexadecimal, as in 0x20")]
    Mark(String),
}

/// An upstream server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Upstream {
    /// Its address.
    pub address: SocketAddr,
    /// Whether it is queried over TCP only.
    pub tcp_only: bool,
}

impl FromStr for Upstream {
    type Err = InvalidValue;

    fn from_str(text: &str) -> Result<Self, InvalidValue> {
        let (tcp_only, address) = text
            .strip_prefix("tcp://")
            .map_or((false, text), |address| (true, address));
        address
            .parse()
            .map(|address| Self { address, tcp_only })
            .map_err(|_not_an_address: std::net::AddrParseError| InvalidValue::Upstream(text.to_owned()))
    }
}

impl fmt::Display for Upstream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.tcp_only { "tcp://" } else { "" };
        write!(f, "{scheme}{}", self.address)
    }
}

/// What happens to an answer that cannot be held any longer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum OnStall {
    /// The client receives it before the kernel is ready: its first packet may be refused.
    Release,
    /// The client receives SERVFAIL.
    Servfail,
    /// The client receives nothing.
    Drop,
}

labels! { OnStall: Release => "release", Servfail => "servfail", Drop => "drop" }

egret_shared::as_text!(Upstream);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_upstream_is_an_address_with_a_port() {
        for (text, tcp_only) in [("192.0.2.53:53", false), ("tcp://[2001:db8::53]:53", true)] {
            assert_eq!(text.parse::<Upstream>().unwrap().tcp_only, tcp_only);
            assert_eq!(text.parse::<Upstream>().unwrap().to_string(), text);
        }
        for text in ["192.0.2.53", "dns.example:53", "udp://192.0.2.53:53", ""] {
            assert!(text.parse::<Upstream>().is_err(), "{text:?}");
        }
    }
}
