//! All that a backend may see: per local pod and direction ordered rules over sets, and batches that
//! change them in an order of which every prefix is safe.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::num::NonZeroU16;
use std::sync::Arc;

use egret_shared::net::{IpNet, PortRange, Transport};
use egret_shared::pod::PodKey;
use egret_shared::revision::Revision;
use egret_shared::time::Timestamp;

pub use crate::model::{Action, Direction, Tier};

mod digest;

pub use digest::Digest;

/// What turns one state of the kernel into the next. A backend walks the fields from top to bottom and may
/// stop after any step: rules never name a set that is not there, and a set holds what its content says
/// whatever rules refer to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Batch {
    /// The state that is reached when everything was applied.
    pub revision: Revision,
    /// New sets, empty.
    pub sets_created: Vec<SetSpec>,
    /// Members that come, go, or live longer.
    pub members_changed: Vec<MembersChanged>,
    /// What sets of `SetKind::Records` would hold if no time were over, as far as no backend saw it end: nothing new may be
    /// opened by it, and what is open stays so.
    pub expired: Vec<ExpiredMembers>,
    /// Whole new rules of pods.
    pub rules_replaced: Vec<PodRules>,
    /// Whole new rules of the node; none where they stay as they are. Before the first ones there are none.
    pub node_rules: Option<NodeRules>,
    /// Whether the cluster has any policy in force at all, of any kind and about whomever; none where that stays as it is. Before
    /// it is said there is none.
    pub has_policies: Option<bool>,
    /// Pods that left the node: their rules go.
    pub pods_removed: Vec<PodKey>,
    /// Pods and directions whose open connections are to be asked again: something that was allowed may
    /// not be any more. Never because a record expired.
    pub reevaluate: Vec<(PodKey, Direction)>,
    /// Those of them of whose rules none changed, but members of sets in this batch: only what is open from or to such a member
    /// can be concerned.
    pub by_members: BTreeSet<(PodKey, Direction)>,
    /// Sets that no rule names any more.
    pub sets_destroyed: Vec<SetId>,
}

impl Batch {
    /// A batch that changes nothing.
    #[must_use]
    pub const fn empty(revision: Revision) -> Self {
        Self {
            revision,
            sets_created: Vec::new(),
            members_changed: Vec::new(),
            expired: Vec::new(),
            rules_replaced: Vec::new(),
            node_rules: None,
            has_policies: None,
            pods_removed: Vec::new(),
            reevaluate: Vec::new(),
            by_members: BTreeSet::new(),
            sets_destroyed: Vec::new(),
        }
    }

    /// Has these asked again because of members alone, unless it is for their rules already.
    pub(crate) fn reevaluate_by_members(&mut self, mut by_members: BTreeSet<(PodKey, Direction)>) {
        let by_rules: BTreeSet<(PodKey, Direction)> = self.reevaluate.drain(..).collect();
        by_members.retain(|asked| !by_rules.contains(asked));
        self.reevaluate = by_rules.union(&by_members).cloned().collect();
        self.by_members = by_members;
    }
}

/// A set by its content: equal contents have one set, so pods share it, and after a restart it has the same name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SetId(Digest);

impl SetId {
    /// The set of a content, described by a text that two different contents never share.
    #[must_use]
    pub fn of_content(description: &str) -> Self {
        Self(Digest::of(description))
    }

    /// The set of this digest.
    #[must_use]
    pub const fn of_digest(digest: Digest) -> Self {
        Self(digest)
    }

    /// The digest, for names in the kernel.
    #[must_use]
    pub const fn digest(self) -> Digest {
        self.0
    }
}

/// A set to be made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SetSpec {
    /// Its name.
    pub id: SetId,
    /// What it holds.
    pub kind: SetKind,
    /// How many may share its members.
    pub breadth: Breadth,
    /// What it stands for, for people: `pods default/app=web`, `names *.example.com of default/client`.
    pub description: Arc<str>,
}

impl SetSpec {
    /// Whether its members are those of the batch that makes it, for ever: networks that policies write out.
    #[must_use]
    pub const fn is_fixed(&self) -> bool {
        matches!(
            (self.kind, self.breadth),
            (SetKind::Networks | SetKind::NetworkPorts, Breadth::Narrow)
        )
    }
}

/// What a set holds. Every set holds both families; a backend may keep one for each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SetKind {
    /// Single addresses of pods or nodes.
    Addresses,
    /// Networks of any length, 0 included.
    Networks,
    /// Addresses with protocol and port: pods at which a named port is served.
    AddressPorts,
    /// Networks with protocol and port; the compiler makes none, [`crate::decision`] does.
    NetworkPorts,
    /// Addresses that a pod was told, each until its expiry. Members that the kernel holds when the
    /// enforcer starts are adopted until they time out.
    Records,
}

/// In how many sets of a node a member of a set may be as well. It is said by what the set stands for, never by how many members
/// it has: that changes with each pod that comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Breadth {
    /// Fixed networks, and pods of one namespace: few policies of a node speak of the same ones.
    Narrow,
    /// Pods of whatever namespaces have some labels, nodes, names: each selector of the cluster may have the same ones.
    Wide,
}

