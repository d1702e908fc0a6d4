//! Backends: each one makes a kernel hold the rules and sets of the last batch. A backend sees no API objects.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use egret_policies::rules::{self, Batch, Direction, MembersChanged, Tier};
use egret_shared::pod::PodKey;
use egret_shared::time::Timestamp;

use bypass::BypassReport;

/// A kernel, or a replacement for one. Only the engine's thread calls its methods.
///
/// A failed change is in the returned [`SyncStatus`] and stays desired: `reconcile` tries it again. So the engine never
/// repeats a batch, and a backend never forgets one.
pub trait Backend: Send + fmt::Debug {
    /// The name in the configuration.
    fn name(&self) -> &'static str;

    /// Reads what the previous process left in the kernel. Changes nothing.
    ///
    /// # Errors
    ///
    /// When the kernel cannot be read; no other method may be called then.
    fn adopt(&mut self, now: Timestamp) -> Result<(), BackendError>;

    /// Whether `adopt` found rules of the previous process. They stay in force until the first batch, which may wait
    /// then.
    fn is_in_force(&self) -> bool {
        false
    }

    /// Closes unknown pods before the first batch, as configured, if nothing is in force. Returns whether they are
    /// closed.
    ///
    /// # Errors
    ///
    /// When the kernel refuses.
    fn close_unknown_pods(&mut self) -> Result<bool, BackendError> {
        Ok(false)
    }

    /// Whether it has to know the addresses of Services.
    fn wants_services(&self) -> bool {
        false
    }

    /// Sets the addresses of all Services: what a pod sends there, the node translates. Called when they change, before a batch.
    fn set_services(&mut self, _addresses: &BTreeSet<IpAddr>) {}

    /// Applies a batch, field by field. The first one after `adopt` is complete.
    fn apply(&mut self, batch: &Batch, now: Timestamp) -> SyncStatus;

    /// Adds observed addresses: a batch of members alone, in existing sets of records that only Allow rules name. A
    /// client waits for it. Returns none if the status is unchanged.
    fn add_records(&mut self, batch: &Batch, now: Timestamp) -> Option<SyncStatus> {
        Some(self.apply(batch, now))
    }

    /// Handles changed links, addresses or routes: a pod's interface may have appeared or gone.
    fn links_changed(&mut self, now: Timestamp) -> SyncStatus;

    /// Checks cheaply whether other programs changed something. Called every few seconds. Returns what was found;
    /// `reconcile` compares and repairs.
    fn poll_drift(&mut self, _now: Timestamp) -> Option<String> {
        None
    }

    /// Compares the kernel with what was applied, repairs it, and removes our leftovers.
    fn reconcile(&mut self, now: Timestamp) -> SyncStatus;

    /// A search for open connections that the applied batches may deny. The caller runs it on any thread while it uses the
    /// backend, and then calls `end_denied_connections`. None if nothing is to be searched, or what the last search found is not ended.
    fn connection_search(&mut self) -> Option<ConnectionSearch> {
        None
    }

    /// Ends open connections that the applied batches deny, as far as a search found them.
    /// Called after all batches that belong together, because a later one may allow again what an earlier one denied. Takes some
    /// milliseconds: what is left is for the next call.
    fn end_denied_connections(&mut self) -> EndedConnections {
        EndedConnections::default()
    }

    /// Runs all searches in the caller's thread, and ends what they find.
    fn search_and_end(&mut self) -> EndedConnections {
        let mut ended = self.end_all_denied_connections();
        while let Some(search) = self.connection_search() {
            search();
            ended.add(self.end_all_denied_connections());
        }
        ended
    }

    /// Ends all connections that are known to be denied, however long that takes.
    fn end_all_denied_connections(&mut self) -> EndedConnections {
        let mut ended = EndedConnections::default();
        loop {
            let next = self.end_denied_connections();
            ended.add(next);
            if !next.is_unfinished {
                return ended;
            }
        }
    }

    /// The pod of this node behind an interface; if several pods share it, the one with the address.
    fn pod_at_interface(&self, _interface: &str, _address: IpAddr) -> Option<PodKey> {
        None
    }

    /// The pod of this node in a cgroup.
    fn pod_in_cgroup(&self, _id: u64) -> Option<PodKey> {
        None
    }

    /// Adds members from another thread while a method runs; none if this backend cannot.
    fn concurrent_set_update(&self) -> Option<Arc<dyn ConcurrentSetUpdate>> {
        None
    }

    /// Ways past the rules, as they were seen last.
    fn bypass_report(&self) -> BypassReport {
        BypassReport::default()
    }

    /// The counters of verdicts, for any thread.
    fn counters(&self) -> Arc<dyn VerdictCounters>;

    /// Desired, programmed and pending state, as text.
    fn dump(&self) -> String;

    /// Removes everything of this backend from the kernel.
    ///
    /// # Errors
    ///
    /// What could not be removed.
    fn remove_everything(&mut self) -> Result<(), BackendError>;
}

/// Removes what another backend left in the kernel, once this one is in force: until then both judge, and what either denies is
/// denied. Returns what there was, in words.
pub struct RemoveOther(Box<dyn Fn() -> Result<Vec<String>, BackendError> + Send>);

impl RemoveOther {
    /// By this function, which is called until it succeeds.
    pub fn by(remove: impl Fn() -> Result<Vec<String>, BackendError> + Send + 'static) -> Self {
        Self(Box::new(remove))
    }
}

impl fmt::Debug for RemoveOther {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.write_str("RemoveOther")
    }
}

