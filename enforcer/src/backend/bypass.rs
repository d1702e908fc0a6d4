//! The bypass report: ways by which packets of pods pass the rules. They are reported because the rules cannot stop
//! them.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use egret_shared::pod::PodKey;

/// The ways that were seen last.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BypassReport {
    /// Ways past the rules.
    pub bypasses: BTreeSet<Bypass>,
    /// Pods whose own namespace should hold rules and does not, and why.
    pub pending: BTreeMap<PodKey, String>,
}

/// A way past the rules.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Bypass {
    /// Its kind.
    pub kind: BypassKind,
    /// Where it is and what follows, as a sentence without a full stop.
    pub what: String,
}

/// The kinds of ways past the rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum BypassKind {
    /// A flowtable.
    Flowtable,
    /// A tc filter.
    Tc,
    /// A BPF program at the tcx hook.
    Tcx,
    /// An XDP program.
    Xdp,
    /// A bridge whose ports reach each other without iptables.
    Bridge,
    /// An interface of a pod that leads past the node.
    Interface,
    /// IPVS, which may lead to a process of the node.
    Ipvs,
    /// A tunnel that decapsulates at a port which the kernel does not report.
    Tunnel,
    /// Unknown pods that cannot be closed.
    UnknownPods,
    /// The node's network cannot be inspected.
    Unseen,
}

impl BypassKind {
    /// All kinds.
    pub const ALL: [Self; 10] = [
        Self::Flowtable,
        Self::Tc,
        Self::Tcx,
        Self::Xdp,
        Self::Bridge,
        Self::Interface,
        Self::Ipvs,
        Self::Tunnel,
        Self::UnknownPods,
        Self::Unseen,
    ];

    /// The value of the label.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Flowtable => "flowtable",
            Self::Tc => "tc",
            Self::Tcx => "tcx",
            Self::Xdp => "xdp",
            Self::Bridge => "bridge",
            Self::Interface => "interface",
            Self::Ipvs => "ipvs",
            Self::Tunnel => "tunnel",
            Self::UnknownPods => "unknown-pods",
            Self::Unseen => "unseen",
        }
    }

    /// Whether another mechanism forwards the packets, rather than a part of the network being unjudged.
    #[must_use]
    pub const fn is_fast_path(self) -> bool {
        match self {
            Self::Flowtable | Self::Tc | Self::Tcx | Self::Xdp => true,
            Self::Bridge | Self::Interface | Self::Ipvs | Self::Tunnel | Self::UnknownPods | Self::Unseen => {
                false
            }
        }
    }
}

impl fmt::Display for Bypass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.what)
    }
}
