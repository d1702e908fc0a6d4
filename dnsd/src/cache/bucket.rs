//! The entries of one question: an answer, a denial, or both.

use egret_shared::time::Timestamp;

use super::entries::{Entries, EntryId};
use crate::cache::cacheability::{Class, Kind};
use crate::cache::entry::Freshness;
use crate::config::model::CacheRules;

/// The entry that would be served.
#[derive(Clone, Copy, Debug)]
pub(super) struct Candidate {
    pub(super) id: EntryId,
    pub(super) kind: Kind,
    pub(super) age: Freshness,
}

impl Candidate {
    /// Whether it takes precedence over a denial of the name for all types.
    pub(super) fn is_final(self, rules: &CacheRules) -> bool {
        match self.kind {
            Kind::Answer => self.age == Freshness::Fresh || prefers_positive(rules),
            Kind::Other | Kind::Denial | Kind::NameError => self.age == Freshness::Fresh,
            Kind::Failure => false,
        }
    }
}

/// The entries of one question, by class.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Bucket([Option<EntryId>; 2]);

impl Bucket {
    /// A bucket with this entry alone.
    pub(super) fn with(class: Class, id: EntryId) -> Self {
        let mut bucket = Self::default();
        bucket.set(class, Some(id));
        bucket
    }

    /// The entry of a class.
    pub(super) const fn of(self, class: Class) -> Option<EntryId> {
        self.0[class as usize]
    }

    pub(super) const fn set(&mut self, class: Class, id: Option<EntryId>) {
        self.0[class as usize] = id;
    }

    /// Its entries.
    pub(super) fn ids(self) -> impl Iterator<Item = EntryId> {
        self.0.into_iter().flatten()
    }

    pub(super) const fn is_empty(self) -> bool {
        self.0[0].is_none() && self.0[1].is_none()
    }

    /// The entry to serve: the denial, unless it is a failure or positive answers are preferred.
    pub(super) fn choose<V>(
        self,
        entries: &Entries<V>,
        rules: &CacheRules,
        now: Timestamp,
    ) -> Option<Candidate> {
        let candidate = |class| {
            let id = self.of(class)?;
            let entry = &entries[id];
            let age = entry.freshness(rules, now)?;
            Some(Candidate {
                id,
                kind: entry.kind(),
                age,
            })
        };
        match (candidate(Class::Success), candidate(Class::Denial)) {
            (Some(success), _) if success.kind == Kind::Answer && prefers_positive(rules) => Some(success),
            (success, Some(denial)) if denial.kind == Kind::Failure => success.or(Some(denial)),
            (success, denial) => denial.or(success),
        }
    }

    /// Whether there is a servable answer of the queried type.
    pub(super) fn answers<V>(self, entries: &Entries<V>, rules: &CacheRules, now: Timestamp) -> bool {
        let success = self.of(Class::Success).map(|id| &entries[id]);
        success.is_some_and(|entry| entry.kind() == Kind::Answer && entry.is_servable(rules, now))
    }

    /// Whether there is a servable denial that is no failure.
    pub(super) fn denies<V>(self, entries: &Entries<V>, rules: &CacheRules, now: Timestamp) -> bool {
        let denial = self.of(Class::Denial).map(|id| &entries[id]);
        denial.is_some_and(|entry| entry.kind() != Kind::Failure && entry.is_servable(rules, now))
    }
}

pub(super) fn prefers_positive(rules: &CacheRules) -> bool {
    rules.serve_stale.is_some_and(|stale| stale.prefers_positive)
}
