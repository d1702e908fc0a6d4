//! Limits of records that were reached on this node.

use std::time::Duration;

use egret_policies::records::RecordStats;
use egret_shared::time::Timestamp;

/// A limit that was not reached again for so long is no more told: a report is not written for each answer.
const TOLD_FOR: Duration = Duration::from_secs(600);

/// What went because a limit was reached, and when that was seen to grow last.
#[derive(Debug, Default)]
pub(super) struct ReachedLimits([Reached; 4]);

#[derive(Clone, Copy, Debug, Default)]
struct Reached {
    count: u64,
    last: Option<Timestamp>,
}

impl ReachedLimits {
    /// Takes note of the counts. Says which limits were reached of late, and what that means.
    pub(super) fn follow(&mut self, records: &RecordStats, now: Timestamp) -> Vec<String> {
        let counts = [
            (
                records.evicted_names_per_pod,
                format!(
                    "a pod was told of more than {} names (namesPerPod): connections to the oldest are refused",
                    records.names_per_pod_limit
                ),
            ),
            (
                records.evicted_addresses_per_name,
                format!(
                    "a name has more than {} addresses for a pod (addressesPerName): connections to the others are refused",
                    records.addresses_per_name_limit
                ),
            ),
            (
                records.evicted_total,
                format!(
                    "pods were told of more than {} addresses (recordsTotal): connections to the oldest of the pod with most are refused",
                    records.records_limit
                ),
            ),
            (
                records.forgotten,
                format!(
                    "more than {} ended records are remembered: a connection to an older one ends when its pod's policies change",
                    records.retained_limit
                ),
            ),
        ];
        let mut told = Vec::new();
        for (reached, (count, text)) in self.0.iter_mut().zip(counts) {
            if count > reached.count {
                *reached = Reached {
                    count,
                    last: Some(now),
                };
            }
            if reached.last.is_some_and(|last| now.since(last) < TOLD_FOR) {
                told.push(text);
            }
        }
        told
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_is_told_from_when_it_is_reached_until_it_was_not_for_a_while() {
        let (mut limits, mut records) = (ReachedLimits::default(), RecordStats::default());
        let at = |seconds: u64| Timestamp::from_millis(seconds * 1_000);
        records.names_per_pod_limit = 7;
        assert_eq!(limits.follow(&records, at(0)), [""; 0]);
        records.evicted_names_per_pod = 1;
        let told = limits.follow(&records, at(10));
        assert!(
            told.len() == 1 && told[0].contains("more than 7 names"),
            "{told:?}"
        );
        // The text stays while counts grow: nothing is written for that.
        records.evicted_names_per_pod = 100;
        assert_eq!(limits.follow(&records, at(500)), told);
        assert_eq!(limits.follow(&records, at(1_099)), told);
        assert_eq!(limits.follow(&records, at(1_101)), [""; 0]);
        records.evicted_total = 1;
        records.forgotten = 1;
        assert_eq!(limits.follow(&records, at(1_102)).len(), 2);
    }
}
