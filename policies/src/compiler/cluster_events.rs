//! Objects that come, change and go, and what is to be looked at again because of them.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;

use egret_shared::pod::PodKey;
use egret_shared::time::Timestamp;

use crate::model::cluster::{EndpointSlice, Entity, EntityKey, Service, is_api_server};
use crate::model::{Exposure, NamespaceSelector, Policy, PolicyId};
use crate::records::AddressOwner;

use super::Compiler;
use super::policies::{PolicyOrder, order_of};
use super::settings::NodeScope;

impl<State> Compiler<State> {
    pub(super) fn apply(&mut self, mut entity: Entity, now: Timestamp) {
        if let Entity::Pod(pod) = &mut entity {
            self.pod_networks.complete(pod);
        }
        match entity {
            Entity::Pod(pod) if self.index.pod(&pod.key) == Some(&pod) => {}
            Entity::Pod(pod) => {
                let key = pod.key.clone();
                self.track_owners(&key, &pod.addresses);
                let touched = self.index.set_pod(&key, Some(pod));
                self.touch_pods(touched, now);
            }
            Entity::Namespace(namespace) => {
                let name = Arc::clone(&namespace.name);
                let touched = self.index.set_namespace(&name, Some(namespace));
                self.touch_pods(touched, now);
            }
            Entity::Node(node) if self.index.node(&node.name) == Some(&node) => {}
            Entity::Node(node) => {
                let name = Arc::clone(&node.name);
                let before = self
                    .index
                    .node(&name)
                    .map_or_else(Vec::new, |node| node.addresses.clone());
                self.protect(AddressOwner::Node, &before, &node.addresses);
                let touched = self.index.set_node(&name, Some(node));
                self.touch_node(&name, touched, now);
            }
            Entity::Policy(policy) => {
                let id = policy.id.clone();
                self.set_policy(&id, Some(policy));
            }
            Entity::Service(service) => {
                let key = service.key.clone();
                self.set_service(&key, Some(service));
            }
            Entity::EndpointSlice(slice) => {
                let key = slice.key.clone();
                self.set_slice(&key, Some(slice));
            }
            Entity::NodeAddressReport(report) => self.set_report(&report.node, Some(report.addresses)),
            Entity::ApiServerAddresses(declared) => {
                self.set_api_server_addresses(&declared.name, Some(declared.addresses));
            }
        }
    }

    pub(super) fn delete(&mut self, key: &EntityKey, now: Timestamp) {
        match key {
            EntityKey::Pod(key) if self.index.pod(key).is_none() => {}
            EntityKey::Pod(key) => {
                if let Some(pod) = self.index.pod(key) {
                    self.pod_networks.forget_run(pod);
                }
                self.track_owners(key, &[]);
                let touched = self.index.set_pod(key, None);
                self.touch_pods(touched, now);
            }
            EntityKey::Namespace(name) => {
                let touched = self.index.set_namespace(name, None);
                self.touch_pods(touched, now);
            }
            EntityKey::Node(name) if self.index.node(name).is_none() => {}
            EntityKey::Node(name) => {
                let before = self
                    .index
                    .node(name)
                    .map_or_else(Vec::new, |node| node.addresses.clone());
                self.protect(AddressOwner::Node, &before, &[]);
                let touched = self.index.set_node(name, None);
                self.touch_node(name, touched, now);
            }
            EntityKey::Policy(id) => self.set_policy(id, None),
            EntityKey::Service(key) => self.set_service(key, None),
            EntityKey::EndpointSlice(key) => self.set_slice(key, None),
            EntityKey::NodeAddressReport(node) => self.set_report(node, None),
            EntityKey::ApiServerAddresses(name) => self.set_api_server_addresses(name, None),
        }
    }

    /// Notes, before a pod changes, which of its addresses are some pod's.
    fn track_owners(&mut self, key: &PodKey, after: &[IpAddr]) {
        let before = self.index.pod(key).map_or(&[][..], |pod| &pod.addresses);
        for address in before.iter().chain(after).map(IpAddr::to_canonical) {
            let is_owned = self.index.owner(address).is_some();
            self.dirty.owned.entry(address).or_insert(is_owned);
        }
    }