/// How the members of a set change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MembersChanged {
    /// Which set.
    pub set: SetId,
    /// What comes, or gets a new expiry (always a later one). Only members of `SetKind::Records` have one.
    pub added: Vec<(Member, Option<Timestamp>)>,
    /// What goes. A record that expires is not listed: it times out where it is.
    pub removed: Vec<Member>,
}

/// Expired records of a set: connections that they opened stay open.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExpiredMembers {
    /// Which set.
    pub set: SetId,
    /// The addresses, each with its expiry.
    pub addresses: Vec<(IpAddr, Timestamp)>,
}

/// A member of a set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Member {
    /// Of `SetKind::Addresses` and `SetKind::Records`.
    Address(IpAddr),
    /// Of `SetKind::Networks`; without bits behind its prefix.
    Network(IpNet),
    /// Of `SetKind::AddressPorts`.
    AddressPort(IpAddr, Transport, NonZeroU16),
    /// Of `SetKind::NetworkPorts`.
    NetworkPort(IpNet, Transport, NonZeroU16),
}

/// The rules of a local pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodRules {
    /// The pod.
    pub pod: PodKey,
    /// Its UID where it is known: the name of its cgroup.
    pub uid: Option<Arc<str>>,
    /// Its addresses, by which its interface is found; never those of a hostNetwork pod, never empty.
    pub addresses: Vec<IpAddr>,
    /// For connections that it opens.
    pub egress: DirectionRules,
    /// For connections to it.
    pub ingress: DirectionRules,
    /// What is asked besides, and decides nothing.
    pub audit: Audit,
}

impl PodRules {
    /// The rules of a direction.
    #[must_use]
    pub const fn direction(&self, direction: Direction) -> &DirectionRules {
        match direction {
            Direction::Egress => &self.egress,
            Direction::Ingress => &self.ingress,
        }
    }

    pub(crate) const fn direction_mut(&mut self, direction: Direction) -> &mut DirectionRules {
        match direction {
            Direction::Egress => &mut self.egress,
            Direction::Ingress => &mut self.ingress,
        }
    }
}

/// A pod's rules as they were if the policies in audit were in force as well. They are asked about what the rules that
/// are in force allow, and decide nothing: a Deny says that this connection would be denied.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Audit {
    /// For connections that it opens; without any tier nothing is asked.
    pub egress: DirectionRules,
    /// For connections to it.
    pub ingress: DirectionRules,
}

impl Audit {
    /// The rules of a direction.
    #[must_use]
    pub const fn direction(&self, direction: Direction) -> &DirectionRules {
        match direction {
            Direction::Egress => &self.egress,
            Direction::Ingress => &self.ingress,
        }
    }

    pub(crate) const fn direction_mut(&mut self, direction: Direction) -> &mut DirectionRules {
        match direction {
            Direction::Egress => &mut self.egress,
            Direction::Ingress => &mut self.ingress,
        }
    }

    /// The sets that they name.
    pub fn sets(&self) -> impl Iterator<Item = SetId> {
        self.egress.sets().chain(self.ingress.sets())
    }
}

/// Rules of the node, whichever pods it has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeRules {
    /// For connections that the node passes on to where a Service sends them: the destination was rewritten on the way
    /// (DNAT, IPVS), and they come neither from a pod of this node, whose own rules judge them, nor from the node
    /// itself. Peers are destinations, after the rewriting. Every packet towards the destination is asked: nothing is
    /// remembered of what was allowed, so nothing is to be reevaluated.
    pub exposed: DirectionRules,
}

impl NodeRules {
    /// The sets that they name.
    pub fn sets(&self) -> impl Iterator<Item = SetId> {
        self.exposed.sets()
    }
}

/// Rules of a direction: tier by tier; behind the last one the connection is allowed (tier `default`).
///
/// Replies and related ICMP of allowed connections are not judged by rules, and neither is what the
/// node itself sends to the pod.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DirectionRules {
    /// The tiers that say something, in order. They say all, whatever is beside them.
    pub tiers: Vec<TierRules>,
    /// Where names are asked between many rules with an order.
    pub names: Option<Names>,
}

/// Names between rules with an order. A packet to an address of no such name can be judged by the other rules alone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Names {
    /// The set of all records of these names. A record is in it before it is in the set of its name, and as long.
    pub records: SetId,
    /// The tiers without the rules over these names: the same verdict for a peer that is not in `records`. The compiler writes none;
    /// [`crate::decision`] does, where that makes many rules a lookup.
    pub without: Option<Vec<TierRules>>,
}

impl DirectionRules {
    /// Rules without a name between those with an order.
    #[must_use]
    pub const fn of(tiers: Vec<TierRules>) -> Self {
        Self { tiers, names: None }
    }

