//! Drift: what differs from what was programmed, as counts for a metric and by name for people.

use std::collections::BTreeMap;

use crate::backend::SyncStatus;

/// Differences that were found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(in crate::backend) struct Drift {
    counts: BTreeMap<&'static str, u64>,
    named: Vec<String>,
}

/// The most differences that are named: a flush removes hundreds.
const MOST_NAMED: usize = 20;

impl Drift {
    /// One more.
    pub(in crate::backend) fn note(&mut self, kind: &'static str, what: &str) {
        *self.counts.entry(kind).or_insert(0) += 1;
        if self.named.len() < MOST_NAMED {
            self.named.push(format!("{}: {what}", kind.replace('_', " ")));
        }
    }

    /// Several of one kind in one place.
    pub(in crate::backend) fn note_all(&mut self, kind: &'static str, number: usize, place: &str) {
        if number > 0 {
            self.note(kind, &format!("{number} of {place}"));
            *self.counts.entry(kind).or_insert(0) += u64::try_from(number - 1).unwrap_or(u64::MAX);
        }
    }

    /// Whether there are none.
    pub(in crate::backend) fn is_empty(&self) -> bool {
        self.counts.is_empty()
    }

    /// Says that this was repaired.
    pub(in crate::backend) fn add_to(self, standing: &mut SyncStatus) {
        add(&mut standing.repaired, self.counts);
        let room = MOST_NAMED.saturating_sub(standing.differences.len());
        standing.differences.extend(self.named.into_iter().take(room));
    }
}

fn add(counts: &mut BTreeMap<&'static str, u64>, more: BTreeMap<&'static str, u64>) {
    for (kind, number) in more {
        *counts.entry(kind).or_insert(0) += number;
    }
}
