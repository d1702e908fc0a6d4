//! What is known of the cluster, and what follows from it for each policy.

use std::collections::BTreeMap;
use std::sync::Arc;

use egret_policies::controller;
use egret_policies::diagnostic::{Diagnostic, ObjectRef};
use egret_policies::lower::equal_priorities;
use egret_policies::model::cluster::{
    ApiServerAddresses, EndpointSlice, Entity, Node, NodeAddressReport, Pod, Service,
};
use egret_policies::model::{Kind, Policy};
use egret_shared::time::Timestamp;

use super::reports::Reports;
use super::status::DesiredStatus;
use super::taint::TaintedNodes;
use crate::watch::kube::{ObjectChange, ObjectId, ObjectState};

/// Objects, by what they are.
#[derive(Default)]
pub(super) struct Objects {
    policies: BTreeMap<ObjectId, PolicyObject>,
    others: BTreeMap<ObjectId, Box<[Arc<Entity>]>>,
    /// `metadata.uid` of each Node, by its name.
    nodes: BTreeMap<String, String>,
    pub(super) tainted: TaintedNodes,
}

/// A policy.
pub(super) struct PolicyObject {
    pub(super) state: ObjectState,
    /// `metadata.resourceVersion` when it came to say what it says: a node that has this one has programmed it. A status
    /// that is written gives it a new version and changes nothing.
    version: u64,
    /// Its status is not written before.
    pub(super) not_before: Timestamp,
}

/// What should be said of a policy.
pub(super) struct Desired {
    pub(super) id: ObjectId,
    /// All that its author should know.
    pub(super) diagnostics: Vec<Diagnostic>,
    /// None where the kind has no status.
    pub(super) status: Option<DesiredStatus>,
}

impl Objects {
    /// Takes a change in. Whether something is to be written soon: it is of a policy, or of a node that waits.
    pub(super) fn take(&mut self, change: ObjectChange) -> bool {
        match change {
            ObjectChange::Applied(state) if policy_of(&state.entities).is_some() => {
                self.take_policy(*state);
                true
            }
            ObjectChange::Applied(state) => {
                let is_node = state.id.kind == "Node";
                if is_node {
                    self.nodes.insert(state.id.name.clone(), state.uid.clone());
                }
                let waits = is_node && self.tainted.take(&state);
                self.others.insert(state.id, state.entities);
                waits
            }
            ObjectChange::Deleted(id) => {
                if id.kind == "Node" {
                    self.tainted.remove(&id.name);
                    self.nodes.remove(&id.name);
                }
                self.others.remove(&id);
                self.policies.remove(&id).is_some()
            }
        }
    }

    fn take_policy(&mut self, state: ObjectState) {
        let before = self.policies.remove(&state.id);
        let is_same = |before: &PolicyObject| {
            before.state.uid == state.uid
                && before.state.generation == state.generation
                && before.state.entities == state.entities
        };
        let version = match &before {
            Some(before) if is_same(before) => before.version,
            Some(_) | None => state.resource_version,
        };
        let object = PolicyObject {
            version,
            not_before: before.map_or(Timestamp::from_millis(0), |before| before.not_before),
            state,
        };
        self.policies.insert(object.state.id.clone(), object);
    }

    pub(super) fn policy(&self, id: &ObjectId) -> Option<&PolicyObject> {
        self.policies.get(id)
    }

    pub(super) fn policy_mut(&mut self, id: &ObjectId) -> Option<&mut PolicyObject> {
        self.policies.get_mut(id)
    }

    /// What should be said of each policy.
    pub(super) fn desired(&self, reports: &Reports) -> Vec<Desired> {
        let has_firewalls = self.policies.keys().any(|id| id.kind == "ClusterEgressFirewall");
        let lists = Lists::of(self.others.values().flatten(), has_firewalls);
        let cluster = lists.cluster();
        let policies = || {
            self.policies
                .values()
                .filter_map(|object| policy_of(&object.state.entities))
        };
        let mut beside = by_object(equal_priorities(policies()));
        let mut unresolved = by_object(controller::unknown_addresses(policies(), &cluster));
        let mut desired = Vec::with_capacity(self.policies.len());
        for (id, object) in &self.policies {
            let Some(policy) = policy_of(&object.state.entities) else {
                continue;
            };
            let reference = ObjectRef::from(&policy.id);
            let mut diagnostics = object.state.diagnostics.clone();
            diagnostics.extend(beside.remove(&reference).into_iter().flatten());
            let programmed = reports.programmed(id, object.version, &self.nodes);
            let status = DesiredStatus::of(
                policy,
                &diagnostics,
                &cluster,
                object.state.generation,
                programmed,
            );
            diagnostics.extend(unresolved.remove(&reference).into_iter().flatten());
            desired.push(Desired {
                id: id.clone(),
                diagnostics,
                status,
            });
        }
        desired
    }
}

