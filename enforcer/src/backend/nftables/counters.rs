//! Verdict counters: counters with names, which rules of several pods share and which stay when rules change. What counters of rules
//! counted that are gone is kept in counters of their own; so are the rules that have a series of metrics. All of it is in the table,
//! so it survives the enforcer and goes with the node.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use egret_kernel::netlink;
use egret_kernel::nftables::{Changes, NamedCounter, TableReader, TableWriter};
use egret_policies::rules::Digest;

use super::TABLE;
use crate::backend::netfilter::denials::label::{Label, key_of, key_words};
use crate::backend::netfilter::names::NFTABLES_BRIDGE;
use crate::backend::series::{RuleKey, Series};
use crate::backend::{BackendError, VerdictCount, VerdictCounters, VerdictKey};

/// The beginning of the names of counters that no rule counts in.
pub(super) const KEPT: &str = "kept-";
const TOTAL: &str = "kept-total-";
const SERIES: &str = "kept-series-";

/// The counters.
#[derive(Debug)]
pub(super) struct Counters(Mutex<State>);

#[derive(Debug)]
struct State {
    reader: TableReader,
    writer: TableWriter,
    series: Series,
    /// The series that the kernel remembers, with their base.
    remembered: BTreeMap<RuleKey, i64>,
    /// What was read last: a counter that somebody removes goes on from there.
    last: BTreeMap<String, NamedCounter>,
}

impl Counters {
    pub(super) fn open() -> Result<Self, netlink::Error> {
        Ok(Self(Mutex::new(State {
            reader: TableReader::open()?,
            writer: TableWriter::open()?,
            series: Series::default(),
            remembered: BTreeMap::new(),
            last: BTreeMap::new(),
        })))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Numbers are whole at every moment, whoever died while holding them.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes over what an earlier life counted.
    pub(super) fn adopt(&self, counters: &[NamedCounter]) {
        let mut state = self.lock();
        for counter in counters {
            state.last.insert(counter.name.clone(), counter.clone());
            let of_series = counter
                .name
                .starts_with(SERIES)
                .then_some(counter.comment.as_str());
            let Some((base, label)) = of_series.and_then(|text| text.split_once(' ')) else {
                continue;
            };
            // A series that begins where nobody knows may be too high, but does not fall.
            let base = base.parse().unwrap_or(0);
            if let Some(label) = Label::of_comment(label) {
                let rule: RuleKey = (label.key, label.policy, label.rule);
                state.series.name(rule.clone(), base);
                state.remembered.insert(rule, base);
            }
        }
    }

    /// What a counter counted as it was read last.
    pub(super) fn last(&self, name: &str) -> u64 {
        self.lock().last.get(name).map_or(0, |counter| counter.packets)
    }

    /// Counters that were there and that no rule needs.
    pub(super) fn kept(&self) -> Vec<NamedCounter> {
        let state = self.lock();
        let kept = state
            .last
            .values()
            .filter(|counter| counter.name.starts_with(KEPT));
        kept.cloned().collect()
    }

    /// Adds up what retired counters counted, and removes them. Returns those that went.
    pub(super) fn fold(&self, retired: &BTreeSet<String>) -> Result<BTreeSet<String>, netlink::Error> {
        let mut removed = BTreeSet::new();
        if retired.is_empty() {
            return Ok(removed);
        }
        let mut state = self.lock();
        let counters = state.reader.counters(TABLE)?;
        let mut totals: BTreeMap<VerdictKey, u64> = BTreeMap::new();
        let mut changes = Changes::of(TABLE);
        for counter in counters.iter().filter(|counter| retired.contains(&counter.name)) {
            if let Some(label) = label_of(counter) {
                let rule: RuleKey = (label.key, label.policy, label.rule);
                if state.series.has(&rule) {
                    continue;
                }
                *totals.entry(rule.0).or_default() += counter.packets;
            }
            changes.delete_counter(&counter.name);
            removed.insert(counter.name.clone());
        }
        for (key, packets) in totals {
            let name = format!("{TOTAL}{}", Digest::of(&key_words(key)));
            let before = counters.iter().find(|counter| counter.name == name);
            if before.is_some() {
                changes.delete_counter(&name);
            }
            changes.add_counter(&NamedCounter {
                name,
                comment: key_words(key),
                packets: packets + before.map_or(0, |counter| counter.packets),
            });
        }
        state.writer.commit(changes)?;
        state.last.retain(|name, _| !removed.contains(name));
        Ok(removed)
    }
}

impl State {
    fn read(&mut self) -> Result<Vec<VerdictCount>, BackendError> {
        let unread = |error| BackendError::new("cannot list the counters", error);
        let counters = self.reader.counters(TABLE).map_err(unread)?;
        let on_bridges = self.reader.counters(NFTABLES_BRIDGE).map_err(unread)?;
        let counts = counters.iter().chain(&on_bridges).filter_map(count_of).collect();
        self.last = counters
            .into_iter()
            .map(|counter| (counter.name.clone(), counter))
            .collect();
        Ok(counts)
    }

    /// Writes down which rules have series, so that none falls in the next life.
    fn remember_series(&mut self) -> Result<(), netlink::Error> {
        let mut changes = Changes::of(TABLE);
        let mut remembered = Vec::new();
        for (rule, base) in self.series.named() {
            let before = self.remembered.get(rule).copied();
            if before == Some(base) {
                continue;
            }
            let (key, policy, index) = rule.clone();
            let label = Label {
                key,
                rule: index,
                policy,
            };
            let name = format!("{SERIES}{}", Digest::of(&label.to_string()));
            if before.is_some() {
                changes.delete_counter(&name);
            }
            changes.add_counter(&NamedCounter {
                name,
                comment: format!("{base} {label}"),
                packets: 0,
            });
            remembered.push((rule.clone(), base));
        }
        self.writer.commit(changes)?;
        self.remembered.extend(remembered);
        Ok(())
    }
}

impl VerdictCounters for Counters {
    fn read(&self) -> Result<Vec<VerdictCount>, BackendError> {
        self.lock().read()
    }

    fn by_series(&self, most: usize) -> Result<Vec<VerdictCount>, BackendError> {
        let mut state = self.lock();
        let counts = state.read()?;
        let series = state.series.add_up(&counts, most);
        if let Err(error) = state.remember_series() {
            tracing::debug!(%error, "series of rules are not remembered for the next start");
        }
        Ok(series)
    }
}

fn label_of(counter: &NamedCounter) -> Option<Label> {
    counter
        .name
        .starts_with("rule-")
        .then(|| Label::of_comment(&counter.comment))
        .flatten()
}

fn count_of(counter: &NamedCounter) -> Option<VerdictCount> {
    if let Some(label) = label_of(counter) {
        return Some(VerdictCount {
            key: label.key,
            origin: Some((Arc::clone(&label.policy), label.rule)),
            packets: counter.packets,
        });
    }
    let words: Vec<&str> = counter.comment.split(' ').collect();
    let words: &[&str; 3] = words.as_slice().try_into().ok()?;
    let key = key_of(words).filter(|_| counter.name.starts_with(TOTAL))?;
    Some(VerdictCount {
        key,
        origin: None,
        packets: counter.packets,
    })
}
