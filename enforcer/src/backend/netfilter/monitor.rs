//! Watches what others do: drift of what was programmed, foreign rules that write our marks, and ways past
//! the rules.

mod drift_poll;
pub mod ruleset_events;
mod bypass;
mod watched_pods;

pub(super) use bypass::{BypassDetector, PodSnapshot};
pub(super) use drift_poll::DriftPoll;
pub(super) use watched_pods::concerns_pod_netns;
