//! The live addresses that each client was given: the source of every resync, and what decides whether an answer is new to
//! its client.
//!
//! An address is reused: records of its earlier owner are neither sent again nor counted for its next owner.
//!
//! Bounded per client and in total. An evicted record is recorded, and waited for, again when the name is queried again: a
//! limit costs time, never safety.

mod client;
mod name;
mod bitmap;

use std::collections::BTreeSet;
use std::collections::hash_map::Entry;
use std::net::IpAddr;
use std::time::Duration;

use egret_kernel::links::Attachment;
use egret_shared::name::DnsName;
use egret_shared::observation::{Observation, ObservedAddress};
use egret_shared::revision::Sequence;
use egret_shared::time::Timestamp;

use crate::enforcement::client::ClientId;
use crate::hash::HashMap;

pub use bitmap::ClientBitmap;
pub use client::{NameId, RecordOutcome};

use bitmap::BitAllocator;
use client::ClientRecords;
use name::{AddressRecord, NameRecord, name_of};

/// The limits of the records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordLimits {
    /// Addresses of one client.
    pub per_client: usize,
    /// Addresses of all clients.
    pub total: usize,
    /// How long after its expiry an address is still sent again: the enforcer keeps addresses for a grace period (30 s by
    /// default), and one with a TTL of 0 lives for that period alone.
    pub grace: Duration,
}

/// The records of all clients.
#[derive(Debug)]
pub struct Records {
    clients: HashMap<IpAddr, ClientRecords>,
    /// The clients by their number of addresses: the largest one is evicted from.
    by_size: BTreeSet<(usize, IpAddr)>,
    addresses: usize,
    latest: Sequence,
    limits: RecordLimits,
    evictions: u64,
    bits: BitAllocator,
}

impl Records {
    /// Empty records.
    #[must_use]
    pub fn new(limits: RecordLimits) -> Self {
        Self {
            clients: HashMap::default(),
            by_size: BTreeSet::new(),
            addresses: 0,
            latest: Sequence::ZERO,
            limits,
            evictions: 0,
            bits: BitAllocator::new(),
        }
    }

    /// Records an observation. An address gets a new sequence if it is new, if it expires later than recorded, or if
    /// `is_stale` says that its sequence does not count. Above the limits, records are evicted of which `has_interest` says that
    /// no policy of their client mentions the name, and others where there is none of those.
    pub fn note(
        &mut self,
        observation: &Observation,
        attachment: Option<Attachment>,
        is_stale: impl Fn(Sequence) -> bool,
        has_interest: impl Fn(IpAddr, &DnsName) -> bool,
        now: Timestamp,
    ) -> RecordOutcome {
        let next = self.latest.next();
        let client_records = match self.clients.entry(observation.client) {
            Entry::Vacant(entry) => entry.insert(ClientRecords::to(attachment)),
            Entry::Occupied(entry) => entry.into_mut(),
        };
        let size_before = client_records.addresses();
        if client_records.of(attachment).is_none() {
            // The records of the address' earlier owner.
            self.addresses -= client_records.addresses();
            *client_records = ClientRecords::to(attachment);
        }
        let before = client_records.addresses();
        let of_interest = has_interest(observation.client, &observation.question);
        let noted = client_records.note(observation, next, of_interest, is_stale);
        let after = client_records.addresses();
        self.addresses = self.addresses + after - before;
        self.by_size.remove(&(size_before, observation.client));
        self.by_size.insert((after, observation.client));
        if noted.new.is_some() {
            self.latest = next;
            if after > self.limits.per_client || self.addresses > self.limits.total {
                self.evict(observation, has_interest, now);
            }
        }
        noted
    }

