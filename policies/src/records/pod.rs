//! What one pod was told.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::ops::Bound::{Excluded, Unbounded};
use std::sync::Arc;

use egret_shared::name::{DnsName, NamePattern};
use egret_shared::pod::PodKey;
use egret_shared::time::Timestamp;

use super::few::Few;
use super::lapsed::Lapsed;
use super::news::ByAge;
use super::{RememberedRecord, Told};

/// The records of a pod, by name and by address.
#[derive(Debug, Default)]
pub(super) struct PodRecords {
    names: BTreeMap<Arc<DnsName>, Few<IpAddr, Life>>,
    /// The names of an address, each with the end of the record.
    by_address: BTreeMap<IpAddr, Few<Arc<DnsName>, Timestamp>>,
    by_age: BTreeSet<ByAge>,
    pub(super) lapsed: Lapsed,
}

#[derive(Clone, Copy, Debug)]
struct Life {
    until: Timestamp,
    /// The number of the answer that told it last.
    answer: u64,
}

/// What came of telling an address.
#[derive(Clone, Copy, Debug)]
pub(super) struct Kept {
    /// Until when it lived before.
    pub(super) before: Option<Timestamp>,
    /// How many addresses its name has by now.
    pub(super) addresses: usize,
}

impl PodRecords {
    /// The name as it is kept, so that it is kept once.
    pub(super) fn shared_name(&self, name: &DnsName) -> Arc<DnsName> {
        self.names
            .get_key_value(name)
            .map(|(kept, _)| Arc::clone(kept))
            .or_else(|| self.lapsed.shared_name(name))
            .unwrap_or_else(|| Arc::new(name.clone()))
    }

    /// Puts a record in or extends it.
    pub(super) fn tell(
        &mut self,
        name: &Arc<DnsName>,
        address: IpAddr,
        until: Timestamp,
        answer: u64,
    ) -> Kept {
        let lives = self.names.entry(Arc::clone(name)).or_default();
        let before = lives.get(&address).copied();
        let until = before.map_or(until, |before| before.until.max(until));
        let answer = before.map_or(answer, |before| before.answer.max(answer));
        lives.insert(address, Life { until, answer });
        let addresses = lives.len();
        if before.is_none_or(|before| before.until != until) {
            let names = self.by_address.entry(address).or_default();
            names.insert(Arc::clone(name), until);
        }
        if let Some(before) = before {
            self.by_age.remove(&(before.answer, Arc::clone(name), address));
        }
        self.by_age.insert((answer, Arc::clone(name), address));
        self.lapsed.forget(name, address);
        Kept {
            before: before.map(|before| before.until),
            addresses,
        }
    }

    /// Takes a record out; returns until when it would have lived.
    pub(super) fn remove(&mut self, name: &Arc<DnsName>, address: IpAddr) -> Option<Timestamp> {
        let lives = self.names.get_mut(name)?;
        let life = lives.remove(&address)?;
        if lives.is_empty() {
            self.names.remove(name);
        }
        if let Some(names) = self.by_address.get_mut(&address) {
            names.remove(name);
            if names.is_empty() {
                self.by_address.remove(&address);
            }
        }
        self.by_age.remove(&(life.answer, Arc::clone(name), address));
        Some(life.until)
    }

    pub(super) fn expiry(&self, patterns: &BTreeSet<NamePattern>, address: IpAddr) -> Option<Timestamp> {
        self.by_address
            .get(&address)?
            .iter()
            .filter(|(name, _)| patterns.iter().any(|pattern| pattern.matches(name)))
            .map(|(_, until)| *until)
            .max()
    }

    pub(super) fn addresses(&self, patterns: &BTreeSet<NamePattern>) -> BTreeSet<IpAddr> {
        self.names
            .iter()
            .filter(|(name, _)| patterns.iter().any(|pattern| pattern.matches(name)))
            .flat_map(|(_, lives)| lives.iter().map(|(address, _)| *address))
            .collect()
    }