    fn touch_pods(&mut self, touched: BTreeSet<PodKey>, now: Timestamp) {
        if touched.is_empty() {
            return;
        }
        self.refresh_locals(&touched, now);
        self.dirty.pods.extend(touched);
        self.set_due();
    }

    fn touch_node(&mut self, name: &Arc<str>, touched: BTreeSet<PodKey>, now: Timestamp) {
        self.touch_node_addresses(name);
        self.touch_pods(touched, now);
    }

    /// Addresses of a node: what is one of them belongs to no pod's network, whosever that is.
    fn touch_node_addresses(&mut self, name: &Arc<str>) {
        if self.records.opens().node {
            self.protect_api_server();
        }
        self.dirty.nodes.insert(Arc::clone(name));
        if self.sets.depends_on_node_addresses() {
            self.dirty.nodes.extend(self.index.node_names());
        }
        self.dirty.api_server = true;
        self.dirty.node_rules |= matches!(&self.settings.node, NodeScope::One(own) if own == name);
        for key in self.compiled.keys() {
            if self.index.pod(key).and_then(|pod| pod.node.as_ref()) == Some(name) {
                self.dirty.subjects.insert(key.clone());
            }
        }
        self.set_due();
    }

    fn set_report(&mut self, node: &Arc<str>, addresses: Option<Vec<IpAddr>>) {
        let after = addresses.clone().unwrap_or_default();
        let before = self.index.report(node).to_vec();
        if self.index.set_report(node, addresses) {
            self.protect(AddressOwner::Node, &before, &after);
            self.dirty.pods.extend(self.index.claimants(&before));
            self.dirty.pods.extend(self.index.claimants(&after));
            self.touch_node_addresses(node);
        }
    }

    fn set_service(&mut self, key: &PodKey, service: Option<Service>) {
        let addresses =
            |service: Option<&Service>| service.map_or_else(Vec::new, |one| one.addresses.clone());
        let before = addresses(self.index.service(key));
        if self.index.set_service(key, service) {
            if is_api_server(key) {
                self.protect_api_server();
            } else {
                let after = addresses(self.index.service(key));
                self.protect(AddressOwner::Service, &before, &after);
            }
            self.dirty.services.insert(key.clone());
            self.dirty.api_server |= is_api_server(key);
            self.set_due();
        }
    }

    fn set_slice(&mut self, key: &PodKey, slice: Option<EndpointSlice>) {
        if self.index.set_slice(key, slice) {
            self.protect_api_server();
            self.dirty.api_server = true;
            self.set_due();
        }
    }

    fn set_api_server_addresses(&mut self, name: &Arc<str>, addresses: Option<Vec<IpAddr>>) {
        if self.index.set_api_server_addresses(name, addresses) {
            self.protect_api_server();
            self.dirty.api_server = true;
            self.set_due();
        }
    }

    fn set_policy(&mut self, id: &PolicyId, policy: Option<Policy>) {
        if self.policies.get(id) == policy.as_ref() {
            return;
        }
        let before = self.policies.set(id, policy);
        let places: Vec<PolicyOrder> = before.iter().chain(self.policies.get(id)).map(order_of).collect();
        let namespaces = before.iter().chain(self.policies.get(id));
        let is_of_pods = namespaces
            .clone()
            .any(|policy| self.has_rules_in(&policy.subject.namespaces));
        self.dirty.node_rules |= namespaces
            .into_iter()
            .any(|policy| policy.exposure == Exposure::Reject);
        if is_of_pods {
            self.dirty.policies.extend(places);
        }
        self.set_due();
    }

    /// Whether a pod has rules that is of one of these namespaces. Pods that have none yet are touched already.
    fn has_rules_in(&self, namespaces: &NamespaceSelector) -> bool {
        match namespaces {
            NamespaceSelector::Named(name) => {
                let mut from = self.compiled.range(PodKey::new(name, "")..);
                from.next()
                    .is_some_and(|(key, _)| key.namespace() == name.as_ref())
            }
            NamespaceSelector::Matching(_) => !self.compiled.is_empty(),
        }
    }
}
