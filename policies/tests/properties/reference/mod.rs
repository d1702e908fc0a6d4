//! A second opinion on what objects mean: read straight from what was written, for one connection at a time, with
//! nothing in common with the crate but the words for ports and verdicts. It is slow and as plain as the texts.
//!
//! The reader can be told to make one of the mistakes of `ids`. Where its verdict is another one then, that number
//! decided the connection.

use std::cell::Cell;
use std::net::IpAddr;

use egret_policies::compiler::PodToOwnNode;
use egret_policies::model::Direction;
use egret_policies::simulator::{Protocol, Verdict};
use egret_shared::net::Transport;
use serde_json::Value;

mod cluster;
mod networks;
mod kinds;
mod legacy;
mod audit;
mod rules;
mod peers;
mod addresses;
mod names;
mod ports;
mod selectors;

pub(crate) use cluster::{Cluster, START};

use cluster::{Pod, get, texts};
use kinds::{Dialect, Rank};

use crate::ids::{Id, Ids};
use crate::scenario::{Flow, HERE, Side, Who};

/// What cannot be read: whatever has it is closed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Broken;

/// What a matching rule does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Act {
    Allow,
    Deny,
    Pass,
}

/// What a tier says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Says {
    Allow,
    Deny,
    AskNext,
}

/// One end of a connection, with what it asks of the other.
#[derive(Clone, Copy)]
pub(crate) struct Ask<'a> {
    pub(crate) subject: &'a Pod,
    pub(crate) direction: Direction,
    /// The other end.
    pub(crate) peer: IpAddr,
    pub(crate) own_node: bool,
    pub(crate) protocol: Protocol,
    pub(crate) dialled: Option<(IpAddr, u16)>,
    /// Whether both ends are one pod, by way of a Service.
    pub(crate) is_hairpin: bool,
}

impl Ask<'_> {
    pub(crate) const fn is_egress(&self) -> bool {
        matches!(self.direction, Direction::Egress)
    }
}

/// What the two ends say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Verdicts {
    pub(crate) egress: Verdict,
    pub(crate) ingress: Verdict,
}

pub(crate) struct PolicyReader<'c> {
    pub(crate) cluster: &'c Cluster,
    mistake: Option<Id>,
    consulted: Cell<Ids>,
    /// Whether the connection was allowed when it began, and is only asked about again.
    pub(crate) is_open: bool,
    /// Whether what is in audit counts as if it were in force.
    pub(crate) with_audited: bool,
}

impl<'c> PolicyReader<'c> {
    pub(crate) fn new(cluster: &'c Cluster, mistake: Option<Id>) -> Self {
        Self {
            cluster,
            mistake,
            consulted: Cell::default(),
            is_open: false,
            with_audited: false,
        }
    }

    /// What is said of a connection that was allowed when it began: that a record is over ends nothing.
    pub(crate) fn of_open(cluster: &'c Cluster) -> Self {
        Self {
            is_open: true,
            ..Self::new(cluster, None)
        }
    }

    /// What is said if everything that is in audit is in force.
    pub(crate) fn of_all(cluster: &'c Cluster) -> Self {
        Self {
            with_audited: true,
            ..Self::new(cluster, None)
        }
    }

    /// The numbers that were asked about: no other mistake can change what was said.
    pub(crate) fn consulted(&self) -> Ids {
        self.consulted.get()
    }

    /// Whether this mistake is to be made.
    pub(crate) fn errs(&self, id: Id) -> bool {
        let mut consulted = self.consulted.get();
        consulted.add(id);
        self.consulted.set(consulted);
        self.mistake == Some(id)
    }

    pub(crate) fn decide(&self, flow: &Flow) -> Verdicts {
        let egress = self.decide_end(Direction::Egress, flow);
        let ingress = self.decide_end(Direction::Ingress, flow);
        let is_short_cut = egress == (Verdict::Allow, true) && ingress.0 == Verdict::Deny;
        let ingress = if is_short_cut && self.errs(Id::C17) {
            Verdict::Allow
        } else {
            ingress.0
        };
        Verdicts {
            egress: egress.0,
            ingress,
        }
    }

