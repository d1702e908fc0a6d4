//! Drift detection: decides when the kernel is compared early, because another program was seen to change our rules or
//! a poll found a difference.
//!
//! A comparison starts soon after a change. While changes go on, the pause between comparisons grows: a program that
//! undoes every repair costs a comparison each few seconds.

use std::collections::BTreeSet;
use std::time::Duration;

use egret_shared::time::Timestamp;

use crate::backend::SyncStatus;

/// How often the backend is polled.
const POLL_INTERVAL: Duration = Duration::from_secs(2);
/// Changes come in bursts.
const BURST: Duration = Duration::from_millis(50);
const LONGEST: Duration = Duration::from_millis(2_500);
/// After so long without a change the pause is the shortest again.
const QUIET: Duration = Duration::from_secs(30);
/// The most causes that are remembered.
const MAX_CAUSES: usize = 8;

/// Changes by others, as far as they are known.
#[derive(Debug, Default)]
pub(super) struct DriftDetector {
    next_poll: Option<Timestamp>,
    /// The programs that changed something, or what the poll found; empty without drift.
    causes: BTreeSet<String>,
    compare_at: Option<Timestamp>,
    compared: Option<(Timestamp, Duration)>,
}

impl DriftDetector {
    /// Starts polling, or stops it where nothing is ever compared.
    pub(super) fn set_polling(&mut self, is_wanted: bool, now: Timestamp) {
        self.next_poll = is_wanted.then(|| now.after(POLL_INTERVAL));
    }

    pub(super) fn is_poll_due(&mut self, now: Timestamp) -> bool {
        let is_due = self.next_poll.is_some_and(|at| at <= now);
        if is_due {
            self.next_poll = Some(now.after(POLL_INTERVAL));
        }
        is_due
    }

    /// Notes a change by another program, or a sign of one.
    pub(super) fn suspect(&mut self, cause: String, now: Timestamp) {
        if self.next_poll.is_none() {
            return;
        }
        if self.causes.len() < MAX_CAUSES {
            self.causes.insert(cause);
        }
        let earliest = match self.compared {
            Some((at, pause)) if at.after(QUIET) > now => at.after(pause),
            Some(_) | None => now,
        };
        self.compare_at
            .get_or_insert_with(|| earliest.max(now.after(BURST)));
    }

    pub(super) fn is_due(&self, now: Timestamp) -> bool {
        self.compare_at.is_some_and(|at| at <= now)
    }

    /// Ends a comparison. Logs what was repaired, and who changed it.
    pub(super) fn record_comparison(&mut self, status: &SyncStatus, now: Timestamp) {
        let causes: Vec<String> = std::mem::take(&mut self.causes).into_iter().collect();
        if self.compare_at.take().is_some() {
            let pause = match self.compared {
                Some((at, pause)) if at.after(QUIET) > now => (pause * 2).min(LONGEST),
                Some(_) | None => BURST,
            };
            self.compared = Some((now, pause));
        }
        if !status.repaired.is_empty() {
            let by = if causes.is_empty() {
                "unknown".to_owned()
            } else {
                causes.join("; ")
            };
            let what = status.differences.join("; ");
            tracing::warn!(by, what, "others changed what is ours; it was put right");
        }
    }

    pub(super) fn deadline(&self) -> Option<Timestamp> {
        self.next_poll.into_iter().chain(self.compare_at).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Timestamp {
        Timestamp::from_millis(millis)
    }

    #[test]
    fn a_change_is_compared_at_once_and_many_ever_more_rarely_but_within_five_seconds() {
        let mut drift = DriftDetector::default();
        drift.set_polling(true, at(0));
        let mut compared = Vec::new();
        for millis in 0..12_000 {
            drift.suspect("x".to_owned(), at(millis));
            if drift.is_due(at(millis)) {
                drift.record_comparison(&SyncStatus::default(), at(millis));
                compared.push(millis);
            }
        }
        assert_eq!(compared[0], 50);
        let pauses: Vec<u64> = compared.windows(2).map(|pair| pair[1] - pair[0]).collect();
        assert!(pauses.is_sorted(), "{pauses:?}");
        assert_eq!(pauses.last(), Some(&2_500));
        drift.suspect("y".to_owned(), at(60_000));
        assert!(drift.is_due(at(60_050)), "it was quiet for a while");
    }

    #[test]
    fn without_comparisons_nothing_is_polled() {
        let mut drift = DriftDetector::default();
        drift.set_polling(false, at(0));
        drift.suspect("x".to_owned(), at(1));
        assert_eq!((drift.deadline(), drift.is_due(at(9_999))), (None, false));
        drift.set_polling(true, at(0));
        assert!(!drift.is_poll_due(at(1_999)) && drift.is_poll_due(at(2_000)));
        assert!(!drift.is_poll_due(at(3_999)) && drift.is_poll_due(at(4_000)));
    }
}
