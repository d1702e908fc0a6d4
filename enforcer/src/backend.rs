//! The way into a kernel. A backend sees rules and sets, never an API object, and keeps the kernel as the
//! last batch says, whatever else happens to it.

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use egret_policies::rules::{self, Batch, Direction, MembersChanged, Tier};
use egret_shared::pod::PodKey;
use egret_shared::time::Timestamp;

use bypass::BypassReport;

/// A kernel, or what stands for one. Every method is called by the engine's thread alone.
///
/// What a method could not do is in the [`SyncStatus`] that it returns, and stays wanted: `reconcile` tries
/// again. So the engine never repeats a batch, and a backend never forgets one.
pub trait Backend: Send + fmt::Debug {
    /// The word by which it is chosen.
    fn name(&self) -> &'static str;

    /// Reads what the kernel holds of an earlier life. Changes nothing.
    ///
    /// # Errors
    /// When the kernel cannot be read: nothing else may be called then.
    fn adopt(&mut self, now: Timestamp) -> Result<(), BackendError>;

    /// Whether `adopt` found rules of an earlier life: they stay in force until the first batch, which need not hurry.
    fn is_in_force(&self) -> bool {
        false
    }

    /// Before the first batch, and where nothing is in force: closes pods that nobody knows, as configured. Returns
    /// whether they are closed now.
    ///
    /// # Errors
    /// When it cannot be done.
    fn close_unknown_pods(&mut self) -> Result<bool, BackendError> {
        Ok(false)
    }

    /// Turns one state into the next, field by field of the batch. The first batch after `adopt` holds everything.
    fn apply(&mut self, batch: &Batch, now: Timestamp) -> SyncStatus;

    /// Opens what pods were told: a batch of members alone, that come to sets of records that are there, or live longer there;
    /// rules that name these only allow. Somebody waits for it. Nothing where everything stands as it did.
    fn add_records(&mut self, batch: &Batch, now: Timestamp) -> Option<SyncStatus> {
        Some(self.apply(batch, now))
    }

    /// Links, addresses or routes of the node changed: pods may have got or lost their interface.
    fn links_changed(&mut self, now: Timestamp) -> SyncStatus;

    /// Looks, at little cost, whether others changed what was applied, and says what makes one think so: to be called every
    /// few seconds. `reconcile` finds out, and repairs.
    fn poll_drift(&mut self, _now: Timestamp) -> Option<String> {
        None
    }

    /// Reads the kernel and repairs what differs from what was applied; removes what is ours and not wanted.
    fn reconcile(&mut self, now: Timestamp) -> SyncStatus;

    /// What is to be found out, outside of the backend, before it is known what members that went leave open. Whoever gets it
    /// runs it on whatever thread, works on with the backend meanwhile, and calls `end_denied_connections` when it has run. None where nothing
    /// is to be found out, or the last one is not done yet.
    fn connection_search(&mut self) -> Option<ConnectionSearch> {
        None
    }

    /// Ends open connections that what was applied so far forbids and that would go on by themselves, as far as they are
    /// known: those that only an inquiry finds end when it has. Called when all batches that belong together were applied:
    /// what one closes, the next may open again.
    fn end_denied_connections(&mut self) -> EndedConnections {
        EndedConnections::default()
    }

    /// Finds out what there is to be found out, and ends it: for who has nothing else to do meanwhile.
    fn search_and_end(&mut self) -> EndedConnections {
        if let Some(inquiry) = self.connection_search() {
            inquiry();
        }
        self.end_denied_connections()
    }

    /// The pod of this node that sends and receives by an interface of the node; where several do, the one with the
    /// address.
    fn pod_at_interface(&self, _interface: &str, _address: IpAddr) -> Option<PodKey> {
        None
    }

    /// A way to hand in what pods were told while another method is at work; without one, that waits.
    fn concurrent_set_update(&self) -> Option<Arc<dyn ConcurrentSetUpdate>> {
        None
    }

    /// What leads packets past the rules, as it was seen last.
    fn bypass_report(&self) -> BypassReport {
        BypassReport::default()
    }