    /// The verdict, and whether a NetworkPolicy gave it.
    fn decide_end(&self, direction: Direction, flow: &Flow) -> (Verdict, bool) {
        let (subject, peer): (&Side, &Side) = match direction {
            Direction::Egress => (&flow.from, &flow.to),
            Direction::Ingress => (&flow.to, &flow.from),
        };
        let Who::Pod(key) = &subject.who else {
            return (Verdict::Allow, false);
        };
        let Some(subject) = self.cluster.pod(key).filter(|pod| self.is_policed(pod)) else {
            return (Verdict::Allow, false);
        };
        let ask = Ask {
            subject,
            direction,
            peer: peer.address.to_canonical(),
            own_node: peer.who == Who::OwnNode,
            protocol: flow.protocol,
            dialled: flow.dialled,
            is_hairpin: self.is_own(subject, peer.address),
        };
        self.decide_policed(&ask)
    }

    /// Whether the other end has the pod's own address: nothing else than a Service leads there.
    fn is_own(&self, pod: &Pod, address: IpAddr) -> bool {
        self.owner(address.to_canonical())
            .is_some_and(|owner| owner.key == pod.key)
    }

    /// Whether the pod has an address of its own.
    fn is_policed(&self, pod: &Pod) -> bool {
        if pod.host_network {
            return !pod.ended && self.errs(Id::X13);
        }
        if pod.ending && self.errs(Id::C2) {
            return false;
        }
        self.has_own_address(pod)
    }

    pub(crate) fn has_own_address(&self, pod: &Pod) -> bool {
        pod.addresses.iter().any(|address| self.is_own(pod, *address))
    }

    /// What becomes of a client outside the cluster that a Service leads to the destination.
    pub(crate) fn decide_entering(&self, flow: &Flow) -> Verdict {
        let nobody = Pod::nobody((!self.cluster.setting.everywhere).then(|| HERE.to_owned()));
        let ask = Ask {
            subject: &nobody,
            direction: Direction::Egress,
            peer: flow.to.address.to_canonical(),
            own_node: flow.to.who == Who::OwnNode,
            protocol: flow.protocol,
            dialled: flow.dialled,
            is_hairpin: false,
        };
        match self.firewalls_of(&ask, true) {
            Says::Deny if self.errs(Id::E6) => Verdict::Allow,
            Says::Deny => Verdict::Deny,
            Says::Allow | Says::AskNext => Verdict::Allow,
        }
    }

    fn decide_policed(&self, ask: &Ask<'_>) -> (Verdict, bool) {
        let allowed = (Verdict::Allow, false);
        if ask.subject.host_network {
            let says = self.firewalls(ask);
            return (
                if says == Says::Deny {
                    Verdict::Deny
                } else {
                    Verdict::Allow
                },
                false,
            );
        }
        if ask.is_hairpin && self.errs(Id::X12) {
            return allowed;
        }
        if !ask.is_egress() && self.is_exempt(ask) {
            return allowed;
        }
        if ask.protocol == Protocol::Icmp && ask.peer.is_ipv6() && self.errs(Id::C30) {
            return allowed;
        }
        if self.is_dns_for_names(ask) && self.errs(Id::F11) {
            return allowed;
        }
        match self.firewalls(ask) {
            Says::Deny => return (Verdict::Deny, false),
            Says::Allow => return allowed,
            Says::AskNext => {}
        }
        match self.ordered(ask, Tier::Admin) {
            Says::Deny => return (Verdict::Deny, false),
            Says::Allow => return allowed,
            Says::AskNext => {}
        }
        match self.network_policies(ask) {
            Says::Deny if ask.is_hairpin => return allowed,
            Says::Deny => return (Verdict::Deny, true),
            Says::Allow => return (Verdict::Allow, true),
            Says::AskNext => {}
        }
        if self.is_isolated_otherwise(ask) && self.errs(Id::X2) {
            return allowed;
        }
        match self.ordered(ask, Tier::Baseline) {
            Says::Deny => (Verdict::Deny, false),
            Says::Allow | Says::AskNext => allowed,
        }
    }

