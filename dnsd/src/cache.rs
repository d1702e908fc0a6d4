//! Answers that others may be given too: by a block's rules, bounded in entries and in octets.
//!
//! ```text
//!            ┌────────── slot of a question ──────────┐
//!  get ──▶   │ success (what there is) │ denial (what │  ──▶ fresh ▸ stale ▸ miss
//!            └─────────────────────────┴── is not) ───┘
//!                         a name that does not exist has a slot for all types (RFC 2308 §5)
//! ```
//!
//! What is kept is the wire's octets; a reply is a copy of them with id, question, flags and TTLs patched, so a
//! hit costs one hash and one copy. Which entry has to go when there is no room is decided on the `shelf`.
//!
//! That a name does not exist says nothing here of names below it (RFC 8020): another block, a template or `except` may
//! answer for them, and servers that deny what stands above an existing name are still about. Where it does is
//! known to `cut`, which is asked for what is not here.

mod key;
pub mod nxdomain_cut;
mod cacheability;
mod eviction;
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

pub use bucket::Demand;
pub use cacheability::{Class, Kept, Kind, Maker, Verdict};
pub(crate) use key::FIXED;
pub use key::{Key, KeyView};
pub use transfer::{Remembered, Walk};

use bucket::{Age, Choice, Entry, Slot};
use entries::{Entries, Id};
use eviction::{Place, Shelves};

/// An answer heavier than this part of the whole is given to who asked and not kept.
const LARGEST_SHARE: usize = 16;
/// What an entry takes besides its value's octets: itself, its slot in the table and its place on the shelf, and the room
/// that these keep to grow; counted right behind their growth (`tests/allocations.rs`), rounded up.
const OVERHEAD: usize = 73;
/// After this long a refresh that nobody ended counts as failed.
const REFRESH_PATIENCE: Duration = Duration::from_secs(30);

/// What the cache needs to know of a value.
pub trait Value: Clone {
    /// The key that it was made for; nobody else has it.
    fn key(&self) -> KeyView<'_>;
    /// Octets that it takes besides its own size.
    fn weight(&self) -> usize;
}

/// What is found.
#[derive(Debug)]
pub enum Found<V> {
    /// It lives.
    Fresh(Hit<V>),
    /// It lives, and is to be asked for again behind the answer (`prefetch`). Said once until the refresh has
    /// ended by `insert` or `refresh_failed`.
    FreshAndDue(Hit<V>),
    /// It has ended, and may be given all the same (`serve_stale`).
    Stale(Hit<V>, Ask),
    /// Nothing.
    Miss,
}

/// What the upstream is to be asked when an answer is stale.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ask {
    /// Behind the answer, which goes out at once.
    Behind,
    /// Before: what is stale is given only where the upstream says nothing better within this time.
    First(Option<Duration>),
    /// Not now: somebody does, or did in vain a short time ago.
    NotNow,
}

/// An answer that was found.
#[derive(Debug)]
pub struct Hit<V> {
    /// It.
    pub value: V,
    /// When it arrived.
    pub arrived: Timestamp,
    /// Which half of the cache it was in.
    pub class: Class,
    /// Which TTLs it is to be given with.
    pub ttls: Ttls,
}

/// The cache of a block.
#[derive(Debug)]
pub struct Cache<V> {
    rules: CacheRules,
    limit: usize,
    entries: Entries<V>,
    /// By the hash of the key that their entries have.
    slots: HashTable<Slot>,
    seed: RandomState,
    shelves: Shelves,
    evictions: [u64; 2],
}

impl<V: Value> Cache<V> {
    /// An empty cache of at most `limit` octets.
    #[must_use]
    pub fn new(rules: &CacheRules, limit: usize) -> Self {
        Self {
            shelves: Shelves::new([rules.success.entries, rules.denial.entries], limit),
            rules: rules.clone(),
            limit,
            entries: Entries::new(),
            slots: HashTable::new(),
            seed: RandomState::default(),
            evictions: [0; 2],
        }
    }

    /// The rules.
    #[must_use]
    pub const fn rules(&self) -> &CacheRules {
        &self.rules
    }

    /// Whether questions for this name go by it, in a block that answers for it.
    #[must_use]
    pub fn covers(&self, name: &WireName) -> bool {
        self.rules.zones.is_empty() || self.rules.zones.iter().any(|zone| zone.holds(name))
    }