    /// The highest sequence of these addresses in the client's records; `None` where one of them is missing or expires
    /// earlier there, or `is_stale` says that its sequence does not count.
    #[must_use]
    pub fn sequence_of(
        &self,
        client_id: ClientId,
        question: &str,
        mut addresses: impl Iterator<Item = ObservedAddress>,
        is_stale: impl Fn(Sequence) -> bool,
    ) -> Option<Sequence> {
        let client_records = self.clients.get(&client_id.address)?.of(client_id.attachment)?;
        let name = client_records.get(client_records.find(question)?)?;
        let mut positions = 0..;
        addresses.try_fold(Sequence::ZERO, |highest, observed| {
            let known = name.find(observed.address, positions.next()?)?;
            let counts = known.observed.expires >= observed.expires && !is_stale(known.sequence);
            counts.then(|| highest.max(known.sequence))
        })
    }

    /// Whether the client's bit is set at an answer.
    #[must_use]
    pub fn is_marked(&self, client_id: ClientId, bitmap: &ClientBitmap) -> bool {
        let client_records = self.clients.get(&client_id.address);
        client_records
            .and_then(|client_records| client_records.of(client_id.attachment))
            .is_some_and(|client_records| self.bits.is_marked(client_records.bit, bitmap))
    }

    /// Sets the client's bit at an answer.
    pub fn mark(&mut self, client_id: ClientId, bitmap: &ClientBitmap) {
        let client_records = self.clients.get_mut(&client_id.address);
        if let Some(client_records) =
            client_records.filter(|client_records| client_records.of(client_id.attachment).is_some())
        {
            self.bits.mark(&mut client_records.bit, bitmap);
        }
    }

    /// Voids the client's bits.
    fn unmark(&mut self, client: IpAddr) {
        if let Some(client_records) = self.clients.get_mut(&client) {
            self.bits.take(&mut client_records.bit);
        }
    }

    /// The client's interest has changed: voids its bits, and evicts by the new interest from now on.
    pub fn interest_changed(&mut self, client: IpAddr) {
        if let Some(client_records) = self.clients.get_mut(&client) {
            client_records.interest_changed();
        }
        self.unmark(client);
    }

    /// The interest of any client may have changed.
    pub fn any_interest_changed(&mut self) {
        self.clients
            .values_mut()
            .for_each(ClientRecords::interest_changed);
    }

    /// How often bits became void: a client may have to be recorded, or waited for, that was not before.
    #[must_use]
    pub const fn voids(&self) -> u64 {
        self.bits.voids()
    }

    /// Voids all bits.
    pub const fn unmark_all(&mut self) {
        self.bits.next_generation();
    }

    /// The last sequence.
    #[must_use]
    pub const fn latest(&self) -> Sequence {
        self.latest
    }

