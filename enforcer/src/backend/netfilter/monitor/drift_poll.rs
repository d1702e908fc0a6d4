//! The drift poll: checks every few seconds, at little cost, whether others changed what was programmed or
//! what it depends on.
//!
//! The nft flavour tells of changes by itself (see the kernel's `nftables`). The legacy one does not: its tables are read, without a
//! process, and compared by a fingerprint. Sets are counted. What is found is only a reason to compare everything.

use std::thread::JoinHandle;
use std::time::Duration;

use egret_kernel::Family;
use egret_kernel::iptables::legacy::{TableEntries, TableSummary};
use egret_kernel::iptables::{Flavour, Table as Which};
use egret_shared::time::Timestamp;

use crate::backend::netfilter::marks::Marks;
use crate::backend::netfilter::sets::concurrent::SharedSets;
use crate::backend::netfilter::tables::foreign_rules::{ForeignMarks, look_for_marks};

/// What is remembered from one look to the next.
#[derive(Debug, Default)]
pub(in crate::backend) struct DriftPoll {
    /// Of the legacy tables, right before they were listed.
    outlines: Vec<Option<TableSummary>>,
    fingerprints: Vec<Option<u64>>,
    next_fingerprints: Option<Timestamp>,
    /// Sets that were not as they should be; what cannot be repaired is no news.
    odd_sets: Vec<String>,
    marks: MarkWatch,
}

/// A table of 110 pods is read in 8 ms: less than a hundredth of a core for both families, and soon enough. What changes the size
/// of a table is seen with every look.
const FINGERPRINTS_EVERY: Duration = Duration::from_secs(4);

impl DriftPoll {
    /// Takes these rules of others, which write our bits of the connection mark, for known.
    pub(in crate::backend) fn accept_marks(&mut self, rules: Vec<String>) {
        self.marks.found = rules;
    }

    /// Rules of others that write our bits of the connection mark.
    pub(in crate::backend) fn foreign_marks(&self) -> &[String] {
        &self.marks.found
    }

    /// Looks for rules of others that write our bits of the connection mark, now and then.
    pub(in crate::backend) fn look_for_foreign_marks(&mut self, marks: Marks, now: Timestamp) {
        self.marks.look(marks, now);
    }

    /// To be called right before the tables are listed: what changes in between is found by the next poll.
    pub(in crate::backend::netfilter) fn note_fingerprints(&mut self, flavour: Flavour) {
        self.outlines = outlines(flavour);
        self.fingerprints = fingerprints(flavour);
    }

    /// What differs from what was left, in words.
    pub(in crate::backend::netfilter) fn poll(
        &mut self,
        flavour: Flavour,
        sets: &SharedSets,
        now: Timestamp,
    ) -> Option<String> {
        let tables = self.have_tables_changed(flavour, now);
        tables
            .then(|| "the tables changed".to_owned())
            .or_else(|| self.changed_sets(sets, now))
    }

    fn have_tables_changed(&mut self, flavour: Flavour, now: Timestamp) -> bool {
        if outlines(flavour) != self.outlines {
            return true;
        }
        if self.next_fingerprints.is_some_and(|at| at > now) {
            return false;
        }
        self.next_fingerprints = Some(now.after(FINGERPRINTS_EVERY));
        fingerprints(flavour) != self.fingerprints
    }

    fn changed_sets(&mut self, sets: &SharedSets, now: Timestamp) -> Option<String> {
        let odd = sets
            .lock()
            .mismatches(now)
            .unwrap_or_else(|error| vec![error.to_string()]);
        let is_news = !odd.is_empty() && odd != self.odd_sets;
        self.odd_sets = odd;
        is_news.then(|| self.odd_sets.join("; "))
    }
}

fn outlines(flavour: Flavour) -> Vec<Option<TableSummary>> {
    legacy_tables(flavour)
        .map(|(family, table)| TableSummary::read(family, table).ok().flatten())
        .collect()
}

fn fingerprints(flavour: Flavour) -> Vec<Option<u64>> {
    let fingerprint = |(family, table)| {
        // What cannot be read now is read when everything is compared, and said then.
        let entries = TableEntries::read(family, table).ok().flatten();
        entries.map(|entries| entries.fingerprint())
    };
    legacy_tables(flavour).map(fingerprint).collect()
}

/// The tables that hold chains of ours, where the kernel tells of no change to them.
fn legacy_tables(flavour: Flavour) -> impl Iterator<Item = (Family, Which)> {
    let families = Family::ALL
        .into_iter()
        .filter(move |_| flavour == Flavour::Legacy);
    families.flat_map(|family| [Which::Raw, Which::Filter].map(|which| (family, which)))
}

/// Looks for rules of others that write our marks, on a thread of its own: listing all tables may take a second.
#[derive(Debug, Default)]
struct MarkWatch {
    next: Option<Timestamp>,
    looking: Option<JoinHandle<Result<(), ForeignMarks>>>,
    found: Vec<String>,
}

const LOOK_FOR_MARKS_EVERY: Duration = Duration::from_secs(300);

impl MarkWatch {
    fn look(&mut self, marks: Marks, now: Timestamp) {
        if self.looking.as_ref().is_some_and(JoinHandle::is_finished)
            && let Some(Ok(found)) = self.looking.take().map(JoinHandle::join)
        {
            self.note(found.err());
        }
        let next = *self.next.get_or_insert_with(|| now.after(LOOK_FOR_MARKS_EVERY));
        if next <= now && self.looking.is_none() {
            self.next = Some(now.after(LOOK_FOR_MARKS_EVERY));
            self.looking = Some(std::thread::spawn(move || look_for_marks(marks)));
        }
    }

    fn note(&mut self, found: Option<ForeignMarks>) {
        let rules = found.clone().map(ForeignMarks::into_rules).unwrap_or_default();
        if let Some(found) = found.filter(|_| rules != self.found) {
            tracing::warn!("{found}");
        }
        self.found = rules;
    }
}
