//! Expired records. They open no new connection, but connections that they opened may still be open, and go on as long as
//! a rule names the address. So they are kept, for rules that are compiled later.
//!
//! Nothing says when the last of those connections ends, so their number is bounded instead: the oldest is forgotten
//! first, of names that no policy of the pod mentions before all others, and no pod makes another forget as long as it
//! has more itself.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::ops::Bound::{Excluded, Unbounded};
use std::sync::Arc;

use egret_shared::name::{DnsName, NamePattern};
use egret_shared::time::Timestamp;

use super::RecordSnapshot;
use super::small_map::SmallMap;

/// The most of one pod.
pub(super) const MOST_OF_POD: usize = 2_048;
/// The most of all pods together.
pub(super) const MOST: usize = 50_000;

/// An expired record among all of its pod: the earliest end first.
pub(super) type ExpiredPosition = (Timestamp, Arc<DnsName>, IpAddr);

/// The expired records of a pod.
#[derive(Debug, Default)]
pub(super) struct ExpiredRecords {
    ends: BTreeMap<Arc<DnsName>, SmallMap<IpAddr, Timestamp>>,
    by_end: BTreeSet<ExpiredPosition>,
    /// Those of names that no policy of the pod mentions.
    unmentioned: BTreeSet<ExpiredPosition>,
    by_address: BTreeMap<IpAddr, SmallMap<Arc<DnsName>, Timestamp>>,
}

impl ExpiredRecords {
    /// Remembers a record that ended then.
    pub(super) fn keep(
        &mut self,
        name: &Arc<DnsName>,
        address: IpAddr,
        ended: Timestamp,
        is_mentioned: bool,
    ) {
        self.forget(name, address);
        let ends = self.ends.entry(Arc::clone(name)).or_default();
        ends.insert(address, ended);
        let names = self.by_address.entry(address).or_default();
        names.insert(Arc::clone(name), ended);
        let entry = (ended, Arc::clone(name), address);
        if !is_mentioned {
            self.unmentioned.insert(entry.clone());
        }
        self.by_end.insert(entry);
    }

    /// Policies of the pod mention other names than before.
    pub(super) fn mention(&mut self, is_mentioned: impl Fn(&DnsName) -> bool) {
        let names = self.ends.iter().filter(|(name, _)| !is_mentioned(name));
        let entries = names.flat_map(|(name, ends)| {
            let ends = ends.iter();
            ends.map(|(address, ended)| (*ended, Arc::clone(name), *address))
        });
        self.unmentioned = entries.collect();
    }

    /// The name as it is kept.
    pub(super) fn shared_name(&self, name: &DnsName) -> Option<Arc<DnsName>> {
        self.ends.get_key_value(name).map(|(kept, _)| Arc::clone(kept))
    }

    /// Forgets a record: it lives again.
    pub(super) fn forget(&mut self, name: &DnsName, address: IpAddr) {
        let Some((name, ends)) = self.ends.get_key_value(name) else {
            return;
        };
        if let Some(ended) = ends.get(&address).copied() {
            self.take(&(ended, Arc::clone(name), address));
        }
    }

    /// Forgets the one that ended first, of names that no policy mentions before all others; returns it.
    pub(super) fn forget_oldest(&mut self) -> Option<ExpiredPosition> {
        let oldest = self.unmentioned.first().or_else(|| self.by_end.first());
        let oldest = oldest.cloned()?;
        self.take(&oldest);
        Some(oldest)
    }

    fn take(&mut self, entry: &ExpiredPosition) {
        let (_, name, address) = entry;
        self.by_end.remove(entry);
        self.unmentioned.remove(entry);
        if let Some(names) = self.by_address.get_mut(address) {
            names.remove(name);
            if names.is_empty() {
                self.by_address.remove(address);
            }
        }
        if let Some(ends) = self.ends.get_mut(name) {
            ends.remove(address);
            if ends.is_empty() {
                self.ends.remove(name);
            }
        }
    }

    /// The addresses of these names, each with its last end.
    pub(super) fn addresses(&self, patterns: &BTreeSet<NamePattern>) -> BTreeMap<IpAddr, Timestamp> {
        let named = self
            .ends
            .iter()
            .filter(|(name, _)| patterns.iter().any(|pattern| pattern.matches(name)));
        let mut addresses = BTreeMap::new();
        for (address, ended) in named.flat_map(|(_, ends)| ends.iter()) {
            let last = addresses.entry(*address).or_insert(*ended);
            *last = (*last).max(*ended);
        }
        addresses
    }

    /// The names of an address, each with its end.
    pub(super) fn names_of(&self, address: IpAddr) -> impl Iterator<Item = (Timestamp, Arc<DnsName>)> {
        let names = self.by_address.get(&address).into_iter().flat_map(SmallMap::iter);
        names.map(|(name, ended)| (*ended, Arc::clone(name)))
    }

    /// When a record ended.
    pub(super) fn end_of(&self, name: &DnsName, address: IpAddr) -> Option<Timestamp> {
        self.ends.get(name)?.get(&address).copied()
    }

    /// So many of those that ended after one of them, the oldest first, and which is the last.
    pub(super) fn behind(
        &self,
        last: Option<&ExpiredPosition>,
        most: usize,
    ) -> (Vec<RecordSnapshot>, Option<ExpiredPosition>) {
        let from = last.map_or(Unbounded, Excluded);
        let found: Vec<&ExpiredPosition> = self.by_end.range((from, Unbounded)).take(most).collect();
        let record = |(ended, name, address): &&ExpiredPosition| RecordSnapshot {
            name: Arc::clone(name),
            address: *address,
            expires: *ended,
        };
        let end = found.last().map(|entry| (*entry).clone());
        (found.iter().map(record).collect(), end)
    }

    pub(super) fn len(&self) -> usize {
        self.by_end.len()
    }
}
