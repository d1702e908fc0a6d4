//! A pod for every selector and for every two of them, so that no rule is without one that it is about.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;

use egret_policies::model::cluster::{NamedPort, Namespace, Pod, PodLife};
use egret_policies::model::{
    Enforcement, Kind, Labels, NAME_LABEL, NamespaceSelector, Peer, Policy, Port, Ports, Requirement,
    Selector, Tier, Values,
};
use egret_shared::net::Transport;
use egret_shared::pod::PodKey;

use crate::cluster::selection::networks;
use crate::cluster::{UsedAddresses, make_up_addresses};
use crate::manifests::Manifests;

/// Two selectors of which both must match.
type SelectorPair<'a> = (&'a NamespaceSelector, &'a Selector);

/// More than these would take longer than anybody waits; single selectors come first.
const MOST: usize = 64;
/// A value that nobody writes.
const OTHER: &str = "egret-made-up";
/// The first port that a name of a port is given.
const FIRST_PORT: u16 = 20_001;

/// Pods for the policies that are converted, with the namespaces that they need: those of the cluster-wide tiers, and all
/// NetworkPolicies of namespaces with the form of 2016.
pub(super) fn make_up_pods(manifests: &Manifests, policies: &[Policy]) -> (Vec<Pod>, Vec<Namespace>) {
    let of_2016: BTreeSet<Option<&str>> = policies
        .iter()
        .filter(|policy| policy.id.kind == Kind::LegacyNetworkPolicy)
        .map(|policy| policy.id.namespace.as_deref())
        .collect();
    let is_converted = |policy: &&Policy| match policy.rank.tier {
        Tier::Admin | Tier::Baseline => true,
        Tier::NetworkPolicy => of_2016.contains(&policy.id.namespace.as_deref()),
        Tier::ClusterEgressFirewall => false,
    };
    let converted: Vec<&Policy> = policies.iter().filter(is_converted).collect();
    let pairs = selectors(converted.iter().copied());
    let ports = ports(&converted);
    let mut generator = PodGenerator {
        manifests,
        pairs: &pairs,
        seen: BTreeSet::new(),
        namespaces: BTreeMap::new(),
        pods: Vec::new(),
    };
    let all: Vec<SelectorPair<'_>> = pairs.iter().copied().collect();
    for pair in &all {
        generator.add(&[*pair]);
    }
    generator.add(&[]);
    for (index, one) in all.iter().enumerate() {
        for other in &all[index + 1..] {
            generator.add(&[*one, *other]);
        }
    }
    let PodGenerator { pods, namespaces, .. } = generator;
    let pods = with_addresses(pods, manifests, policies);
    let pods = pods.into_iter().map(|pod| Pod {
        ports: ports.clone(),
        ..pod
    });
    (pods.collect(), namespaces.into_values().collect())
}

struct PodGenerator<'a> {
    manifests: &'a Manifests,
    pairs: &'a BTreeSet<SelectorPair<'a>>,
    /// What is selected by what somebody is selected by already.
    seen: BTreeSet<Vec<bool>>,
    namespaces: BTreeMap<Arc<str>, Namespace>,
    pods: Vec<Pod>,
}

impl PodGenerator<'_> {
    /// Adds a pod that all of these select, if there can be one that is selected as no other is.
    fn add(&mut self, pairs: &[SelectorPair<'_>]) {
        if self.pods.len() >= MOST {
            return;
        }
        let Some(namespace) = self.namespace(pairs) else {
            return;
        };
        let Some(labels) = satisfy(pairs.iter().flat_map(|(_, pods)| pods.requirements())) else {
            return;
        };
        if !self.seen.insert(selected(self.pairs, &namespace, &labels)) {
            return;
        }
        let name = format!("{OTHER}-{}", self.pods.len() + 1);
        self.pods.push(Pod {
            key: PodKey::new(&namespace.name, &name),
            uid: None,
            labels,
            node: None,
            addresses: Vec::new(),
            host_network: false,
            life: PodLife::Live,
            started: None,
            ports: Vec::new(),
        });
        self.namespaces.insert(Arc::clone(&namespace.name), namespace);
    }

    /// A namespace that all of these select: one that is there, else one that could be.
    fn namespace(&self, pairs: &[SelectorPair<'_>]) -> Option<Namespace> {
        let selectors: Vec<Selector> = pairs
            .iter()
            .map(|(namespaces, _)| match namespaces {
                NamespaceSelector::Named(name) => {
                    let names = Values::from([Arc::clone(name)]);
                    Selector::all_of([Requirement::In(NAME_LABEL.into(), names)])
                }
                NamespaceSelector::Matching(selector) => selector.clone(),
            })
            .collect();
        let matches = |labels: &Labels| selectors.iter().all(|selector| selector.matches(labels));
        let there = self.manifests.namespaces.iter().chain(self.namespaces.values());
        if let Some(namespace) = there
            .into_iter()
            .find(|one| !pairs.is_empty() && matches(&one.labels))
        {
            return Some(namespace.clone());
        }
        let mut labels = satisfy(selectors.iter().flat_map(|selector| selector.requirements()))?;
        let name = labels
            .get(NAME_LABEL)
            .map_or_else(|| format!("{OTHER}-{}", self.namespaces.len() + 1), str::to_owned);
        labels.set(NAME_LABEL, &name);
        let is_there = self
            .manifests
            .namespaces
            .iter()
            .any(|namespace| *namespace.name == name)
            || self.namespaces.contains_key(name.as_str());
        let labels = if is_there {
            labels_of(self.manifests, &name)
        } else {
            labels
        };
        matches(&labels).then(|| Namespace {
            name: name.into(),
            labels,
            enforcement: Enforcement::Enforced,
        })
    }
}

/// The fewest labels that meet all requirements; none where nothing can.
fn satisfy<'a>(requirements: impl Iterator<Item = &'a Requirement>) -> Option<Labels> {
    let mut by_key: BTreeMap<&str, Vec<&Requirement>> = BTreeMap::new();
    for requirement in requirements {
        by_key.entry(key_of(requirement)).or_default().push(requirement);
    }
    let mut labels = Labels::default();
    for (key, requirements) in by_key {
        let written = requirements.iter().flat_map(|requirement| match requirement {
            Requirement::In(_, values) | Requirement::NotIn(_, values) => {
                values.iter().map(AsRef::as_ref).collect()
            }
            Requirement::Exists(_) | Requirement::DoesNotExist(_) => Vec::new(),
        });
        let candidates = std::iter::once(None)
            .chain(written.map(Some))
            .chain([Some(OTHER)]);
        let all = Selector::all_of(requirements.iter().map(|requirement| (*requirement).clone()));
        let labels_with =
            |value: Option<&str>| value.into_iter().map(|value| (key, value)).collect::<Labels>();
        let value = candidates
            .into_iter()
            .find(|value| all.matches(&labels_with(*value)))?;
        if let Some(value) = value {
            labels.set(key, value);
        }
    }
    Some(labels)
}

