//! Another backend than netfilter for stories that use the usual setup: `tests/backends.rs` tells them again on it.

use egret_integration::{DaemonSpec, World};
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

/// The enforcer on netfilter, or on the other backend.
pub(super) fn enforcer(world: &World) -> DaemonSpec {
    let (Some(root), Ok(backend), Ok(pins)) =
        (world.cgroup_root(), std::env::var(BACKEND), std::env::var(PINS))
    else {
        return world.enforcer("netfilter");
    };
    USED.store(true, Ordering::Relaxed);
    let root = root.display().to_string();
    world
        .enforcer(&backend)
        .with(["--bpf-pins", &pins, "--cgroup-root", &root])
}

/// Whether a story asked.
#[allow(
    dead_code,
    reason = "only one of the programs that tell stories wants to know"
)]
pub(crate) fn was_used() -> bool {
    USED.load(Ordering::Relaxed)
}
