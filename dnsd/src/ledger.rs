//! What was told to whom and is still live: the source of every resync, and the memory that knows whether an
//! answer tells its client anything new.
//!
//! An address is used again, and what was told to one pod was not told to the next one there: it is neither told again
//! as if it were, nor does it count as told when the next one asks.
//!
//! Bounded for each client and in total. What has to go to make room is told again, and waited for again,
//! when it is asked again; so a limit costs time, never safety.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use egret_kernel::links::Attachment;
use egret_shared::name::DnsName;
use egret_shared::observation::{Observation, ObservedAddress};
use egret_shared::revision::Sequence;
use egret_shared::time::Timestamp;

use crate::client::Asker;
use crate::table::HashMap;

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
}

#[derive(Debug, Default)]
struct Told {
    /// What the address was attached to when its client asked.
    attachment: Option<Attachment>,
    names: HashMap<Arc<DnsName>, Name>,
    /// Names by their age: the number of their last telling.
    by_age: BTreeMap<Sequence, Arc<DnsName>>,
    addresses: usize,
}

#[derive(Debug)]
struct Name {
    chain: Vec<DnsName>,
    addresses: Vec<Address>,
    age: Sequence,
}

#[derive(Clone, Copy, Debug)]
struct Address {
    told: ObservedAddress,
    sequence: Sequence,
}

/// What came of noting an observation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Noted {
    /// The number under which it is to be told to the enforcer; nothing where all of it was told before.
    pub new: Option<Sequence>,
    /// The numbers that its addresses wait for, each once.
    pub sequences: Vec<Sequence>,
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
        self.forget_predecessor(observation.client, attachment);
        let told = self.clients.entry(observation.client).or_insert_with(|| Told {
            attachment,
            ..Told::default()
        });
        let before = told.addresses;
        let noted = told.note(observation, next, is_stale);
        self.addresses = self.addresses + told.addresses - before;
        if noted.new.is_some() {
            self.latest = next;
            self.make_room(observation, now);
        }
        noted
    }

    /// The highest number under which a client was told these addresses for at least as long; nothing where one of them
    /// was not, or `is_stale` says that its last telling does not count.
    #[must_use]
    pub fn told(
        &self,
        asker: Asker,
        question: &DnsName,
        addresses: &[ObservedAddress],
        is_stale: impl Fn(Sequence) -> bool,
    ) -> Option<Sequence> {
        let told = self.clients.get(&asker.address)?;
        let name = told.of(asker.attachment)?.names.get(question)?;
        addresses
            .iter()
            .enumerate()
            .try_fold(Sequence::ZERO, |highest, (place, told)| {
                let known = &name.addresses[name.place_of(told.address, place)?];
                let counts = known.told.expires >= told.expires && !is_stale(known.sequence);
                counts.then(|| highest.max(known.sequence))
            })
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
    pub fn keys(&self) -> Vec<(IpAddr, Arc<DnsName>)> {
        self.clients
            .iter()
            .flat_map(|(client, told)| told.names.keys().map(|name| (*client, Arc::clone(name))))
            .collect()
    }

    /// What one client was told of one name and still lives, under a new number; nothing where its address is attached
    /// elsewhere now, or nobody can say where it is.
    pub fn retell(
        &mut self,
        asker: Asker,
        name: &Arc<DnsName>,
        now: Timestamp,
    ) -> Option<(Sequence, Observation)> {
        let next = self.latest.next();
        let client = asker.address;
        let told = self.clients.get_mut(&client)?;
        told.of(Some(asker.attachment?))?;
        let addresses = told.renumber(name, next, now, self.limits.grace)?;
        self.latest = next;
        let observation = Observation {
            client,
            question: DnsName::clone(name),
            chain: told.names.get(name)?.chain.clone(),
            addresses,
        };
        Some((next, observation))
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
            told.names.iter().filter_map(move |(question, name)| {
                let live = |address: &&Address| now < address.told.expires.after(grace);
                let live: Vec<&Address> = name.addresses.iter().filter(live).collect();
                let observation = Observation {
                    client,
                    question: DnsName::clone(question),
                    chain: name.chain.clone(),
                    addresses: live.iter().map(|address| address.told).collect(),
                };
                let sequences = live.iter().map(|address| address.sequence).collect();
                (!live.is_empty()).then_some((observation, told.attachment, sequences))
            })
        })
    }

    /// Forgets what is dead.
    pub fn sweep(&mut self, now: Timestamp) {
        let grace = self.limits.grace;
        for told in self.clients.values_mut() {
            self.addresses -= told.sweep(now, grace);
        }
        self.clients.retain(|_, told| !told.names.is_empty());
    }

    /// Forgets what was told to who had the address before.
    fn forget_predecessor(&mut self, client: IpAddr, attachment: Option<Attachment>) {
        let is_another = |told: &Told| told.of(attachment).is_none();
        if self.clients.get(&client).is_some_and(is_another)
            && let Some(gone) = self.clients.remove(&client)
        {
            self.addresses -= gone.addresses;
        }
    }

    fn make_room(&mut self, observation: &Observation, now: Timestamp) {
        let keep = &observation.question;
        while self.addresses_of(observation.client) > self.limits.per_client {
            if !self.evict_oldest(observation.client, Some(keep), now) {
                break;
            }
        }
        while self.addresses > self.limits.total {
            let largest = self.clients.iter().max_by_key(|(_, told)| told.addresses);
            let Some(client) = largest.map(|(client, _)| *client) else {
                break;
            };
            if !self.evict_oldest(client, None, now) {
                break;
            }
        }
    }

    fn addresses_of(&self, client: IpAddr) -> usize {
        self.clients.get(&client).map_or(0, |told| told.addresses)
    }

    fn evict_oldest(&mut self, client: IpAddr, keep: Option<&DnsName>, now: Timestamp) -> bool {
        let Some(evicted) = self
            .clients
            .get_mut(&client)
            .and_then(|told| told.remove_oldest(keep))
        else {
            return false;
        };
        self.addresses -= evicted.len();
        let lived = evicted
            .iter()
            .filter(|address| now < address.told.expires)
            .count();
        self.evictions += u64::try_from(lived).unwrap_or(u64::MAX);
        true
    }
}

