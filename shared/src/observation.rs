//! What dnsd saw: who was told what, until when.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use crate::name::DnsName;
use crate::time::Timestamp;

/// An answer with addresses that a client was given, as dnsd tells it to the enforcer.
///
/// Only dnsd's exchange makes one, of an answer that matched a question of its own.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Observation {
    /// The client, attributed by source address and arrival interface.
    pub client: IpAddr,
    /// The question as the client asked it.
    pub question: DnsName,
    /// The owners on the CNAME chain behind the question, in order; empty where there was none.
    pub chain: Vec<DnsName>,
    /// The addresses whose owner is on the chain that starts at the question.
    pub addresses: Vec<ObservedAddress>,
}

/// One address of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ObservedAddress {
    /// The address.
    pub address: IpAddr,
    /// Arrival plus the lowest TTL on the way from the question to this address; neither clamped nor
    /// extended by a grace: that is the record store's to decide.
    pub expires: Timestamp,
}
