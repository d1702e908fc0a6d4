//! Which pod was given which address for which name, until when. A record admits only the pod that asked, and only until
//! it expires. Every answer is recorded, whether or not a policy names it, so that a later policy works at once.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;
use std::sync::Arc;

use egret_shared::name::{DnsName, NamePattern};
use egret_shared::observation::ObservedAddress;
use egret_shared::pod::PodKey;
use egret_shared::time::Timestamp;

mod settings;
mod pod;
mod expired;
mod address_forms;
mod protected;
mod unattributed;
mod snapshot;
mod changes;
mod small_map;
mod name;
mod pods_by_size;

pub use changes::RecordCursor;
pub use settings::{NamesMayOpen, RecordLimits, RecordSettings, usually_protected};
pub use snapshot::{PodSnapshot, RecordSnapshot, SnapshotBuilder, SnapshotChange};

pub(crate) use changes::PodChanges;
pub(crate) use protected::AddressOwner;

pub(crate) use unattributed::UnattributedObservations;

use changes::ChangeLog;
use pod::{ObservedRecords, PodRecords};
use pods_by_size::PodsBySize;
use protected::ProtectedAddresses;

/// What identifies a record: pod, name and address.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct RecordKey {
    pub(crate) pod: PodKey,
    pub(crate) name: Arc<DnsName>,
    pub(crate) address: IpAddr,
}

/// A live record, for people.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record<'a> {
    /// The pod that asked.
    pub pod: &'a PodKey,
    /// The name as it asked.
    pub name: &'a DnsName,
    /// An address that it was told.
    pub address: IpAddr,
    /// Until when new connections may use it, grace included.
    pub expires: Timestamp,
}

/// How many there are, how many there may be, and what was turned away; counters never fall.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RecordStats {
    /// Live records.
    pub records: usize,
    /// The most that there may be.
    pub records_limit: usize,
    /// Names of the pod that has most.
    pub names_of_largest_pod: usize,
    /// The most that a pod may have.
    pub names_per_pod_limit: usize,
    /// Addresses of the name that has most.
    pub addresses_of_largest_name: usize,
    /// The most that a name may have for one pod.
    pub addresses_per_name_limit: usize,
    /// Records that went because a pod had too many names.
    pub evicted_names_per_pod: u64,
    /// Records that went because a name had too many addresses, and addresses that were not taken in because their answer
    /// had.
    pub evicted_addresses_per_name: u64,
    /// Records that went because there were too many in all.
    pub evicted_total: u64,
    /// Records that ended with their time to live.
    pub expired: u64,
    /// Records that ended and are remembered for the connections that may still use them.
    pub retained: usize,
    /// The most that are.
    pub retained_limit: usize,
    /// Records that ended and were forgotten, there being too many.
    pub forgotten: u64,
    /// Addresses that no name may open: configured ones, and those of the cluster itself.
    pub protected: u64,
    /// Observations of an address that is no local pod's, and did not become one in time.
    pub unattributed: u64,
}

/// The most records that end at one moment.
const MOST_ENDS: usize = 1_024;

/// All records of local pods.
#[derive(Debug)]
pub(crate) struct Records {
    settings: RecordSettings,
    pods: BTreeMap<PodKey, PodRecords>,
    /// The names that policies of a pod mention. What nobody mentions makes room first.
    mentioned: HashMap<PodKey, Arc<BTreeSet<NamePattern>>>,
    by_expiry: BTreeSet<(Timestamp, RecordKey)>,
    /// Pods by their live records.
    by_size: PodsBySize,
    /// Pods by their records that are over.
    by_expired: PodsBySize,
    /// Answers are numbered, so that the oldest can be found whatever the clock says.
    answers: u64,
    /// What is restored is older than any answer: it has numbers of its own, below those of answers.
    restored: u64,
    changes: ChangeLog,
    /// Records that are over and remembered.
    expired_count: usize,
    /// How many records ended at the last moment at which any did.
    ended: (Timestamp, usize),
    protected: ProtectedAddresses,
    /// Entries that were looked at to take answers in, to make room, and to say until when an address lives.
    steps: Cell<usize>,
    pub(crate) stats: RecordStats,
}

