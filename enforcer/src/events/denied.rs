//! One denied packet as the kernel told it, with what has to be asked about it.

use egret_kernel::nflog::Logged;
use egret_policies::rules::Direction;

use super::packet::Packet;
use crate::backend::netfilter::denials::{Cause, Denial, Denials};
use crate::engine::{JudgedBy, PacketEnd, PacketEnds};

/// A denied packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeniedPacket {
    /// Why.
    pub denial: Denial,
    /// What it was.
    pub packet: Packet,
    /// Who is to be asked for.
    pub ends: PacketEnds,
}

impl DeniedPacket {
    /// Reads what the kernel told; none where it is not for us, or cannot be read.
    #[must_use]
    pub fn read(
        logged: &Logged,
        denials: &Denials,
        name_of: &mut impl FnMut(u32) -> Option<String>,
    ) -> Option<Self> {
        let denial = denials.find(&logged.prefix)?;
        let packet = Packet::read(logged.family, &logged.packet)?;
        let mut end = |address, index: Option<u32>| PacketEnd {
            address,
            interface: index.and_then(&mut *name_of),
        };
        let ends = PacketEnds {
            source: end(packet.source, logged.input),
            destination: end(packet.destination, logged.output),
            judged_by: judged_by(&denial),
        };
        Some(Self { denial, packet, ends })
    }
}

/// A packet of a revoked flow may go either way.
const fn judged_by(denial: &Denial) -> JudgedBy {
    match (&denial.cause, denial.direction) {
        (Cause::Exposure(_), _) => JudgedBy::Nobody,
        (Cause::Revoked, _) => JudgedBy::Either,
        (Cause::SpoofedSource | Cause::SpoofedError | Cause::Encapsulation, _) => JudgedBy::Sender,
        (Cause::Rule(_) | Cause::Isolation | Cause::UnknownPod, Direction::Egress) => JudgedBy::Sender,
        (Cause::Rule(_) | Cause::Isolation | Cause::UnknownPod, Direction::Ingress) => JudgedBy::Receiver,
    }
}
