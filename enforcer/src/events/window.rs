//! Limits how many packets are logged in a second. Others are counted by pod and reason, in a bounded table.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use egret_shared::time::Timestamp;

use super::denied::DeniedPacket;
use crate::backend::netfilter::denials::Denial;
use crate::engine::{JudgedBy, PacketEnd, PacketEnds};

/// The length of a window.
const LENGTH: Duration = Duration::from_secs(1);
/// The most entries of the table.
const MAX_WITHHELD: usize = 256;

/// A second in which packets were denied.
#[derive(Debug)]
pub struct Window {
    began: Timestamp,
    told: u32,
    withheld: BTreeMap<Withheld, u64>,
    /// Packets without an entry in the table.
    others: u64,
    lost: u64,
    by_reason: BTreeMap<Denial, u32>,
}

/// A pod's end and a reason.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Withheld {
    /// The reason.
    pub denial: Denial,
    /// The pod's end of the packet.
    end: PacketEnd,
    judged_by: JudgedBy,
}

/// The content of a summary.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Summary {
    /// The length of the window.
    pub span: Duration,
    /// Packets with a line of their own.
    pub told: u32,
    /// Packets that were read and not logged, by pod and reason.
    pub withheld: Vec<(Withheld, u64)>,
    /// Such packets without an entry.
    pub others: u64,
    /// Packets that were lost between the kernel and the reader.
    pub lost: u64,
    /// Reasons of which the kernel may have logged no more, because they reached the limit.
    pub busy: BTreeSet<Denial>,
}

impl Window {
    /// Opens a window.
    #[must_use]
    pub const fn open(now: Timestamp) -> Self {
        Self {
            began: now,
            told: 0,
            withheld: BTreeMap::new(),
            others: 0,
            lost: 0,
            by_reason: BTreeMap::new(),
        }
    }

    /// When it ends.
    #[must_use]
    pub fn end(&self) -> Timestamp {
        self.began.after(LENGTH)
    }

    /// Counts a packet. Returns whether it is logged, if at most `most` are.
    pub fn take(&mut self, denied: &DeniedPacket, most: u32) -> bool {
        *self.by_reason.entry(denied.denial.clone()).or_default() += 1;
        if self.told < most {
            self.told += 1;
            return true;
        }
        let withheld = Withheld::of(denied);
        if self.withheld.len() < MAX_WITHHELD || self.withheld.contains_key(&withheld) {
            *self.withheld.entry(withheld).or_default() += 1;
        } else {
            self.others += 1;
        }
        false
    }

    /// Counts lost packets.
    pub const fn lose(&mut self, packets: u64) {
        self.lost += packets;
    }

    /// Closes it. The kernel logs `per_second` packets of each reason.
    #[must_use]
    pub fn close(self, now: Timestamp, per_second: u32) -> Summary {
        // A window does not begin with the kernel's second.
        let many = per_second - per_second / 5;
        let busy = self.by_reason.into_iter().filter(|(_, packets)| *packets >= many);
        Summary {
            span: now.since(self.began),
            told: self.told,
            withheld: self.withheld.into_iter().collect(),
            others: self.others,
            lost: self.lost,
            busy: busy.map(|(denial, _)| denial).collect(),
        }
    }
}

impl Withheld {
    fn of(denied: &DeniedPacket) -> Self {
        let ends = &denied.ends;
        let end = match ends.judged_by {
            JudgedBy::Sender => &ends.source,
            JudgedBy::Either if ends.source.interface.is_some() || ends.source.cgroup.is_some() => {
                &ends.source
            }
            JudgedBy::Receiver | JudgedBy::Either | JudgedBy::NoPod => &ends.destination,
        };
        Self {
            denial: denied.denial.clone(),
            end: end.clone(),
            judged_by: ends.judged_by,
        }
    }

    /// The ends to look up for the pod.
    #[must_use]
    pub fn ends(&self) -> PacketEnds {
        PacketEnds {
            source: self.end.clone(),
            destination: self.end.clone(),
            judged_by: self.judged_by,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::netfilter::denials::{Cause, Outcome};
    use crate::events::packet::{Inner, Packet};
    use egret_policies::rules::Direction;
    use std::net::{IpAddr, Ipv4Addr};

    fn denied(source: u32) -> DeniedPacket {
        let [source, destination] = [source, 7].map(|number| IpAddr::from(Ipv4Addr::from(number)));
        let end = |address, interface: Option<&str>| PacketEnd {
            address,
            interface: interface.map(str::to_owned),
            cgroup: None,
        };
        DeniedPacket {
            denial: Denial {
                outcome: Outcome::Denied,
                cause: Cause::Isolation,
                direction: Direction::Egress,
            },
            packet: Packet {
                source,
                destination,
                protocol: Some(6),
                inner: Inner::Nothing,
            },
            ends: PacketEnds {
                source: end(source, Some("veth1")),
                destination: end(destination, None),
                judged_by: JudgedBy::Sender,
            },
            process: None,
        }
    }

    fn at(millis: u64) -> Timestamp {
        Timestamp::from_millis(millis)
    }

    #[test]
    fn denials_above_the_rate_are_counted_by_pod_and_reason() {
        let mut window = Window::open(at(500));
        assert_eq!(window.end(), at(1500));
        let told = (0..10).filter(|_| window.take(&denied(1), 4)).count();
        assert_eq!(told, 4);
        assert!(!window.take(&denied(2), 4));
        window.lose(3);
        let summary = window.close(at(1600), 10);
        assert_eq!(
            (summary.span, summary.told, summary.lost),
            (Duration::from_millis(1100), 4, 3)
        );
        let counts: Vec<u64> = summary.withheld.iter().map(|(_, packets)| *packets).collect();
        assert_eq!((counts, summary.others), (vec![6, 1], 0));
        assert_eq!(
            summary.busy.len(),
            1,
            "11 is more than the kernel tells in a second"
        );
    }

    #[test]
    fn a_pod_that_invents_addresses_does_not_make_the_table_grow() {
        let mut window = Window::open(at(0));
        for source in 0..10_000 {
            window.take(&denied(source), 0);
        }
        let summary = window.close(at(1000), 1000);
        assert_eq!(summary.withheld.len(), MAX_WITHHELD);
        let counted: u64 = summary.withheld.iter().map(|(_, packets)| *packets).sum();
        assert_eq!(counted + summary.others, 10_000);
    }

    #[test]
    fn a_window_below_the_rate_logs_no_summary() {
        let mut window = Window::open(at(0));
        window.take(&denied(1), 100);
        let summary = window.close(at(1000), 10);
        assert!(summary.busy.is_empty() && summary.withheld.is_empty());
    }
}
