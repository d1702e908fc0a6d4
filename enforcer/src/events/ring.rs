//! Denied calls and packets of the backend `ebpf`.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd};

use super::channel::{Channel, ReadPackets, Source};
use super::denied::DeniedPacket;
use super::packet::{Inner, Packet};
use crate::backend::Decider;
use crate::backend::ebpf::events::{DeniedEvent, EventReader, EventSource, ReasonKey};
use crate::backend::netfilter::denials::{Cause, Denial, ISOLATION, Outcome, RuleRef};
use crate::engine::{JudgedBy, PacketEnd, PacketEnds};

/// The protocols with ports that the programs read.
const WITH_PORTS: [u8; 3] = [6, 17, 132];
const ICMP: [u8; 2] = [1, 58];
/// The most reasons whose limits are known by their denials.
const MAX_REASONS: usize = 4096;

impl Source for EventSource {
    fn listen(&self) -> Result<Box<dyn Channel>, String> {
        let reader = self.open().map_err(|error| error.to_string())?;
        tracing::info!("denied calls and packets are told");
        Ok(Box::new(Ring {
            reader,
            reasons: BTreeMap::new(),
        }))
    }
}

#[derive(Debug)]
struct Ring {
    reader: EventReader,
    /// The limits of the reasons that were met.
    reasons: BTreeMap<Denial, ReasonKey>,
}

impl Channel for Ring {
    fn as_fds(&self) -> Vec<BorrowedFd<'_>> {
        vec![self.reader.as_fd()]
    }

    fn read(&mut self) -> Result<ReadPackets, String> {
        let (events, mut foreign) = self.reader.read();
        let mut denied = Vec::with_capacity(events.len());
        for event in events {
            match denial(&event) {
                Some(denial) => {
                    if self.reasons.len() >= MAX_REASONS {
                        self.reasons.clear();
                    }
                    self.reasons.insert(denial.clone(), event.reason.key());
                    denied.push(packet(&event, denial));
                }
                None => foreign += 1,
            }
        }
        Ok(ReadPackets {
            denied,
            foreign,
            lost: 0,
        })
    }

    fn suppressed(&self, denial: &Denial) -> Option<u64> {
        let key = self.reasons.get(denial)?;
        match self.reader.withheld(*key) {
            Ok(withheld) => Some(withheld),
            Err(error) => {
                tracing::debug!(%error, "it is not known how many denials were not told");
                None
            }
        }
    }

    fn has(&self, denial: &Denial) -> bool {
        self.reasons.contains_key(denial)
    }
}

fn denial(event: &DeniedEvent) -> Option<Denial> {
    let reason = &event.reason;
    let cause = match (reason.decider, &reason.origin) {
        _ if reason.is_revoked => Cause::Revoked,
        (Decider::UnknownPod, _) => Cause::UnknownPod,
        (Decider::Tier(_), Some((policy, _))) if policy.as_ref() == ISOLATION => Cause::Isolation,
        (Decider::Tier(tier), Some((policy, rule))) => {
            let rule = RuleRef {
                tier,
                policy: policy.clone(),
                rule: *rule,
            };
            match event.cgroup {
                Some(_) => Cause::Rule(rule),
                None => Cause::Exposure(rule),
            }
        }
        (Decider::Tier(_), None)
        | (Decider::Default | Decider::SpoofedSource | Decider::SpoofedError | Decider::Encapsulation, _) => {
            return None;
        }
    };
    Some(Denial {
        outcome: match reason.is_audit {
            true => Outcome::WouldBeDenied,
            false => Outcome::Denied,
        },
        cause,
        direction: reason.direction,
    })
}

/// As if it were on the wire: a denied call has no packet.
fn packet(event: &DeniedEvent, denial: Denial) -> DeniedPacket {
    let own = PacketEnd {
        cgroup: event.cgroup,
        ..end(event.local.ip())
    };
    let other = end(event.peer.ip());
    let (source, destination, ports) = match event.is_outgoing {
        true => (own, other, [event.local.port(), event.peer.port()]),
        false => (other, own, [event.peer.port(), event.local.port()]),
    };
    let inner = match event.protocol {
        protocol if WITH_PORTS.contains(&protocol) => Inner::Ports {
            source: ports[0],
            destination: ports[1],
        },
        protocol if ICMP.contains(&protocol) => Inner::Icmp {
            kind: event.icmp_type,
            code: 0,
        },
        _ => Inner::Nothing,
    };
    let judged_by = match (&denial.cause, event.is_outgoing) {
        (Cause::Exposure(_), _) => JudgedBy::NoPod,
        (_, true) => JudgedBy::Sender,
        (_, false) => JudgedBy::Receiver,
    };
    DeniedPacket {
        denial,
        packet: Packet {
            source: source.address,
            destination: destination.address,
            protocol: Some(event.protocol),
            inner,
        },
        ends: PacketEnds {
            source,
            destination,
            judged_by,
        },
        process: event.process.clone(),
    }
}

const fn end(address: IpAddr) -> PacketEnd {
    PacketEnd {
        address,
        interface: None,
        cgroup: None,
    }
}