fn by_object(found: impl IntoIterator<Item = Diagnostic>) -> BTreeMap<ObjectRef, Vec<Diagnostic>> {
    let mut by_object: BTreeMap<_, Vec<_>> = BTreeMap::new();
    for diagnostic in found {
        by_object
            .entry(diagnostic.object.clone())
            .or_default()
            .push(diagnostic);
    }
    by_object
}

/// The policy that an object is. A namespace with the annotation of 2016 is one, too, and has no status for it.
fn policy_of(entities: &[Arc<Entity>]) -> Option<&Policy> {
    entities.iter().find_map(|entity| match &**entity {
        Entity::Policy(policy) if policy.id.kind != Kind::LegacyNetworkPolicy => Some(policy),
        _ => None,
    })
}

/// Everything but policies, by kind.
#[derive(Default)]
struct Lists {
    nodes: Vec<Node>,
    reports: Vec<NodeAddressReport>,
    pods: Vec<Pod>,
    services: Vec<Service>,
    slices: Vec<EndpointSlice>,
    declared: Vec<ApiServerAddresses>,
}

impl Lists {
    /// Only a ClusterEgressFirewall depends on more than nodes.
    fn of<'a>(entities: impl Iterator<Item = &'a Arc<Entity>>, has_firewalls: bool) -> Self {
        let mut lists = Self::default();
        for entity in entities {
            match &**entity {
                Entity::Node(node) => lists.nodes.push(node.clone()),
                Entity::NodeAddressReport(report) => lists.reports.push(report.clone()),
                Entity::Pod(pod) if has_firewalls => lists.pods.push(pod.clone()),
                Entity::Service(service) if has_firewalls => lists.services.push(service.clone()),
                Entity::EndpointSlice(slice) if has_firewalls => lists.slices.push(slice.clone()),
                Entity::ApiServerAddresses(declared) => lists.declared.push(declared.clone()),
                Entity::Pod(_)
                | Entity::Service(_)
                | Entity::EndpointSlice(_)
                | Entity::Namespace(_)
                | Entity::Policy(_) => {}
            }
        }
        lists
    }

    fn cluster(&self) -> controller::Cluster<'_> {
        controller::Cluster {
            nodes: &self.nodes,
            reports: &self.reports,
            pods: &self.pods,
            services: &self.services,
            slices: &self.slices,
            declared: &self.declared,
        }
    }
}

#[cfg(test)]
mod tests {
    use egret_policies::api::manifest;
    use egret_policies::lower::lower;
    use kube::api::GroupVersionKind;
    use serde_json::Value as Json;

    use super::*;

    fn state(resource_version: u64, generation: i64, priority: u32) -> ObjectState {
        let text = format!(
            "apiVersion: policy.egret.dev/v1alpha1\nkind: ClusterEgressFirewall\nmetadata: {{name: a}}\n\
             spec: {{priority: {priority}, rules: [{{action: Deny, to: [{{networks: [192.0.2.0/24]}}]}}]}}\n"
        );
        let read = manifest::read(&text, "test");
        let lowered = lower(&read.documents[0].object);
        let kind = GroupVersionKind::gvk("policy.egret.dev", "v1alpha1", "ClusterEgressFirewall");
        ObjectState {
            id: ObjectId {
                kind: "ClusterEgressFirewall",
                namespace: None,
                name: "a".to_owned(),
            },
            resource: kube::api::ApiResource::from_gvk_with_plural(&kind, "clusteregressfirewalls"),
            uid: "u".to_owned(),
            generation,
            resource_version,
            status: Json::Null,
            taints: Json::Null,
            entities: lowered.entities.into_iter().map(Arc::new).collect(),
            diagnostics: lowered.diagnostics,
        }
    }

    #[test]
    fn the_version_that_counts_is_that_of_the_meaning() {
        let mut objects = Objects::default();
        let mut version_after = |state: ObjectState| {
            let id = state.id.clone();
            objects.take(ObjectChange::Applied(Box::new(state)));
            objects.policy(&id).unwrap().version
        };
        assert_eq!(version_after(state(3, 1, 5)), 3);
        // A status was written.
        assert_eq!(version_after(state(4, 1, 5)), 3);
        assert_eq!(version_after(state(5, 2, 6)), 5);
        // An annotation changes the meaning, and no generation.
        assert_eq!(version_after(state(6, 2, 7)), 6);
        // It was deleted and made anew.
        let anew = ObjectState {
            uid: "v".to_owned(),
            ..state(7, 2, 7)
        };
        assert_eq!(version_after(anew), 7);
    }
}
