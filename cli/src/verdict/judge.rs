//! Judges probes by the compiler and the simulator that the tests of a node's kernel are held to.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use egret_policies::compiler::Event;
use egret_policies::model::Direction;
use egret_policies::records::RecordSettings;
use egret_policies::rules::ITSELF;
use egret_policies::simulator::{
    Connection as Question, ConnectionDecision, ConnectionEnd, Decision, EndKind, ForwardedConnection,
    Protocol, Simulator, Verdict,
};
use egret_shared::observation::{Observation, ObservedAddress};
use egret_shared::pod::PodKey;
use egret_shared::time::Timestamp;

use super::input::Record;
use super::route::{ObservedRecords, ProbeConnection};
use crate::cluster::{Cluster, PodMember};
use crate::manifests::Manifests;
use crate::manifests::cluster::NOW;

/// A node that has every pod.
#[derive(Debug)]
pub struct Judge {
    simulator: Simulator,
    records: ObservedRecords,
    /// Addresses that pods were told, and that no name opens for them.
    protected: BTreeSet<(PodKey, IpAddr)>,
}

/// What became of the records.
#[derive(Debug, Default)]
pub struct UnusedRecords {
    /// Pods of records that are not in the manifests, have ended, or are on a node's network.
    pub pods: BTreeSet<PodKey>,
    /// Records over the limits that a node has, too.
    pub evicted: u64,
    /// Addresses that no name opens.
    pub protected: BTreeSet<IpAddr>,
}

impl UnusedRecords {
    /// What to say about them.
    #[must_use]
    pub fn remarks(&self) -> Vec<String> {
        let of_nobody = "it is no live pod of the manifests with an address of its own";
        let mut remarks: Vec<String> = self
            .pods
            .iter()
            .map(|pod| format!("records of {pod} are not used: {of_nobody}"))
            .collect();
        if self.evicted > 0 {
            remarks.push(format!(
                "{} records are over the limits of a node and not used",
                self.evicted
            ));
        }
        remarks.extend(self.protected.iter().map(|address| {
            format!(
                "no name opens {address}: loopback and link-local addresses, metadata services of clouds, those of nodes, of the API server and of Services, and the asking pod's own are protected, unless a node is configured otherwise"
            )
        }));
        remarks
    }
}

impl Judge {
    /// Compiles everything.
    ///
    /// # Panics
    /// When the compiler makes a batch that no kernel could apply; its tests see to it that it never does.
    #[must_use]
    pub fn new(manifests: &Manifests, cluster: &Cluster, records: &[Record]) -> (Self, UnusedRecords) {
        let mut compiler = manifests.compiler(cluster.dns());
        let mut unused = UnusedRecords::default();
        for record in records {
            match client(cluster, &record.pod) {
                Some(client) => {
                    compiler.handle(Event::Observed(observation(client, record)), NOW);
                }
                None => {
                    unused.pods.insert(record.pod.clone());
                }
            }
        }
        let mut compiler = compiler.in_sync();
        let simulator = Simulator::of(&mut compiler, NOW);
        let stats = compiler.record_stats();
        unused.evicted = stats.evicted_names_per_pod + stats.evicted_addresses_per_name + stats.evicted_total;
        let mut told: ObservedRecords = BTreeMap::new();
        for record in compiler.records() {
            told.entry((record.pod.clone(), record.name.clone()))
                .or_default()
                .insert(record.address, record.expires);
        }
        let is_protected = |record: &&Record| compiler.is_protected(&record.pod, record.address);
        let has_client = |record: &&Record| client(cluster, &record.pod).is_some();
        let grace = RecordSettings::default().grace;
        let mut protected = BTreeSet::new();
        // They open nothing, and yet the pod was told them and may use them.
        for record in records.iter().filter(is_protected).filter(has_client) {
            let address = record.address.to_canonical();
            unused.protected.insert(address);
            protected.insert((record.pod.clone(), address));
            told.entry((record.pod.clone(), record.name.clone()))
                .or_default()
                .insert(address, expires(record).after(grace));
        }
        let judge = Self {
            simulator,
            records: told,
            protected,
        };
        (judge, unused)
    }

