//! The answer cache of a block, bounded in entries and in octets.
//!
//! ```text
//!            ┌────────── bucket of a question ─────────┐
//!  get ──▶   │ success (an answer) │ denial (NXDOMAIN, │  ──▶ fresh ▸ stale ▸ miss
//!            └─────────────────────┴── NODATA, error) ─┘
//!                         a name that does not exist has one bucket for all types (RFC 2308 §5)
//! ```
//!
//! Stored are wire octets; a reply is a copy of them with id, question, flags and TTLs patched, so a hit costs one hash and
//! one copy. `eviction` decides which entry is evicted.
//!
//! A stored NXDOMAIN says nothing of names below it (RFC 8020): another block, a template or `except` may answer for them, and
//! some servers deny empty non-terminals. `nxdomain_cut` knows where it does, and is asked at a miss.

mod key;
pub mod nxdomain_cut;
mod cacheability;
mod eviction;
mod entry;
mod bucket;
mod entries;
mod transfer;

use std::hash::BuildHasher;
use std::time::Duration;

use egret_shared::time::Timestamp;
use hashbrown::HashTable;

use crate::config::model::{CacheRules, Refresh, ServeStale};
use crate::dns::answer::Ttls;
use crate::dns::message::WireName;
use crate::hash::RandomState;

pub use cacheability::{Cacheability, Cacheable, Class, Kind, Provenance};
pub use entry::Demand;
pub(crate) use key::FIXED;
pub use key::{Key, KeyView};
pub use transfer::{TransferCursor, TransferredEntry};

use bucket::{Bucket, Candidate};
use entries::{Entries, EntryId};
use entry::{Entry, Freshness, QueueKind};
use eviction::EvictionQueues;

/// An answer larger than this part of the limit is not stored.
const LARGEST_SHARE: usize = 16;
/// The size of an entry besides its value's octets: itself, its bucket and its place in a queue, and the spare capacity of
/// these; measured right after they grow (`tests/allocations.rs`), rounded up.
const OVERHEAD: usize = 73;

/// A stored value.
pub trait Value: Clone {
    /// Its key.
    fn key(&self) -> KeyView<'_>;
    /// Its size on the heap, in octets.
    fn weight(&self) -> usize;
}

/// The result of a look-up.
#[derive(Debug)]
pub enum Found<V> {
    /// A fresh entry.
    Fresh(Hit<V>),
    /// A fresh entry that is to be refreshed in the background (`prefetch`). Returned once until the refresh ends by `insert` or
    /// `refresh_failed`.
    FreshAndDue(Hit<V>),
    /// An expired entry that may be served (`serve_stale`).
    Stale(Hit<V>, StaleRefresh),
    /// No entry.
    Miss,
}

/// How a stale entry is refreshed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StaleRefresh {
    /// In the background; the stale answer is sent at once.
    Background,
    /// First; the stale answer is sent only if no answer arrives within this time.
    Foreground(Option<Duration>),
    /// Not now: a refresh is running, or failed a short time ago.
    None,
}

/// An entry that was found.
#[derive(Debug)]
pub struct Hit<V> {
    /// The value.
    pub value: V,
    /// When it arrived.
    pub arrived: Timestamp,
    /// Which half of the cache it was in.
    pub class: Class,
    /// The TTLs of the reply.
    pub ttls: Ttls,
    /// When it is or was not fresh any more.
    pub fresh_until: Timestamp,
}

/// The cache of a block.
#[derive(Debug)]
pub struct Cache<V> {
    rules: CacheRules,
    limit: usize,
    entries: Entries<V>,
    /// By the hash of their entries' key.
    buckets: HashTable<Bucket>,
    seed: RandomState,
    queues: EvictionQueues,
    evictions: [u64; 2],
    /// Counts fresh entries that are fresh no more before their time.
    ended_early: u64,
}

