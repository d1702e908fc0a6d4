//! What became of the denied packets that the kernel logged.

use metrics::{counter, gauge};

use crate::metrics::{as_gauge, describe_counters, describe_gauges};

/// What may become of a denied packet.
const OUTCOMES: [&str; 6] = ["told", "withheld", "suppressed", "lost", "unwritten", "foreign"];

/// Describes the metrics of events and sets them to 0.
pub fn register_metrics() {
    describe_counters(&[(
        "egret_enforcer_events_total",
        "Denied packets by what became of telling them: told, withheld (read, and more than is told), suppressed (more than the kernel tells), lost, unwritten, foreign (not ours).",
    )]);
    describe_gauges(&[(
        "egret_enforcer_events_listening",
        "1 while the kernel is listened to for denied packets.",
    )]);
    for outcome in OUTCOMES {
        count(outcome, 0);
    }
    set_listening(false);
}

pub(super) fn count(outcome: &'static str, packets: u64) {
    counter!("egret_enforcer_events_total", "outcome" => outcome).increment(packets);
}

pub(super) fn set_listening(is_listening: bool) {
    gauge!("egret_enforcer_events_listening").set(as_gauge(usize::from(is_listening)));
}
