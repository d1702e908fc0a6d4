//! What one client was told: names, found by their text, and in the order of their last telling.

use std::borrow::Cow;
use std::cmp::Reverse;
use std::hash::BuildHasher;
use std::num::NonZeroU32;
use std::time::Duration;

use egret_kernel::links::Attachment;
use egret_shared::name::DnsName;
use egret_shared::observation::{Observation, ObservedAddress};
use egret_shared::revision::Sequence;
use egret_shared::time::Timestamp;
use hashbrown::HashTable;

use super::Noted;
use super::name::{Address, Name};
use crate::enforcement::records::bitmap::Seat;
use crate::hash::Seeded;

/// The number of a name of one client. It is given again to another name when this one is forgotten.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Id(NonZeroU32);

/// What a client was told.
#[derive(Debug, Default)]
pub(super) struct Told {
    /// What the address was attached to when its client asked.
    pub(super) attachment: Option<Attachment>,
    /// Where answers are marked that it was told.
    pub(super) seat: Seat,
    places: Vec<Option<Node>>,
    free: Vec<Id>,
    by_question: HashTable<Known>,
    seed: Seeded,
    oldest: Option<Id>,
    newest: Option<Id>,
    addresses: usize,
}

/// A name, with the hash of its question: a table that grows asks for the hashes of all, and to make them anew is to read
/// every name.
#[derive(Clone, Copy, Debug)]
struct Known {
    hash: Hash,
    id: Id,
}

/// A half of the bits that the table wants: for as many names as a client may be told there is nothing in the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Hash(u32);

/// A name between those that were told before it and after it.
#[derive(Debug)]
struct Node {
    name: Name,
    older: Option<Id>,
    newer: Option<Id>,
}

impl Hash {
    fn of(question: &str, seed: &Seeded) -> Self {
        let [_, _, _, _, half @ ..] = seed.hash_one(question).to_le_bytes();
        Self(u32::from_le_bytes(half))
    }

    /// The table takes the place from the lower bits and a mark from the upper ones.
    fn whole(self) -> u64 {
        u64::from(self.0) << 32 | u64::from(self.0)
    }
}

impl Id {
    fn of(place: usize) -> Self {
        let number = u32::try_from(place + 1).ok().and_then(NonZeroU32::new);
        Self(number.expect("a client is told fewer names"))
    }

    const fn place(self) -> usize {
        self.0.get() as usize - 1
    }
}

impl Told {
    pub(super) fn to(attachment: Option<Attachment>) -> Self {
        Self {
            attachment,
            ..Self::default()
        }
    }

    /// What was told to who is attached so.
    pub(super) fn of(&self, attachment: Option<Attachment>) -> Option<&Self> {
        (self.attachment == attachment).then_some(self)
    }

    /// How many addresses.
    pub(super) const fn addresses(&self) -> usize {
        self.addresses
    }

    pub(super) fn is_empty(&self) -> bool {
        self.by_question.is_empty()
    }

    /// All names.
    pub(super) fn ids(&self) -> impl Iterator<Item = Id> {
        self.by_question.iter().map(|known| known.id)
    }

    /// What was told of a name; nothing where it was forgotten meanwhile.
    pub(super) fn get(&self, id: Id) -> Option<&Name> {
        self.places.get(id.place())?.as_ref().map(|node| &node.name)
    }

    pub(super) fn find(&self, question: &str) -> Option<Id> {
        self.find_hashed(Hash::of(question, &self.seed), question)
    }

    fn find_hashed(&self, hash: Hash, question: &str) -> Option<Id> {
        let is_of = |id| self.get(id).is_some_and(|name| name.is_of(question));
        let is_it = |known: &Known| known.hash == hash && is_of(known.id);
        self.by_question.find(hash.whole(), is_it).map(|known| known.id)
    }

