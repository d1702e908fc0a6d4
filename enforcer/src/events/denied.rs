//! A denied packet from NFLOG, with what has to be looked up.

use egret_kernel::nflog::LoggedPacket;
use egret_policies::rules::Direction;

use super::packet::Packet;
use crate::backend::ebpf::events::Process;
use crate::backend::netfilter::denials::{Cause, Denial, DenialRegistry};
use crate::engine::{JudgedBy, PacketEnd, PacketEnds};

/// A denied packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeniedPacket {
    /// The reason.
    pub denial: Denial,
    /// Its headers.
    pub packet: Packet,
    /// The ends to look up.
    pub ends: PacketEnds,
    /// The process whose call was denied, where that is known.
    pub process: Option<Process>,
}

impl DeniedPacket {
    /// Parses a packet; none if our rules did not log it, or if it is malformed.
    #[must_use]
    pub fn read(
        logged: &LoggedPacket,
        denials: &DenialRegistry,
        name_of: &mut impl FnMut(u32) -> Option<String>,
    ) -> Option<Self> {
        let denial = denials.find(&logged.prefix)?;
        let packet = Packet::read(logged.family, &logged.packet)?;
        let mut end = |address, index: Option<u32>| PacketEnd {
            address,
            interface: index.and_then(&mut *name_of),
            cgroup: None,
        };
        let ends = PacketEnds {
            source: end(packet.source, logged.input),
            destination: end(packet.destination, logged.output),
            judged_by: judged_by(&denial),
        };
        Some(Self {
            denial,
            packet,
            ends,
            process: None,
        })
    }
}

/// A packet of a revoked connection may go either way.
const fn judged_by(denial: &Denial) -> JudgedBy {
    match (&denial.cause, denial.direction) {
        (Cause::Exposure(_), _) => JudgedBy::NoPod,
        (Cause::Revoked, _) => JudgedBy::Either,
        (Cause::SpoofedSource | Cause::SpoofedError | Cause::Encapsulation, _) => JudgedBy::Sender,
        (Cause::Rule(_) | Cause::Isolation | Cause::UnknownPod, Direction::Egress) => JudgedBy::Sender,
        (Cause::Rule(_) | Cause::Isolation | Cause::UnknownPod, Direction::Ingress) => JudgedBy::Receiver,
    }
}