    pub(super) fn told(&self, pod: &PodKey) -> impl Iterator<Item = Told> {
        self.by_age.iter().map(|(_, name, address)| Told {
            pod: pod.clone(),
            name: Arc::clone(name),
            address: *address,
        })
    }

    /// The names of an address, live or over; what ends or ended last comes first.
    pub(super) fn names_of(&self, address: IpAddr) -> Vec<Arc<DnsName>> {
        let live = self.by_address.get(&address).into_iter().flat_map(Few::iter);
        let live = live.map(|(name, until)| (*until, Arc::clone(name)));
        let mut names: Vec<_> = live.chain(self.lapsed.names_of(address)).collect();
        names.sort_by(|one, other| other.cmp(one));
        names.into_iter().map(|(_, name)| name).collect()
    }

    /// What it was told of these addresses, live or over.
    pub(super) fn told_of(&self, pod: &PodKey, addresses: &BTreeSet<IpAddr>) -> Vec<Told> {
        let of_address = |address: &IpAddr| {
            let address = *address;
            let told = move |name| Told {
                pod: pod.clone(),
                name,
                address,
            };
            self.names_of(address).into_iter().map(told)
        };
        addresses.iter().flat_map(of_address).collect()
    }

    /// Until when a record lives, or lived; none where there is none.
    pub(super) fn end_of(&self, name: &DnsName, address: IpAddr) -> Option<Timestamp> {
        let life = self.names.get(name).and_then(|lives| lives.get(&address));
        life.map(|life| life.until)
            .or_else(|| self.lapsed.end_of(name, address))
    }

    /// So many of the live records that were told after one of them, the oldest answer first, and which is the last.
    pub(super) fn live_behind(
        &self,
        last: Option<&ByAge>,
        most: usize,
    ) -> (Vec<RememberedRecord>, Option<ByAge>) {
        let from = last.map_or(Unbounded, Excluded);
        let mut end = None;
        let found = self.by_age.range((from, Unbounded)).take(most);
        let found = found.inspect(|entry| end = Some(*entry));
        let record = |(_, name, address): &ByAge| {
            let life = self.names.get(name)?.get(address)?;
            Some(RememberedRecord {
                name: Arc::clone(name),
                address: *address,
                expires: life.until,
            })
        };
        (found.filter_map(record).collect(), end.cloned())
    }

    /// The address of a name that was told longest ago, when the name has more than `limit`.
    pub(super) fn oldest_address_over(&self, pod: &PodKey, name: &DnsName, limit: usize) -> Option<Told> {
        let (name, lives) = self.names.get_key_value(name)?;
        // They are looked through only when there are too many: this is asked at every answer.
        let lives = Some(lives).filter(|lives| lives.len() > limit)?;
        let (address, _) = lives
            .iter()
            .min_by_key(|(address, life)| (life.answer, *address))?;
        Some(Told {
            pod: pod.clone(),
            name: Arc::clone(name),
            address: *address,
        })
    }

    /// The name whose last answer is longest ago. Those before it in age were told again, but for some of their addresses.
    pub(super) fn oldest_name(&self) -> Option<Arc<DnsName>> {
        let is_last = |(answer, name, _): &&ByAge| {
            let lives = self.names.get(name).into_iter().flat_map(Few::iter);
            lives.map(|(_, life)| life.answer).max() == Some(*answer)
        };
        self.by_age
            .iter()
            .find(is_last)
            .map(|(_, name, _)| Arc::clone(name))
    }

    pub(super) fn oldest(&self, pod: &PodKey) -> Option<Told> {
        self.told(pod).next()
    }

    pub(super) fn names(&self) -> usize {
        self.names.len()
    }

    pub(super) fn largest_name(&self) -> usize {
        self.names.values().map(Few::len).max().unwrap_or(0)
    }

    pub(super) fn len(&self) -> usize {
        self.by_age.len()
    }

    /// Whether nothing is known of it, not even what is over.
    pub(super) fn is_empty(&self) -> bool {
        self.by_age.is_empty() && self.lapsed.len() == 0
    }
}
