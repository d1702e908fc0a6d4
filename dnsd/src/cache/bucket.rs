//! What is kept for one question: an answer, a denial, or both.

use std::time::Duration;

use egret_shared::time::Timestamp;
use serde::{Deserialize, Serialize};

use super::REFRESH_PATIENCE;
use super::entries::{Entries, Id};
use crate::cache::cacheability::{Class, Kept, Kind};
use crate::cache::eviction::Place;
use crate::config::model::{CacheRules, Prefetch};

/// How many times an entry is spared for having been asked for.
const MAX_USES: u8 = 3;

/// Whether an entry has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Age {
    /// It has not.
    Fresh,
    /// It has, and may be given all the same.
    Stale,
}

/// What of a slot would be given.
#[derive(Clone, Copy, Debug)]
pub(super) struct Choice {
    pub(super) id: Id,
    pub(super) kind: Kind,
    pub(super) age: Age,
}

impl Choice {
    /// Whether nothing that is true of the name for all types goes before it.
    pub(super) fn is_final(self, rules: &CacheRules) -> bool {
        match self.kind {
            Kind::Answer => self.age == Age::Fresh || prefers_positive(rules),
            Kind::Other | Kind::Denial | Kind::NameError => self.age == Age::Fresh,
            Kind::Failure => false,
        }
    }
}

/// The entries of one question.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Slot([Option<Id>; 2]);

/// One answer. Times are milliseconds after its arrival: there may be very many of them.
#[derive(Debug)]
pub(super) struct Entry<V> {
    value: V,
    arrived: Timestamp,
    lifetime: u32,
    /// When it was last asked for, while that is watched.
    asked_at: u32,
    /// When it may be asked for again behind its clients' backs.
    refresh_from: u32,
    /// Questions without a long pause between them.
    asked: u32,
    kind: Kind,
    place: Place,
    uses: u8,
    /// Something else was heard since.
    is_forgotten: bool,
}

/// How much an entry was asked for: whether it is worth its place, and whether it is to be refreshed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Demand {
    /// How many times it is spared.
    uses: u8,
    /// Questions without a long pause between them.
    asked: u32,
    /// The last of them, in milliseconds after its arrival.
    asked_at: u32,
}

impl Slot {
    /// One with this entry alone.
    pub(super) fn with(class: Class, id: Id) -> Self {
        let mut slot = Self::default();
        slot.set(class, Some(id));
        slot
    }

    /// The entry of a class.
    pub(super) const fn of(self, class: Class) -> Option<Id> {
        self.0[class as usize]
    }

    pub(super) const fn set(&mut self, class: Class, id: Option<Id>) {
        self.0[class as usize] = id;
    }

    /// All of them.
    pub(super) fn ids(self) -> impl Iterator<Item = Id> {
        self.0.into_iter().flatten()
    }

    pub(super) const fn is_empty(self) -> bool {
        self.0[0].is_none() && self.0[1].is_none()
    }

    /// What is given of the two: the denial, unless it is a failure (those pass) or answers are preferred.
    pub(super) fn choose<V>(
        self,
        entries: &Entries<V>,
        rules: &CacheRules,
        now: Timestamp,
    ) -> Option<Choice> {
        let choice = |class| {
            let id = self.of(class)?;
            let entry = &entries[id];
            let age = entry.age(rules, now)?;
            Some(Choice {
                id,
                kind: entry.kind,
                age,
            })
        };
        match (choice(Class::Success), choice(Class::Denial)) {
            (Some(success), _) if success.kind == Kind::Answer && prefers_positive(rules) => Some(success),
            (success, Some(denial)) if denial.kind == Kind::Failure => success.or(Some(denial)),
            (success, denial) => denial.or(success),
        }
    }

    /// Whether there is an answer of the type asked for that may be given.
    pub(super) fn answers<V>(self, entries: &Entries<V>, rules: &CacheRules, now: Timestamp) -> bool {
        let success = self.of(Class::Success).map(|id| &entries[id]);
        success.is_some_and(|entry| entry.kind == Kind::Answer && entry.is_of_use(rules, now))
    }

    /// Whether there is a denial, not a failure, that may be given.
    pub(super) fn denies<V>(self, entries: &Entries<V>, rules: &CacheRules, now: Timestamp) -> bool {
        let denial = self.of(Class::Denial).map(|id| &entries[id]);
        denial.is_some_and(|entry| entry.kind != Kind::Failure && entry.is_of_use(rules, now))
    }
}

pub(super) fn prefers_positive(rules: &CacheRules) -> bool {
    rules.serve_stale.is_some_and(|stale| stale.prefers_positive)
}