impl Told {
    /// What was told to who is attached so.
    fn of(&self, attachment: Option<Attachment>) -> Option<&Self> {
        (self.attachment == attachment).then_some(self)
    }

    fn note(
        &mut self,
        observation: &Observation,
        next: Sequence,
        is_stale: impl Fn(Sequence) -> bool,
    ) -> Noted {
        let key = self.names.get_key_value(&observation.question).map_or_else(
            || Arc::new(observation.question.clone()),
            |(key, _)| Arc::clone(key),
        );
        let name = self.names.entry(Arc::clone(&key)).or_insert_with(|| Name {
            chain: Vec::new(),
            addresses: Vec::new(),
            age: Sequence::ZERO,
        });
        let before = name.addresses.len();
        let mut sequences: Vec<Sequence> = observation
            .addresses
            .iter()
            .enumerate()
            .map(|(place, told)| name.note(*told, place, next, &is_stale))
            .collect();
        sequences.sort_unstable();
        sequences.dedup();
        self.addresses += name.addresses.len() - before;
        let new = (sequences.last() == Some(&next)).then_some(next);
        if new.is_some() {
            name.chain.clone_from(&observation.chain);
            self.by_age.remove(&std::mem::replace(&mut name.age, next));
            self.by_age.insert(next, key);
        }
        Noted { new, sequences }
    }

    fn renumber(
        &mut self,
        key: &Arc<DnsName>,
        next: Sequence,
        now: Timestamp,
        grace: Duration,
    ) -> Option<Vec<ObservedAddress>> {
        let name = self.names.get_mut(key)?;
        let live = name
            .addresses
            .iter_mut()
            .filter(|address| now < address.told.expires.after(grace));
        let addresses: Vec<ObservedAddress> = live
            .map(|address| {
                address.sequence = next;
                address.told
            })
            .collect();
        if addresses.is_empty() {
            return None;
        }
        self.by_age.remove(&std::mem::replace(&mut name.age, next));
        self.by_age.insert(next, Arc::clone(key));
        Some(addresses)
    }

    fn remove_oldest(&mut self, keep: Option<&DnsName>) -> Option<Vec<Address>> {
        let oldest = self
            .by_age
            .iter()
            .find(|(_, name)| Some(name.as_ref()) != keep)
            .map(|(age, _)| *age)?;
        let key = self.by_age.remove(&oldest)?;
        let name = self.names.remove(&key)?;
        self.addresses -= name.addresses.len();
        Some(name.addresses)
    }

    fn sweep(&mut self, now: Timestamp, grace: Duration) -> usize {
        let before = self.addresses;
        for name in self.names.values_mut() {
            let had = name.addresses.len();
            name.addresses
                .retain(|address| now < address.told.expires.after(grace));
            self.addresses -= had - name.addresses.len();
        }
        let by_age = &mut self.by_age;
        self.names.retain(|_, name| {
            let live = !name.addresses.is_empty();
            if !live {
                by_age.remove(&name.age);
            }
            live
        });
        before - self.addresses
    }
}

impl Name {
    /// Where an address stands. The same answer has it at the same place, so that is looked at first: an answer of a
    /// hundred is not a hundred searches.
    fn place_of(&self, address: IpAddr, likely: usize) -> Option<usize> {
        let is_it = |known: &Address| known.told.address == address;
        if self.addresses.get(likely).is_some_and(is_it) {
            return Some(likely);
        }
        self.addresses.iter().position(is_it)
    }

    fn note(
        &mut self,
        told: ObservedAddress,
        likely: usize,
        next: Sequence,
        is_stale: impl Fn(Sequence) -> bool,
    ) -> Sequence {
        let place = self.place_of(told.address, likely);
        match place.map(|place| &mut self.addresses[place]) {
            Some(known) if known.told.expires >= told.expires && !is_stale(known.sequence) => known.sequence,
            Some(known) => {
                known.told.expires = known.told.expires.max(told.expires);
                known.sequence = next;
                next
            }
            None => {
                self.addresses.push(Address { told, sequence: next });
                next
            }
        }
    }
}
