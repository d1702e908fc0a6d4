//! Switches that remove one mechanism each, so that a test can be shown to fail without it.
//!
//! Without the feature `switches` (every build that anybody installs) they cannot be turned off: `is_off`
//! is the constant `false`. With it, `EGRET_SWITCH_OFF` holds the names of those that are off, separated
//! by commas.

/// A mechanism that a scenario of `integration` is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Switch {
    /// dnsd holds an interesting answer until it is realized.
    Hold,
    /// dnsd holds an answer from its cache for a pod that had not been told.
    HoldCached,
    /// dnsd holds the second of two simultaneous answers for one name.
    HoldSecond,
    /// dnsd takes an answer only from the server, port, id and question asked.
    MatchAnswer,
    /// dnsd attributes a query by arrival interface as well as by source address.
    AttributeByInterface,
    /// dnsd asks again over TCP when an answer is truncated.
    RetryTruncated,
    /// dnsd releases a held answer after its deadline.
    StallDeadline,
    /// dnsd sends again all that it told when the enforcer comes back.
    Resync,
    /// dnsd learns only owners on the chain that starts at the question.
    ChainOnly,
    /// Names are compared without regard to case.
    IgnoreCase,
    /// Records admit only the pod that asked.
    PerPodRecords,
    /// A record ends when its time to live does.
    ExpireRecords,
    /// A newer answer adds to the addresses of a name instead of replacing them.
    AccumulateAddresses,
    /// The established connection of an expired record goes on.
    KeepEstablished,
    /// The enforcer keeps what the kernel holds when it starts.
    AdoptKernel,
    /// The enforcer's rules and sets stay when it exits.
    KeepOnExit,
    /// A pod's packets are known by its interface, whatever source address they carry.
    DispatchByInterface,
    /// A change of policy is asked of open connections as well.
    Generation,
    /// A policy file that cannot be read leaves what worked in force.
    KeepLastGood,
}

impl Switch {
    /// The name by which `EGRET_SWITCH_OFF` knows the switch.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Hold => "hold",
            Self::HoldCached => "hold-cached",
            Self::HoldSecond => "hold-second",
            Self::MatchAnswer => "match-answer",
            Self::AttributeByInterface => "attribute-by-interface",
            Self::RetryTruncated => "retry-truncated",
            Self::StallDeadline => "stall-deadline",
            Self::Resync => "resync",
            Self::ChainOnly => "chain-only",
            Self::IgnoreCase => "ignore-case",
            Self::PerPodRecords => "per-pod-records",
            Self::ExpireRecords => "expire-records",
            Self::AccumulateAddresses => "accumulate-addresses",
            Self::KeepEstablished => "keep-established",
            Self::AdoptKernel => "adopt-kernel",
            Self::KeepOnExit => "keep-on-exit",
            Self::DispatchByInterface => "dispatch-by-interface",
            Self::Generation => "generation",
            Self::KeepLastGood => "keep-last-good",
        }
    }
}

/// Whether the mechanism is removed.
#[cfg(not(feature = "switches"))]
#[must_use]
pub const fn is_off(_switch: Switch) -> bool {
    false
}

/// Whether the mechanism is removed.
#[cfg(feature = "switches")]
#[must_use]
pub fn is_off(switch: Switch) -> bool {
    use std::sync::LazyLock;
    static OFF: LazyLock<Vec<String>> = LazyLock::new(|| {
        std::env::var("EGRET_SWITCH_OFF")
            .map(|list| list.split(',').map(str::to_owned).collect())
            .unwrap_or_default()
    });
    OFF.iter().any(|name| name == switch.name())
}