impl<V> Entry<V> {
    pub(super) fn new(value: V, kept: Kept, arrived: Timestamp) -> Self {
        Self {
            value,
            arrived,
            lifetime: millis(kept.lifetime),
            asked_at: 0,
            refresh_from: 0,
            asked: 0,
            kind: kept.kind,
            place: Place::Small,
            uses: 0,
            is_forgotten: false,
        }
    }

    /// Takes a newer answer in its place; how often it was asked for stays.
    pub(super) fn replace(&mut self, value: V, kept: Kept, arrived: Timestamp) {
        let asked_at = self.arrived.after(Duration::from_millis(self.asked_at.into()));
        *self = Self {
            asked_at: millis(asked_at.since(arrived)),
            asked: self.asked,
            place: self.place,
            uses: self.uses,
            ..Self::new(value, kept, arrived)
        };
    }

    pub(super) const fn value(&self) -> &V {
        &self.value
    }

    pub(super) const fn arrived(&self) -> Timestamp {
        self.arrived
    }

    pub(super) const fn kind(&self) -> Kind {
        self.kind
    }

    pub(super) const fn place(&self) -> Place {
        self.place
    }

    /// Ends it; it goes when its turn comes.
    pub(super) const fn forget(&mut self) {
        self.is_forgotten = true;
    }

    /// Whether it may be given, and as what. Failures are never stale (RFC 9520 §3.2 bounds them).
    pub(super) fn age(&self, rules: &CacheRules, now: Timestamp) -> Option<Age> {
        let age = self.age_millis(now);
        if self.is_forgotten {
            return None;
        }
        if age < self.lifetime {
            return Some(Age::Fresh);
        }
        let stale = rules
            .serve_stale
            .as_ref()
            .filter(|_| self.kind != Kind::Failure)?;
        let end = self.lifetime.saturating_add(millis(stale.up_to));
        (age < end).then_some(Age::Stale)
    }

    pub(super) fn is_of_use(&self, rules: &CacheRules, now: Timestamp) -> bool {
        self.age(rules, now).is_some()
    }

    pub(super) fn use_once(&mut self) {
        self.uses = (self.uses + 1).min(MAX_USES);
    }

    /// How much it was asked for.
    pub(super) const fn demand(&self) -> Demand {
        Demand {
            uses: self.uses,
            asked: self.asked,
            asked_at: self.asked_at,
        }
    }

    /// The same as another dnsd knew it.
    pub(super) fn take_demand(&mut self, demand: Demand) {
        self.uses = demand.uses.min(MAX_USES);
        self.asked = demand.asked;
        self.asked_at = demand.asked_at;
    }

    /// Whether it stays when the oldest of its queue has to go: from the small queue it moves on if it was asked
    /// for, in the main one it gets another turn for each time.
    pub(super) const fn spare(&mut self, place: Place) -> bool {
        if self.uses == 0 {
            return false;
        }
        self.uses = match place {
            Place::Small => 0,
            Place::Main => self.uses - 1,
        };
        self.place = Place::Main;
        true
    }

    /// Counts a question, and tells whether it is time to refresh.
    pub(super) fn is_due(&mut self, rule: &Prefetch, now: Timestamp) -> bool {
        let age = self.age_millis(now);
        let is_first = self.asked == 0 || age.saturating_sub(self.asked_at) > millis(rule.within);
        self.asked = if is_first { 1 } else { self.asked.saturating_add(1) };
        self.asked_at = age;
        let seconds = u64::from(self.lifetime / 1000) * u64::from(rule.percentage);
        let left = self.lifetime.saturating_sub(age);
        let is_near_its_end = u64::from(left) <= seconds.div_ceil(100) * 1000;
        self.asked >= rule.amount && is_near_its_end && self.begin_refresh(now)
    }

    /// Begins a refresh unless one is under way.
    pub(super) fn begin_refresh(&mut self, now: Timestamp) -> bool {
        let age = self.age_millis(now);
        let may = age >= self.refresh_from;
        if may {
            self.refresh_from = age.saturating_add(millis(REFRESH_PATIENCE));
        }
        may
    }

    /// Sets when the next refresh may begin; a pause is for what has ended.
    pub(super) fn refresh_failed(&mut self, now: Timestamp, pause: Duration) {
        let age = self.age_millis(now);
        let pause = if age < self.lifetime { 0 } else { millis(pause) };
        self.refresh_from = age.saturating_add(pause);
    }

    fn age_millis(&self, now: Timestamp) -> u32 {
        millis(now.since(self.arrived))
    }
}

fn millis(span: Duration) -> u32 {
    u32::try_from(span.as_millis()).unwrap_or(u32::MAX)
}
