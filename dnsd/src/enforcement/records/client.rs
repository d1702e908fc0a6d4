//! The records of one client: by name, and in the order in which they were last recorded.

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

use super::name::{AddressRecord, NameRecord, name_of};
use crate::enforcement::records::bitmap::BitIndex;
use crate::hash::RandomState;

/// The index of a record of one client. It is reused when the record is removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NameId(NonZeroU32);

/// The records of a client.
#[derive(Debug, Default)]
pub(super) struct ClientRecords {
    /// What the client's address was attached to when it asked.
    pub(super) attachment: Option<Attachment>,
    /// The client's bit in the bitmaps of cached answers.
    pub(super) bit: BitIndex,
    nodes: Vec<Option<Node>>,
    free: Vec<NameId>,
    by_question: HashTable<IndexEntry>,
    seed: RandomState,
    /// Each record is in one of them; those without interest are evicted first.
    without_interest: AgeList,
    with_interest: AgeList,
    /// Whether the lists follow the client's present interest.
    is_sorted_by_interest: bool,
    addresses: usize,
}

/// A list of records from the oldest to the newest.
#[derive(Clone, Copy, Debug, Default)]
struct AgeList {
    oldest: Option<NameId>,
    newest: Option<NameId>,
}

/// A record with the hash of its question: a table that grows needs all hashes, and to compute them is to read every name.
#[derive(Clone, Copy, Debug)]
struct IndexEntry {
    hash: NameHash,
    id: NameId,
}

/// Half of the bits that the table wants: enough for the names of one client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct NameHash(u32);

/// A record in the list ordered by time.
#[derive(Debug)]
struct Node {
    name: NameRecord,
    older: Option<NameId>,
    newer: Option<NameId>,
}

/// The result of recording an observation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordOutcome {
    /// The sequence under which it is sent to the enforcer; `None` where all of it is recorded already.
    pub new: Option<Sequence>,
    /// The sequences of its addresses, each once.
    pub sequences: Vec<Sequence>,
    /// Addresses of it that are sent again because their sequence does not count, and that are recorded with a later expiry:
    /// that expiry is sent.
    pub longer: Vec<ObservedAddress>,
}

impl NameHash {
    fn of(question: &str, seed: &RandomState) -> Self {
        let [_, _, _, _, half @ ..] = seed.hash_one(question).to_le_bytes();
        Self(u32::from_le_bytes(half))
    }

    /// The table takes the bucket from the lower bits and its tag from the upper ones.
    fn whole(self) -> u64 {
        u64::from(self.0) << 32 | u64::from(self.0)
    }
}

impl NameId {
    fn of(index: usize) -> Self {
        let number = u32::try_from(index + 1).ok().and_then(NonZeroU32::new);
        Self(number.expect("a client has fewer names"))
    }

    const fn index(self) -> usize {
        self.0.get() as usize - 1
    }
}

impl ClientRecords {
    pub(super) fn to(attachment: Option<Attachment>) -> Self {
        Self {
            attachment,
            ..Self::default()
        }
    }

    /// These records, if they are of a client attached so.
    pub(super) fn of(&self, attachment: Option<Attachment>) -> Option<&Self> {
        (self.attachment == attachment).then_some(self)
    }

    /// The number of addresses.
    pub(super) const fn addresses(&self) -> usize {
        self.addresses
    }

    pub(super) fn is_empty(&self) -> bool {
        self.by_question.is_empty()
    }

    /// All records.
    pub(super) fn ids(&self) -> impl Iterator<Item = NameId> {
        self.by_question.iter().map(|known| known.id)
    }

    /// A record; `None` where it was removed meanwhile.
    pub(super) fn get(&self, id: NameId) -> Option<&NameRecord> {
        self.nodes.get(id.index())?.as_ref().map(|node| &node.name)
    }

    pub(super) fn find(&self, question: &str) -> Option<NameId> {
        self.find_hashed(NameHash::of(question, &self.seed), question)
    }