    /// What counts verdicts; read by any thread, at any time.
    fn counters(&self) -> Arc<dyn VerdictCounters>;

    /// Desired, programmed and pending, for people.
    fn dump(&self) -> String;

    /// Removes all that is in the kernel by this backend.
    ///
    /// # Errors
    /// With what could not be removed.
    fn remove_everything(&mut self) -> Result<(), BackendError>;
}

/// Puts members into sets that are there, from any thread.
pub trait ConcurrentSetUpdate: Send + Sync + fmt::Debug {
    /// Puts them in. They are of sets that no batch names which is being applied, and rules that name these only allow.
    ///
    /// # Errors
    /// When the kernel refuses. That is wanted nevertheless: the next [`SyncStatus`] says so, and `reconcile` tries again.
    fn add_members(&self, changes: &[MembersChanged], now: Timestamp) -> Result<(), BackendError>;
}

/// Looks for what is open, which waits for packets on their way and walks tables of the kernel.
pub type ConnectionSearch = Box<dyn FnOnce() -> SearchResult + Send>;

/// What an inquiry found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SearchResult {
    /// Nothing is to be done about it.
    Nothing,
    /// Something may have to be judged again, or it could not be found out: that takes its time.
    Something,
}

/// How much was ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EndedConnections {
    /// Flows, once for each direction in which they are forbidden.
    pub flows: u64,
    /// Sockets of programs.
    pub sockets: u64,
}

/// Where a backend stands after it did what it could.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SyncStatus {
    /// Pods for which the kernel is not yet as it should be.
    pub pending: BTreeMap<PodKey, Pending>,
    /// What the kernel refused of rules that are no pod's, or that decide nothing for one: it is tried again.
    pub refused: Option<String>,
    /// Why nothing at all can be done, where that is so.
    pub broken: Option<String>,
    /// Differences that nobody asked for and that were repaired by this call, by kind.
    pub repaired: BTreeMap<&'static str, u64>,
    /// The same by name, as far as there are not too many.
    pub differences: Vec<String>,
    /// Rules of others in front of ours, by which packets may pass unjudged.
    pub bypassed_by: Vec<String>,
    /// Rules of others that write what we keep in the connection mark.
    pub foreign_marks: Vec<String>,
}

impl SyncStatus {
    /// Whether trying again could help.
    #[must_use]
    pub fn wants_retry(&self) -> bool {
        self.broken.is_some()
            || self.refused.is_some()
            || self
                .pending
                .values()
                .any(|pending| matches!(pending, Pending::Refused(_)))
    }
}

/// What a pod waits for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Pending {
    /// It has no interface (or cgroup) yet; an event will tell.
    Unattached(String),
    /// The kernel refused something; it is tried again.
    Refused(String),
}

impl fmt::Display for Pending {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unattached(reason) | Self::Refused(reason) => f.write_str(reason),
        }
    }
}

/// Why a backend cannot go on.
#[derive(Debug, thiserror::Error)]
#[error("{asked}: {reason}")]
pub struct BackendError {
    asked: &'static str,
    reason: String,
}

impl BackendError {
    /// What was asked of the kernel, and what it said.
    pub fn new(asked: &'static str, reason: impl fmt::Display) -> Self {
        Self {
            asked,
            reason: reason.to_string(),
        }
    }
}

/// Counts of verdicts.
pub trait VerdictCounters: Send + Sync + fmt::Debug {
    /// All counts since the rules were first put in. They never fall, but for a restart of the node.
    ///
    /// # Errors
    /// When the kernel cannot be read.
    fn read(&self) -> Result<Vec<VerdictCount>, BackendError>;

    /// The same by series: at most so many single rules, and all others as one of no origin for each key. No series
    /// ever falls.
    ///
    /// # Errors
    /// When the kernel cannot be read.
    fn by_series(&self, most: usize) -> Result<Vec<VerdictCount>, BackendError>;
}

