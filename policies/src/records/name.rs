//! What one pod was told of one name. Each name knows its ages itself, so to find what was told longest ago is no walk
//! over what the pod was told of others.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::ops::Bound::{Excluded, Unbounded};

use egret_shared::time::Timestamp;

use super::small_map::SmallMap;

/// So many are looked through for the oldest of them.
const FEW: usize = 16;

/// The expiry and age of an address of a name.
#[derive(Clone, Copy, Debug)]
pub(super) struct AddressEntry {
    pub(super) until: Timestamp,
    /// The number of the answer that told it last.
    pub(super) answer: u64,
}

/// The addresses of a name.
#[derive(Debug)]
pub(super) struct NameRecords {
    addresses: SmallMap<IpAddr, AddressEntry>,
    /// By the answer that told each last; empty where there are few.
    ages: BTreeSet<(u64, IpAddr)>,
    /// The last answer.
    pub(super) latest: u64,
    /// Whether a policy of the pod mentions the name.
    pub(super) is_mentioned: bool,
}

impl NameRecords {
    pub(super) const fn new(is_mentioned: bool) -> Self {
        Self {
            addresses: SmallMap::new(),
            ages: BTreeSet::new(),
            latest: 0,
            is_mentioned,
        }
    }

    /// Puts an address in or extends it; returns it as it was and as it is.
    pub(super) fn observe(
        &mut self,
        address: IpAddr,
        until: Timestamp,
        answer: u64,
    ) -> (Option<AddressEntry>, AddressEntry) {
        let before = self.addresses.get(&address).copied();
        let life = AddressEntry {
            until: before.map_or(until, |before| before.until.max(until)),
            answer: before.map_or(answer, |before| before.answer.max(answer)),
        };
        self.addresses.insert(address, life);
        if !self.ages.is_empty() {
            if let Some(before) = before {
                self.ages.remove(&(before.answer, address));
            }
            self.ages.insert((life.answer, address));
        } else if self.addresses.len() > FEW {
            let of_all = self.addresses.iter();
            self.ages = of_all.map(|(address, life)| (life.answer, *address)).collect();
        }
        self.latest = self.latest.max(life.answer);
        (before, life)
    }

    pub(super) fn remove(&mut self, address: IpAddr) -> Option<AddressEntry> {
        let life = self.addresses.remove(&address)?;
        self.ages.remove(&(life.answer, address));
        Some(life)
    }

    /// The address that was told longest ago.
    pub(super) fn oldest(&self) -> Option<IpAddr> {
        let oldest = self.ages.first().copied();
        let of_few = || {
            let ages = self
                .addresses
                .iter()
                .map(|(address, life)| (life.answer, *address));
            ages.min()
        };
        oldest.or_else(of_few).map(|(_, address)| address)
    }

    /// So many of the addresses that were told after this one, the oldest first.
    pub(super) fn behind(&self, last: Option<(u64, IpAddr)>, most: usize) -> Vec<(IpAddr, AddressEntry)> {
        if !self.ages.is_empty() {
            let life = |address: &IpAddr| Some((*address, *self.addresses.get(address)?));
            let from = last.map_or(Unbounded, Excluded);
            let ages = self.ages.range((from, Unbounded)).take(most);
            return ages.filter_map(|(_, address)| life(address)).collect();
        }
        let lives = self.addresses.iter().map(|(address, life)| (*address, *life));
        let mut found: Vec<_> = lives
            .filter(|(address, life)| Some((life.answer, *address)) > last)
            .collect();
        found.sort_unstable_by_key(|(address, life)| (life.answer, *address));
        found.truncate(most);
        found
    }

    pub(super) fn get(&self, address: IpAddr) -> Option<AddressEntry> {
        self.addresses.get(&address).copied()
    }

    pub(super) fn addresses(&self) -> impl Iterator<Item = IpAddr> {
        self.addresses.iter().map(|(address, _)| *address)
    }

    pub(super) fn len(&self) -> usize {
        self.addresses.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.addresses.is_empty()
    }
}
