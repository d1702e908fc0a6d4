//! Another backend than netfilter: `tests/backends.rs` tells stories again on it.

use egret_integration::{DaemonSpec, World};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

/// Names the backend.
pub(crate) const BACKEND: &str = "EGRET_SCENARIO_BACKEND";
/// The directory for pins of eBPF.
pub(crate) const PINS: &str = "EGRET_SCENARIO_PINS";

/// The backend that writes a table of nftables.
const NFTABLES: &str = "nftables";
/// Netfilter, with the programs of eBPF in front.
const BOTH: &str = "both";

static USED: AtomicBool = AtomicBool::new(false);

/// The backend that stories are told on again.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Override {
    Nftables,
    /// With its directory for pins.
    Ebpf(String),
    /// Netfilter behind it.
    Both(String),
}

impl Override {
    fn of_environment() -> Option<Self> {
        let backend = std::env::var(BACKEND).ok()?;
        Some(match backend.as_str() {
            NFTABLES => Self::Nftables,
            BOTH => Self::Both(std::env::var(PINS).ok()?),
            _ => Self::Ebpf(std::env::var(PINS).ok()?),
        })
    }
}

/// Whether rules are in a table of nftables.
pub(super) fn is_nftables() -> bool {
    matches!(Override::of_environment(), Some(Override::Nftables))
}

/// Whether nothing but programs at sockets judges.
pub(super) fn is_ebpf() -> bool {
    matches!(Override::of_environment(), Some(Override::Ebpf(_)))
}

/// Whether it judges sockets of pods, which have to be in cgroups then.
pub(super) fn judges_sockets() -> bool {
    matches!(
        Override::of_environment(),
        Some(Override::Ebpf(_) | Override::Both(_))
    )
}

/// The enforcer on netfilter, or on the other backend.
pub(super) fn enforcer(world: &World) -> DaemonSpec {
    let (backend, arguments) = match (Override::of_environment(), world.cgroup_root()) {
        (Some(Override::Nftables), _) => (NFTABLES, vec![]),
        (Some(Override::Ebpf(pins)), Some(root)) => ("ebpf", of_programs(pins, root)),
        (Some(Override::Both(pins)), Some(root)) => (BOTH, of_programs(pins, root)),
        (Some(Override::Ebpf(_) | Override::Both(_)), None) | (None, _) => {
            return world.enforcer("netfilter");
        }
    };
    USED.store(true, Ordering::Relaxed);
    world.enforcer(backend).with(arguments)
}

/// The directory for pins of eBPF.
pub(super) fn pin_path() -> Option<String> {
    match Override::of_environment()? {
        Override::Ebpf(pins) | Override::Both(pins) => Some(pins),
        Override::Nftables => None,
    }
}

/// What is pinned, where nothing but programs judges.
pub(super) fn pins() -> Option<Vec<String>> {
    let Override::Ebpf(pins) = Override::of_environment()? else {
        return None;
    };
    let mut folders = vec![PathBuf::from(pins)];
    let mut found = Vec::new();
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
            found.push(entry.path().display().to_string());
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                folders.push(entry.path());
            }
        }
    }
    found.sort();
    Some(found)
}

fn of_programs(pins: String, cgroups: &Path) -> Vec<String> {
    let cgroups = cgroups.display().to_string();
    ["--bpf-pins".to_owned(), pins, "--cgroup-root".to_owned(), cgroups].into()
}

/// The backend of a story that starts its enforcer itself, and is about any packet filter.
pub(super) fn packet_filter() -> &'static str {
    match Override::of_environment() {
        Some(Override::Nftables) => {
            USED.store(true, Ordering::Relaxed);
            NFTABLES
        }
        Some(Override::Ebpf(_) | Override::Both(_)) | None => "netfilter",
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
