//! What one pod was told.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;
use std::ops::Bound::{Included, Unbounded};
use std::sync::Arc;

use egret_shared::name::{DnsName, NamePattern};
use egret_shared::pod::PodKey;
use egret_shared::time::Timestamp;

use super::expired::ExpiredRecords;
use super::name::{AddressEntry, NameRecords};
use super::small_map::SmallMap;
use super::{RecordKey, RecordSnapshot};

/// A live record among all of its pod: its name by its last answer, and among those of the name.
#[derive(Clone, Debug)]
pub(super) struct LivePosition {
    latest: u64,
    name: Arc<DnsName>,
    told: (u64, IpAddr),
}

/// Names of an address, each with the end of the record.
type Names = SmallMap<(Reverse<Timestamp>, Arc<DnsName>), ()>;

/// The records of a pod, by name and by address.
#[derive(Debug, Default)]
pub(super) struct PodRecords {
    /// In no order: a tree would compare a name with ten others, each at an address of its own, for each answer.
    names: HashMap<Arc<DnsName>, NameRecords>,
    /// The names of an address; what ends last comes first.
    by_address: BTreeMap<IpAddr, Names>,
    /// All names by the last answer.
    by_age: BTreeSet<(u64, Arc<DnsName>)>,
    /// Those that no policy of the pod mentions.
    unmentioned: BTreeSet<(u64, Arc<DnsName>)>,
    len: usize,
    pub(super) expired: ExpiredRecords,
}

/// Records of one name that were put in or extended.
pub(super) struct ObservedRecords {
    /// The name as it is kept.
    pub(super) name: Arc<DnsName>,
    /// Until when each lived before.
    pub(super) ends_before: Vec<Option<Timestamp>>,
    /// How many addresses the name has.
    pub(super) addresses: usize,
}

impl PodRecords {
    /// The name as it is kept, so that it is kept once.
    pub(super) fn shared_name(&self, name: &DnsName) -> Arc<DnsName> {
        self.names
            .get_key_value(name)
            .map(|(kept, _)| Arc::clone(kept))
            .or_else(|| self.expired.shared_name(name))
            .unwrap_or_else(|| Arc::new(name.clone()))
    }

    /// Puts records of one name in or extends them.
    pub(super) fn observe(
        &mut self,
        question: &DnsName,
        ends: &[(IpAddr, Timestamp)],
        answer: u64,
        is_mentioned: impl FnOnce() -> bool,
    ) -> ObservedRecords {
        let name = &self.shared_name(question);
        let told = self
            .names
            .entry(Arc::clone(name))
            .or_insert_with(|| NameRecords::new(is_mentioned()));
        let (latest, addresses) = (told.latest, told.len());
        let mut all = Vec::with_capacity(ends.len());
        for (address, until) in ends {
            let (before, life) = told.observe(*address, *until, answer);
            let before = before.map(|before| before.until);
            if before != Some(life.until) {
                let names = self.by_address.entry(*address).or_default();
                if let Some(before) = before {
                    names.remove(&(Reverse(before), Arc::clone(name)));
                }
                names.insert((Reverse(life.until), Arc::clone(name)), ());
            }
            self.expired.forget(name, *address);
            all.push(before);
        }
        let observed = ObservedRecords {
            name: Arc::clone(name),
            ends_before: all,
            addresses: told.len(),
        };
        self.len += observed.addresses - addresses;
        if addresses > 0 && latest != told.latest {
            let before = (latest, Arc::clone(name));
            self.by_age.remove(&before);
            if !told.is_mentioned {
                self.unmentioned.remove(&before);
            }
        }
        if addresses == 0 || latest != told.latest {
            let age = (told.latest, Arc::clone(name));
            if !told.is_mentioned {
                self.unmentioned.insert(age.clone());
            }
            self.by_age.insert(age);
        }
        observed
    }

    /// Takes a record out; returns until when it would have lived.
    pub(super) fn remove(&mut self, name: &Arc<DnsName>, address: IpAddr) -> Option<Timestamp> {
        let told = self.names.get_mut(name)?;
        let life = told.remove(address)?;
        self.len -= 1;
        if told.is_empty() {
            let age = (told.latest, Arc::clone(name));
            self.by_age.remove(&age);
            self.unmentioned.remove(&age);
            self.names.remove(name);
        }
        if let Some(names) = self.by_address.get_mut(&address) {
            names.remove(&(Reverse(life.until), Arc::clone(name)));
            if names.is_empty() {
                self.by_address.remove(&address);
            }
        }
        Some(life.until)
    }

    /// Policies of the pod mention other names than before.
    pub(super) fn mention(&mut self, is_mentioned: impl Fn(&DnsName) -> bool) {
        for (name, told) in &mut self.names {
            let before = std::mem::replace(&mut told.is_mentioned, is_mentioned(name));
            if before != told.is_mentioned {
                let age = (told.latest, Arc::clone(name));
                match told.is_mentioned {
                    true => self.unmentioned.remove(&age),
                    false => self.unmentioned.insert(age),
                };
            }
        }
        self.expired.mention(is_mentioned);
    }