    fn find_hashed(&self, hash: NameHash, question: &str) -> Option<NameId> {
        let is_of = |id| self.get(id).is_some_and(|name| name.is_of(question));
        let is_it = |known: &IndexEntry| known.hash == hash && is_of(known.id);
        self.by_question.find(hash.whole(), is_it).map(|known| known.id)
    }

    /// Records an observation under the sequence `next`, unless all of it is recorded already.
    pub(super) fn note(
        &mut self,
        observation: &Observation,
        next: Sequence,
        has_interest: bool,
        is_stale: impl Fn(Sequence) -> bool,
    ) -> RecordOutcome {
        let question = observation.question.as_str();
        let hash = NameHash::of(question, &self.seed);
        let found = self.find_hashed(hash, question);
        if found.is_none() && are_ascending(&observation.addresses) {
            self.add(
                hash,
                named(observation, all_new(&observation.addresses, next)),
                has_interest,
            );
            return RecordOutcome {
                new: Some(next),
                sequences: vec![next],
                longer: Vec::new(),
            };
        }
        let before = found.and_then(|id| self.get(id));
        let mut addresses: Vec<AddressRecord> = before.into_iter().flat_map(NameRecord::addresses).collect();
        let known = addresses.len();
        let mut longer = Vec::new();
        let observed = each_once(&observation.addresses);
        let mut sequences: Vec<Sequence> = observed
            .iter()
            .map(|observed| {
                let known = note(&mut addresses, known, *observed, next, &is_stale);
                longer.extend(
                    (known.observed.expires > observed.expires && known.sequence == next)
                        .then_some(known.observed),
                );
                known.sequence
            })
            .collect();
        if addresses.len() > known {
            addresses.sort_by_key(|known| known.observed.address);
        }
        sequences.sort_unstable();
        sequences.dedup();
        let new = (sequences.last() == Some(&next)).then_some(next);
        if new.is_some() {
            let name = named(observation, addresses.iter().copied());
            match found {
                Some(id) => {
                    self.put(id, name);
                    self.unlink(id);
                    self.link(id, has_interest);
                }
                None => self.add(hash, name, has_interest),
            }
        }
        RecordOutcome {
            new,
            sequences,
            longer,
        }
    }

    /// Gives the live addresses of a name a new sequence.
    pub(super) fn renumber(
        &mut self,
        id: NameId,
        next: Sequence,
        now: Timestamp,
        grace: Duration,
    ) -> Option<Vec<ObservedAddress>> {
        let name = self.get(id)?;
        let mut addresses: Vec<AddressRecord> = name.addresses().collect();
        let mut live = Vec::new();
        for address in addresses.iter_mut().filter(|address| address.lives(now, grace)) {
            address.sequence = next;
            live.push(address.observed);
        }
        if live.is_empty() {
            return None;
        }
        let name = NameRecord::new(name.names(), addresses.iter().copied());
        self.put(id, name);
        Some(live)
    }

    /// The client's interest changed: the lists are sorted anew before the next eviction.
    pub(super) const fn interest_changed(&mut self) {
        self.is_sorted_by_interest = false;
    }

    /// Removes the oldest record without interest, or the oldest with interest where there is no other; but not the one of
    /// the question `keep`.
    pub(super) fn evict(
        &mut self,
        keep: Option<&str>,
        has_interest: impl Fn(&DnsName) -> bool,
    ) -> Option<NameRecord> {
        if !self.is_sorted_by_interest {
            self.sort_by_interest(has_interest);
        }
        let evictable = |list: AgeList| {
            let oldest = list.oldest?;
            let is_kept = Some(self.node(oldest).name.question()) == keep;
            if is_kept {
                self.node(oldest).newer
            } else {
                Some(oldest)
            }
        };
        let id = evictable(self.without_interest).or_else(|| evictable(self.with_interest))?;
        Some(self.remove(id))
    }