impl Records {
    pub(crate) fn new(settings: RecordSettings) -> Self {
        let stats = RecordStats {
            records_limit: settings.limits.total,
            names_per_pod_limit: settings.limits.names_per_pod,
            addresses_per_name_limit: settings.limits.addresses_per_name(),
            retained_limit: expired::MOST,
            ..RecordStats::default()
        };
        Self {
            answers: settings.limits.total as u64,
            restored: 0,
            changes: ChangeLog::default(),
            protected: ProtectedAddresses::new(settings.names_may_open),
            settings,
            pods: BTreeMap::new(),
            mentioned: HashMap::new(),
            by_expiry: BTreeSet::new(),
            by_size: PodsBySize::default(),
            by_expired: PodsBySize::default(),
            steps: Cell::new(0),
            expired_count: 0,
            ended: (Timestamp::from_millis(0), 0),
            stats,
        }
    }

    /// Takes in what a pod was told; returns all records that came, changed or had to go.
    pub(crate) fn observe(
        &mut self,
        pod: &PodKey,
        question: &DnsName,
        addresses: &[ObservedAddress],
        now: Timestamp,
    ) -> Vec<RecordKey> {
        let mut changed = Vec::new();
        self.answers += 1;
        // The rest would only make room for itself.
        let most = addresses.len().min(self.settings.limits.addresses_per_name());
        let (addresses, cut) = addresses.split_at(most);
        self.stats.evicted_addresses_per_name += cut.len() as u64;
        let ends = addresses.iter().filter_map(|observed| {
            let address = observed.address.to_canonical();
            if self.settings.is_protected(address) {
                self.stats.protected += 1;
                return None;
            }
            if self.protected.is_protected(pod, address) {
                self.stats.protected += 1;
            }
            let until = self.settings.lifetime(observed.expires, now)?;
            Some((address, until))
        });
        let ends: Vec<_> = ends.collect();
        if !ends.is_empty() {
            changed.extend(self.insert(pod, question, &ends, self.answers, now));
        }
        changed
    }

    /// Takes in what a pod was told in an earlier life; returns all records that came, changed or had to go.
    /// Nothing lives longer than it was to live, nor longer than if it were told now.
    pub(crate) fn restore(
        &mut self,
        pod: &PodKey,
        remembered: &[RecordSnapshot],
        now: Timestamp,
    ) -> Vec<RecordKey> {
        let longest = self.settings.lifetime(Timestamp::from_millis(u64::MAX), now);
        let mut changed = Vec::new();
        for record in remembered {
            let address = record.address.to_canonical();
            let until = longest.map_or(record.expires, |longest| record.expires.min(longest));
            if self.settings.is_protected(address) {
                self.stats.protected += 1;
                continue;
            }
            if until <= now {
                self.keep_expired(pod, &record.name, address, until);
                continue;
            }
            if self.restored >= self.settings.limits.total as u64 {
                self.stats.evicted_total += 1;
                continue;
            }
            self.restored += 1;
            changed.extend(self.insert(pod, &record.name, &[(address, until)], self.restored, now));
        }
        changed
    }

    /// The names of an address that a pod was told; what ends or ended last comes first.
    pub(crate) fn names_observed(&self, pod: &PodKey, address: IpAddr) -> Vec<Arc<DnsName>> {
        let address = address.to_canonical();
        self.pods
            .get(pod)
            .map(|records| records.names_of(address))
            .unwrap_or_default()
    }

    /// Ends what has lived its time; returns it. Where very many end at once, only so many do at one moment, and the others at the
    /// next: nobody waits for their end, for the kernel and whoever is asked compare the time themselves.
    pub(crate) fn expire(&mut self, now: Timestamp) -> Vec<RecordKey> {
        if self.ended.0 != now {
            self.ended = (now, 0);
        }
        let mut expired = Vec::new();
        while self.ended.1 < MOST_ENDS
            && let Some(told) = self.first_over(now)
        {
            self.ended.1 += 1;
            self.end(&told);
            expired.push(told);
        }
        expired
    }

    /// The one that ended first of those whose time is over.
    fn first_over(&self, now: Timestamp) -> Option<RecordKey> {
        let first = self.by_expiry.first();
        first
            .filter(|(until, _)| *until <= now)
            .map(|(_, told)| told.clone())
    }

    /// Its time is over, and it is remembered.
    fn end(&mut self, told: &RecordKey) {
        if let Some(until) = self.take_out(told) {
            self.keep_expired(&told.pod, &told.name, told.address, until);
            self.stats.expired += 1;
        }
    }