    /// Notes an observation under this number, or that all of it was told before.
    pub(super) fn note(
        &mut self,
        observation: &Observation,
        next: Sequence,
        is_stale: impl Fn(Sequence) -> bool,
    ) -> Noted {
        let question = observation.question.as_str();
        let hash = Hash::of(question, &self.seed);
        let found = self.find_hashed(hash, question);
        if found.is_none() && are_unlike(&observation.addresses) {
            self.add(hash, named(observation, all_new(&observation.addresses, next)));
            return Noted {
                new: Some(next),
                sequences: vec![next],
                longer: Vec::new(),
            };
        }
        let before = found.and_then(|id| self.get(id));
        let mut addresses: Vec<Address> = before.into_iter().flat_map(Name::addresses).collect();
        let known = addresses.len();
        let mut longer = Vec::new();
        let observed = each_once(&observation.addresses);
        let mut sequences: Vec<Sequence> = observed
            .iter()
            .map(|told| {
                let known = note(&mut addresses, known, *told, next, &is_stale);
                longer.extend(
                    (known.told.expires > told.expires && known.sequence == next).then_some(known.told),
                );
                known.sequence
            })
            .collect();
        if addresses.len() > known {
            addresses.sort_by_key(|known| known.told.address);
        }
        sequences.sort_unstable();
        sequences.dedup();
        let new = (sequences.last() == Some(&next)).then_some(next);
        if new.is_some() {
            let name = named(observation, addresses.iter().copied());
            match found {
                Some(id) => self.replace(id, name),
                None => self.add(hash, name),
            }
        }
        Noted {
            new,
            sequences,
            longer,
        }
    }

    /// Numbers what lives of a name anew.
    pub(super) fn renumber(
        &mut self,
        id: Id,
        next: Sequence,
        now: Timestamp,
        grace: Duration,
    ) -> Option<Vec<ObservedAddress>> {
        let name = self.get(id)?;
        let mut addresses: Vec<Address> = name.addresses().collect();
        let mut live = Vec::new();
        for address in addresses.iter_mut().filter(|address| address.lives(now, grace)) {
            address.sequence = next;
            live.push(address.told);
        }
        if live.is_empty() {
            return None;
        }
        let name = Name::new(name.names(), addresses.iter().copied());
        self.replace(id, name);
        Some(live)
    }

    /// Forgets the name that was told longest ago, but not this one.
    pub(super) fn remove_oldest(&mut self, keep: Option<&str>) -> Option<Name> {
        let oldest = self.oldest?;
        let is_kept = |id| Some(self.node(id).name.question()) == keep;
        let id = if is_kept(oldest) {
            self.node(oldest).newer?
        } else {
            oldest
        };
        Some(self.remove(id))
    }

    /// Forgets of a name what was told longest ago, but nothing of this answer, where it has more addresses than so many.
    pub(super) fn shorten(&mut self, observation: &Observation, most: usize) -> Vec<Address> {
        let found = self.find(observation.question.as_str());
        let Some((id, name)) = found.and_then(|id| Some((id, self.get(id)?))) else {
            return Vec::new();
        };
        let observed = each_once(&observation.addresses);
        let is_observed = |known: &Address| {
            let found = observed.binary_search_by_key(&known.told.address, |told| told.address);
            found.is_ok()
        };
        let (kept, mut others): (Vec<_>, Vec<_>) = name.addresses().partition(is_observed);
        others.sort_unstable_by_key(|known| (known.sequence, known.told.expires));
        let gone = (kept.len() + others.len()).saturating_sub(most).min(others.len());
        let mut left: Vec<Address> = kept.into_iter().chain(others.drain(gone..)).collect();
        left.sort_unstable_by_key(|known| known.told.address);
        let name = Name::new(name.names(), left.iter().copied());
        self.put(id, name);
        others
    }

    /// Forgets what is dead; says how many addresses that were.
    pub(super) fn sweep(&mut self, now: Timestamp, grace: Duration) -> usize {
        let before = self.addresses;
        for place in 0..self.places.len() {
            let id = Id::of(place);
            let Some(name) = self.get(id) else {
                continue;
            };
            if name.addresses().all(|address| address.lives(now, grace)) {
                continue;
            }
            let live = name.addresses().filter(|address| address.lives(now, grace));
            let live: Vec<Address> = live.collect();
            if live.is_empty() {
                drop(self.remove(id));
            } else {
                let name = Name::new(name.names(), live.iter().copied());
                self.put(id, name);
            }
        }
        before - self.addresses
    }