/// How often a rule decided.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VerdictCount {
    /// What decided.
    pub key: VerdictKey,
    /// Object and index of the rule; none for what rules counted that are gone.
    pub origin: Option<(Arc<str>, usize)>,
    /// Packets that were decided: the first of each connection, and every one that is refused. What would be denied is
    /// allowed as well, and counted in both ways.
    pub packets: u64,
}

/// What decides about a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Decider {
    /// The policies of a tier.
    Tier(Tier),
    /// Nothing: no tier decided.
    Default,
    /// It is of a pod that nobody knows yet.
    UnknownPod,
    /// Its source address is not of the pod that sends it.
    SpoofedSource,
    /// It is an ICMP error about a flow of somebody else than the pod that sends it.
    SpoofedError,
    /// It is encapsulated, and would leave the node as nobody's.
    Encapsulation,
}

impl Decider {
    /// All of them.
    pub fn all() -> impl Iterator<Item = Self> {
        let others = [
            Self::Default,
            Self::UnknownPod,
            Self::SpoofedSource,
            Self::SpoofedError,
            Self::Encapsulation,
        ];
        Tier::ALL.into_iter().map(Self::Tier).chain(others)
    }

    /// Whether it decides in a direction. What a pod pretends to be concerns what it sends.
    #[must_use]
    pub fn is_of(self, direction: Direction) -> bool {
        match self {
            Self::Tier(_) | Self::Default | Self::UnknownPod => true,
            Self::SpoofedSource | Self::SpoofedError | Self::Encapsulation => direction == Direction::Egress,
        }
    }

    /// The word for it.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Tier(tier) => tier.word(),
            Self::Default => "default",
            Self::UnknownPod => "unknown-pod",
            Self::SpoofedSource => "spoofed-source",
            Self::SpoofedError => "spoofed-error",
            Self::Encapsulation => "encapsulation",
        }
    }
}

/// The bounded part of a verdict's labels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct VerdictKey {
    /// What decided.
    pub decider: Decider,
    /// What was decided, or would be.
    pub action: Action,
    /// In which direction.
    pub direction: Direction,
}

impl VerdictKey {
    /// All that can be counted: only tiers pass, NetworkPolicies do not, and by default everything is allowed.
    pub fn all() -> impl Iterator<Item = Self> {
        use Action::{Allow, Deny, Pass, WouldDeny};
        Decider::all().flat_map(|decider| {
            let actions: &[Action] = match decider {
                Decider::Tier(Tier::ClusterEgressFirewall | Tier::Admin | Tier::Baseline) => {
                    &[Allow, Deny, Pass, WouldDeny]
                }
                Decider::Tier(Tier::NetworkPolicy) => &[Allow, Deny, WouldDeny],
                Decider::Default => &[Allow],
                Decider::UnknownPod
                | Decider::SpoofedSource
                | Decider::SpoofedError
                | Decider::Encapsulation => &[Deny],
            };
            let each = move |direction| {
                actions.iter().map(move |action| Self {
                    decider,
                    action: *action,
                    direction,
                })
            };
            Direction::ALL
                .into_iter()
                .filter(move |direction| decider.is_of(*direction))
                .flat_map(each)
        })
    }

    /// The word for the action.
    #[must_use]
    pub const fn action_word(self) -> &'static str {
        match self.action {
            Action::Allow => "allow",
            Action::Deny => "deny",
            Action::Pass => "pass",
            Action::WouldDeny => "would-deny",
        }
    }
}

/// What is counted of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Action {
    /// It was allowed.
    Allow,
    /// It was refused.
    Deny,
    /// It was handed on to the next tier.
    Pass,
    /// It was allowed, and would be refused if the policies in audit were in force.
    WouldDeny,
}

impl From<rules::Action> for Action {
    fn from(action: rules::Action) -> Self {
        match action {
            rules::Action::Allow => Self::Allow,
            rules::Action::Deny => Self::Deny,
            rules::Action::Pass => Self::Pass,
        }
    }
}

pub mod metrics;
pub mod bypass;
pub mod series;
pub mod none;
pub mod memory;
pub mod netfilter;
pub mod ebpf;