    /// What the own node sends to its pods.
    fn is_exempt(&self, ask: &Ask<'_>) -> bool {
        let own = ask.subject.node.as_ref();
        let in_status = own
            .and_then(|node| self.cluster.nodes.get(node))
            .is_some_and(|node| node.addresses.contains(&ask.peer));
        if !ask.own_node {
            let is_known = own.is_some_and(|node| self.has_address(node, ask.peer));
            return is_known && self.errs(Id::C34);
        }
        if !in_status && self.errs(Id::C35) {
            return false;
        }
        let denies = |says: Says| says == Says::Deny;
        let is_stopped = self.is_annotated(&ask.subject.namespace)
            && denies(self.network_policies(ask))
            && self.errs(Id::X7);
        let is_stopped = is_stopped || (denies(self.network_policies(ask)) && self.errs(Id::C33));
        let by_cluster = |tier| denies(self.ordered(ask, tier));
        !is_stopped && !((by_cluster(Tier::Admin) || by_cluster(Tier::Baseline)) && self.errs(Id::C22))
    }

    /// Whether it is a question for DNS of a pod that has rules with names.
    fn is_dns_for_names(&self, ask: &Ask<'_>) -> bool {
        let is_dns = matches!(ask.protocol, Protocol::Port(Transport::Tcp | Transport::Udp, 53));
        is_dns
            && ask.is_egress()
            && self.policies_for(ask.subject).any(|(dialect, policy)| {
                dialect.is_cluster_wide()
                    && self.cluster_subject(policy, dialect, ask.subject).0
                    && policy["spec"]["egress"].to_string().contains("domainNames")
            })
    }

    // === Firewalls ===

    /// By priority; of one priority a Deny beats an Allow, and an Allow only ends the tier.
    fn firewalls(&self, ask: &Ask<'_>) -> Says {
        if !ask.is_egress() || (ask.subject.namespace == "kube-system" && self.errs(Id::E3)) {
            return Says::AskNext;
        }
        self.firewalls_of(ask, false)
    }

    /// Of all, or of those only that are about clients outside.
    fn firewalls_of(&self, ask: &Ask<'_>, is_entering: bool) -> Says {
        let of_egress = self.policies_for(ask.subject).filter(|(dialect, policy)| {
            let is_asked = !is_entering || self.is_about_clients_outside(policy, *dialect);
            dialect.is_firewall() && is_asked
        });
        let mut all: Vec<_> = of_egress
            .map(|(dialect, policy)| (self.rank(policy, dialect), dialect, policy))
            .collect();
        all.sort_by_key(|(rank, ..)| rank.priority);
        while let Some((first, ..)) = all.first() {
            let priority = first.priority;
            let acts: Vec<Act> = all
                .iter()
                .take_while(|(rank, ..)| rank.priority == priority)
                .filter_map(|(rank, dialect, policy)| self.first_match(policy, *dialect, *rank, ask))
                .collect();
            let denies = match acts.first() {
                Some(act) if acts.len() > 1 && self.errs(Id::E1) => *act == Act::Deny,
                _ => acts.contains(&Act::Deny),
            };
            if denies {
                return Says::Deny;
            }
            if !acts.is_empty() {
                return if self.errs(Id::E2) {
                    Says::Allow
                } else {
                    Says::AskNext
                };
            }
            all.retain(|(rank, ..)| rank.priority != priority);
        }
        Says::AskNext
    }

    // === Admin and Baseline ===

    /// By priority and rule: the first match decides.
    fn ordered(&self, ask: &Ask<'_>, tier: Tier) -> Says {
        let in_tier = |(dialect, policy): (Dialect, &'c Value)| {
            let is_here = dialect.is_cluster_wide();
            let rank = is_here.then(|| self.rank(policy, dialect));
            rank.filter(|rank| rank.tier == tier)
                .map(|rank| (rank, dialect, policy))
        };
        let mut all: Vec<_> = self.policies_for(ask.subject).filter_map(in_tier).collect();
        let place = |(rank, dialect, policy): &(Rank, Dialect, &Value)| {
            let name = policy["metadata"]["name"].as_str().unwrap_or_default().to_owned();
            (rank.priority, dialect.place(), name)
        };
        all.sort_by_key(place);
        let has_tie = all
            .windows(2)
            .any(|pair| pair[0].0.priority == pair[1].0.priority);
        if has_tie && self.errs(Id::C20) {
            all.reverse();
            all.sort_by_key(|(rank, ..)| rank.priority);
        }
        for (rank, dialect, policy) in all {
            match self.first_match(policy, dialect, rank, ask) {
                None => {}
                Some(Act::Allow) => return Says::Allow,
                Some(Act::Deny) => return Says::Deny,
                Some(Act::Pass) => return Says::AskNext,
            }
        }
        Says::AskNext
    }

