//! Whether others changed what was written, and what leads packets past the rules.

pub(crate) mod drift_poll;
pub mod ruleset_events;
pub(crate) mod bypass;
pub(crate) mod watched_pods;
