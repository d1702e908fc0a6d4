//! Which policies select a pod, and which of their rules an address was compared with: for what a row says
//! about its answer, never for the answer.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::sync::Arc;

use egret_policies::model::cluster::{Namespace, Pod};
use egret_policies::model::{
    Direction, Effect, Enforcement, Exposure, Labels, Peer, Policy, Port, Ports, Rule, Subject, Tier,
};
use egret_policies::simulator::{Decision, Protocol};
use egret_shared::net::{Family, IpNet};
use egret_shared::pod::PodKey;

/// Policies in the order of evaluation, and what the pods of the probes are selected by.
#[derive(Debug)]
pub struct Selection {
    policies: Vec<Policy>,
    namespaces: BTreeMap<Arc<str>, (Labels, Enforcement)>,
    selecting: HashMap<PodKey, Arc<[usize]>>,
}

impl Selection {
    /// Over all policies and namespaces.
    #[must_use]
    pub fn new(mut policies: Vec<Policy>, namespaces: Vec<Namespace>) -> Self {
        policies.sort_by(|one, other| (one.rank, &one.id).cmp(&(other.rank, &other.id)));
        let labels = |namespace: Namespace| (namespace.name, (namespace.labels, namespace.enforcement));
        Self {
            policies,
            namespaces: namespaces.into_iter().map(labels).collect(),
            selecting: HashMap::new(),
        }
    }

    /// The policies in force that select a pod, in order.
    pub fn policies_of(&mut self, pod: &Pod) -> impl Iterator<Item = &Policy> {
        self.by_enforcement(pod, Enforcement::Enforced)
    }

    /// The policies in audit that select a pod, in order.
    pub fn audited_of(&mut self, pod: &Pod) -> impl Iterator<Item = &Policy> {
        self.by_enforcement(pod, Enforcement::Audited)
    }

    fn by_enforcement(&mut self, pod: &Pod, wanted: Enforcement) -> impl Iterator<Item = &Policy> {
        let namespace = self.namespaces.get(pod.key.namespace());
        let is_audit = namespace.is_some_and(|(_, enforcement)| enforcement.is_audit());
        let is_wanted =
            move |policy: &&Policy| (is_audit || policy.enforcement.is_audit()) == wanted.is_audit();
        self.selecting(pod).filter(is_wanted)
    }

    /// The policies that select a pod, in force or not, in order.
    pub fn selecting(&mut self, pod: &Pod) -> impl Iterator<Item = &Policy> {
        if !self.selecting.contains_key(&pod.key) {
            let selecting = self.select(pod);
            self.selecting.insert(pod.key.clone(), selecting);
        }
        let selecting = self.selecting.get(&pod.key).map(Arc::clone);
        selecting
            .into_iter()
            .flat_map(|places| places.to_vec())
            .map(|place| &self.policies[place])
    }

    /// The policies that are asked about clients outside, in order.
    pub fn rejecting(&self) -> impl Iterator<Item = &Policy> {
        self.policies
            .iter()
            .filter(|policy| policy.exposure == Exposure::Reject && !policy.enforcement.is_audit())
    }

    fn select(&self, pod: &Pod) -> Arc<[usize]> {
        let default = Labels::of_namespace_without_object(pod.key.namespace());
        let namespace = self.namespaces.get(pod.key.namespace());
        let namespace = namespace.map_or(&default, |(labels, _)| labels);
        let selects = |policy: &Policy| {
            let Subject { namespaces, pods } = &policy.subject;
            namespaces.matches(pod.key.namespace(), namespace) && pods.matches(&pod.labels)
        };
        (0..self.policies.len())
            .filter(|place| selects(&self.policies[*place]))
            .collect()
    }

    /// Whether, on the way to a decision about this pod, the address at the other end was compared with networks.
    pub fn compared_with_networks(
        &mut self,
        pod: &Pod,
        direction: Direction,
        peer: IpAddr,
        protocol: Protocol,
        decision: &Decision,
    ) -> bool {
        let Some(last) = last_tier(decision) else {
            return false;
        };
        let deciding = decision.policy().cloned();
        for policy in self
            .policies_of(pod)
            .take_while(|policy| policy.rank.tier <= last)
        {
            let is_deciding = deciding
                .as_deref()
                .is_some_and(|deciding| policy.id.to_string() == deciding);
            let Effect::Rules(rules) = policy.effect(direction) else {
                continue;
            };
            let asked = rules
                .iter()
                .filter(|rule| !is_deciding || Some(rule.index) <= decision.rule());
            if asked.into_iter().any(|rule| compares(rule, peer, protocol)) {
                return true;
            }
            if is_deciding {
                return false;
            }
        }
        false
    }
}

/// The last tier that was asked; none where rules were not asked at all.
fn last_tier(decision: &Decision) -> Option<Tier> {
    match decision.tier {
        "none" | "exempt" => None,
        word => Some(
            Tier::ALL
                .into_iter()
                .find(|tier| tier.word() == word)
                .unwrap_or(Tier::Baseline),
        ),
    }
}

fn compares(rule: &Rule, peer: IpAddr, protocol: Protocol) -> bool {
    let peers = rule.peers.listed();
    let family = Family::of(peer);
    let has_networks = peers.iter().any(|peer| match peer {
        Peer::Networks(networks) => networks.iter().any(|network| Family::of_net(network) == family),
        // What is external is so for every pod alike: an address that is made up is none of them.
        Peer::External(_)
        | Peer::Pods { .. }
        | Peer::Nodes(_)
        | Peer::NodeAddresses(_)
        | Peer::ApiServer
        | Peer::Services { .. }
        | Peer::Names(_) => false,
    });
    has_networks && asks_for(&rule.ports, protocol)
}

/// A named port matches nothing where the peer is networks, so nothing is compared either.
fn asks_for(ports: &Ports, protocol: Protocol) -> bool {
    match ports {
        Ports::Any => true,
        Ports::OneOf(ports) => ports.iter().any(|port| match (port, protocol) {
            (Port::Range(transport, range), Protocol::Port(asked, number)) => {
                *transport == asked && range.contains(number)
            }
            (Port::Icmp, asked) => asked == Protocol::Icmp,
            (Port::Range(..), Protocol::Icmp | Protocol::Other) | (Port::Named { .. }, _) => false,
        }),
    }
}

/// The networks that a policy names.
pub(crate) fn networks(policy: &Policy) -> impl Iterator<Item = IpNet> {
    policy
        .rules()
        .flat_map(|rule| rule.peers.listed())
        .flat_map(|peer| match peer {
            Peer::Networks(networks) | Peer::External(networks) => networks.clone(),
            Peer::Pods { .. }
            | Peer::Nodes(_)
            | Peer::NodeAddresses(_)
            | Peer::ApiServer
            | Peer::Services { .. }
            | Peer::Names(_) => Vec::new(),
        })
}