impl<V: Value> Cache<V> {
    /// An empty cache of at most `limit` octets.
    #[must_use]
    pub fn new(rules: &CacheRules, limit: usize) -> Self {
        Self {
            queues: EvictionQueues::new([rules.success.entries, rules.denial.entries], limit),
            rules: rules.clone(),
            limit,
            entries: Entries::new(),
            buckets: HashTable::new(),
            seed: RandomState::default(),
            evictions: [0; 2],
            ended_early: 0,
        }
    }

    /// The rules.
    #[must_use]
    pub const fn rules(&self) -> &CacheRules {
        &self.rules
    }

    /// Whether it caches this name (the zones of `cache`).
    #[must_use]
    pub fn covers(&self, name: &WireName) -> bool {
        self.rules.zones.is_empty() || self.rules.zones.iter().any(|zone| zone.holds(name))
    }

    /// Looks up a question. A client without RD is given the answers to others.
    pub fn get<'a>(&mut self, key: impl Into<KeyView<'a>>, now: Timestamp) -> Found<V> {
        let key = key.into();
        let own = self.peek(key, now);
        if let Some(own) = own.filter(|own| own.is_final(&self.rules)) {
            return self.hit(own, now);
        }
        match (own, self.peek(key.of_name(), now)) {
            (_, Some(name)) if name.age == Freshness::Fresh => self.hit(name, now),
            (Some(own), _) if own.kind != Kind::Failure => self.hit(own, now),
            (_, Some(name)) => self.hit(name, now),
            (Some(own), None) => self.hit(own, now),
            (None, None) => Found::Miss,
        }
    }

    /// Stores an answer; `make` builds the value for the key under which it is stored. Answers to queries without RD, and those
    /// too large, are not stored.
    pub fn insert(
        &mut self,
        key: &Key,
        make: impl FnOnce(&Key) -> Option<V>,
        kept: Cacheable,
        arrived: Timestamp,
    ) {
        if !key.recursion() || self.is_outranked(key, kept, arrived) {
            return;
        }
        let stored_key = key.storage_key(kept.kind);
        let Some(value) = make(&stored_key).filter(|value| self.is_storable(value)) else {
            return;
        };
        self.expire_contradicted(key, &key.of_name(), kept.kind, arrived);
        self.put(&stored_key, value, kept, arrived);
        self.evict(arrived);
    }

    /// Ends a failed refresh: the next one starts after the pause of the rules.
    pub fn refresh_failed(&mut self, key: &Key, now: Timestamp) {
        let pause = self.stale().map_or(Duration::ZERO, |stale| stale.failure_recheck);
        for key in [key.view(), key.view().of_name()] {
            for id in self.bucket(key).ids() {
                self.entries[id].refresh_failed(now, pause);
            }
        }
    }

    /// The number of entries of a class.
    #[must_use]
    pub fn entries(&self, class: Class) -> usize {
        self.queues.entries(class)
    }

    /// The number of entries.
    #[must_use]
    pub fn len(&self) -> usize {
        self.entries(Class::Success) + self.entries(Class::Denial)
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The size of all entries, in octets.
    #[must_use]
    pub fn weight(&self) -> usize {
        self.queues.weight()
    }

    /// Entries of a class that were evicted while they could be served.
    #[must_use]
    pub const fn evictions(&self, class: Class) -> u64 {
        self.evictions[class as usize]
    }

    /// How often a fresh entry was replaced, contradicted or evicted: what was answered from it may not be answered again.
    #[must_use]
    pub const fn ended_early(&self) -> u64 {
        self.ended_early
    }

    fn stale(&self) -> Option<&ServeStale> {
        self.rules.serve_stale.as_ref()
    }

    fn prefers_positive(&self) -> bool {
        bucket::prefers_positive(&self.rules)
    }

    /// The entry of a key's bucket that would be served.
    fn peek(&self, key: KeyView<'_>, now: Timestamp) -> Option<Candidate> {
        self.bucket(key).choose(&self.entries, &self.rules, now)
    }

    /// The bucket of a key.
    fn bucket(&self, key: KeyView<'_>) -> Bucket {
        let is_it = |bucket: &Bucket| value_of(*bucket, &self.entries).key() == key;
        let found = self.buckets.find(self.seed.hash_one(key), is_it);
        found.copied().unwrap_or_default()
    }

    fn hit(&mut self, candidate: Candidate, now: Timestamp) -> Found<V> {
        hit(&mut self.entries[candidate.id], candidate, &self.rules, now)
    }

    /// The size of an entry.
    fn weight_of(value: &V) -> usize {
        value.weight() + OVERHEAD
    }

    /// Whether it is small enough to be stored.
    fn is_storable(&self, value: &V) -> bool {
        Self::weight_of(value) <= self.limit / LARGEST_SHARE
    }

    /// Whether the present entry is better: a failure never replaces an answer that may be served, nor does a referral replace
    /// a positive answer where those are preferred.
    fn is_outranked(&self, key: &Key, kept: Cacheable, now: Timestamp) -> bool {
        match kept.kind {
            Kind::Failure => {
                let own = self.bucket(key.view());
                own.denies(&self.entries, &self.rules, now) || self.peek(key.view().of_name(), now).is_some()
            }
            Kind::Other => {
                let own = self.bucket(key.view());
                self.prefers_positive() && own.answers(&self.entries, &self.rules, now)
            }
            Kind::Answer | Kind::Denial | Kind::NameError => false,
        }
    }

    /// The latest answer counts: an answer ends a denial, a denial an answer.
    fn expire_contradicted(&mut self, key: &Key, of_name: &Key, kind: Kind, now: Timestamp) {
        let keeps_positive = self.prefers_positive();
        let forgotten: &[(&Key, Class)] = match kind {
            Kind::Failure => &[],
            Kind::Other if keeps_positive => &[],
            Kind::Answer | Kind::Other => &[(key, Class::Denial), (of_name, Class::Denial)],
            Kind::Denial if keeps_positive => &[(of_name, Class::Denial)],
            Kind::Denial => &[(key, Class::Success), (of_name, Class::Denial)],
            Kind::NameError if keeps_positive => &[(key, Class::Denial)],
            Kind::NameError => &[(key, Class::Success), (key, Class::Denial)],
        };
        for (key, class) in forgotten {
            if let Some(id) = self.bucket(key.view()).of(*class) {
                self.note_ended_early(id, now);
                self.entries[id].expire();
            }
        }
    }

    /// Stores a value under its key, with one look-up.
    fn put(&mut self, key: &Key, value: V, kept: Cacheable, arrived: Timestamp) -> EntryId {
        let (class, weight) = (kept.kind.class(), Self::weight_of(&value));
        let (entries, buckets, seed) = (&mut self.entries, &mut self.buckets, &self.seed);
        let hash = seed.hash_one(key.view());
        let found = buckets.find_mut(hash, |bucket| value_of(*bucket, entries).key() == key.view());
        if let Some(id) = found.as_ref().and_then(|bucket| bucket.of(class)) {
            self.replace(id, value, kept, arrived);
            return id;
        }
        let id = entries.add(Entry::new(value, kept, arrived));
        if let Some(bucket) = found {
            bucket.set(class, Some(id));
        } else {
            let hash_of = |bucket: &Bucket| seed.hash_one(value_of(*bucket, entries).key());
            buckets.insert_unique(hash, Bucket::with(class, id), hash_of);
        }
        self.queues.push(class, QueueKind::Small, id, weight);
        id
    }

    fn replace(&mut self, id: EntryId, value: V, kept: Cacheable, arrived: Timestamp) {
        self.note_ended_early(id, arrived);
        let (entry, weight) = (&mut self.entries[id], Self::weight_of(&value));
        let before = Self::weight_of(entry.value());
        self.queues
            .reweigh(kept.kind.class(), entry.queue(), before, weight);
        entry.replace(value, kept, arrived);
    }

    fn evict(&mut self, now: Timestamp) {
        while let Some((class, queue)) = self.queues.overfull() {
            self.evict_oldest(class, queue, now);
        }
    }

    /// The oldest entry of a queue is promoted or evicted.
    fn evict_oldest(&mut self, class: Class, queue: QueueKind, now: Timestamp) {
        let Some(id) = self.queues.pop(class, queue) else {
            return;
        };
        let entry = &mut self.entries[id];
        let weight = Self::weight_of(entry.value());
        self.queues.lighten(class, queue, weight);
        let is_servable = entry.is_servable(&self.rules, now);
        if is_servable && entry.promote(queue) {
            self.queues.push(class, QueueKind::Main, id, weight);
            return;
        }
        self.note_ended_early(id, now);
        self.remove(class, id);
        self.evictions[class as usize] += u64::from(is_servable);
    }

    fn note_ended_early(&mut self, id: EntryId, now: Timestamp) {
        let is_fresh = self.entries[id].freshness(&self.rules, now) == Some(Freshness::Fresh);
        self.ended_early += u64::from(is_fresh);
    }

    fn remove(&mut self, class: Class, id: EntryId) {
        let hash = self.seed.hash_one(self.entries[id].value().key());
        let bucket = self
            .buckets
            .find_entry(hash, |bucket| bucket.of(class) == Some(id));
        let mut bucket =
            bucket.expect("every entry in a queue has its bucket: they are added and removed together");
        bucket.get_mut().set(class, None);
        if bucket.get().is_empty() {
            bucket.remove();
        }
        self.entries.remove(id);
    }
}

