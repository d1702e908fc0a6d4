//! What many objects of a cluster have in common, kept once: label keys and values, selectors, lists of peers and of ports, names
//! of nodes and namespaces.
//! Of ten thousand policies most say `app=web` or `k8s-app=kube-dns` in some place, and each would have its own copy of it
//! in a dozen small blocks of memory.

use std::collections::HashSet;
use std::sync::Arc;

use super::cluster::{Entity, NamedPort, Namespace, Node, Pod};
use super::{Effect, Labels, Peer, Peers, Policy, PolicyId, Port, Ports, Requirement, Rule, Subject};

/// What was seen so far and is still in use.
#[derive(Debug)]
pub struct Shared {
    texts: HashSet<Arc<str>>,
    requirements: HashSet<Arc<[Requirement]>>,
    labels: HashSet<Labels>,
    peers: HashSet<Arc<[Peer]>>,
    ports: HashSet<Arc<[Port]>>,
    /// When there are so many, it is looked which of them nobody has any more.
    limit: usize,
}

/// Fewer are not worth a look.
const FEW: usize = 1024;

impl Default for Shared {
    fn default() -> Self {
        Self {
            texts: HashSet::new(),
            requirements: HashSet::new(),
            labels: HashSet::new(),
            peers: HashSet::new(),
            ports: HashSet::new(),
            limit: FEW,
        }
    }
}

impl Shared {
    /// The same object, made of what others have too.
    #[must_use]
    pub fn entity(&mut self, entity: Entity) -> Entity {
        if self.count() > self.limit {
            self.forget_unused();
        }
        match entity {
            Entity::Namespace(namespace) => Entity::Namespace(Namespace {
                name: self.text(&namespace.name),
                labels: self.labels(&namespace.labels),
                ..namespace
            }),
            Entity::Pod(pod) => Entity::Pod(self.pod(pod)),
            Entity::Node(node) => Entity::Node(Node {
                name: self.text(&node.name),
                labels: self.labels(&node.labels),
                ..node
            }),
            Entity::Policy(policy) => Entity::Policy(self.policy(policy)),
            Entity::Service(service) => Entity::Service(service),
            Entity::EndpointSlice(slice) => Entity::EndpointSlice(slice),
            Entity::NodeAddressReport(report) => Entity::NodeAddressReport(report),
            Entity::ApiServerAddresses(declared) => Entity::ApiServerAddresses(declared),
        }
    }

    fn pod(&mut self, pod: Pod) -> Pod {
        let ports = pod.ports.into_iter().map(|port| NamedPort {
            name: self.text(&port.name),
            ..port
        });
        Pod {
            ports: ports.collect(),
            labels: self.labels(&pod.labels),
            node: pod.node.map(|name| self.text(&name)),
            started: pod.started.map(|time| self.text(&time)),
            addresses: exact(pod.addresses),
            ..pod
        }
    }

    fn policy(&mut self, policy: Policy) -> Policy {
        Policy {
            id: PolicyId {
                namespace: policy.id.namespace.map(|name| self.text(&name)),
                ..policy.id
            },
            subject: Subject {
                namespaces: policy.subject.namespaces.shared(self),
                pods: policy.subject.pods.shared(self),
            },
            egress: self.effect(&policy.egress),
            ingress: self.effect(&policy.ingress),
            ..policy
        }
    }

    fn effect(&mut self, effect: &Effect) -> Effect {
        let mut all = |rules: &[Rule]| rules.iter().map(|rule| self.rule(rule)).collect();
        match effect {
            Effect::None => Effect::None,
            Effect::Rules(rules) => Effect::Rules(all(rules)),
            Effect::Opens(rules) => Effect::Opens(all(rules)),
        }
    }

    fn rule(&mut self, rule: &Rule) -> Rule {
        Rule {
            index: rule.index,
            name: rule.name.clone(),
            action: rule.action,
            peers: match &rule.peers {
                Peers::Any => Peers::Any,
                Peers::OneOf(peers) => Peers::OneOf(self.peers(peers)),
            },
            ports: match &rule.ports {
                Ports::Any => Ports::Any,
                Ports::OneOf(ports) => Ports::OneOf(self.ports(ports)),
            },
        }
    }

    fn peers(&mut self, list: &Arc<[Peer]>) -> Arc<[Peer]> {
        if let Some(known) = self.peers.get(list) {
            return Arc::clone(known);
        }
        let list: Arc<[Peer]> = list.iter().map(|peer| self.peer(peer)).collect();
        self.peers.insert(Arc::clone(&list));
        list
    }

    fn ports(&mut self, list: &Arc<[Port]>) -> Arc<[Port]> {
        if let Some(known) = self.ports.get(list) {
            return Arc::clone(known);
        }
        let list: Arc<[Port]> = list.iter().map(|port| self.port(port)).collect();
        self.ports.insert(Arc::clone(&list));
        list
    }

    fn peer(&mut self, peer: &Peer) -> Peer {
        match peer {
            Peer::Pods { namespaces, pods } => Peer::Pods {
                namespaces: namespaces.shared(self),
                pods: pods.shared(self),
            },
            Peer::Nodes(selector) => Peer::Nodes(selector.shared(self)),
            Peer::NodeAddresses(selector) => Peer::NodeAddresses(selector.shared(self)),
            // A clone has the room that it needs and no more.
            Peer::Networks(_)
            | Peer::External(_)
            | Peer::ApiServer
            | Peer::Names(_)
            | Peer::Services { .. } => peer.clone(),
        }
    }

    fn port(&mut self, port: &Port) -> Port {
        match port {
            Port::Range(transport, range) => Port::Range(*transport, *range),
            Port::Icmp => Port::Icmp,
            Port::Named { name, transport } => Port::Named {
                name: self.text(name),
                transport: *transport,
            },
        }
    }

    pub(super) fn text(&mut self, text: &Arc<str>) -> Arc<str> {
        if let Some(known) = self.texts.get(text) {
            return Arc::clone(known);
        }
        self.texts.insert(Arc::clone(text));
        Arc::clone(text)
    }

    pub(super) fn requirements(&mut self, list: &Arc<[Requirement]>) -> Arc<[Requirement]> {
        if let Some(known) = self.requirements.get(list) {
            return Arc::clone(known);
        }
        let list: Arc<[Requirement]> = list
            .iter()
            .map(|requirement| requirement.of_shared(self))
            .collect();
        self.requirements.insert(Arc::clone(&list));
        list
    }

    fn labels(&mut self, labels: &Labels) -> Labels {
        if let Some(known) = self.labels.get(labels) {
            return known.clone();
        }
        let labels = labels.of_shared(self);
        self.labels.insert(labels.clone());
        labels
    }

    /// How much is kept.
    #[must_use]
    pub fn count(&self) -> usize {
        self.texts.len() + self.requirements.len() + self.labels.len() + self.peers.len() + self.ports.len()
    }

    /// What was made of others goes before them.
    fn forget_unused(&mut self) {
        self.peers.retain(|list| Arc::strong_count(list) > 1);
        self.ports.retain(|list| Arc::strong_count(list) > 1);
        self.requirements.retain(|list| Arc::strong_count(list) > 1);
        self.labels.retain(Labels::is_used);
        self.texts.retain(|text| Arc::strong_count(text) > 1);
        self.limit = FEW.max(self.count() * 2);
    }
}

fn exact<T>(mut list: Vec<T>) -> Vec<T> {
    list.shrink_to_fit();
    list
}