fn key_of(requirement: &Requirement) -> &str {
    match requirement {
        Requirement::In(key, _)
        | Requirement::NotIn(key, _)
        | Requirement::Exists(key)
        | Requirement::DoesNotExist(key) => key,
    }
}

/// Every pair of selectors in policies, once.
fn selectors<'a>(policies: impl IntoIterator<Item = &'a Policy>) -> BTreeSet<SelectorPair<'a>> {
    let mut pairs = BTreeSet::new();
    for policy in policies {
        pairs.insert((&policy.subject.namespaces, &policy.subject.pods));
        for peer in policy.rules().flat_map(|rule| rule.peers.listed()) {
            if let Peer::Pods { namespaces, pods } = peer {
                pairs.insert((namespaces, pods));
            }
        }
    }
    pairs
}

/// Which of the selectors match.
fn selected(pairs: &BTreeSet<SelectorPair<'_>>, namespace: &Namespace, pod: &Labels) -> Vec<bool> {
    let matches = |(namespaces, pods): &SelectorPair<'_>| {
        namespaces.matches(&namespace.name, &namespace.labels) && pods.matches(pod)
    };
    pairs.iter().map(matches).collect()
}

/// The labels of a namespace, with or without an object.
fn labels_of(manifests: &Manifests, name: &str) -> Labels {
    let mut namespaces = manifests.namespaces.iter();
    namespaces.find(|namespace| &*namespace.name == name).map_or_else(
        || Labels::of_namespace_without_object(name),
        |namespace| namespace.labels.clone(),
    )
}

/// A port of each protocol for each name that rules have.
fn ports(policies: &[&Policy]) -> Vec<NamedPort> {
    let mut names: BTreeSet<&Arc<str>> = BTreeSet::new();
    for rule in policies.iter().flat_map(|policy| policy.rules()) {
        if let Ports::OneOf(ports) = &rule.ports {
            names.extend(ports.iter().filter_map(|port| match port {
                Port::Named { name, .. } => Some(name),
                Port::Range(..) | Port::Icmp => None,
            }));
        }
    }
    let numbers = (FIRST_PORT..u16::MAX).filter_map(|number| number.try_into().ok());
    let named = |(name, number): (&Arc<str>, _)| {
        [Transport::Tcp, Transport::Udp].map(|transport| NamedPort {
            name: Arc::clone(name),
            transport,
            number,
        })
    };
    names.into_iter().zip(numbers).flat_map(named).collect()
}

fn with_addresses(pods: Vec<Pod>, manifests: &Manifests, policies: &[Policy]) -> Vec<Pod> {
    let members = manifests
        .members
        .values()
        .flat_map(|member| &member.pod.addresses);
    let nodes = manifests.nodes.iter().flat_map(|node| &node.addresses);
    let used = UsedAddresses {
        addresses: members.chain(nodes).copied().collect(),
        networks: policies.iter().flat_map(networks).collect(),
    };
    let keys = pods.iter().map(|pod| pod.key.clone()).collect();
    let addresses = make_up_addresses(&keys, &used);
    let address6 = |index: u128| {
        // For measuring devices (RFC 5180 §8): no cluster lives there.
        let network = Ipv6Addr::new(0x2001, 2, 0, 0xffff, 0, 0, 0, 0);
        IpAddr::V6(Ipv6Addr::from_bits(network.to_bits() + index))
    };
    let pods = pods.into_iter().zip(1..).map(|(pod, index)| Pod {
        addresses: addresses
            .get(&pod.key)
            .copied()
            .into_iter()
            .chain([address6(index)])
            .collect(),
        ..pod
    });
    pods.collect()
}
