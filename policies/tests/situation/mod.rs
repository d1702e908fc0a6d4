//! Words to describe a cluster with, and a compiler, a memory and an oracle that are told the same.
#![allow(dead_code, reason = "each test binary uses some of the words")]
#![allow(clippy::unwrap_used, reason = "a test that cannot be set up fails")]

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use egret_policies::compiler::{Compiler, DnsStandIn, Event, InSync, NodeScope, PodToOwnNode, Settings};
use egret_policies::model::cluster::{Entity, EntityKey, NamedPort, Namespace, Node, Pod, PodLife};
use egret_policies::model::{
    Action, Direction, Effect, Enforcement, Exposure, Kind, Labels, NamespaceSelector, Peer, Peers, Policy,
    PolicyId, Port, Ports, Rank, Requirement, Rule, Selector, Subject, Tier,
};
use egret_policies::oracle::World;
use egret_policies::records::RecordSettings;
use egret_policies::rules::Batch;
use egret_policies::simulator::{Connection, Decision, ForwardedConnection, Protocol, Simulator, Verdict};
use egret_shared::net::{PortRange, Transport};
use egret_shared::observation::{Observation, ObservedAddress};
use egret_shared::pod::PodKey;
use egret_shared::time::Timestamp;

pub(crate) const START: Timestamp = Timestamp::from_millis(1_000_000);

pub(crate) fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

pub(crate) fn key(text: &str) -> PodKey {
    text.parse().unwrap()
}

/// `app=web,tier=db`
pub(crate) fn labels(text: &str) -> Labels {
    text.split(',').filter_map(|pair| pair.split_once('=')).collect()
}

/// `app=web,!old,tier!=db,name`; nothing is everything.
pub(crate) fn selector(text: &str) -> Selector {
    Selector::all_of(text.split(',').filter(|part| !part.is_empty()).map(|part| {
        let values = |value: &str| std::iter::once(Arc::from(value)).collect();
        if let Some((key, value)) = part.split_once("!=") {
            Requirement::NotIn(key.into(), values(value))
        } else if let Some((key, value)) = part.split_once('=') {
            Requirement::In(key.into(), values(value))
        } else if let Some(key) = part.strip_prefix('!') {
            Requirement::DoesNotExist(key.into())
        } else {
            Requirement::Exists(part.into())
        }
    }))
}

pub(crate) fn namespace(name: &str, text: &str) -> Entity {
    let mut all = labels(text);
    all.set("kubernetes.io/metadata.name", name);
    Entity::Namespace(Namespace {
        name: name.into(),
        labels: all,
        enforcement: Enforcement::Enforced,
    })
}

pub(crate) fn node(name: &str, text: &str, addresses: &[&str]) -> Entity {
    Entity::Node(Node {
        name: name.into(),
        labels: labels(text),
        addresses: addresses.iter().map(|address| ip(address)).collect(),
        pod_networks: Vec::new(),
    })
}

/// A live pod on node `here`.
pub(crate) fn pod(name: &str, text: &str, addresses: &[&str]) -> Pod {
    Pod {
        key: key(name),
        uid: None,
        labels: labels(text),
        node: Some("here".into()),
        addresses: addresses.iter().map(|address| ip(address)).collect(),
        host_network: false,
        life: PodLife::Live,
        started: None,
        ports: Vec::new(),
    }
}

pub(crate) fn named_port(name: &str, transport: Transport, number: u16) -> NamedPort {
    NamedPort {
        name: name.into(),
        transport,
        number: number.try_into().unwrap(),
    }
}

pub(crate) fn policy(kind: Kind, tier: Tier, priority: u32, name: &str, pods: &str) -> Policy {
    let (namespace, name) = name
        .split_once('/')
        .map_or((None, name), |(namespace, name)| (Some(namespace), name));
    Policy {
        id: PolicyId {
            kind,
            namespace: namespace.map(Arc::from),
            name: name.into(),
        },
        rank: Rank { tier, priority },
        subject: Subject {
            namespaces: namespace.map_or_else(
                || NamespaceSelector::Matching(Selector::everything()),
                |namespace| NamespaceSelector::Named(namespace.into()),
            ),
            pods: selector(pods),
        },
        egress: Effect::None,
        ingress: Effect::None,
        exposure: Exposure::Ignore,
        enforcement: Enforcement::Enforced,
    }
}

