//! What was told to whom and is still live: the source of every resync, and the memory that knows whether an
//! answer tells its client anything new.
//!
//! An address is used again, and what was told to one pod was not told to the next one there: it is neither told again
//! as if it were, nor does it count as told when the next one asks.
//!
//! Bounded for each client and in total. What has to go to make room is told again, and waited for again,
//! when it is asked again; so a limit costs time, never safety.

mod client;
mod name;
mod bitmap;

use std::collections::hash_map::Entry;
use std::net::IpAddr;
use std::time::Duration;

use egret_kernel::links::Attachment;
use egret_shared::name::DnsName;
use egret_shared::observation::{Observation, ObservedAddress};
use egret_shared::revision::Sequence;
use egret_shared::time::Timestamp;

use crate::enforcement::client::Asker;
use crate::hash::HashMap;

pub use bitmap::Marks;
pub use client::Id;

use bitmap::Seats;
use client::Told;
use name::{Address, Name, name_of};

/// How much a ledger holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LedgerLimits {
    /// Addresses for one client.
    pub per_client: usize,
    /// Addresses for all.
    pub total: usize,
    /// How long after its end an address is still told again: the enforcer keeps addresses for a grace (30 s by
    /// default), and one with a TTL of 0 lives for the grace alone.
    pub grace: Duration,
}

/// What was told.
#[derive(Debug)]
pub struct Ledger {
    clients: HashMap<IpAddr, Told>,
    addresses: usize,
    latest: Sequence,
    limits: LedgerLimits,
    evictions: u64,
    seats: Seats,
}

/// What came of noting an observation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Noted {
    /// The number under which it is to be told to the enforcer; nothing where all of it was told before.
    pub new: Option<Sequence>,
    /// The numbers that its addresses wait for, each once.
    pub sequences: Vec<Sequence>,
    /// Addresses of it that are told again because their last telling does not count, and were told to live longer: that
    /// is what is to be told again.
    pub longer: Vec<ObservedAddress>,
}

impl Ledger {
    /// An empty ledger.
    #[must_use]
    pub fn new(limits: LedgerLimits) -> Self {
        Self {
            clients: HashMap::default(),
            addresses: 0,
            latest: Sequence::ZERO,
            limits,
            evictions: 0,
            seats: Seats::new(),
        }
    }

    /// Notes an observation. An address is told (again) if it is new, if it lives longer than was told, or if
    /// `is_stale` says that its last telling does not count.
    pub fn note(
        &mut self,
        observation: &Observation,
        attachment: Option<Attachment>,
        is_stale: impl Fn(Sequence) -> bool,
        now: Timestamp,
    ) -> Noted {
        let next = self.latest.next();
        let told = match self.clients.entry(observation.client) {
            Entry::Vacant(place) => place.insert(Told::to(attachment)),
            Entry::Occupied(place) => place.into_mut(),
        };
        if told.of(attachment).is_none() {
            // What was told to who had the address before.
            self.addresses -= told.addresses();
            *told = Told::to(attachment);
        }
        let before = told.addresses();
        let noted = told.note(observation, next, is_stale);
        let after = told.addresses();
        self.addresses = self.addresses + after - before;
        if noted.new.is_some() {
            self.latest = next;
            if after > self.limits.per_client || self.addresses > self.limits.total {
                self.make_room(observation, now);
            }
        }
        noted
    }

    /// The highest number under which a client was told these addresses for at least as long; nothing where one of them
    /// was not, or `is_stale` says that its last telling does not count.
    #[must_use]
    pub fn told(
        &self,
        asker: Asker,
        question: &str,
        mut addresses: impl Iterator<Item = ObservedAddress>,
        is_stale: impl Fn(Sequence) -> bool,
    ) -> Option<Sequence> {
        let told = self.clients.get(&asker.address)?;
        let told = told.of(asker.attachment)?;
        let name = told.get(told.find(question)?)?;
        let mut places = 0..;
        addresses.try_fold(Sequence::ZERO, |highest, told| {
            let known = name.find(told.address, places.next()?)?;
            let counts = known.told.expires >= told.expires && !is_stale(known.sequence);
            counts.then(|| highest.max(known.sequence))
        })
    }

    /// Whether an answer is marked as one that the client was told.
    #[must_use]
    pub fn is_marked(&self, asker: Asker, marks: &Marks) -> bool {
        let told = self.clients.get(&asker.address);
        told.and_then(|told| told.of(asker.attachment))
            .is_some_and(|told| self.seats.is_marked(told.seat, marks))
    }

    /// Marks an answer that the client was told.
    pub fn mark(&mut self, asker: Asker, marks: &Marks) {
        let told = self.clients.get_mut(&asker.address);
        if let Some(told) = told.filter(|told| told.of(asker.attachment).is_some()) {
            self.seats.mark(&mut told.seat, marks);
        }
    }

    /// Has the client's marks count no longer.
    pub fn unmark(&mut self, client: IpAddr) {
        if let Some(told) = self.clients.get_mut(&client) {
            self.seats.take(&mut told.seat);
        }
    }

