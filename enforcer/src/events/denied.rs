//! One denied packet as the kernel told it, with what has to be asked about it.

use egret_kernel::nflog::Logged;
use egret_policies::rules::Direction;

use super::packet::Packet;
use crate::backend::netfilter::denials::{Cause, Denial, DenialRegistry};
use crate::engine::{End, Judged, Meeting};

/// A denied packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Denied {
    /// Why.
    pub denial: Denial,
    /// What it was.
    pub packet: Packet,
    /// Who is to be asked for.
    pub meeting: Meeting,
}

impl Denied {
    /// Reads what the kernel told; none where it is not for us, or cannot be read.
    #[must_use]
    pub fn read(
        logged: &Logged,
        denials: &DenialRegistry,
        name_of: &mut impl FnMut(u32) -> Option<String>,
    ) -> Option<Self> {
        let denial = denials.find(&logged.prefix)?;
        let packet = Packet::read(logged.family, &logged.packet)?;
        let mut end = |address, index: Option<u32>| End {
            address,
            interface: index.and_then(&mut *name_of),
        };
        let meeting = Meeting {
            source: end(packet.source, logged.input),
            destination: end(packet.destination, logged.output),
            judged: judged(&denial),
        };
        Some(Self {
            denial,
            packet,
            meeting,
        })
    }
}

/// A packet of a revoked flow may go either way.
const fn judged(denial: &Denial) -> Judged {
    match (&denial.cause, denial.direction) {
        (Cause::Exposure(_), _) => Judged::Nobody,
        (Cause::Revoked, _) => Judged::Either,
        (Cause::SpoofedSource | Cause::SpoofedError | Cause::Encapsulation, _) => Judged::Sender,
        (Cause::Rule(_) | Cause::Isolation | Cause::UnknownPod, Direction::Egress) => Judged::Sender,
        (Cause::Rule(_) | Cause::Isolation | Cause::UnknownPod, Direction::Ingress) => Judged::Receiver,
    }
}