    /// What there is for a question. A client that does not desire recursion is given what others were.
    pub fn get<'a>(&mut self, key: impl Into<KeyView<'a>>, now: Timestamp) -> Found<V> {
        let key = key.into();
        let own = self.peek(key, now);
        if let Some(own) = own.filter(|own| own.is_final(&self.rules)) {
            return self.hit(own, now);
        }
        match (own, self.peek(key.of_name(), now)) {
            (_, Some(name)) if name.age == Age::Fresh => self.hit(name, now),
            (Some(own), _) if own.kind != Kind::Failure => self.hit(own, now),
            (_, Some(name)) => self.hit(name, now),
            (Some(own), None) => self.hit(own, now),
            (None, None) => Found::Miss,
        }
    }

    /// Keeps an answer to a question, made for the key under which it is kept. What was asked without recursion, and what
    /// is too large, is not kept.
    pub fn insert(
        &mut self,
        key: &Key,
        make: impl FnOnce(&Key) -> Option<V>,
        kept: Kept,
        arrived: Timestamp,
    ) {
        if !key.recursion() || self.is_outranked(key, kept, arrived) {
            return;
        }
        let place = key.place(kept.kind);
        let Some(value) = make(&place).filter(|value| self.has_room_for(value)) else {
            return;
        };
        self.forget_what_it_contradicts(key, &key.of_name(), kept.kind);
        self.put(&place, value, kept, arrived);
        self.make_room(arrived);
    }

    /// Ends a refresh that brought nothing: the next is tried after the pause that the rules set.
    pub fn refresh_failed(&mut self, key: &Key, now: Timestamp) {
        let pause = self.stale().map_or(Duration::ZERO, |stale| stale.failure_recheck);
        for key in [key.view(), key.view().of_name()] {
            for id in self.slot(key).ids() {
                self.entries[id].refresh_failed(now, pause);
            }
        }
    }

    /// How many there are of a class.
    #[must_use]
    pub fn entries(&self, class: Class) -> usize {
        self.shelves.entries(class)
    }

    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.entries(Class::Success) + self.entries(Class::Denial)
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Octets that they take.
    #[must_use]
    pub fn weight(&self) -> usize {
        self.shelves.weight()
    }

    /// How many of a class had to go while they were of use.
    #[must_use]
    pub const fn evictions(&self, class: Class) -> u64 {
        self.evictions[class as usize]
    }

    fn stale(&self) -> Option<&ServeStale> {
        self.rules.serve_stale.as_ref()
    }

    fn prefers_positive(&self) -> bool {
        bucket::prefers_positive(&self.rules)
    }

    /// What of a slot would be given.
    fn peek(&self, key: KeyView<'_>, now: Timestamp) -> Option<Choice> {
        self.slot(key).choose(&self.entries, &self.rules, now)
    }

    /// What is kept under a key.
    fn slot(&self, key: KeyView<'_>) -> Slot {
        let is_it = |slot: &Slot| value_of(*slot, &self.entries).key() == key;
        let found = self.slots.find(self.seed.hash_one(key), is_it);
        found.copied().unwrap_or_default()
    }

    fn hit(&mut self, choice: Choice, now: Timestamp) -> Found<V> {
        hit(&mut self.entries[choice.id], choice, &self.rules, now)
    }

    /// What an entry weighs.
    fn weight_of(value: &V) -> usize {
        value.weight() + OVERHEAD
    }

    /// Whether it is not too much for one.
    fn has_room_for(&self, value: &V) -> bool {
        Self::weight_of(value) <= self.limit / LARGEST_SHARE
    }

    /// Whether what is there is better: a failure never takes the place of an answer that may still be given,
    /// nor an answer that answers nothing that of one that does, where that is preferred.
    fn is_outranked(&self, key: &Key, kept: Kept, now: Timestamp) -> bool {
        match kept.kind {
            Kind::Failure => {
                let own = self.slot(key.view());
                own.denies(&self.entries, &self.rules, now) || self.peek(key.view().of_name(), now).is_some()
            }
            Kind::Other => {
                let own = self.slot(key.view());
                self.prefers_positive() && own.answers(&self.entries, &self.rules, now)
            }
            Kind::Answer | Kind::Denial | Kind::NameError => false,
        }
    }

    /// What was last heard counts: an answer ends a denial, a denial an answer.
    fn forget_what_it_contradicts(&mut self, key: &Key, of_name: &Key, kind: Kind) {
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
            if let Some(id) = self.slot(key.view()).of(*class) {
                self.entries[id].forget();
            }
        }
    }

    /// Keeps a value under the key that it was made for, which is looked for once.
    fn put(&mut self, key: &Key, value: V, kept: Kept, arrived: Timestamp) -> Id {
        let (class, weight) = (kept.kind.class(), Self::weight_of(&value));
        let (entries, slots, seed) = (&mut self.entries, &mut self.slots, &self.seed);
        let hash = seed.hash_one(key.view());
        let found = slots.find_mut(hash, |slot| value_of(*slot, entries).key() == key.view());
        if let Some(id) = found.as_ref().and_then(|slot| slot.of(class)) {
            self.replace(id, value, kept, arrived);
            return id;
        }
        let id = entries.add(Entry::new(value, kept, arrived));
        if let Some(slot) = found {
            slot.set(class, Some(id));
        } else {
            let hash_of = |slot: &Slot| seed.hash_one(value_of(*slot, entries).key());
            slots.insert_unique(hash, Slot::with(class, id), hash_of);
        }
        self.shelves.push(class, Place::Small, id, weight);
        id
    }

    fn replace(&mut self, id: Id, value: V, kept: Kept, arrived: Timestamp) {
        let (entry, weight) = (&mut self.entries[id], Self::weight_of(&value));
        let before = Self::weight_of(entry.value());
        self.shelves
            .reweigh(kept.kind.class(), entry.place(), before, weight);
        entry.replace(value, kept, arrived);
    }

    fn make_room(&mut self, now: Timestamp) {
        while let Some((class, place)) = self.shelves.overfull() {
            self.turn(class, place, now);
        }
    }

    /// The oldest of a queue gets another turn, or goes.
    fn turn(&mut self, class: Class, place: Place, now: Timestamp) {
        let Some(id) = self.shelves.pop(class, place) else {
            return;
        };
        let entry = &mut self.entries[id];
        let weight = Self::weight_of(entry.value());
        self.shelves.lighten(class, place, weight);
        let is_of_use = entry.is_of_use(&self.rules, now);
        if is_of_use && entry.spare(place) {
            self.shelves.push(class, Place::Main, id, weight);
            return;
        }
        self.remove(class, id);
        self.evictions[class as usize] += u64::from(is_of_use);
    }

    fn remove(&mut self, class: Class, id: Id) {
        let hash = self.seed.hash_one(self.entries[id].value().key());
        let bucket = self.slots.find_entry(hash, |slot| slot.of(class) == Some(id));
        let mut bucket =
            bucket.expect("every entry on a shelf has its slot: they are added and removed together");
        bucket.get_mut().set(class, None);
        if bucket.get().is_empty() {
            bucket.remove();
        }
        self.entries.remove(id);
    }
}