    /// When the next record ends.
    pub(crate) fn next_expiry(&self) -> Option<Timestamp> {
        self.by_expiry.first().map(|(until, _)| *until)
    }

    /// Forgets all that a pod was told; returns it.
    pub(crate) fn forget_pod(&mut self, pod: &PodKey) -> Vec<RecordKey> {
        let told: Vec<RecordKey> = self
            .pods
            .get(pod)
            .map(|records| records.keys(pod))
            .unwrap_or_default();
        for record in &told {
            self.take_out(record);
        }
        if let Some(gone) = self.pods.remove(pod) {
            self.expired_count -= gone.expired.len();
            self.by_expired.change(pod, gone.expired.len(), 0);
            self.changes.note_anew(pod);
        }
        told
    }

    /// Policies of a pod mention these names, and no others.
    pub(crate) fn mention(&mut self, pod: &PodKey, patterns: &BTreeSet<NamePattern>) {
        let before = match patterns.is_empty() {
            true => self.mentioned.remove(pod),
            false => self.mentioned.insert(pod.clone(), Arc::new(patterns.clone())),
        };
        if before.is_some_and(|before| *before == *patterns) {
            return;
        }
        if let Some(records) = self.pods.get_mut(pod) {
            records.mention(|name| patterns.iter().any(|pattern| pattern.matches(name)));
        }
    }

    /// Whether a policy of a pod mentions a name.
    pub(crate) fn is_mentioned(&self, pod: &PodKey, name: &DnsName) -> bool {
        is_mentioned(&self.mentioned, pod, name)
    }

    /// Entries that were looked at so far.
    pub(crate) const fn steps(&self) -> usize {
        self.steps.get()
    }

    /// Whether a pod was told something whose time is over.
    pub(crate) fn has_expired(&self, pod: &PodKey) -> bool {
        self.pods
            .get(pod)
            .is_some_and(|records| records.expired.len() > 0)
    }

    /// Until when a pod may use an address for one of these names.
    pub(crate) fn expiry(
        &self,
        pod: &PodKey,
        patterns: &BTreeSet<NamePattern>,
        address: IpAddr,
    ) -> Option<Timestamp> {
        let records = self
            .pods
            .get(pod)
            .filter(|_| !self.protected.is_protected(pod, address))?;
        let mut steps = self.steps.get();
        let expiry = records.expiry(patterns, address, &mut steps);
        self.steps.set(steps);
        expiry
    }

    /// The addresses that a pod may use for one of these names.
    pub(crate) fn addresses(&self, pod: &PodKey, patterns: &BTreeSet<NamePattern>) -> BTreeSet<IpAddr> {
        self.pods
            .get(pod)
            .map(|records| records.addresses(patterns))
            .unwrap_or_default()
    }

    /// The addresses that a pod was told for one of these names and may not open any more, each with its end: what is
    /// open to them goes on.
    pub(crate) fn expired(
        &self,
        pod: &PodKey,
        patterns: &BTreeSet<NamePattern>,
    ) -> BTreeMap<IpAddr, Timestamp> {
        self.pods
            .get(pod)
            .into_iter()
            .flat_map(|records| records.expired.addresses(patterns))
            .filter(|(address, _)| !self.protected.is_protected(pod, *address))
            .collect()
    }

    /// Whether no name opens the address for this pod.
    pub(crate) fn is_protected(&self, pod: &PodKey, address: IpAddr) -> bool {
        self.settings.is_protected(address) || self.protected.is_protected(pod, address)
    }

    /// What names may open of the cluster itself.
    pub(crate) const fn opens(&self) -> NamesMayOpen {
        self.protected.opens()
    }

    /// A node or a Service has other addresses than before; returns all records, live or over, that count or end by it.
    pub(crate) fn protect(
        &mut self,
        owned: AddressOwner,
        before: &[IpAddr],
        after: &[IpAddr],
    ) -> Vec<RecordKey> {
        let changed = self.protected.replace(owned, before, after);
        self.told_of(changed)
    }

    /// The API server is elsewhere; returns all records, live or over, that count or end by it.
    pub(crate) fn protect_api_server(&mut self, addresses: BTreeSet<IpAddr>) -> Vec<RecordKey> {
        let changed = self.protected.replace_api_server(addresses);
        self.told_of(changed)
    }