    /// Has no mark count any longer.
    pub const fn unmark_all(&mut self) {
        self.seats.begin_epoch();
    }

    /// The last number that was given.
    #[must_use]
    pub const fn latest(&self) -> Sequence {
        self.latest
    }

    /// How many addresses it holds.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.addresses
    }

    /// Whether it holds none.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.addresses == 0
    }

    /// How many had to go while they lived.
    #[must_use]
    pub const fn evictions(&self) -> u64 {
        self.evictions
    }

    /// Changes the limits; what is over them goes with the next telling.
    pub const fn set_limits(&mut self, limits: LedgerLimits) {
        self.limits = limits;
    }

    /// Everything, as a list to go through in pieces.
    #[must_use]
    pub fn keys(&self) -> Vec<(IpAddr, Id)> {
        let clients = self.clients.iter();
        clients
            .flat_map(|(client, told)| told.ids().map(|name| (*client, name)))
            .collect()
    }

    /// What one client was told of one name and still lives, under a new number; nothing where its address is attached
    /// elsewhere now, or nobody can say where it is.
    pub fn retell(&mut self, asker: Asker, name: Id, now: Timestamp) -> Option<(Sequence, Observation)> {
        let next = self.latest.next();
        let client = asker.address;
        let told = self.clients.get_mut(&client)?;
        told.of(Some(asker.attachment?))?;
        let addresses = told.renumber(name, next, now, self.limits.grace)?;
        self.latest = next;
        Some((next, observation(client, told.get(name)?, addresses)))
    }

    /// The clients.
    #[must_use]
    pub fn clients(&self) -> Vec<IpAddr> {
        self.clients.keys().copied().collect()
    }

    /// What a client was told and still lives, with the numbers of its tellings, and what the client was attached to.
    pub fn told_to(
        &self,
        client: IpAddr,
        now: Timestamp,
    ) -> impl Iterator<Item = (Observation, Option<Attachment>, Vec<Sequence>)> {
        let grace = self.limits.grace;
        let of_client = self.clients.get(&client).into_iter();
        of_client.flat_map(move |told| {
            told.ids().filter_map(move |id| {
                let name = told.get(id)?;
                let live = name.addresses().filter(|address| address.lives(now, grace));
                let (addresses, sequences): (Vec<_>, Vec<_>) =
                    live.map(|address| (address.told, address.sequence)).unzip();
                let is_live = !addresses.is_empty();
                is_live.then(|| (observation(client, name, addresses), told.attachment, sequences))
            })
        })
    }

    /// Forgets what is dead; says how many addresses that were.
    pub fn sweep(&mut self, now: Timestamp) -> usize {
        let (grace, before) = (self.limits.grace, self.addresses);
        for told in self.clients.values_mut() {
            self.addresses -= told.sweep(now, grace);
        }
        self.clients.retain(|_, told| !told.is_empty());
        if before > self.addresses || self.seats.are_short() {
            self.unmark_all();
        }
        before - self.addresses
    }

    fn make_room(&mut self, observation: &Observation, now: Timestamp) {
        let keep = observation.question.as_str();
        while self.addresses_of(observation.client) > self.limits.per_client {
            if !self.evict_oldest(observation.client, Some(keep), now) {
                self.shorten(observation, now);
                break;
            }
        }
        while self.addresses > self.limits.total {
            let largest = self.clients.iter().max_by_key(|(_, told)| told.addresses());
            let Some(client) = largest.map(|(client, _)| *client) else {
                break;
            };
            if !self.evict_oldest(client, None, now) {
                break;
            }
        }
    }

    fn addresses_of(&self, client: IpAddr) -> usize {
        self.clients.get(&client).map_or(0, Told::addresses)
    }

    fn evict_oldest(&mut self, client: IpAddr, keep: Option<&str>, now: Timestamp) -> bool {
        let Some(evicted) = self
            .clients
            .get_mut(&client)
            .and_then(|told| told.remove_oldest(keep))
        else {
            return false;
        };
        self.note_evicted(client, evicted.addresses(), now);
        true
    }

    /// A name of which no two answers are alike is not left to grow either.
    fn shorten(&mut self, observation: &Observation, now: Timestamp) {
        let (client, most) = (observation.client, self.limits.per_client);
        if let Some(told) = self.clients.get_mut(&client) {
            let evicted = told.shorten(observation, most);
            self.note_evicted(client, evicted.into_iter(), now);
        }
    }

    fn note_evicted(&mut self, client: IpAddr, evicted: impl Iterator<Item = Address>, now: Timestamp) {
        for address in evicted {
            self.addresses -= 1;
            self.evictions += u64::from(now < address.told.expires);
        }
        self.unmark(client);
    }
}

/// What a client was told of a name.
fn observation(client: IpAddr, name: &Name, addresses: Vec<ObservedAddress>) -> Observation {
    let mut chain: Vec<DnsName> = name.names().map(name_of).collect();
    Observation {
        client,
        question: chain.remove(0),
        chain,
        addresses,
    }
}