    /// The rules of every pod.
    #[must_use]
    pub const fn simulator(&self) -> &Simulator {
        &self.simulator
    }

    /// What pods were told.
    #[must_use]
    pub const fn records(&self) -> &ObservedRecords {
        &self.records
    }

    /// Whether no name opens an address that this pod was told.
    #[must_use]
    pub fn is_protected(&self, pod: &PodKey, address: IpAddr) -> bool {
        self.protected.contains(&(pod.clone(), address))
    }

    /// What both ends say of a connection at a moment.
    #[must_use]
    pub fn decide(
        &self,
        cluster: &Cluster,
        connection: &ProbeConnection,
        now: Timestamp,
    ) -> ConnectionDecision {
        if connection.taken_by.is_some() {
            return self.decide_at_other_node(cluster, connection, now);
        }
        let source = cluster.pod_at(connection.source);
        let destination = cluster.pod_at(connection.destination);
        let protocol = protocol_of(connection);
        if let Some(pod) = same_pod(source, destination).filter(|_| connection.is_forwarded) {
            return self.decide_hairpin(pod, connection, protocol, now);
        }
        let from = ConnectionEnd {
            address: connection.source,
            kind: end_kind(cluster, source, connection.source, destination),
        };
        let to = ConnectionEnd {
            address: connection.destination,
            kind: end_kind(cluster, destination, connection.destination, source),
        };
        let decision = self.simulator.decide_connection(&from, &to, protocol, now);
        if is_forwarded_from_outside(cluster, connection) {
            let egress = self.decide_forwarded(connection, protocol, now);
            return ConnectionDecision { egress, ..decision };
        }
        decision
    }

    /// What would deny a connection at one end, which allows it, if the policies in audit were in force.
    #[must_use]
    pub fn would_deny(
        &self,
        cluster: &Cluster,
        connection: &ProbeConnection,
        direction: Direction,
        now: Timestamp,
    ) -> Option<Decision> {
        let connection = &connection.seen(direction);
        let source = cluster.pod_at(connection.source);
        let destination = cluster.pod_at(connection.destination);
        let (pod, other, peer) = match direction {
            Direction::Egress => (source?, destination, connection.destination),
            Direction::Ingress => (destination?, source, connection.source),
        };
        if same_pod(source, destination).is_some() && !connection.is_forwarded {
            return None;
        }
        let question = Question {
            pod: pod.pod.key.clone(),
            direction,
            peer,
            peer_is_own_node: other.is_none() && cluster.is_own_node(&pod.pod, peer),
            protocol: protocol_of(connection),
        };
        self.simulator.would_deny(&question, now)
    }

    /// The source's own policies see the node that takes the connection, those of the destination what that node sends on.
    /// In between the node judges it as it does any client outside.
    fn decide_at_other_node(
        &self,
        cluster: &Cluster,
        connection: &ProbeConnection,
        now: Timestamp,
    ) -> ConnectionDecision {
        let leaving = self
            .decide(cluster, &connection.seen(Direction::Egress), now)
            .egress;
        let entering = self.decide_forwarded(connection, protocol_of(connection), now);
        let is_refused = leaving.verdict == Verdict::Allow && entering.verdict == Verdict::Deny;
        let is_pod = cluster.pod_at(connection.source).is_some();
        ConnectionDecision {
            egress: if is_refused || !is_pod { entering } else { leaving },
            ingress: self
                .decide(cluster, &connection.seen(Direction::Ingress), now)
                .ingress,
        }
    }

