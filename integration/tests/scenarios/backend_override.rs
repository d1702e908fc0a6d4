//! Another backend than netfilter: `tests/backends.rs` tells stories again on it.

use egret_integration::{DaemonSpec, World};
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
enum Override {
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
pub(super) fn is_ebpf() -> bool {
    matches!(Override::of_environment(), Some(Override::Ebpf(_)))
}

/// The enforcer on netfilter, or on the other backend.
pub(super) fn enforcer(world: &World) -> DaemonSpec {
    let (backend, arguments) = match (Override::of_environment(), world.cgroup_root()) {
        (Some(Override::Nftables), _) => (NFTABLES, vec![]),
        (Some(Override::Ebpf(pins)), Some(root)) => {
            let root = root.display().to_string();
            (
                "ebpf",
                vec!["--bpf-pins".to_owned(), pins, "--cgroup-root".to_owned(), root],
            )
        }
        (Some(Override::Ebpf(_)), None) | (None, _) => return world.enforcer("netfilter"),
    };
    USED.store(true, Ordering::Relaxed);
    world.enforcer(backend).with(arguments)
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
