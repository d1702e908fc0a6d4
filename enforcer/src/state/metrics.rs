//! Counts errors of state files.

use metrics::{Counter, counter};

use super::format::StateError;
use crate::metrics::describe_counters;

/// Describes the metric of state files and sets it to 0.
pub fn register_metrics() {
    describe_counters(&[(
        "egret_enforcer_state_file_problems_total",
        "Times that the file with what pods were told could not be used or written, by reason.",
    )]);
    for reason in StateError::REASONS {
        problems(reason).absolute(0);
    }
}

pub(super) fn count(error: &StateError) {
    problems(error.reason()).increment(1);
}

fn problems(reason: &'static str) -> Counter {
    counter!("egret_enforcer_state_file_problems_total", "reason" => reason)
}