    /// Moves records whose interest changed to the end of the other list.
    fn sort_by_interest(&mut self, has_interest: impl Fn(&DnsName) -> bool) {
        for (oldest, was_of_interest) in [
            (self.without_interest.oldest, false),
            (self.with_interest.oldest, true),
        ] {
            // Records that are moved to the second list are its last and stay there.
            let mut next = oldest;
            while let Some(id) = next {
                let node = self.node(id);
                next = node.newer;
                let is_of_interest = has_interest(&name_of(node.name.question()));
                if is_of_interest != was_of_interest {
                    self.unlink(id);
                    self.link(id, is_of_interest);
                }
            }
        }
        self.is_sorted_by_interest = true;
    }

    /// Removes the oldest addresses of a name, but none of this answer, while it has more than `most`.
    pub(super) fn shorten(&mut self, observation: &Observation, most: usize) -> Vec<AddressRecord> {
        let found = self.find(observation.question.as_str());
        let Some((id, name)) = found.and_then(|id| Some((id, self.get(id)?))) else {
            return Vec::new();
        };
        let observed = each_once(&observation.addresses);
        let is_observed = |known: &AddressRecord| {
            let found = observed.binary_search_by_key(&known.observed.address, |observed| observed.address);
            found.is_ok()
        };
        let (kept, mut others): (Vec<_>, Vec<_>) = name.addresses().partition(is_observed);
        others.sort_unstable_by_key(|known| (known.sequence, known.observed.expires));
        let gone = (kept.len() + others.len()).saturating_sub(most).min(others.len());
        let mut left: Vec<AddressRecord> = kept.into_iter().chain(others.drain(gone..)).collect();
        left.sort_unstable_by_key(|known| known.observed.address);
        let name = NameRecord::new(name.names(), left.iter().copied());
        self.put(id, name);
        others
    }

    /// Removes expired addresses; returns their number.
    pub(super) fn sweep(&mut self, now: Timestamp, grace: Duration) -> usize {
        let before = self.addresses;
        for index in 0..self.nodes.len() {
            let id = NameId::of(index);
            let Some(name) = self.get(id) else {
                continue;
            };
            if name.addresses().all(|address| address.lives(now, grace)) {
                continue;
            }
            let live = name.addresses().filter(|address| address.lives(now, grace));
            let live: Vec<AddressRecord> = live.collect();
            if live.is_empty() {
                drop(self.remove(id));
            } else {
                let name = NameRecord::new(name.names(), live.iter().copied());
                self.put(id, name);
            }
        }
        before - self.addresses
    }

    /// Adds a record with the hash of its question.
    fn add(&mut self, hash: NameHash, name: NameRecord, has_interest: bool) {
        self.addresses += name.len();
        let node = Some(Node {
            name,
            older: None,
            newer: None,
        });
        let id = match self.free.pop() {
            Some(id) => {
                self.nodes[id.index()] = node;
                id
            }
            None => {
                if self.nodes.len() == self.nodes.capacity() {
                    // Grows by an eighth: doubling would waste as much memory as it uses.
                    self.nodes.reserve_exact(self.nodes.len() / 8 + 4);
                }
                self.nodes.push(node);
                NameId::of(self.nodes.len() - 1)
            }
        };
        let known = IndexEntry { hash, id };
        self.by_question
            .insert_unique(hash.whole(), known, |known| known.hash.whole());
        self.link(id, has_interest);
    }

    fn put(&mut self, id: NameId, name: NameRecord) {
        let before = self.node(id).name.len();
        self.addresses = self.addresses + name.len() - before;
        self.node_mut(id).name = name;
    }