/// A NetworkPolicy that speaks of no direction yet.
pub(crate) fn network_policy(name: &str, pods: &str) -> Policy {
    policy(Kind::NetworkPolicy, Tier::NetworkPolicy, 0, name, pods)
}

/// A ClusterNetworkPolicy of tier Admin.
pub(crate) fn admin_policy(name: &str, priority: u32, pods: &str) -> Policy {
    policy(Kind::ClusterNetworkPolicy, Tier::Admin, priority, name, pods)
}

pub(crate) trait Say: Sized {
    fn egress(self, rules: Vec<Rule>) -> Self;
    fn ingress(self, rules: Vec<Rule>) -> Self;
}

impl Say for Policy {
    fn egress(mut self, rules: Vec<Rule>) -> Self {
        self.egress = Effect::Rules(numbered(rules).into());
        self
    }

    fn ingress(mut self, rules: Vec<Rule>) -> Self {
        self.ingress = Effect::Rules(numbered(rules).into());
        self
    }
}

fn numbered(mut rules: Vec<Rule>) -> Vec<Rule> {
    for (index, rule) in rules.iter_mut().enumerate() {
        rule.index = index;
    }
    rules
}

pub(crate) fn rule(action: Action, peers: Peers, ports: Ports) -> Rule {
    Rule {
        index: 0,
        name: None,
        action,
        peers,
        ports,
    }
}

pub(crate) fn allow(peers: Peers) -> Rule {
    rule(Action::Allow, peers, Ports::Any)
}

pub(crate) fn deny(peers: Peers) -> Rule {
    rule(Action::Deny, peers, Ports::Any)
}

pub(crate) fn pass(peers: Peers) -> Rule {
    rule(Action::Pass, peers, Ports::Any)
}

/// Pods of all namespaces.
pub(crate) fn pods(text: &str) -> Peers {
    Peers::OneOf(vec![Peer::Pods {
        namespaces: NamespaceSelector::Matching(Selector::everything()),
        pods: selector(text),
    }])
}

pub(crate) fn networks(list: &[&str]) -> Peers {
    Peers::OneOf(vec![Peer::Networks(
        list.iter().map(|network| network.parse().unwrap()).collect(),
    )])
}

pub(crate) fn names(list: &[&str]) -> Peers {
    Peers::OneOf(vec![Peer::Names(
        list.iter().map(|name| name.parse().unwrap()).collect(),
    )])
}

pub(crate) fn tcp_port(number: u16) -> Port {
    Port::Range(Transport::Tcp, PortRange::single(number).unwrap())
}

pub(crate) const fn tcp(port: u16) -> Protocol {
    Protocol::Port(Transport::Tcp, port)
}

/// An answer as it comes in at `now`.
pub(crate) fn answer(
    client: &str,
    name: &str,
    addresses: &[IpAddr],
    now: Timestamp,
    ttl: u64,
) -> Observation {
    Observation {
        client: ip(client),
        question: name.parse().unwrap(),
        chain: Vec::new(),
        addresses: addresses
            .iter()
            .map(|address| ObservedAddress {
                address: *address,
                expires: now.after(Duration::from_secs(ttl)),
            })
            .collect(),
    }
}

pub(crate) fn settings() -> Settings {
    Settings {
        enforcement: Enforcement::Enforced,
        node: NodeScope::One("here".into()),
        records: RecordSettings::default(),
        pod_to_own_node: PodToOwnNode::Allow,
        dns: DnsStandIn::default(),
    }
}

/// A node: compiler, kernel and oracle.
pub(crate) struct Situation {
    pub(crate) compiler: Compiler<InSync>,
    pub(crate) memory: Simulator,
    pub(crate) world: World,
    pub(crate) now: Timestamp,
}

impl Situation {
    pub(crate) fn new(entities: impl IntoIterator<Item = Entity>) -> Self {
        Self::with(settings(), entities)
    }

    pub(crate) fn with(settings: Settings, entities: impl IntoIterator<Item = Entity>) -> Self {
        let mut compiler = Compiler::new(settings.clone());
        let mut world = World::new(settings);
        for entity in entities {
            compiler.handle(Event::Apply(entity.clone()), START);
            world.apply(entity);
        }
        let mut situation = Self {
            compiler: compiler.in_sync(),
            memory: Simulator::new(),
            world,
            now: START,
        };
        situation.poll();
        situation
    }

