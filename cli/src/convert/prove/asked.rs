//! What policies ask of pods and addresses, and what they find.

use std::collections::BTreeSet;
use std::net::IpAddr;

use egret_policies::compiler::DnsStandIn;
use egret_policies::model::cluster::Pod;
use egret_policies::model::{
    Direction, Effect, Labels, NamespaceSelector, Peer, Peers, Policy, Rule, Selector,
};
use egret_shared::net::{Family, IpNet};

use crate::verdict::manifests::Manifests;
use crate::verdict::selection::DEFAULT_LABEL;

/// The networks that an address is in.
pub(super) fn place(address: IpAddr, networks: &BTreeSet<IpNet>) -> (Family, Vec<bool>) {
    let address = address.to_canonical();
    let is_in = networks
        .iter()
        .map(|network| network.contains(&address))
        .collect();
    (Family::of(address), is_in)
}

/// Whether the Service that dnsd stands in for selects a pod.
pub(super) fn is_dns(manifests: &Manifests, dns: &DnsStandIn, pod: &Pod) -> bool {
    let service = manifests
        .services
        .iter()
        .find(|service| service.key == dns.service);
    let selector = service.and_then(|service| service.selector.as_ref());
    pod.key.namespace() == dns.service.namespace()
        && selector.is_some_and(|selector| {
            selector
                .iter()
                .all(|(key, value)| pod.labels.get(key) == Some(value))
        })
}

/// The labels of a namespace, with or without an object.
pub(super) fn labels_of(manifests: &Manifests, name: &str) -> Labels {
    let namespace = manifests
        .namespaces
        .iter()
        .find(|namespace| &*namespace.name == name);
    namespace.map_or_else(
        || Labels::from_iter([(DEFAULT_LABEL, name)]),
        |namespace| namespace.labels.clone(),
    )
}

/// Two selectors of which both must match.
pub(super) type Pair<'a> = (&'a NamespaceSelector, &'a Selector);

/// Every pair of selectors in policies, once.
pub(super) fn selectors<'a>(policies: impl IntoIterator<Item = &'a Policy>) -> BTreeSet<Pair<'a>> {
    let mut pairs = BTreeSet::new();
    for policy in policies {
        pairs.insert((&policy.subject.namespaces, &policy.subject.pods));
        for peer in rules(policy).flat_map(peers) {
            if let Peer::Pods { namespaces, pods } = peer {
                pairs.insert((namespaces, pods));
            }
        }
    }
    pairs
}

/// Which of the selectors match.
pub(super) fn selected(pairs: &BTreeSet<Pair<'_>>, namespace: &Labels, pod: &Labels) -> Vec<bool> {
    let name = namespace.get(DEFAULT_LABEL);
    let matches = |(namespaces, pods): &Pair<'_>| {
        let is_in = match namespaces {
            NamespaceSelector::Named(own) => name == Some(own.as_ref()),
            NamespaceSelector::Matching(selector) => selector.matches(namespace),
        };
        is_in && pods.matches(pod)
    };
    pairs.iter().map(matches).collect()
}

/// The rules of both directions.
pub(super) fn rules(policy: &Policy) -> impl Iterator<Item = &Rule> {
    Direction::ALL
        .into_iter()
        .flat_map(|direction| match policy.effect(direction) {
            Effect::None => &[],
            Effect::Rules(rules) | Effect::Opens(rules) => &rules[..],
        })
}

/// The peers of a rule.
pub(super) fn peers(rule: &Rule) -> &[Peer] {
    match &rule.peers {
        Peers::Any => &[],
        Peers::OneOf(peers) => peers,
    }
}