    /// Until when an address lives for one of these names. What ends last is asked first, so the first one that matches says it.
    pub(super) fn expiry(
        &self,
        patterns: &BTreeSet<NamePattern>,
        address: IpAddr,
        steps: &mut usize,
    ) -> Option<Timestamp> {
        let names = self.by_address.get(&address)?;
        let is_named = |name: &DnsName| patterns.iter().any(|pattern| pattern.matches(name));
        let mut asked = names.iter().inspect(|_| *steps += 1);
        let last = asked.find(|((_, name), ())| is_named(name));
        last.map(|((Reverse(until), _), ())| *until)
    }

    pub(super) fn addresses(&self, patterns: &BTreeSet<NamePattern>) -> BTreeSet<IpAddr> {
        self.names
            .iter()
            .filter(|(name, _)| patterns.iter().any(|pattern| pattern.matches(name)))
            .flat_map(|(_, told)| told.addresses())
            .collect()
    }

    /// All live ones, in order.
    pub(super) fn keys(&self, pod: &PodKey) -> Vec<RecordKey> {
        let names = self.names.iter();
        let mut keys: Vec<_> = names.flat_map(|(name, told)| all_told(pod, name, told)).collect();
        keys.sort_unstable();
        keys
    }

    /// What it was told of one name.
    pub(super) fn keys_of_name(&self, pod: &PodKey, name: &DnsName) -> Vec<RecordKey> {
        let known = self.names.get_key_value(name);
        let told = known.map(|(name, told)| all_told(pod, name, told).collect());
        told.unwrap_or_default()
    }

    /// The names of an address, live or over; what ends or ended last comes first.
    pub(super) fn names_of(&self, address: IpAddr) -> Vec<Arc<DnsName>> {
        let live = self.by_address.get(&address).into_iter().flat_map(SmallMap::iter);
        let live = live.map(|((Reverse(until), name), ())| (*until, Arc::clone(name)));
        let mut names: Vec<_> = live.chain(self.expired.names_of(address)).collect();
        names.sort_by(|one, other| other.cmp(one));
        names.into_iter().map(|(_, name)| name).collect()
    }

    /// What it was told of these addresses, live or over.
    pub(super) fn keys_of_addresses(&self, pod: &PodKey, addresses: &BTreeSet<IpAddr>) -> Vec<RecordKey> {
        let of_address = |address: &IpAddr| {
            let address = *address;
            let told = move |name| RecordKey {
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
        let life = self.names.get(name).and_then(|told| told.get(address));
        life.map(|life| life.until)
            .or_else(|| self.expired.end_of(name, address))
    }

    /// So many of the live records behind one of them, and which is the last: the name with the oldest last answer first,
    /// and of a name what was told longest ago.
    pub(super) fn live_behind(
        &self,
        last: Option<&LivePosition>,
        most: usize,
    ) -> (Vec<RecordSnapshot>, Option<LivePosition>) {
        let from = last.map_or(Unbounded, |last| Included((last.latest, Arc::clone(&last.name))));
        let (mut found, mut end) = (Vec::new(), None);
        for (latest, name) in self.by_age.range((from, Unbounded)) {
            if found.len() >= most {
                break;
            }
            let last = last.filter(|last| last.latest == *latest && last.name == *name);
            let told = self.names.get(name);
            let behind = told.map(|told| told.behind(last.map(|last| last.told), most - found.len()));
            for (address, AddressEntry { until, answer }) in behind.unwrap_or_default() {
                found.push(RecordSnapshot {
                    name: Arc::clone(name),
                    address,
                    expires: until,
                });
                end = Some((*latest, name, (answer, address)));
            }
        }
        let end = end.map(|(latest, name, told)| LivePosition {
            latest,
            name: Arc::clone(name),
            told,
        });
        (found, end)
    }

    /// The address of a name that was told longest ago, when the name has more than `limit`.
    pub(super) fn oldest_address_over(
        &self,
        pod: &PodKey,
        name: &DnsName,
        limit: usize,
    ) -> Option<RecordKey> {
        let (name, told) = self.names.get_key_value(name)?;
        let address = (told.len() > limit).then(|| told.oldest()).flatten()?;
        Some(RecordKey {
            pod: pod.clone(),
            name: Arc::clone(name),
            address,
        })
    }

    /// The name whose last answer is longest ago; one that no policy mentions goes before all that some policy does.
    pub(super) fn oldest_name(&self) -> Option<&Arc<DnsName>> {
        let oldest = self.unmentioned.first().or_else(|| self.by_age.first());
        oldest.map(|(_, name)| name)
    }

    /// What that name was told longest ago.
    pub(super) fn oldest(&self, pod: &PodKey) -> Option<RecordKey> {
        let name = self.oldest_name()?;
        self.oldest_address_over(pod, name, 0)
    }

    pub(super) fn names(&self) -> usize {
        self.names.len()
    }

    pub(super) fn largest_name(&self) -> usize {
        self.names.values().map(NameRecords::len).max().unwrap_or(0)
    }

    pub(super) const fn len(&self) -> usize {
        self.len
    }

    /// Whether nothing is known of it, not even what is over.
    pub(super) fn is_empty(&self) -> bool {
        self.len == 0 && self.expired.len() == 0
    }
}

fn all_told(pod: &PodKey, name: &Arc<DnsName>, told: &NameRecords) -> impl Iterator<Item = RecordKey> {
    told.addresses().map(|address| RecordKey {
        pod: pod.clone(),
        name: Arc::clone(name),
        address,
    })
}