    // === NetworkPolicy ===

    /// A pod is isolated when a policy says so; then what no rule allows is denied.
    fn network_policies(&self, ask: &Ask<'_>) -> Says {
        let own = || {
            self.policies_for(ask.subject)
                .filter(|(dialect, policy)| self.is_network_policy_of(*dialect, policy, ask))
        };
        let is_closed = self.is_closed_by_annotation(ask);
        let mut is_isolated = is_closed;
        let mut is_allowed = is_closed && self.is_neighbour(ask) && self.errs(Id::P3);
        let mut speaking = 0;
        for (dialect, policy) in own() {
            let is_speaking = match dialect {
                Dialect::Old => {
                    if !is_closed && self.errs(Id::X8) && !ask.is_egress() {
                        is_isolated = true;
                    }
                    is_closed && !ask.is_egress()
                }
                _ => self.isolates(policy, dialect, ask.direction),
            };
            if !is_speaking {
                continue;
            }
            is_isolated = true;
            speaking += 1;
            is_allowed |= self.allows(policy, dialect, ask) && !(speaking > 1 && self.errs(Id::P8));
        }
        if !is_isolated {
            return Says::AskNext;
        }
        if is_allowed || self.is_own_node_exempt(ask) {
            Says::Allow
        } else {
            Says::Deny
        }
    }

    /// A pod that is isolated for egress still reaches its own node, as far as the setting says.
    fn is_own_node_exempt(&self, ask: &Ask<'_>) -> bool {
        let is_dns = matches!(ask.protocol, Protocol::Port(Transport::Tcp | Transport::Udp, 53));
        let is_said = match self.cluster.setting.pod_to_own_node {
            PodToOwnNode::Allow => true,
            PodToOwnNode::Dns => is_dns,
            PodToOwnNode::Enforce => false,
        };
        ask.is_egress() && ask.own_node && is_said && !self.errs(Id::X1)
    }

    fn is_isolated_otherwise(&self, ask: &Ask<'_>) -> bool {
        let mut other = *ask;
        other.direction = if ask.is_egress() {
            Direction::Ingress
        } else {
            Direction::Egress
        };
        self.policies_for(ask.subject).any(|(dialect, policy)| {
            dialect == Dialect::V1
                && self.is_network_policy_of(dialect, policy, &other)
                && types(policy).contains(&other.direction)
        })
    }

    fn is_neighbour(&self, ask: &Ask<'_>) -> bool {
        self.owner(ask.peer)
            .is_some_and(|pod| pod.namespace == ask.subject.namespace)
    }

    // === Pods ===

    /// The pod that has the address.
    pub(crate) fn owner(&self, address: IpAddr) -> Option<&'c Pod> {
        if self.cluster.is_claimed_by_node(address) {
            return None;
        }
        let claims = |pod: &&Pod| {
            let has_it = match pod.addresses.iter().position(|one| *one == address) {
                None => false,
                Some(0) => true,
                Some(_) => !self.errs(Id::C6),
            };
            has_it
                && !pod.host_network
                && (!pod.ended || self.errs(Id::C1))
                && !(pod.ending && self.errs(Id::C2))
        };
        let candidates = self.cluster.pods.iter().filter(claims);
        candidates.max_by_key(|pod| (&pod.started, &pod.key))
    }
}

/// A tier whose policies are in an order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tier {
    Firewall,
    Admin,
    Baseline,
}

/// The directions of a NetworkPolicy that can be read.
fn types(policy: &Value) -> Vec<Direction> {
    let written = texts(get(&policy["spec"], "policyTypes"));
    let has_egress = get(&policy["spec"], "egress").is_some_and(|rules| rules != &Value::Array(Vec::new()));
    let mut types = Vec::new();
    if written.contains(&"Ingress") || written.is_empty() {
        types.push(Direction::Ingress);
    }
    if written.contains(&"Egress") || (written.is_empty() && has_egress) {
        types.push(Direction::Egress);
    }
    types
}
