//! What leads packets of pods past the rules: found and told, because nothing here can stop it.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use egret_shared::pod::PodKey;

/// What was seen last.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BypassReport {
    /// What the rules do not see.
    pub bypasses: BTreeSet<Bypass>,
    /// Pods whose own namespace should hold rules and does not, and why.
    pub pending: BTreeMap<PodKey, String>,
}

/// A way past the rules.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Bypass {
    /// Of which kind.
    pub kind: BypassKind,
    /// Where it is, and what follows: a sentence without its end.
    pub what: String,
}

/// The kinds of ways past the rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum BypassKind {
    /// A flowtable.
    Flowtable,
    /// A filter of tc.
    Tc,
    /// A program at the place of tc.
    Tcx,
    /// A program in front of everything.
    Xdp,
    /// A bridge whose ports reach each other without iptables.
    Bridge,
    /// An interface of a pod that leads past the node.
    Interface,
    /// IPVS, which may lead to a process of the node.
    Ipvs,
    /// An interface that takes packets out of datagrams to a port that it does not tell.
    Tunnel,
    /// The node's network cannot be looked at.
    Unseen,
}

impl BypassKind {
    /// All of them.
    pub const ALL: [Self; 9] = [
        Self::Flowtable,
        Self::Tc,
        Self::Tcx,
        Self::Xdp,
        Self::Bridge,
        Self::Interface,
        Self::Ipvs,
        Self::Tunnel,
        Self::Unseen,
    ];

    /// The word of the metric.
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
            Self::Unseen => "unseen",
        }
    }

    /// Whether it is about packets that others lead on, rather than a part of the network that is not judged.
    #[must_use]
    pub const fn is_fast_path(self) -> bool {
        match self {
            Self::Flowtable | Self::Tc | Self::Tcx | Self::Xdp => true,
            Self::Bridge | Self::Interface | Self::Ipvs | Self::Tunnel | Self::Unseen => false,
        }
    }
}

impl fmt::Display for Bypass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.what)
    }
}