    /// The sets that they name.
    pub fn sets(&self) -> impl Iterator<Item = SetId> {
        let records = self.names.iter().map(|names| names.records);
        self.lists()
            .flat_map(|tier| tier.rules.iter())
            .flat_map(Rule::sets)
            .chain(records)
    }

    /// Which tiers judge a peer, by the sets that it is in.
    pub fn tiers_for(&self, is_in: impl FnOnce(SetId) -> bool) -> &[TierRules] {
        match &self.names {
            Some(Names {
                records,
                without: Some(without),
            }) if !is_in(*records) => without,
            Some(_) | None => &self.tiers,
        }
    }

    /// Names other sets in the place of some.
    pub fn rename_sets(&mut self, renamed: &BTreeMap<SetId, SetId>) {
        let rename = |set: &mut SetId| *set = renamed.get(set).copied().unwrap_or(*set);
        self.names.iter_mut().for_each(|names| rename(&mut names.records));
        let without = self
            .names
            .iter_mut()
            .flat_map(|names| &mut names.without)
            .flatten();
        for rule in self
            .tiers
            .iter_mut()
            .chain(without)
            .flat_map(|tier| Arc::make_mut(&mut tier.rules))
        {
            if let PeerMatch::In(set) = &mut rule.peer {
                rename(set);
            }
            rule.except.iter_mut().for_each(rename);
        }
    }

    /// All lists of rules, also those that say again what others say.
    pub fn lists(&self) -> impl Iterator<Item = &TierRules> {
        let without = self.names.iter().flat_map(|names| &names.without).flatten();
        self.tiers.iter().chain(without)
    }
}

/// The rules of one tier, in order: the first match decides. A tier whose policies do not form one list (those
/// of a ClusterEgressFirewall of equal priority) has several of these, one behind the other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TierRules {
    /// Which tier.
    pub tier: Tier,
    /// Its rules. Copies share them: the compiler and a backend have those of each pod.
    pub rules: Arc<[Rule]>,
    /// What happens without a match.
    pub default_action: DefaultAction,
}

/// The action of a tier without a match.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum DefaultAction {
    /// The next [`TierRules`] are asked.
    NextTier,
    /// Denied: the pod is isolated.
    Deny,
}

/// One rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// What a match does; Pass goes on with the next [`TierRules`].
    pub action: Action,
    /// The other end: the destination for egress, the source for ingress.
    pub peer: PeerMatch,
    /// Addresses for which the rule does not count, although the peer matches.
    pub except: Option<SetId>,
    /// The destination port, together with the peer.
    pub port: PortMatch,
    /// Where it comes from.
    pub origin: Origin,
    /// Of a Deny that stands for several (see [`crate::decision`]): these, in their order. The first of them that matches is the one that
    /// denies; where none does, this one. They change no verdict.
    pub attribution: Option<Arc<[Self]>>,
}

impl Rule {
    /// The sets that it names.
    pub fn sets(&self) -> impl Iterator<Item = SetId> {
        let attribution = self.attribution.iter().flat_map(|rules| rules.iter());
        self.own_sets().chain(attribution.flat_map(Self::own_sets))
    }

    /// The sets that its match names.
    pub fn own_sets(&self) -> impl Iterator<Item = SetId> + use<> {
        let peer = match self.peer {
            PeerMatch::In(set) => Some(set),
            PeerMatch::Any | PeerMatch::OwnNode | PeerMatch::Itself => None,
        };
        peer.into_iter().chain(self.except)
    }
}

/// The other end.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PeerMatch {
    /// Everything.
    Any,
    /// The address, or with `SetKind::AddressPorts` and `SetKind::NetworkPorts` address, protocol and destination port, is in the set.
    In(SetId),
    /// The destination is an address of this node (`addrtype LOCAL`), whatever hook sees the packet.
    OwnNode,
    /// The pod itself, at one of its own addresses. What a pod sends there does not leave it; so what a backend
    /// sees was led back by a Service, and came in where the pod's packets do.
    Itself,
}

/// The destination port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PortMatch {
    /// Every protocol, with or without ports.
    Any,
    /// One protocol and a range of ports.
    Range(Transport, PortRange),
    /// ICMP or ICMPv6, by the family of the packet.
    Icmp,
}

/// The origin of the rule that exempts a pod's own node from isolation by a NetworkPolicy.
pub const OWN_NODE: &str = "own-node";

/// The origin of the rule that exempts a pod that a Service leads back to itself from isolation by a NetworkPolicy.
pub const ITSELF: &str = "itself";

/// The origin of a rule that stands for rules of several policies, or for several of one.
pub const SEVERAL: &str = "several";

/// The object and rule that a rule comes from; the label of counters and logs.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Origin {
    /// `Kind/namespace/name`; or [`OWN_NODE`] for the exemption of the pod's node, [`ITSELF`] for that of the pod itself.
    pub policy: Arc<str>,
    /// `0`-based index of the rule in the object's list.
    pub rule: usize,
    /// The rule's name, where it has one.
    pub name: Option<Arc<str>>,
}