/// What a slot is found by: both of its entries have the same key.
fn value_of<V: Value>(slot: Slot, entries: &Entries<V>) -> &V {
    let id = slot.ids().next();
    entries[id.expect("a slot goes with its last entry")].value()
}

fn hit<V: Value>(entry: &mut Entry<V>, choice: Choice, rules: &CacheRules, now: Timestamp) -> Found<V> {
    entry.use_once();
    let hit = Hit {
        value: entry.value().clone(),
        arrived: entry.arrived(),
        class: choice.kind.class(),
        ttls: ttls(rules, choice.age, now),
    };
    match (choice.age, &rules.serve_stale) {
        (Age::Fresh, _) | (Age::Stale, None) => {
            let is_due = rules.prefetch.is_some_and(|rule| entry.is_due(&rule, now));
            if is_due {
                Found::FreshAndDue(hit)
            } else {
                Found::Fresh(hit)
            }
        }
        (Age::Stale, Some(stale)) => Found::Stale(hit, ask(entry, stale, now)),
    }
}

/// `keepttl` goes before the TTL of what is stale only where that is 0, as in CoreDNS.
fn ttls(rules: &CacheRules, age: Age, now: Timestamp) -> Ttls {
    let stale = rules.serve_stale.as_ref().filter(|_| age == Age::Stale);
    let fixed = stale.map(|stale| u32::try_from(stale.response_ttl.as_secs()).unwrap_or(u32::MAX));
    match fixed {
        Some(seconds) if seconds > 0 || !rules.keep_ttl => Ttls::All(seconds),
        Some(_) | None if rules.keep_ttl => Ttls::Original,
        Some(_) | None => Ttls::CountedDown(now),
    }
}

/// Behind an answer one refresh at a time is under way. Before it everybody may ask, unless a failure is to be
/// followed by a pause: then it is known that one is under way, and the others do not wait for it.
fn ask<V>(entry: &mut Entry<V>, stale: &ServeStale, now: Timestamp) -> Ask {
    match stale.refresh {
        Refresh::Verify { timeout } if stale.failure_recheck.is_zero() => Ask::First(timeout),
        Refresh::Verify { timeout } if entry.begin_refresh(now) => Ask::First(timeout),
        Refresh::Immediate if entry.begin_refresh(now) => Ask::Behind,
        Refresh::Verify { .. } | Refresh::Immediate => Ask::NotNow,
    }
}
