//! What a block answers and changes itself: no IO and no clock, time and randomness are arguments.
//!
//! Each part takes a query or the octets of a response and gives octets of a whole response back, written for the
//! query (its id, its question, an OPT if it sent one).

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

/// What a local answer comes to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// This response.
    Answer(Vec<u8>),
    /// This response, whose alias leads to a name that is to be asked for as a client would, with the type of the
    /// question; `append` puts the records that are found behind it. Where nothing is found it goes out as it is.
    Follow(Vec<u8>, Box<WireName>),
    /// SERVFAIL.
    Fail,
    /// What comes next in the chain answers.
    Next,
}

/// Why an answer cannot be changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unusable {
    /// It cannot be read.
    #[error(transparent)]
    Malformed(#[from] Malformed),
    /// What is made of it does not fit.
    #[error(transparent)]
    TooLong(#[from] TooLong),
}

/// Who asked, and where.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueryEndpoints {
    /// The client.
    pub client: SocketAddr,
    /// The address that was asked.
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

/// Puts the records that were found for the target of an alias behind it; the response as it is where that cannot
/// be done.
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

/// The longest of the zones that holds a name; those of the block where none are said.
fn zone_of<'a>(own: &'a [Zone], block: &'a [Zone], name: &WireName) -> Option<&'a Zone> {
    let zones = if own.is_empty() { block } else { own };
    zones
        .iter()
        .filter(|zone| zone.holds(name))
        .max_by_key(|zone| zone.apex().as_octets().len())
}