    /// The number of addresses.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.addresses
    }

    /// Whether there is none.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.addresses == 0
    }

    /// Addresses that were evicted before they expired.
    #[must_use]
    pub const fn evictions(&self) -> u64 {
        self.evictions
    }

    /// Changes the limits; what exceeds them is evicted with the next new record.
    pub const fn set_limits(&mut self, limits: RecordLimits) {
        self.limits = limits;
    }

    /// The keys of all records, for a resync in pieces.
    #[must_use]
    pub fn keys(&self) -> Vec<(IpAddr, NameId)> {
        let clients = self.clients.iter();
        clients
            .flat_map(|(client, client_records)| client_records.ids().map(|name| (*client, name)))
            .collect()
    }

    /// The live addresses of one record, under a new sequence; `None` where the client's address is attached elsewhere now, or
    /// where that is unknown.
    pub fn renumber(
        &mut self,
        client_id: ClientId,
        name: NameId,
        now: Timestamp,
    ) -> Option<(Sequence, Observation)> {
        let next = self.latest.next();
        let client = client_id.address;
        let client_records = self.clients.get_mut(&client)?;
        client_records.of(Some(client_id.attachment?))?;
        let addresses = client_records.renumber(name, next, now, self.limits.grace)?;
        self.latest = next;
        Some((next, observation(client, client_records.get(name)?, addresses)))
    }

    /// The clients.
    #[must_use]
    pub fn clients(&self) -> Vec<IpAddr> {
        self.clients.keys().copied().collect()
    }

    /// The live records of a client, with their sequences, and what the client was attached to.
    pub fn observations_of(
        &self,
        client: IpAddr,
        now: Timestamp,
    ) -> impl Iterator<Item = (Observation, Option<Attachment>, Vec<Sequence>)> {
        let grace = self.limits.grace;
        let of_client = self.clients.get(&client).into_iter();
        of_client.flat_map(move |client_records| {
            client_records.ids().filter_map(move |id| {
                let name = client_records.get(id)?;
                let live = name.addresses().filter(|address| address.lives(now, grace));
                let (addresses, sequences): (Vec<_>, Vec<_>) =
                    live.map(|address| (address.observed, address.sequence)).unzip();
                let is_live = !addresses.is_empty();
                is_live.then(|| {
                    (
                        observation(client, name, addresses),
                        client_records.attachment,
                        sequences,
                    )
                })
            })
        })
    }

    /// Removes expired addresses; returns their number.
    pub fn sweep(&mut self, now: Timestamp) -> usize {
        let (grace, before) = (self.limits.grace, self.addresses);
        for client_records in self.clients.values_mut() {
            self.addresses -= client_records.sweep(now, grace);
        }
        self.clients
            .retain(|_, client_records| !client_records.is_empty());
        let sizes = self.clients.iter();
        self.by_size = sizes
            .map(|(client, records)| (records.addresses(), *client))
            .collect();
        if before > self.addresses || self.bits.are_short() {
            self.unmark_all();
        }
        before - self.addresses
    }

    fn evict(
        &mut self,
        observation: &Observation,
        has_interest: impl Fn(IpAddr, &DnsName) -> bool,
        now: Timestamp,
    ) {
        let keep = observation.question.as_str();
        while self.addresses_of(observation.client) > self.limits.per_client {
            if !self.evict_name(observation.client, Some(keep), &has_interest, now) {
                self.shorten(observation, now);
                break;
            }
        }
        while self.addresses > self.limits.total {
            let Some((_, largest)) = self.by_size.last().copied() else {
                break;
            };
            if !self.evict_name(largest, None, &has_interest, now) {
                break;
            }
        }
    }

    fn addresses_of(&self, client: IpAddr) -> usize {
        self.clients.get(&client).map_or(0, ClientRecords::addresses)
    }

    /// Evicts one name of a client, if there is one besides `keep`.
    fn evict_name(
        &mut self,
        client: IpAddr,
        keep: Option<&str>,
        has_interest: impl Fn(IpAddr, &DnsName) -> bool,
        now: Timestamp,
    ) -> bool {
        let client_records = self.clients.get_mut(&client);
        let evicted =
            client_records.and_then(|records| records.evict(keep, |name| has_interest(client, name)));
        if let Some(evicted) = &evicted {
            self.note_evicted(client, evicted.addresses(), now);
        }
        evicted.is_some()
    }

    /// Bounds the addresses of one name, whose answers may all differ.
    fn shorten(&mut self, observation: &Observation, now: Timestamp) {
        let (client, most) = (observation.client, self.limits.per_client);
        if let Some(client_records) = self.clients.get_mut(&client) {
            let evicted = client_records.shorten(observation, most);
            self.note_evicted(client, evicted.into_iter(), now);
        }
    }

    fn note_evicted(&mut self, client: IpAddr, evicted: impl Iterator<Item = AddressRecord>, now: Timestamp) {
        let mut count = 0;
        for address in evicted {
            count += 1;
            self.evictions += u64::from(now < address.observed.expires);
        }
        self.addresses -= count;
        let size = self.addresses_of(client);
        self.by_size.remove(&(size + count, client));
        self.by_size.insert((size, client));
        self.unmark(client);
    }
}

/// The observation that a record holds.
fn observation(client: IpAddr, name: &NameRecord, addresses: Vec<ObservedAddress>) -> Observation {
    let mut chain: Vec<DnsName> = name.names().map(name_of).collect();
    Observation {
        client,
        question: chain.remove(0),
        chain,
        addresses,
    }
}
