//! What others changed of the table, by a listing of it.

use std::collections::BTreeSet;

use egret_shared::time::Timestamp;

use super::{KernelState, Table};
use crate::backend::netfilter::drift::Drift;
use crate::backend::nftables::sets::SharedSets;

impl Table {
    /// What differs from what was written last.
    pub(in crate::backend::nftables) fn drift(
        &self,
        held: &KernelState,
        sets: &SharedSets,
        now: Timestamp,
    ) -> Drift {
        let mut drift = Drift::default();
        let mut known: BTreeSet<&String> = BTreeSet::new();
        for (name, lines) in self.programmed.chains.values().flatten() {
            known.insert(name);
            let Some(chain) = held.table.chains.get(name) else {
                drift.note("chain_missing", name);
                continue;
            };
            let comments: Vec<&str> = lines.iter().map(|rule| &*rule.comment).collect();
            let same = comments.len() == chain.rules.len()
                && comments
                    .iter()
                    .zip(&chain.rules)
                    .all(|(one, other)| is_kept(one, other));
            if !same {
                drift.note("chain_changed", name);
            }
        }
        for name in held.table.chains.keys().filter(|name| !known.contains(name)) {
            drift.note("chain_extra", name);
        }
        let sets = sets.lock();
        let lookups = self.programmed.lookups.keys().map(|name| (*name).to_owned());
        let desired: BTreeSet<String> = sets.made().iter().cloned().chain(lookups).collect();
        for name in desired.iter().filter(|name| !held.table.sets.contains_key(*name)) {
            drift.note("set_missing", name);
        }
        for name in held.table.sets.keys().filter(|name| !desired.contains(*name)) {
            drift.note("set_extra", name);
        }
        sets.drift(&held.sets, now, &mut drift);
        held.bridge.note_drift(&self.programmed.bridge, &mut drift);
        drift
    }
}

/// Whether a comment is the one that was written: the kernel keeps the beginning of a long one.
fn is_kept(written: &str, listed: &str) -> bool {
    written == listed || (listed.len() >= 200 && written.starts_with(listed))
}