    /// Applies all batches; returns what they do together.
    pub(crate) fn poll(&mut self) -> Option<Batch> {
        let mut all: Option<Batch> = None;
        while let Some(batch) = self.compiler.poll_batch(self.now) {
            self.memory.apply(&batch, self.now).unwrap();
            let all = all.get_or_insert_with(|| Batch::empty(batch.revision));
            all.revision = batch.revision;
            all.sets_created.extend(batch.sets_created);
            all.members_changed.extend(batch.members_changed);
            all.expired.extend(batch.expired);
            all.rules_replaced.extend(batch.rules_replaced);
            all.node_rules = batch.node_rules.or_else(|| all.node_rules.take());
            all.has_policies = batch.has_policies.or(all.has_policies);
            all.pods_removed.extend(batch.pods_removed);
            all.reevaluate.extend(batch.reevaluate);
            all.sets_destroyed.extend(batch.sets_destroyed);
        }
        all
    }

    pub(crate) fn tell(&mut self, event: Event) {
        match &event {
            Event::Apply(entity) => self.world.apply(entity.clone()),
            Event::Delete(key) => self.world.delete(key),
            Event::Observed(observation) => self.world.observe(observation, self.now),
            Event::Restored(remembered) => self.world.restore(remembered, self.now),
            Event::NodeHolds(addresses) => self.world.hold(addresses.clone()),
        }
        self.compiler.handle(event, self.now);
    }

    pub(crate) fn apply(&mut self, entity: Entity) -> Batch {
        self.tell(Event::Apply(entity));
        self.poll().expect("a change makes a batch due")
    }

    pub(crate) fn delete(&mut self, key: EntityKey) -> Batch {
        self.tell(Event::Delete(key));
        self.poll().expect("a change makes a batch due")
    }

    pub(crate) fn observe(
        &mut self,
        client: &str,
        name: &str,
        addresses: &[IpAddr],
        ttl: u64,
    ) -> Option<Batch> {
        self.tell(Event::Observed(answer(client, name, addresses, self.now, ttl)));
        self.poll()
    }

    /// Lets time go by; nobody calls the compiler meanwhile.
    pub(crate) fn sleep(&mut self, seconds: u64) {
        self.now = self.now.after(Duration::from_secs(seconds));
    }

    pub(crate) fn decide(&self, pod: &str, direction: Direction, peer: &str, protocol: Protocol) -> Decision {
        self.decide_connection(&Connection {
            pod: key(pod),
            direction,
            peer: ip(peer),
            peer_is_own_node: false,
            protocol,
        })
    }

    /// The memory's decision, after it was held to the oracle's.
    pub(crate) fn decide_connection(&self, connection: &Connection) -> Decision {
        let decision = self.memory.decide(connection, self.now);
        assert_eq!(
            decision.verdict,
            self.world.decide(connection, self.now),
            "{connection:?}: the memory says {decision:?}, the oracle does not"
        );
        let would_deny = self.memory.would_deny(connection, self.now);
        assert_eq!(
            would_deny.is_some(),
            self.world.would_deny(connection, self.now),
            "{connection:?}, policies in audit: the memory says {would_deny:?}, the oracle does not"
        );
        let open = self.memory.decide_open(connection, self.now);
        assert_eq!(
            open.verdict,
            self.world.decide_open(connection, self.now),
            "{connection:?}, open before: the memory says {open:?}, the oracle does not"
        );
        decision
    }

    /// The memory's decision on a client outside that a Service leads on, held to the oracle's.
    pub(crate) fn decide_entering(&self, entering: ForwardedConnection) -> Decision {
        let decision = self.memory.decide_entering(entering, self.now);
        assert_eq!(
            decision.verdict,
            self.world.decide_entering(entering),
            "{entering:?}: the memory says {decision:?}, the oracle does not"
        );
        decision
    }

    pub(crate) fn egress(&self, pod: &str, peer: &str, protocol: Protocol) -> Verdict {
        self.decide(pod, Direction::Egress, peer, protocol).verdict
    }

    pub(crate) fn ingress(&self, pod: &str, peer: &str, protocol: Protocol) -> Verdict {
        self.decide(pod, Direction::Ingress, peer, protocol).verdict
    }
}