    fn remove(&mut self, id: NameId) -> NameRecord {
        self.unlink(id);
        let hash = NameHash::of(self.node(id).name.question(), &self.seed);
        if let Ok(entry) = self.by_question.find_entry(hash.whole(), |known| known.id == id) {
            entry.remove();
        }
        self.free.push(id);
        let node = self.nodes[id.index()].take().expect(PRESENT);
        self.addresses -= node.name.len();
        node.name
    }

    /// Makes a record the newest of its list.
    fn link(&mut self, id: NameId, has_interest: bool) {
        let list = if has_interest {
            &mut self.with_interest
        } else {
            &mut self.without_interest
        };
        let older = list.newest.replace(id);
        if older.is_none() {
            list.oldest = Some(id);
        }
        if let Some(older) = older {
            self.node_mut(older).newer = Some(id);
        }
        let node = self.node_mut(id);
        (node.older, node.newer) = (older, None);
    }

    fn unlink(&mut self, id: NameId) {
        let Node { older, newer, .. } = *self.node(id);
        if let Some(older) = older {
            self.node_mut(older).newer = newer;
        }
        if let Some(newer) = newer {
            self.node_mut(newer).older = older;
        }
        // The ends say which list it is in: a record needs no room for that.
        for list in [&mut self.without_interest, &mut self.with_interest] {
            if list.oldest == Some(id) {
                list.oldest = newer;
            }
            if list.newest == Some(id) {
                list.newest = older;
            }
        }
    }

    fn node(&self, id: NameId) -> &Node {
        self.nodes[id.index()].as_ref().expect(PRESENT)
    }

    fn node_mut(&mut self, id: NameId) -> &mut Node {
        self.nodes[id.index()].as_mut().expect(PRESENT)
    }
}

const PRESENT: &str = "the index is of a record that is there";

impl AddressRecord {
    pub(super) fn lives(&self, now: Timestamp, grace: Duration) -> bool {
        now < self.observed.expires.after(grace)
    }
}

/// The names of an observation with these addresses.
fn named(observation: &Observation, addresses: impl Iterator<Item = AddressRecord> + Clone) -> NameRecord {
    let names = [&observation.question].into_iter().chain(&observation.chain);
    NameRecord::new(names.map(DnsName::as_str), addresses)
}

/// Whether addresses are strictly ascending, as observations have them.
fn are_ascending(addresses: &[ObservedAddress]) -> bool {
    !addresses.is_empty() && addresses.is_sorted_by(|one, next| one.address < next.address)
}

fn all_new(addresses: &[ObservedAddress], sequence: Sequence) -> impl Iterator<Item = AddressRecord> + Clone {
    let addresses = addresses.iter();
    addresses.map(move |observed| AddressRecord {
        observed: *observed,
        sequence,
    })
}

/// The addresses in ascending order, each with its latest expiry. Sorted, since a name may have thousands of addresses.
fn each_once(addresses: &[ObservedAddress]) -> Cow<'_, [ObservedAddress]> {
    if are_ascending(addresses) {
        return Cow::Borrowed(addresses);
    }
    let mut addresses = addresses.to_vec();
    addresses.sort_by_key(|observed| (observed.address, Reverse(observed.expires)));
    addresses.dedup_by_key(|observed| observed.address);
    Cow::Owned(addresses)
}

/// Records an address among `addresses`, of which the first `known` are sorted; returns its record.
fn note(
    addresses: &mut Vec<AddressRecord>,
    known: usize,
    observed: ObservedAddress,
    next: Sequence,
    is_stale: impl Fn(Sequence) -> bool,
) -> AddressRecord {
    match addresses[..known].binary_search_by_key(&observed.address, |known| known.observed.address) {
        Ok(index) => {
            let known = &mut addresses[index];
            if known.observed.expires < observed.expires || is_stale(known.sequence) {
                known.observed.expires = known.observed.expires.max(observed.expires);
                known.sequence = next;
            }
            *known
        }
        Err(_new) => {
            let new = AddressRecord {
                observed,
                sequence: next,
            };
            addresses.push(new);
            new
        }
    }
}