/// Removes what another backend left, and says so.
fn remove_other(remove: &mut Option<RemoveOther>) {
    match remove.as_ref().map(|remove| remove.0()) {
        None => {}
        Some(Ok(found)) => {
            if !found.is_empty() {
                tracing::info!(found = found.len(), "what another backend left is removed");
            }
            *remove = None;
        }
        Some(Err(error)) => tracing::error!(%error, "what another backend left is not removed"),
    }
}

/// Adds members to existing sets, from any thread.
pub trait ConcurrentSetUpdate: Send + Sync + fmt::Debug {
    /// Adds members. The sets are in no batch that is being applied, and only Allow rules name them.
    ///
    /// # Errors
    ///
    /// When the kernel refuses. The members stay desired: the next [`SyncStatus`] says so, and `reconcile` tries again.
    fn add_members(&self, changes: &[MembersChanged], now: Timestamp) -> Result<(), BackendError>;
}

/// Searches open connections. It waits for packets in flight and walks kernel tables.
pub type ConnectionSearch = Box<dyn FnOnce() -> SearchResult + Send>;

/// The result of a connection search.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SearchResult {
    /// No connection is to be ended.
    Nothing,
    /// Some connections may have to be re-evaluated, or the search failed.
    Something,
}

/// Counts of what was ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EndedConnections {
    /// Connections, once for each direction that is denied.
    pub flows: u64,
    /// Sockets of pods' programs.
    pub sockets: u64,
    /// Whether more are to be ended: the next changes come first, and then it is called again.
    pub is_unfinished: bool,
}

impl EndedConnections {
    /// Counts what was ended after it.
    const fn add(&mut self, next: Self) {
        self.flows += next.flows;
        self.sockets += next.sockets;
    }
}

/// How far the kernel is in sync with what was applied.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SyncStatus {
    /// Pods for which the kernel does not hold the rules yet.
    pub pending: BTreeMap<PodKey, Pending>,
    /// What the kernel refused of rules of no pod, or of rules that decide nothing. It is tried again.
    pub refused: Option<String>,
    /// Why nothing can be done at all, if so.
    pub broken: Option<String>,
    /// Differences that this call repaired, by kind.
    pub repaired: BTreeMap<&'static str, u64>,
    /// Their descriptions, up to a limit.
    pub differences: Vec<String>,
    /// Rules of others in front of ours by which packets may pass unjudged.
    pub bypassed_by: Vec<String>,
    /// Rules of others that write our bits of the connection mark.
    pub foreign_marks: Vec<String>,
}

impl SyncStatus {
    /// Whether another attempt could help.
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

/// Why a pod is pending.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Pending {
    /// It has no interface or cgroup yet; an event follows when it has.
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

/// Why a backend cannot work.
#[derive(Debug, thiserror::Error)]
#[error("{asked}: {reason}")]
pub struct BackendError {
    asked: &'static str,
    reason: String,
}

impl BackendError {
    /// The failed operation, and the kernel's reason.
    pub fn new(asked: &'static str, reason: impl fmt::Display) -> Self {
        Self {
            asked,
            reason: reason.to_string(),
        }
    }
}

/// Counters of verdicts.
pub trait VerdictCounters: Send + Sync + fmt::Debug {
    /// All counts since the rules were first written. They fall only when the node restarts.
    ///
    /// # Errors
    ///
    /// When the kernel cannot be read.
    fn read(&self) -> Result<Vec<VerdictCount>, BackendError>;

    /// Counts by series: at most `most` single rules, and all others as one series without an origin for each key. No
    /// series ever falls.
    ///
    /// # Errors
    ///
    /// When the kernel cannot be read.
    fn by_series(&self, most: usize) -> Result<Vec<VerdictCount>, BackendError>;
}

/// How often a rule decided.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VerdictCount {
    /// What decided.
    pub key: VerdictKey,
    /// Object and index of the rule; none for rules that are gone.
    pub origin: Option<(Arc<str>, usize)>,
    /// Packets: the first one of each allowed connection, and each denied one. A packet that audited policies would
    /// deny counts as allowed as well.
    pub packets: u64,
}

/// What decides about a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Decider {
    /// The policies of a tier.
    Tier(Tier),
    /// No tier decided.
    Default,
    /// The pod is unknown.
    UnknownPod,
    /// The source address is not the sending pod's.
    SpoofedSource,
    /// An ICMP error about a connection that is not the sending pod's.
    SpoofedError,
    /// An encapsulated packet, which would leave the node without an identity.
    Encapsulation,
}

impl Decider {
    /// All deciders.
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

    /// Whether it decides in a direction. Forged packets are those that a pod sends.
    #[must_use]
    pub fn is_of(self, direction: Direction) -> bool {
        match self {
            Self::Tier(_) | Self::Default | Self::UnknownPod => true,
            Self::SpoofedSource | Self::SpoofedError | Self::Encapsulation => direction == Direction::Egress,
        }
    }

    /// The value of the label.
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

/// The labels of a verdict that have few values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct VerdictKey {
    /// What decided.
    pub decider: Decider,
    /// The decision.
    pub action: Action,
    /// The direction.
    pub direction: Direction,
}

impl VerdictKey {
    /// All keys that occur: NetworkPolicies do not pass, and without a policy everything is allowed.
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

    /// The value of the label.
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

/// The counted decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Action {
    /// Allowed.
    Allow,
    /// Denied.
    Deny,
    /// Passed to the next tier.
    Pass,
    /// Allowed, and denied if the audited policies were in force.
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
pub mod unknown_pods;
pub mod series;
pub mod none;
pub mod memory;
pub mod netfilter;
pub mod nftables;
pub mod ebpf;
pub mod both;
pub mod dns_permits;
