//! Whether others changed what was written, or what it depends on: asked every few seconds, so it must cost little.
//!
//! The nft flavour tells of changes by itself (see the kernel's `nftables`). The legacy one does not: its tables are read, without a
//! process, and compared by a fingerprint. Sets are counted. What is found is only a reason to compare everything.

use std::thread::JoinHandle;
use std::time::Duration;

use egret_kernel::Family;
use egret_kernel::iptables::legacy::{Entries, Outline};
use egret_kernel::iptables::{Flavour, Table as Which};
use egret_shared::switch::{Switch, is_off};
use egret_shared::time::Timestamp;

use crate::backend::netfilter::driver::Netfilter;
use crate::backend::netfilter::marks::Marks;
use crate::backend::netfilter::tables::foreign_rules::{ForeignMarks, look_for_marks};

/// What is remembered from one look to the next.
#[derive(Debug, Default)]
pub(crate) struct Vigil {
    /// Of the legacy tables, right before they were listed.
    outlines: Vec<Option<Outline>>,
    fingerprints: Vec<Option<u64>>,
    next_fingerprints: Option<Timestamp>,
    /// Sets that were not as they should be; what cannot be repaired is no news.
    odd_sets: Vec<String>,
    marks: MarkWatch,
}

/// A table of 110 pods is read in 8 ms: less than a hundredth of a core for both families, and soon enough. What changes the size
/// of a table is seen with every look.
const FINGERPRINTS_EVERY: Duration = Duration::from_secs(4);

impl Netfilter {
    /// To be called right before the tables are listed: what changes in between is found by the next look.
    pub(crate) fn note_fingerprints(&mut self) {
        self.vigil.outlines = self.outlines();
        self.vigil.fingerprints = self.fingerprints();
    }

    /// What is not as it was left, in words.
    pub(crate) fn look_around(&mut self, now: Timestamp) -> Option<String> {
        if is_off(Switch::Notice) {
            return None;
        }
        self.vigil.marks.look(self.settings.marks, now);
        self.flavour_moved()
            .map(|flavour| format!("the kubelet uses iptables-{} now", flavour.name()))
            .or_else(|| self.tables_changed(now).then(|| "the tables changed".to_owned()))
            .or_else(|| self.sets_changed(now))
    }

    /// Rules of others that write our bits of the connection mark.
    pub(crate) fn foreign_marks(&self) -> &[String] {
        &self.vigil.marks.found
    }

    /// Says which rules of others were found to write our bits, and were accepted.
    pub(crate) fn accept_marks(&mut self, rules: Vec<String>) {
        self.vigil.marks.found = rules;
    }

    fn tables_changed(&mut self, now: Timestamp) -> bool {
        if self.outlines() != self.vigil.outlines {
            return true;
        }
        if self.vigil.next_fingerprints.is_some_and(|at| at > now) {
            return false;
        }
        self.vigil.next_fingerprints = Some(now.after(FINGERPRINTS_EVERY));
        self.fingerprints() != self.vigil.fingerprints
    }

    fn outlines(&self) -> Vec<Option<Outline>> {
        self.legacy_tables()
            .map(|(family, table)| Outline::read(family, table).ok().flatten())
            .collect()
    }

    fn fingerprints(&self) -> Vec<Option<u64>> {
        let fingerprint = |(family, table)| {
            // What cannot be read now is read when everything is compared, and said then.
            let entries = Entries::read(family, table).ok().flatten();
            entries.map(|entries| entries.fingerprint())
        };
        self.legacy_tables().map(fingerprint).collect()
    }

    /// The tables that hold chains of ours, where the kernel tells of no change to them.
    fn legacy_tables(&self) -> impl Iterator<Item = (Family, Which)> {
        let tables = self
            .tables
            .iter()
            .filter(|_| self.settings.flavour == Flavour::Legacy);
        tables.flat_map(|table| [Which::Raw, Which::Filter].map(|which| (table.family(), which)))
    }

    fn sets_changed(&mut self, now: Timestamp) -> Option<String> {
        let odd = self
            .sets
            .lock()
            .oddities(now)
            .unwrap_or_else(|error| vec![error.to_string()]);
        let is_news = !odd.is_empty() && odd != self.vigil.odd_sets;
        self.vigil.odd_sets = odd;
        is_news.then(|| self.vigil.odd_sets.join("; "))
    }
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
