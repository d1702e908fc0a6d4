//! What a name is, and how the server behaves when it is asked for it.

use std::{net::IpAddr, time::Duration};

use hickory_proto::op::ResponseCode;

/// The records of one name, and manners.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Records {
    pub(super) content: Content,
    pub(super) ttl: u32,
    pub(super) delay: Duration,
    pub(super) held: bool,
    pub(super) truncated_over_udp: bool,
    pub(super) spelling: Option<String>,
    pub(super) spoofs: Vec<Spoof>,
    pub(super) strays: Vec<(String, IpAddr)>,
    pub(super) reversed: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Content {
    /// A and AAAA records; without one of the asked type the answer is NODATA.
    Addresses(Vec<IpAddr>),
    Alias(String),
    Code(ResponseCode),
    Silence,
}

/// A false answer with `address`, sent over UDP before the right one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Spoof {
    /// The right question from the right server, with another id.
    WrongId(IpAddr),
    /// Right but for the port that it comes from.
    WrongPort(IpAddr),
    /// It answers another name.
    WrongQuestion(IpAddr),
    /// Right but for the address that it comes from.
    WrongServer(IpAddr),
}

impl Records {
    /// A and AAAA records, 30 seconds long.
    pub fn addresses<A: TryInto<Address>>(addresses: impl IntoIterator<Item = A>) -> Self
    where
        A::Error: std::fmt::Debug,
    {
        let addresses = addresses
            .into_iter()
            .map(|address| address.try_into().expect("an IP address").0);
        Self::of(Content::Addresses(addresses.collect()))
    }

    /// A CNAME; what it points to is looked up in the same zone, and follows in the answer.
    pub fn alias(target: &str) -> Self {
        Self::of(Content::Alias(target.into()))
    }

    /// The name exists, with nothing of any type that is asked.
    pub fn no_data() -> Self {
        Self::of(Content::Addresses(Vec::new()))
    }

    /// NXDOMAIN, SERVFAIL, REFUSED, …
    pub fn code(code: ResponseCode) -> Self {
        Self::of(Content::Code(code))
    }

    /// The server never answers.
    pub fn silence() -> Self {
        Self::of(Content::Silence)
    }

    /// Seconds; for an answer without records it is the SOA's minimum (RFC 2308).
    #[must_use]
    pub fn ttl(self, seconds: u32) -> Self {
        Self { ttl: seconds, ..self }
    }

    /// Answers only after this time.
    #[must_use]
    pub fn after(self, delay: Duration) -> Self {
        Self { delay, ..self }
    }

    /// Answers only after [`Upstream::release`](super::Upstream::release): a test waits for the question, does what it
    /// has to do meanwhile, and lets go.
    #[must_use]
    pub fn held(self) -> Self {
        Self { held: true, ..self }
    }

    /// Over UDP: TC=1 and no records; over TCP: all. (Answers too long for UDP are truncated without being told.)
    #[must_use]
    pub fn truncated_over_udp(self) -> Self {
        Self {
            truncated_over_udp: true,
            ..self
        }
    }

    /// The owner name of the records in the answer, in this letter case instead of the question's.
    #[must_use]
    pub fn spelled(self, name: &str) -> Self {
        Self {
            spelling: Some(name.into()),
            ..self
        }
    }

    /// Sends these false answers first.
    #[must_use]
    pub fn spoofed(self, spoofs: impl IntoIterator<Item = Spoof>) -> Self {
        Self {
            spoofs: spoofs.into_iter().collect(),
            ..self
        }
    }

    /// Adds an address under another owner name, as a careless or a hostile server does.
    #[must_use]
    pub fn with_stray(mut self, owner: &str, address: &str) -> Self {
        let address = address.parse().expect("an IP address");
        self.strays.push((owner.into(), address));
        self
    }

    /// The records of the answer in reverse order: the addresses before the aliases that lead to them.
    #[must_use]
    pub fn reversed(self) -> Self {
        Self {
            reversed: true,
            ..self
        }
    }

    fn of(content: Content) -> Self {
        Self {
            content,
            ttl: 30,
            delay: Duration::ZERO,
            held: false,
            truncated_over_udp: false,
            spelling: None,
            spoofs: Vec::new(),
            strays: Vec::new(),
            reversed: false,
        }
    }
}

/// An address, or a text that is one.
#[derive(Clone, Copy, Debug)]
pub struct Address(IpAddr);

impl From<IpAddr> for Address {
    fn from(address: IpAddr) -> Self {
        Self(address)
    }
}

impl TryFrom<&str> for Address {
    type Error = std::net::AddrParseError;

    fn try_from(text: &str) -> Result<Self, Self::Error> {
        text.parse().map(Self)
    }
}

impl TryFrom<String> for Address {
    type Error = std::net::AddrParseError;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse().map(Self)
    }
}
