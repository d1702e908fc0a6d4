//! Which pods policies and their peers are about, in the cluster of the manifests.

use std::collections::BTreeMap;

use egret_policies::diagnostic::ObjectRef;
use egret_policies::model::cluster::{Namespace, Pod};
use egret_policies::model::{
    Direction, Kind, Labels, NamespaceSelector, Peer, Peers, Policy, PolicyId, Rule, Selector,
};

use crate::cluster::selection::Selection;
use crate::reach::load::LoadedCluster;

use super::code::LintCode;
use super::finding::Finding;
use crate::manifests::objects::WrittenObjects;

/// All that was read, and who is selected.
#[derive(Debug)]
pub struct LintScope<'a> {
    /// What was read and compiled.
    pub loaded: &'a LoadedCluster,
    /// What was written.
    pub objects: &'a WrittenObjects,
    selected: BTreeMap<PolicyId, Vec<&'a Pod>>,
    namespaces: BTreeMap<&'a str, &'a Labels>,
}

impl<'a> LintScope<'a> {
    /// Finds out who is selected.
    #[must_use]
    pub fn new(loaded: &'a LoadedCluster, objects: &'a WrittenObjects) -> Self {
        let manifests = &loaded.manifests;
        let mut selection = Selection::new(manifests.policies.clone(), manifests.namespaces.clone());
        let mut selected: BTreeMap<PolicyId, Vec<&Pod>> = BTreeMap::new();
        for pod in pods(loaded) {
            for policy in selection.selecting(pod) {
                selected.entry(policy.id.clone()).or_default().push(pod);
            }
        }
        let labels = |namespace: &'a Namespace| (namespace.name.as_ref(), &namespace.labels);
        Self {
            loaded,
            objects,
            selected,
            namespaces: manifests.namespaces.iter().map(labels).collect(),
        }
    }

    /// All policies.
    #[must_use]
    pub fn policies(&self) -> &'a [Policy] {
        &self.loaded.manifests.policies
    }

    /// The pods that a policy selects.
    #[must_use]
    pub fn selected(&self, policy: &Policy) -> &[&'a Pod] {
        self.selected.get(&policy.id).map_or(&[], Vec::as_slice)
    }

    /// The pods at the destination of a rule, by its selectors.
    #[must_use]
    pub fn destinations(&self, policy: &Policy, direction: Direction, rule: &Rule) -> Vec<&'a Pod> {
        match (direction, &rule.peers) {
            (Direction::Ingress, _) => self.selected(policy).to_vec(),
            (Direction::Egress, Peers::Any) => pods(self.loaded).collect(),
            (Direction::Egress, Peers::OneOf(peers)) => pods(self.loaded)
                .filter(|pod| peers.iter().any(|peer| self.is_peer(peer, pod)))
                .collect(),
        }
    }

    /// A mistake in a rule.
    pub(super) fn in_rule(&self, mistake: LintCode, place: &RuleRef<'_>, found: String) -> Finding {
        let object = ObjectRef::from(&place.policy.id);
        Finding::new(mistake, self.objects, &object, &place.field(), found)
    }

    fn is_peer(&self, peer: &Peer, pod: &Pod) -> bool {
        match peer {
            Peer::Pods { namespaces, pods } => self.is_selected(namespaces, pods, pod),
            Peer::Networks(_)
            | Peer::Nodes(_)
            | Peer::NodeAddresses(_)
            | Peer::External(_)
            | Peer::ApiServer
            | Peer::Services { .. }
            | Peer::Names(_) => false,
        }
    }

    fn is_selected(&self, namespaces: &NamespaceSelector, pods: &Selector, pod: &Pod) -> bool {
        let name = pod.key.namespace();
        let default = Labels::of_namespace_without_object(name);
        let labels = self.namespaces.get(name).copied().unwrap_or(&default);
        namespaces.matches(name, labels) && pods.matches(&pod.labels)
    }
}

/// Pods that policies are about.
pub(super) fn pods(loaded: &LoadedCluster) -> impl Iterator<Item = &Pod> {
    let members = loaded.manifests.members.values();
    members
        .filter(|member| member.is_policed())
        .map(|member| &member.pod)
}

/// A rule, and where it is.
#[derive(Clone, Copy, Debug)]
pub struct RuleRef<'a> {
    /// The policy.
    pub policy: &'a Policy,
    /// The direction.
    pub direction: Direction,
    /// The rule.
    pub rule: &'a Rule,
}

impl RuleRef<'_> {
    /// The rule's field in the object.
    #[must_use]
    pub fn field(&self) -> String {
        let list = match self.policy.id.kind {
            Kind::ClusterEgressFirewall
            | Kind::AuditedApiServerEgressPolicy
            | Kind::ApiServerEgressPolicy => "rules",
            Kind::ClusterNetworkPolicy
            | Kind::AdminNetworkPolicy
            | Kind::NetworkPolicy
            | Kind::LegacyNetworkPolicy
            | Kind::BaselineAdminNetworkPolicy => self.direction.word(),
        };
        format!("spec.{list}[{}]", self.rule.index)
    }
}

/// The rules of a policy in a direction.
pub(super) fn rules(policy: &Policy, direction: Direction) -> impl Iterator<Item = RuleRef<'_>> {
    let rules = policy.effect(direction).rules();
    rules.iter().map(move |rule| RuleRef {
        policy,
        direction,
        rule,
    })
}

/// The rules of all policies.
pub(super) fn all_rules(policies: &[Policy]) -> impl Iterator<Item = RuleRef<'_>> {
    policies.iter().flat_map(|policy| {
        Direction::ALL
            .into_iter()
            .flat_map(move |direction| rules(policy, direction))
    })
}
