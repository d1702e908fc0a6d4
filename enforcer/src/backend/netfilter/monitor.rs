//! Watches what others do: drift of what was programmed, foreign rules that write our marks, and ways past
//! the rules.

mod drift_poll;
pub mod ruleset_events;
mod bypass;
mod watched_pods;

pub(in crate::backend) use bypass::{BypassDetector, PodSnapshot};
pub(in crate::backend) use drift_poll::DriftPoll;
pub(in crate::backend) use watched_pods::concerns_pod_netns;
