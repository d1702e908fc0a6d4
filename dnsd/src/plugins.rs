//! The plugins of a server block that answer or change answers: no IO and no clock; time and randomness are arguments.
//!
//! A plugin takes a query, or the octets of a response, and returns the octets of a complete response to that query
//! (its id, its question, an OPT if it sent one).

pub mod hosts;
pub mod template;
pub mod rewrite;
pub mod dns64;
pub mod loadbalance;
pub mod whoami;
mod name_text;

use std::net::SocketAddr;

use crate::config::model::{Fallthrough, Zone};
use crate::dns::message::{Malformed, Message, Query, Response, TooLong, WireName, flag};

/// The result of a local plugin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// This response.
    Answer(Vec<u8>),
    /// This response ends with an alias. Its target is queried with the type of the question, and [`append`] adds the
    /// records that are found; without any, the response is sent as it is.
    Follow(Vec<u8>, Box<WireName>),
    /// SERVFAIL.
    Fail,
    /// The next plugin of the chain answers.
    Next,
}

/// Why an answer cannot be changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unusable {
    /// It cannot be read.
    #[error(transparent)]
    Malformed(#[from] Malformed),
    /// The changed answer exceeds the size of a message.
    #[error(transparent)]
    TooLong(#[from] TooLong),
}

/// The endpoints of a query.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueryEndpoints {
    /// The client.
    pub client: SocketAddr,
    /// The address that was queried.
    pub server: SocketAddr,
    /// Whether it came over TCP.
    pub over_tcp: bool,
}

impl QueryEndpoints {
    /// The name of the transport.
    #[must_use]
    pub const fn protocol(&self) -> &'static str {
        if self.over_tcp { "tcp" } else { "udp" }
    }
}

/// Appends the records of an alias' target. Returns the response unchanged if they cannot be read or do not fit.
#[must_use]
pub fn append(octets: Vec<u8>, found: &[u8], query: &Query, udp_size: u16) -> Vec<u8> {
    let both = || {
        let mut response = Response::read(&Message::read(&octets).ok()?).ok()?;
        let found = Response::read(&Message::read(found).ok()?).ok()?;
        response.sections.answer.extend(found.sections.answer);
        response.flags |= found.flags & flag::TC;
        response.write(query, udp_size).ok()
    };
    both().unwrap_or(octets)
}

impl Fallthrough {
    fn takes(&self, name: &WireName) -> bool {
        match self {
            Self::No => false,
            Self::All => true,
            Self::In(zones) => zones.iter().any(|zone| zone.holds(name)),
        }
    }
}

/// The longest zone that contains a name: of the plugin's own zones, or of the block's if the plugin has none.
fn zone_of<'a>(own: &'a [Zone], block: &'a [Zone], name: &WireName) -> Option<&'a Zone> {
    let zones = if own.is_empty() { block } else { own };
    zones
        .iter()
        .filter(|zone| zone.holds(name))
        .max_by_key(|zone| zone.apex().as_octets().len())
}
