//! Verdict counters. What removed rules counted, which of them have a series of their own, and the serial of
//! the last generation are kept in the kernel, in a chain that nothing jumps to (of IPv4:
//! `ip6tables-nft-restore` 1.8.9 loses counters that it is given). It is written in the transaction that
//! rewrites the rules, so the counts survive the enforcer, and go with the node.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use egret_kernel::iptables::{Chain, IpTables, Rule as Line, TableListing, Target};

use super::family_table;
use crate::backend::netfilter::denials::label::{Label, comment_of, counts_of, key_of, key_words};
use crate::backend::netfilter::names;
use crate::backend::series::{RuleKey, Series};
use crate::backend::{BackendError, VerdictCount, VerdictCounters, VerdictKey};

/// Counts of rules that are gone, by what they decided.
#[derive(Clone, Debug, Default)]
pub(in crate::backend::netfilter) struct Totals {
    pub(in crate::backend::netfilter) serial: u64,
    counts: BTreeMap<VerdictKey, BTreeMap<Option<Origin>, u64>>,
    /// Only of what has a series the rule is remembered once it is gone.
    pub(in crate::backend::netfilter) series: Series,
}

type Origin = (Arc<str>, usize);

/// What the line of a rule begins with that has a series.
const SERIES: &str = "series";
/// What the kernel keeps of a remark (XT_MAX_COMMENT_LEN of linux/netfilter/xt_comment.h, with the NUL).
const MOST_REMARKED: usize = 255;

impl Totals {
    /// Reads what an earlier life left.
    pub(super) fn of_listing(listing: &TableListing) -> Self {
        let mut totals = Self::default();
        let rules = listing
            .chain(names::totals().as_str())
            .map(|chain| chain.rules.iter());
        for rule in rules.into_iter().flatten() {
            let words: Vec<&str> = comment_of(&rule.text)
                .map(|comment| comment.splitn(3, ' ').collect())
                .unwrap_or_default();
            match words.as_slice() {
                ["serial", number] => totals.serial = number.parse().unwrap_or(0),
                [SERIES, base, label] => totals.read_series(base, label, rule.packets),
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

    fn read_series(&mut self, base: &str, label: &str, packets: u64) {
        let Some(label) = Label::of_comment(label) else {
            return;
        };
        let rule = (label.key, Arc::clone(&label.policy), label.rule);
        // A series that begins where nobody knows may be too high, but does not fall.
        self.series.name(rule, base.parse().unwrap_or(0));
        self.add(label.key, Some((label.policy, label.rule)), packets);
    }

    /// Adds what a chain counted that is about to go.
    pub(super) fn add_chain(&mut self, chain: &Chain) {
        for count in counts_of(chain).filter(|count| count.packets > 0) {
            self.add(count.key, count.origin, count.packets);
        }
    }

    /// Both together; the serial number and the series are this one's.
    pub(super) fn plus(mut self, other: &Self) -> Self {
        for VerdictCount { key, origin, packets } in other.counts() {
            let origin = origin.filter(|(policy, rule)| self.series.has(&(key, Arc::clone(policy), *rule)));
            self.add(key, origin, packets);
        }
        self
    }

    fn add(&mut self, key: VerdictKey, origin: Option<Origin>, packets: u64) {
        *self.counts.entry(key).or_default().entry(origin).or_default() += packets;
    }

    fn of_rule(&self, (key, policy, rule): &RuleKey) -> u64 {
        let origin = Some((Arc::clone(policy), *rule));
        let counted = self.counts.get(key).and_then(|origins| origins.get(&origin));
        counted.copied().unwrap_or(0)
    }

    /// The rules of the chain that keeps them.
    pub(in crate::backend::netfilter) fn lines(&self) -> Vec<(u64, String)> {
        let remark = |text: &str| Line::to(Target::Return).comment(text).to_string();
        let serial = (0, remark(&format!("serial {}", self.serial)));
        let mut nameless: BTreeMap<VerdictKey, u64> = BTreeMap::new();
        for count in self.counts() {
            *nameless.entry(count.key).or_default() += count.packets;
        }
        let mut named = Vec::new();
        for (rule, text) in self.series_lines() {
            let packets = self.of_rule(rule);
            if let Some(others) = nameless.get_mut(&rule.0) {
                *others -= packets;
            }
            named.push((packets, remark(&text)));
        }
        let nameless = nameless
            .into_iter()
            .map(|(key, packets)| (packets, remark(&key_words(key))));
        std::iter::once(serial).chain(nameless).chain(named).collect()
    }

    /// What is too long for a remark is not kept by name.
    fn series_lines(&self) -> impl Iterator<Item = (&RuleKey, String)> {
        let line = |(rule, base): (&'_ RuleKey, i64)| {
            let (key, policy, index) = rule.clone();
            let label = Label {
                key,
                rule: index,
                policy,
            };
            format!("{SERIES} {base} {label}")
        };
        let lines = self
            .series
            .named()
            .map(move |(rule, base)| (rule, line((rule, base))));
        lines.filter(|(_, text)| text.len() <= MOST_REMARKED)
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
pub(in crate::backend::netfilter) struct Counters {
    tables: Mutex<[IpTables; 2]>,
    totals: Mutex<Totals>,
}

impl Counters {
    pub(in crate::backend::netfilter) fn new(tables: [IpTables; 2]) -> Self {
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
    pub(in crate::backend::netfilter) fn lock(&self) -> MutexGuard<'_, Totals> {
        // Numbers are whole at every moment, whoever died while holding them.
        self.totals.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Counters {
    /// All of them, under the lock that whoever rewrites chains takes.
    fn read_with(&self, totals: &Totals) -> Result<Vec<VerdictCount>, BackendError> {
        let mut counts: Vec<VerdictCount> = totals.counts().collect();
        let tables = *self.tables.lock().unwrap_or_else(PoisonError::into_inner);
        for listing in list_both(tables)? {
            counts.extend(
                family_table::ours(&listing)
                    .filter(|chain| chain.name != names::totals().as_str())
                    .flat_map(counts_of),
            );
        }
        Ok(counts)
    }
}

impl VerdictCounters for Counters {
    fn read(&self) -> Result<Vec<VerdictCount>, BackendError> {
        self.read_with(&self.lock())
    }

    fn by_series(&self, most: usize) -> Result<Vec<VerdictCount>, BackendError> {
        let mut totals = self.lock();
        let counts = self.read_with(&totals)?;
        Ok(totals.series.add_up(&counts, most))
    }
}

/// Lists both families side by side.
pub(super) fn list_both(tables: [IpTables; 2]) -> Result<[TableListing; 2], BackendError> {
    let listed = std::thread::scope(|scope| {
        let [first, second] = tables;
        let other = scope.spawn(move || family_table::list(second));
        let one = family_table::list(first);
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
