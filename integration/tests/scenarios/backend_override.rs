//! Another backend than netfilter: `tests/backends.rs` tells stories again on it.

use std::sync::atomic::{AtomicBool, Ordering};

/// Names the backend.
pub(crate) const BACKEND: &str = "EGRET_SCENARIO_BACKEND";
/// The directory for pins of eBPF.
pub(crate) const PINS: &str = "EGRET_SCENARIO_PINS";

/// The backend that writes a table of nftables.
const NFTABLES: &str = "nftables";

static USED: AtomicBool = AtomicBool::new(false);

/// The backend that stories are told on again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Override {
    Nftables,
    /// With its directory for pins.
    Ebpf(String),
}

impl Override {
    fn of_environment() -> Option<Self> {
        let backend = std::env::var(BACKEND).ok()?;
        Some(match backend.as_str() {
            NFTABLES => Self::Nftables,
            _ => Self::Ebpf(std::env::var(PINS).ok()?),
        })
    }
}

/// Whether it judges sockets of pods, which have to be in cgroups then.
pub(super) fn needs_cgroups() -> bool {
    matches!(Override::of_environment(), Some(Override::Ebpf(_)))
}

/// The backend of a story that uses the usual setup.
pub(super) fn chosen() -> Option<Override> {
    let chosen = Override::of_environment()?;
    USED.store(true, Ordering::Relaxed);
    Some(chosen)
}

/// The backend of a story that starts its enforcer itself, and is about any packet filter.
pub(super) fn packet_filter() -> &'static str {
    match Override::of_environment() {
        Some(Override::Nftables) => {
            USED.store(true, Ordering::Relaxed);
            NFTABLES
        }
        Some(Override::Ebpf(_)) | None => "netfilter",
    }
}

/// Whether a story asked.
#[allow(
    dead_code,
    reason = "only one of the programs that tell stories wants to know"
)]
pub(crate) fn was_used() -> bool {
    USED.load(Ordering::Relaxed)
}