    /// Whether the node that takes a connection refuses what the policies of the source allow.
    #[must_use]
    pub fn is_refused_by_node(
        &self,
        cluster: &Cluster,
        connection: &ProbeConnection,
        now: Timestamp,
    ) -> bool {
        connection.taken_by.is_some()
            && self
                .decide(cluster, &connection.seen(Direction::Egress), now)
                .egress
                .verdict
                == Verdict::Allow
            && self.decide(cluster, connection, now).egress.verdict == Verdict::Deny
    }

    /// A client outside is judged by the node that takes its connection, whichever that is: what is local to it and
    /// nobody reports is not known here.
    fn decide_forwarded(&self, connection: &ProbeConnection, protocol: Protocol, now: Timestamp) -> Decision {
        let entering = ForwardedConnection {
            destination: connection.destination,
            destination_is_own_node: false,
            protocol,
        };
        self.simulator.decide_entering(entering, now)
    }

    /// A pod that a Service leads back to itself: cluster-wide policies judge it (network-policy-api, the
    /// comments of ClusterNetworkPolicy), while "a pod cannot block access to itself" by NetworkPolicy
    /// (concepts/services-networking/network-policies).
    fn decide_hairpin(
        &self,
        pod: &PodMember,
        connection: &ProbeConnection,
        protocol: Protocol,
        now: Timestamp,
    ) -> ConnectionDecision {
        let decide = |direction, peer: IpAddr| {
            let pod = pod.pod.key.clone();
            let question = Question {
                pod,
                direction,
                peer,
                peer_is_own_node: false,
                protocol,
            };
            let decision = self.simulator.decide(&question, now);
            if decision.policy().is_some_and(|policy| policy.as_ref() == ITSELF) {
                return Decision {
                    verdict: Verdict::Allow,
                    tier: "exempt",
                    origin: None,
                };
            }
            decision
        };
        ConnectionDecision {
            egress: decide(Direction::Egress, connection.destination),
            ingress: decide(Direction::Ingress, connection.source),
        }
    }
}

/// Whether a client outside connects by a Service: also who comes from another node. A node that does so itself is not
/// outside, and neither is a pod that has the node's address.
pub(crate) fn is_forwarded_from_outside(cluster: &Cluster, connection: &ProbeConnection) -> bool {
    let source = connection.source;
    let is_outside = cluster.pod_at(source).is_none() && cluster.nodes_at(source).is_none();
    connection.taken_by.is_some() || (connection.is_forwarded && is_outside)
}

/// The protocol of a connection in the words of the simulator.
pub(crate) fn protocol_of(connection: &ProbeConnection) -> Protocol {
    match connection.port {
        Some((transport, port)) => Protocol::Port(transport, port.get()),
        None => Protocol::Icmp,
    }
}

/// The address from which a pod's queries come, if it is one that is told anything.
fn client(cluster: &Cluster, pod: &PodKey) -> Option<IpAddr> {
    let member = cluster.member(pod).filter(|member| member.is_policed())?;
    cluster.addresses(member).first().copied()
}

fn observation(client: IpAddr, record: &Record) -> Observation {
    let address = ObservedAddress {
        address: record.address,
        expires: expires(record),
    };
    Observation {
        client,
        question: record.name.clone(),
        chain: Vec::new(),
        addresses: vec![address],
    }
}

fn expires(record: &Record) -> Timestamp {
    NOW.after(record.ttl.as_duration())
}

fn same_pod<'a>(source: Option<&'a PodMember>, destination: Option<&PodMember>) -> Option<&'a PodMember> {
    source.filter(|source| destination.is_some_and(|destination| destination.pod.key == source.pod.key))
}

fn end_kind(
    cluster: &Cluster,
    pod: Option<&PodMember>,
    address: IpAddr,
    other: Option<&PodMember>,
) -> EndKind {
    match (pod, other) {
        (Some(pod), _) => EndKind::Pod(pod.pod.key.clone()),
        (None, Some(other)) if cluster.is_own_node(&other.pod, address) => EndKind::OwnNode,
        (None, Some(_) | None) => EndKind::Other,
    }
}