    /// A local pod has these addresses, none where it is gone; returns its records that count or end by it.
    pub(crate) fn protect_pod(&mut self, pod: &PodKey, addresses: &BTreeSet<IpAddr>) -> Vec<RecordKey> {
        let changed = in_all_forms(self.protected.replace_pod(pod, addresses));
        let records = self.pods.get(pod).into_iter();
        records
            .flat_map(|records| records.keys_of_addresses(pod, &changed))
            .collect()
    }

    fn told_of(&self, addresses: BTreeSet<IpAddr>) -> Vec<RecordKey> {
        let addresses = in_all_forms(addresses);
        let of_pod = |(pod, records): (&PodKey, &PodRecords)| records.keys_of_addresses(pod, &addresses);
        self.pods.iter().flat_map(of_pod).collect()
    }

    /// All of them.
    pub(crate) fn iter(&self) -> impl Iterator<Item = Record<'_>> {
        self.by_expiry.iter().map(|(expires, told)| Record {
            pod: &told.pod,
            name: &told.name,
            address: told.address,
            expires: *expires,
        })
    }

    /// Counts and limits.
    pub(crate) fn stats(&self) -> RecordStats {
        RecordStats {
            records: self.by_expiry.len(),
            retained: self.expired_count,
            names_of_largest_pod: self.pods.values().map(PodRecords::names).max().unwrap_or(0),
            addresses_of_largest_name: self
                .pods
                .values()
                .map(PodRecords::largest_name)
                .max()
                .unwrap_or(0),
            ..self.stats
        }
    }

    /// A newer answer extends what was told, and never shortens it. What is too much goes.
    fn insert(
        &mut self,
        pod: &PodKey,
        question: &DnsName,
        ends: &[(IpAddr, Timestamp)],
        answer: u64,
        now: Timestamp,
    ) -> Vec<RecordKey> {
        let records = self.pods.entry(pod.clone()).or_default();
        let (lapsed, len) = (records.expired.len(), records.len());
        let mentioned = &self.mentioned;
        let ObservedRecords {
            name,
            ends_before,
            addresses,
        } = records.observe(question, ends, answer, || is_mentioned(mentioned, pod, question));
        self.steps.set(self.steps.get() + ends.len());
        self.expired_count -= lapsed - records.expired.len();
        self.by_expired.change(pod, lapsed, records.expired.len());
        self.by_size.change(pod, len, records.len());
        let limits = self.settings.limits;
        let is_over = records.names() > limits.names_per_pod || addresses > limits.addresses_per_name();
        let mut all = Vec::with_capacity(ends.len());
        for ((address, until), before) in ends.iter().zip(ends_before) {
            let told = RecordKey {
                pod: pod.clone(),
                name: Arc::clone(&name),
                address: *address,
            };
            if let Some(before) = before.filter(|before| before < until) {
                self.by_expiry.remove(&(before, told.clone()));
            }
            if before.is_none_or(|before| before < *until) {
                self.by_expiry.insert((*until, told.clone()));
                self.changes.note(pod, &name, *address);
            }
            all.push(told);
        }
        if is_over || self.by_expiry.len() > limits.total {
            all.extend(self.keep_limits(pod, question, now));
        }
        all
    }

    /// A record has to go; one whose time is over is remembered all the same.
    fn remove(&mut self, told: &RecordKey, now: Timestamp) {
        if self.is_over(told, now) {
            self.end(told);
        } else {
            self.take_out(told);
            self.changes.note(&told.pod, &told.name, told.address);
        }
    }

    fn is_over(&self, told: &RecordKey, now: Timestamp) -> bool {
        let records = self.pods.get(&told.pod);
        let end = records.and_then(|records| records.end_of(&told.name, told.address));
        end.is_some_and(|until| until <= now)
    }

    fn take_out(&mut self, told: &RecordKey) -> Option<Timestamp> {
        let records = self.pods.get_mut(&told.pod)?;
        let len = records.len();
        let until = records.remove(&told.name, told.address)?;
        self.steps.set(self.steps.get() + 1);
        self.by_size.change(&told.pod, len, records.len());
        self.by_expiry.remove(&(until, told.clone()));
        Some(until)
    }

    /// Remembers a record that is over, at the cost of the oldest such where there are too many.
    fn keep_expired(&mut self, pod: &PodKey, name: &DnsName, address: IpAddr, ended: Timestamp) {
        let is_mentioned = self.is_mentioned(pod, name);
        let records = self.pods.entry(pod.clone()).or_default();
        let name = records.shared_name(name);
        let before = records.expired.len();
        records.expired.keep(&name, address, ended, is_mentioned);
        while records.expired.len() > expired::MOST_OF_POD
            && let Some((_, name, address)) = records.expired.forget_oldest()
        {
            self.stats.forgotten += 1;
            self.changes.note(pod, &name, address);
        }
        let after = records.expired.len();
        self.by_expired.change(pod, before, after);
        self.expired_count = self.expired_count + after - before;
        while self.expired_count > expired::MOST && self.forget_oldest_lapsed() {
            self.expired_count -= 1;
            self.stats.forgotten += 1;
        }
    }

    /// The pod that has most gives way; whether there is one.
    fn forget_oldest_lapsed(&mut self) -> bool {
        let sizes = self
            .pods
            .iter()
            .map(|(pod, records)| (records.expired.len(), pod));
        let Some(pod) = self.by_expired.largest(sizes) else {
            return false;
        };
        let Some(records) = self.pods.get_mut(&pod) else {
            return false;
        };
        let before = records.expired.len();
        let oldest = records.expired.forget_oldest();
        self.by_expired.change(&pod, before, records.expired.len());
        if let Some((_, name, address)) = &oldest {
            self.changes.note(&pod, name, *address);
        }
        oldest.is_some()
    }

    fn forget_name(&mut self, pod: &PodKey, name: &DnsName, now: Timestamp) -> Vec<RecordKey> {
        let told: Vec<RecordKey> = self
            .pods
            .get(pod)
            .map(|records| records.keys_of_name(pod, name))
            .unwrap_or_default();
        told.iter().for_each(|told| self.remove(told, now));
        told
    }

    fn forget_empty_pod(&mut self, pod: &PodKey) {
        if self.pods.get(pod).is_some_and(PodRecords::is_empty) {
            self.pods.remove(pod);
        }
    }

    /// Takes the oldest away until every limit holds again; what is over goes before.
    fn keep_limits(&mut self, pod: &PodKey, name: &DnsName, now: Timestamp) -> Vec<RecordKey> {
        let limits = self.settings.limits;
        let mut evicted = Vec::new();
        while let Some(oldest) = self
            .pods
            .get(pod)
            .and_then(|records| records.oldest_address_over(pod, name, limits.addresses_per_name()))
        {
            self.stats.evicted_addresses_per_name += 1;
            self.remove(&oldest, now);
            evicted.push(oldest);
        }
        while let Some(oldest) = self
            .pods
            .get(pod)
            .filter(|records| records.names() > limits.names_per_pod)
            .and_then(PodRecords::oldest_name)
            .cloned()
        {
            let gone = self.forget_name(pod, &oldest, now);
            self.stats.evicted_names_per_pod += gone.len() as u64;
            evicted.extend(gone);
        }
        while self.by_expiry.len() > limits.total {
            if let Some(over) = self.first_over(now) {
                self.end(&over);
                evicted.push(over);
                continue;
            }
            let Some(oldest) = self.oldest_of_largest_pod() else {
                break;
            };
            self.stats.evicted_total += 1;
            self.remove(&oldest, now);
            evicted.push(oldest);
        }
        self.forget_empty_pod(pod);
        evicted
    }

    /// The pod that has most gives way, so that no pod can make another forget.
    fn oldest_of_largest_pod(&mut self) -> Option<RecordKey> {
        let sizes = self.pods.iter().map(|(pod, records)| (records.len(), pod));
        let pod = self.by_size.largest(sizes)?;
        self.pods.get(&pod)?.oldest(&pod)
    }
}

/// These addresses, and what a NAT64 translates to them.
fn in_all_forms(mut addresses: BTreeSet<IpAddr>) -> BTreeSet<IpAddr> {
    let behind: Vec<_> = addresses
        .iter()
        .copied()
        .filter_map(address_forms::behind_nat64)
        .collect();
    addresses.extend(behind);
    addresses
}

fn is_mentioned(
    mentioned: &HashMap<PodKey, Arc<BTreeSet<NamePattern>>>,
    pod: &PodKey,
    name: &DnsName,
) -> bool {
    let patterns = mentioned
        .get(pod)
        .into_iter()
        .flat_map(|patterns| patterns.iter());
    patterns.into_iter().any(|pattern| pattern.matches(name))
}