    /// Adds a name with the hash of its question.
    fn add(&mut self, hash: Hash, name: Name) {
        self.addresses += name.len();
        let node = Some(Node {
            name,
            older: None,
            newer: None,
        });
        let id = match self.free.pop() {
            Some(id) => {
                self.places[id.place()] = node;
                id
            }
            None => {
                if self.places.len() == self.places.capacity() {
                    // By an eighth: twice as many would be as much memory for nothing.
                    self.places.reserve_exact(self.places.len() / 8 + 4);
                }
                self.places.push(node);
                Id::of(self.places.len() - 1)
            }
        };
        let known = Known { hash, id };
        self.by_question
            .insert_unique(hash.whole(), known, |known| known.hash.whole());
        self.link(id);
    }

    /// What was told anew of a name is its newest.
    fn replace(&mut self, id: Id, name: Name) {
        self.put(id, name);
        self.unlink(id);
        self.link(id);
    }

    fn put(&mut self, id: Id, name: Name) {
        let before = self.node(id).name.len();
        self.addresses = self.addresses + name.len() - before;
        self.node_mut(id).name = name;
    }

    fn remove(&mut self, id: Id) -> Name {
        self.unlink(id);
        let hash = Hash::of(self.node(id).name.question(), &self.seed);
        if let Ok(entry) = self.by_question.find_entry(hash.whole(), |known| known.id == id) {
            entry.remove();
        }
        self.free.push(id);
        let node = self.places[id.place()].take().expect(PRESENT);
        self.addresses -= node.name.len();
        node.name
    }

    fn link(&mut self, id: Id) {
        let older = self.newest.replace(id);
        let node = self.node_mut(id);
        (node.older, node.newer) = (older, None);
        match older {
            Some(older) => self.node_mut(older).newer = Some(id),
            None => self.oldest = Some(id),
        }
    }

    fn unlink(&mut self, id: Id) {
        let Node { older, newer, .. } = *self.node(id);
        match older {
            Some(older) => self.node_mut(older).newer = newer,
            None => self.oldest = newer,
        }
        match newer {
            Some(newer) => self.node_mut(newer).older = older,
            None => self.newest = older,
        }
    }

    fn node(&self, id: Id) -> &Node {
        self.places[id.place()].as_ref().expect(PRESENT)
    }

    fn node_mut(&mut self, id: Id) -> &mut Node {
        self.places[id.place()].as_mut().expect(PRESENT)
    }
}

const PRESENT: &str = "a name has its number for as long as it is there";

impl Address {
    pub(super) fn lives(&self, now: Timestamp, grace: Duration) -> bool {
        now < self.told.expires.after(grace)
    }
}

/// The names of an observation with these addresses.
fn named(observation: &Observation, addresses: impl Iterator<Item = Address> + Clone) -> Name {
    let names = [&observation.question].into_iter().chain(&observation.chain);
    Name::new(names.map(DnsName::as_str), addresses)
}

/// Whether no two are the same, as in every answer: they are told in order.
fn are_unlike(addresses: &[ObservedAddress]) -> bool {
    !addresses.is_empty() && addresses.is_sorted_by(|one, next| one.address < next.address)
}

fn all_new(addresses: &[ObservedAddress], sequence: Sequence) -> impl Iterator<Item = Address> + Clone {
    let addresses = addresses.iter();
    addresses.map(move |told| Address {
        told: *told,
        sequence,
    })
}

/// The addresses in order, each with its latest end: a name whose server always gives others has thousands, and who looked
/// for each of them among all others would have everybody wait.
fn each_once(addresses: &[ObservedAddress]) -> Cow<'_, [ObservedAddress]> {
    if are_unlike(addresses) {
        return Cow::Borrowed(addresses);
    }
    let mut addresses = addresses.to_vec();
    addresses.sort_by_key(|told| (told.address, Reverse(told.expires)));
    addresses.dedup_by_key(|told| told.address);
    Cow::Owned(addresses)
}

/// Notes an address, of which the first so many are in order; gives what was told of it last.
fn note(
    addresses: &mut Vec<Address>,
    known: usize,
    told: ObservedAddress,
    next: Sequence,
    is_stale: impl Fn(Sequence) -> bool,
) -> Address {
    match addresses[..known].binary_search_by_key(&told.address, |known| known.told.address) {
        Ok(place) => {
            let known = &mut addresses[place];
            if known.told.expires < told.expires || is_stale(known.sequence) {
                known.told.expires = known.told.expires.max(told.expires);
                known.sequence = next;
            }
            *known
        }
        Err(_new) => {
            let new = Address { told, sequence: next };
            addresses.push(new);
            new
        }
    }
}
