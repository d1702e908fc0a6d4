//! What rules counted that are gone, and the serial number of the last generation. Both are kept in the kernel, in a
//! chain that nothing jumps to (of IPv4: `ip6tables-nft-restore` 1.8.9 loses counters that it is given), written in
//! the same transaction that rewrites the rules. So they survive the enforcer, and go with the node.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use egret_kernel::iptables::{Chain, IpTables, Rule as Line, TableListing, Target};

use super::names;
use super::table;
use super::tally::{comment_of, counts_of, key_of, key_words};
use crate::backend::{BackendError, VerdictCount, VerdictCounters, VerdictKey};

/// Counts of rules that are gone, by what they decided.
#[derive(Clone, Debug, Default)]
pub(super) struct Totals {
    pub(super) serial: u64,
    counts: BTreeMap<VerdictKey, BTreeMap<Option<Origin>, u64>>,
}

type Origin = (Arc<str>, usize);

/// The most rules that are remembered by name once they are gone.
const MOST_ORIGINS: usize = 4096;

impl Totals {
    /// Reads what an earlier life left.
    pub(super) fn of_listing(listing: &TableListing) -> Self {
        let mut totals = Self::default();
        let rules = listing
            .chain(names::totals().as_str())
            .map(|chain| chain.rules.iter());
        for rule in rules.into_iter().flatten() {
            let words: Vec<&str> = comment_of(&rule.text)
                .map(|comment| comment.split(' ').collect())
                .unwrap_or_default();
            match words.as_slice() {
                ["serial", number] => totals.serial = number.parse().unwrap_or(0),
                [tier, action, direction] => {
                    if let Some(key) = key_of(&[tier, action, direction]) {
                        totals.add(key, None, rule.packets);
                    }
                }
                _ => {}
            }
        }
        totals
    }

    /// Adds what a chain counted that is about to go.
    pub(super) fn add_chain(&mut self, chain: &Chain) {
        for count in counts_of(chain).filter(|count| count.packets > 0) {
            self.add(count.key, count.origin, count.packets);
        }
    }

    /// Both together; the serial number is this one's.
    pub(super) fn plus(mut self, other: &Self) -> Self {
        for count in other.counts() {
            self.add(count.key, count.origin, count.packets);
        }
        self
    }

    fn add(&mut self, key: VerdictKey, origin: Option<Origin>, packets: u64) {
        let origins = self.counts.entry(key).or_default();
        let origin = origin
            .filter(|origin| origins.len() < MOST_ORIGINS || origins.contains_key(&Some(origin.clone())));
        *origins.entry(origin).or_default() += packets;
    }

    /// The rules of the chain that keeps them.
    pub(super) fn lines(&self) -> Vec<(u64, String)> {
        let remark = |text: &str| Line::to(Target::Return).comment(text).to_string();
        let serial = (0, remark(&format!("serial {}", self.serial)));
        let counts = self
            .counts
            .iter()
            .map(|(key, origins)| (origins.values().sum(), remark(&key_words(*key))));
        std::iter::once(serial).chain(counts).collect()
    }

    fn counts(&self) -> impl Iterator<Item = VerdictCount> {
        self.counts.iter().flat_map(|(key, origins)| {
            let each = |(origin, packets): (&Option<Origin>, &u64)| VerdictCount {
                key: *key,
                origin: origin.clone(),
                packets: *packets,
            };
            origins.iter().map(each)
        })
    }
}

/// What the kernel counts now together with the totals. The lock is held while chains are rewritten: a scrape in
/// between would see a packet twice, or not at all.
#[derive(Debug)]
pub(super) struct Counters {
    tables: Mutex<[IpTables; 2]>,
    totals: Mutex<Totals>,
}

impl Counters {
    pub(super) fn new(tables: [IpTables; 2]) -> Self {
        Self {
            tables: Mutex::new(tables),
            totals: Mutex::new(Totals::default()),
        }
    }

    /// Counts in these tables from now on.
    pub(super) fn count_in(&self, tables: [IpTables; 2]) {
        *self.tables.lock().unwrap_or_else(PoisonError::into_inner) = tables;
    }

    /// The totals, for whoever is about to rewrite chains.
    pub(super) fn lock(&self) -> MutexGuard<'_, Totals> {
        // Numbers are whole at every moment, whoever died while holding them.
        self.totals.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl VerdictCounters for Counters {
    fn read(&self) -> Result<Vec<VerdictCount>, BackendError> {
        let totals = self.lock();
        let mut counts: Vec<VerdictCount> = totals.counts().collect();
        let tables = *self.tables.lock().unwrap_or_else(PoisonError::into_inner);
        for listing in both(tables)? {
            counts.extend(
                table::ours(&listing)
                    .filter(|chain| chain.name != names::totals().as_str())
                    .flat_map(counts_of),
            );
        }
        Ok(counts)
    }
}

/// Lists both families side by side.
pub(super) fn both(tables: [IpTables; 2]) -> Result<[TableListing; 2], BackendError> {
    let listed = std::thread::scope(|scope| {
        let [first, second] = tables;
        let other = scope.spawn(move || table::list(second));
        let one = table::list(first);
        one.and_then(|one| {
            Ok([
                one,
                other
                    .join()
                    .unwrap_or_else(|panic| std::panic::resume_unwind(panic))?,
            ])
        })
    });
    listed.map_err(|error| BackendError::new("cannot list the filter table", error))
}
