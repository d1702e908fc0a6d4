//! What a ClusterEgressFirewall denies and hardly anybody means to: DNS, and what a Service leads to.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use egret_policies::diagnostic::ObjectRef;
use egret_policies::model::cluster::{Pod, Service, is_api_server};
use egret_policies::model::{Direction, Policy, Tier};
use egret_policies::simulator::{Connection, Decision, ForwardedConnection, Protocol, Verdict};
use egret_shared::net::{Family, Transport};

use crate::cluster::{Endpoint, ServiceRoute};
use crate::manifests::cluster::NOW;
use crate::output::count;

use super::code::{DENIED_ENDPOINT, DNS_DENIED};
use super::finding::Finding;
use super::names::{DNS_PORT, DnsServers, decider, first_with_names};
use super::scope::{LintScope, RuleRef, pods, rules};

/// Rules that keep pods from every DNS server of their families. Those of an object with names are found with the names.
pub(super) fn without_dns(scope: &LintScope<'_>, servers: &DnsServers) -> Vec<Finding> {
    let mut denied: BTreeMap<RuleKey, DeniedDns> = BTreeMap::new();
    for pod in pods(scope.loaded) {
        for transport in [Transport::Udp, Transport::Tcp] {
            if let Some((server, key)) = denied_dns(scope, pod, servers, transport) {
                let of_rule = denied.entry(key).or_default();
                of_rule.server.get_or_insert(server);
                of_rule.transports.insert(transport.to_string());
                of_rule.pods.insert(pod.key.to_string());
            }
        }
    }
    let found = denied.iter().filter_map(|(key, of_rule)| {
        let place = place(scope, key)?;
        first_with_names(place.policy)
            .is_none()
            .then(|| scope.in_rule(DNS_DENIED, &place, of_rule.words()))
    });
    found.collect()
}

/// Services with endpoints that no pod may reach. Who denies the API server means it: rules have a word for it.
pub(super) fn denied_endpoints(scope: &LintScope<'_>) -> Vec<Finding> {
    let mut found = Vec::new();
    let services = scope.loaded.manifests.services.iter();
    for service in services.filter(|service| !is_api_server(&service.key)) {
        let denied: BTreeMap<Endpoint, String> = endpoints(scope, service)
            .into_iter()
            .filter_map(|(transport, endpoint)| {
                Some((endpoint, denied_endpoint(scope, transport, endpoint)?))
            })
            .collect();
        if let Some((Endpoint { address, port }, by)) = denied.first_key_value() {
            let more = match denied.len() {
                1 => String::new(),
                all => format!(
                    ", and so are {}",
                    count(all - 1, "other endpoint", "other endpoints")
                ),
            };
            let message = format!("its endpoint {address} port {port} is denied to pods by {by}{more}");
            let object = ObjectRef {
                kind: "Service".into(),
                namespace: Some(service.key.namespace().into()),
                name: service.key.name().into(),
            };
            found.push(Finding::new(DENIED_ENDPOINT, scope.objects, &object, "", message));
        }
    }
    found
}

/// A policy, as it is written in decisions, and the index of a rule.
type RuleKey = (String, usize);

#[derive(Default)]
struct DeniedDns {
    server: Option<IpAddr>,
    transports: BTreeSet<String>,
    pods: BTreeSet<String>,
}

impl DeniedDns {
    fn words(&self) -> String {
        let transports: Vec<&str> = self.transports.iter().rev().map(String::as_str).collect();
        let first = self.pods.first().map(String::as_str).unwrap_or_default();
        let pods = match self.pods.len() {
            1 => first.to_owned(),
            all => format!("{first} and {}", count(all - 1, "other pod", "other pods")),
        };
        let server = self.server.map(|server| server.to_string()).unwrap_or_default();
        format!(
            "{pods} may not ask the DNS server {server} over {}",
            transports.join(" and ")
        )
    }
}

/// The first server of a pod's families and the rule that denies it, if none can be asked.
fn denied_dns(
    scope: &LintScope<'_>,
    pod: &Pod,
    servers: &DnsServers,
    transport: Transport,
) -> Option<(IpAddr, RuleKey)> {
    let mut first = None;
    for (server, _) in servers {
        let same = |address: &IpAddr| Family::of(*address) == Family::of(*server);
        if !pod.addresses.iter().any(same) {
            continue;
        }
        let decision = denied_to(scope, pod, *server, Protocol::Port(transport, DNS_PORT))?;
        first = first.or(Some((*server, key(&decision)?)));
    }
    first
}

fn denied_endpoint(scope: &LintScope<'_>, transport: Transport, endpoint: Endpoint) -> Option<String> {
    let Endpoint { address, port } = endpoint;
    let protocol = Protocol::Port(transport, port.get());
    let entering = ForwardedConnection {
        destination: address,
        destination_is_own_node: false,
        protocol,
    };
    let entering = scope.loaded.simulator.decide_entering(entering, NOW);
    let decision = match entering.verdict {
        Verdict::Deny => Some(entering),
        // Objects that ignore exposure are about pods alone.
        Verdict::Allow => pods(scope.loaded).find_map(|pod| denied_to(scope, pod, address, protocol)),
    };
    decision.map(|decision| decider(&decision))
}

/// What a ClusterEgressFirewall says, where it denies. An address that nobody has may be one of every node, as that of a
/// DNS cache is.
fn denied_to(scope: &LintScope<'_>, pod: &Pod, address: IpAddr, protocol: Protocol) -> Option<Decision> {
    let cluster = &scope.loaded.cluster;
    let is_own = cluster.is_own_node(pod, address);
    let may_be_own = cluster.is_nobodys(address) && cluster.nodes_at(address).is_none();
    let readings = [Some(is_own), may_be_own.then_some(true)];
    let decide = |peer_is_own_node| {
        let connection = Connection {
            pod: pod.key.clone(),
            direction: Direction::Egress,
            peer: address,
            peer_is_own_node,
            protocol,
        };
        scope.loaded.simulator.decide(&connection, NOW)
    };
    readings.into_iter().flatten().map(decide).find(|decision| {
        decision.verdict == Verdict::Deny && decision.tier == Tier::ClusterEgressFirewall.word()
    })
}

fn endpoints(scope: &LintScope<'_>, service: &Service) -> Vec<(Transport, Endpoint)> {
    let cluster = &scope.loaded.cluster;
    let routes = service
        .ports
        .iter()
        .filter_map(|port| ServiceRoute::new(service, port.transport, port.number).ok());
    routes
        .flat_map(|route| {
            let of_family = |family| cluster.endpoints(&route, family).into_iter();
            let all: Vec<Endpoint> = Family::ALL.into_iter().flat_map(of_family).collect();
            all.into_iter().map(move |endpoint| (route.transport(), endpoint))
        })
        .filter(|(_, endpoint)| cluster.pod_at(endpoint.address).is_none())
        .collect()
}

fn key(decision: &Decision) -> Option<RuleKey> {
    Some((decision.policy()?.to_string(), decision.rule()?))
}

fn place<'a>(scope: &LintScope<'a>, (policy, rule): &RuleKey) -> Option<RuleRef<'a>> {
    let is_it = |of: &&Policy| of.id.to_string() == *policy;
    let policy = scope.policies().iter().find(is_it)?;
    rules(policy, Direction::Egress).find(|place| place.rule.index == *rule)
}
