//! Denied calls and packets, as the programs tell them by a ring buffer.

use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use aya::maps::{Map as AyaMap, MapData, RingBuf};
use egret_policies::rules::Direction;

use super::SharedCounters;
use super::counters::Counters;
use super::layout::{CounterKey, parse_address};
use super::syscall::{Map, Update};
use crate::backend::{Action, Decider};

/// `sizeof(struct event)`.
const EVENT_SIZE: usize = 96;
/// `sizeof(struct reason)`, and of `struct reason_told`.
const REASON_SIZE: usize = 24;
const TOLD_SIZE: usize = 24;

/// A denied call or packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeniedEvent {
    /// Why.
    pub reason: EventReason,
    /// The cgroup of the pod; none of an unknown pod.
    pub cgroup: Option<u64>,
    /// The process that called; none where a packet was denied.
    pub process: Option<Process>,
    /// The pod's end.
    pub local: SocketAddr,
    /// The other end.
    pub peer: SocketAddr,
    /// The IANA protocol number.
    pub protocol: u8,
    /// The type of an ICMP message.
    pub icmp_type: u8,
    /// Whether it was to leave the pod.
    pub is_outgoing: bool,
}

/// Why something was denied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EventReason {
    /// What decided.
    pub decider: Decider,
    /// The direction.
    pub direction: Direction,
    /// Object and index of the rule; none where no rule decided.
    pub origin: Option<(Arc<str>, usize)>,
    /// Whether the flow was allowed before.
    pub is_revoked: bool,
    /// Whether it was allowed, and policies in audit would deny it.
    pub is_audit: bool,
    /// The key of the limit.
    key: ReasonKey,
}

/// `struct reason`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReasonKey([u8; REASON_SIZE]);

impl EventReason {
    /// By which the programs limit what they tell.
    #[must_use]
    pub const fn key(&self) -> ReasonKey {
        self.key
    }
}

/// A process in a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Process {
    /// As the node sees it.
    pub pid: u32,
    /// Its name (`comm`).
    pub command: String,
}

/// Where events come from.
#[derive(Clone, Debug)]
pub struct EventSource {
    maps: PathBuf,
    counters: Arc<SharedCounters>,
}

impl EventSource {
    pub(super) const fn new(maps: PathBuf, counters: Arc<SharedCounters>) -> Self {
        Self { maps, counters }
    }

    /// Opens the ring buffer, once the backend has read the kernel: waits until then.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn open(&self) -> io::Result<EventReader> {
        let counters = self.counters.wait();
        let ring = MapData::from_pin(self.maps.join("egret_events")).map_err(io::Error::other)?;
        Ok(EventReader {
            ring: RingBuf::try_from(AyaMap::RingBuf(ring)).map_err(io::Error::other)?,
            reasons: Map::open(&self.maps.join("egret_reasons"), (REASON_SIZE, TOLD_SIZE), 1)?,
            counters,
        })
    }
}

/// Says how many events of one reason the programs tell in a second.
pub(super) fn set_limit(maps: &Path, per_second: u32) -> io::Result<()> {
    let limit = Map::open(&maps.join("egret_event_limit"), (4, 4), 1)?;
    limit.update(&0_u32.to_ne_bytes(), &per_second.to_ne_bytes(), Update::Any)
}

/// Reads events.
pub struct EventReader {
    ring: RingBuf<MapData>,
    reasons: Map,
    counters: Arc<Counters>,
}

impl EventReader {
    /// What was denied since the last call, and how many events are of rules that are gone.
    pub fn read(&mut self) -> (Vec<DeniedEvent>, u64) {
        let (mut events, mut unknown) = (Vec::new(), 0);
        while let Some(octets) = self.ring.next() {
            match parse(&octets, &self.counters) {
                Some(event) => events.push(event),
                None => unknown += 1,
            }
        }
        (events, unknown)
    }

    /// How many events of a reason were not told since the programs met it first.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn withheld(&self, reason: ReasonKey) -> io::Result<u64> {
        let told = self.reasons.lookup(&reason.0)?;
        let withheld = told.as_deref().and_then(|told| told.get(16..24)?.try_into().ok());
        Ok(withheld.map_or(0, u64::from_ne_bytes))
    }
}

impl fmt::Debug for EventReader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EventReader").finish_non_exhaustive()
    }
}

impl AsFd for EventReader {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.ring.as_fd()
    }
}

fn parse(octets: &[u8], counters: &Counters) -> Option<DeniedEvent> {
    let octets: &[u8; EVENT_SIZE] = octets.try_into().ok()?;
    let word = |at: usize| octets.get(at..at + 4)?.try_into().ok().map(u32::from_ne_bytes);
    let port = |at: usize| octets.get(at..at + 2)?.try_into().ok().map(u16::from_ne_bytes);
    let cgroup = u64::from_ne_bytes(octets.first_chunk().copied()?);
    let counter: [u8; CounterKey::SIZE] = octets.get(8..28)?.try_into().ok()?;
    let address = |at: usize| {
        parse_address(octets.get(at..at + 20)?)
            .as_ref()
            .map(IpAddr::to_canonical)
    };
    let (pid, command) = (word(28)?, octets.get(32..48)?);
    let [protocol, icmp_type, is_outgoing, is_revoked] = *octets.last_chunk()?;
    let (key, origin) = counters.decided_by(&counter)?;
    let mut reason = [0; REASON_SIZE];
    reason[..CounterKey::SIZE].copy_from_slice(&counter);
    reason[CounterKey::SIZE..].copy_from_slice(&u32::from(is_revoked).to_ne_bytes());
    Some(DeniedEvent {
        reason: EventReason {
            decider: key.decider,
            direction: key.direction,
            origin,
            is_revoked: is_revoked != 0,
            is_audit: key.action == Action::WouldDeny,
            key: ReasonKey(reason),
        },
        cgroup: (cgroup != 0).then_some(cgroup),
        process: (pid != 0).then(|| Process {
            pid,
            command: text(command),
        }),
        local: SocketAddr::new(address(48)?, port(88)?),
        peer: SocketAddr::new(address(68)?, port(90)?),
        protocol,
        icmp_type,
        is_outgoing: is_outgoing != 0,
    })
}

/// A process gives itself its name: any octets up to a zero.
fn text(octets: &[u8]) -> String {
    let name = octets.split(|octet| *octet == 0).next().unwrap_or_default();
    String::from_utf8_lossy(name).into_owned()
}
