//! Another backend than netfilter for stories that use the usual setup: `tests/backends.rs` tells them again on it.

use std::sync::atomic::{AtomicBool, Ordering};

/// Names the backend.
pub(crate) const BACKEND: &str = "EGRET_SCENARIO_BACKEND";
/// The directory for its pins.
pub(crate) const PINS: &str = "EGRET_SCENARIO_PINS";

static USED: AtomicBool = AtomicBool::new(false);

/// Whether there is one.
pub(super) fn is_set() -> bool {
    std::env::var_os(BACKEND).is_some()
}

/// The backend, with its directory for pins.
pub(super) fn chosen() -> Option<(String, String)> {
    let chosen = (std::env::var(BACKEND).ok()?, std::env::var(PINS).ok()?);
    USED.store(true, Ordering::Relaxed);
    Some(chosen)
}

/// Whether a story asked.
#[allow(
    dead_code,
    reason = "only one of the programs that tell stories wants to know"
)]
pub(crate) fn was_used() -> bool {
    USED.load(Ordering::Relaxed)
}