/// The value that a bucket is found by: both of its entries have the same key.
fn value_of<V: Value>(bucket: Bucket, entries: &Entries<V>) -> &V {
    let id = bucket.ids().next();
    entries[id.expect("a bucket is removed with its last entry")].value()
}

fn hit<V: Value>(entry: &mut Entry<V>, candidate: Candidate, rules: &CacheRules, now: Timestamp) -> Found<V> {
    entry.count_use();
    let hit = Hit {
        value: entry.value().clone(),
        arrived: entry.arrived(),
        class: candidate.kind.class(),
        ttls: ttls(rules, candidate.age, now),
        fresh_until: entry.fresh_until(),
    };
    match (candidate.age, &rules.serve_stale) {
        (Freshness::Fresh, _) | (Freshness::Stale, None) => {
            let is_due = rules.prefetch.is_some_and(|rule| entry.is_due(&rule, now));
            if is_due {
                Found::FreshAndDue(hit)
            } else {
                Found::Fresh(hit)
            }
        }
        (Freshness::Stale, Some(stale)) => Found::Stale(hit, refresh(entry, stale, now)),
    }
}

/// `keepttl` overrides the TTL of stale answers only where that is 0, as in CoreDNS.
fn ttls(rules: &CacheRules, age: Freshness, now: Timestamp) -> Ttls {
    let stale = rules.serve_stale.as_ref().filter(|_| age == Freshness::Stale);
    let fixed = stale.map(|stale| u32::try_from(stale.response_ttl.as_secs()).unwrap_or(u32::MAX));
    match fixed {
        Some(seconds) if seconds > 0 || !rules.keep_ttl => Ttls::All(seconds),
        Some(_) | None if rules.keep_ttl => Ttls::Original,
        Some(_) | None => Ttls::CountedDown(now),
    }
}

/// One background refresh runs at a time. In the foreground each query may refresh, unless failures are followed by a pause:
/// then one refreshes and the others do not wait for it.
fn refresh<V>(entry: &mut Entry<V>, stale: &ServeStale, now: Timestamp) -> StaleRefresh {
    match stale.refresh {
        Refresh::Verify { timeout } if stale.failure_recheck.is_zero() => StaleRefresh::Foreground(timeout),
        Refresh::Verify { timeout } if entry.begin_refresh(now) => StaleRefresh::Foreground(timeout),
        Refresh::Immediate if entry.begin_refresh(now) => StaleRefresh::Background,
        Refresh::Verify { .. } | Refresh::Immediate => StaleRefresh::None,
    }
}
