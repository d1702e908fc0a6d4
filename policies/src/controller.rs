//! The status of policies: whether an object is accepted, resolved and programmed, and what a ClusterEgressFirewall
//! resolves to. Pure functions: nodes compile the objects themselves and depend on no status, which is for people.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use egret_shared::net::{IpNet, PortRange, Transport};
use serde::Serialize;

use crate::diagnostic::{Code, Diagnostic, ObjectRef, Severity};
use crate::model::cluster::{ApiServerAddresses, EndpointSlice, Node, NodeAddressReport, Pod, Service};
use crate::model::{Action, Enforcement, Peer, Policy, Port, Ports, Rule, Selector};

mod addresses;

/// What the cluster holds, as far as a ClusterEgressFirewall depends on it.
#[derive(Clone, Copy, Debug, Default)]
pub struct Cluster<'a> {
    /// Nodes.
    pub nodes: &'a [Node],
    /// What their agents say of their addresses.
    pub reports: &'a [NodeAddressReport],
    /// Pods.
    pub pods: &'a [Pod],
    /// Services.
    pub services: &'a [Service],
    /// Their endpoints.
    pub slices: &'a [EndpointSlice],
    /// What the platform says of the API server.
    pub declared: &'a [ApiServerAddresses],
}

/// On how many nodes an object is in force.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProgrammedNodes<'a> {
    /// Those that say so.
    pub nodes: usize,
    /// All of them.
    pub of: usize,
    /// The first of the others that says why, and what it says.
    pub behind: Option<(&'a str, &'a str)>,
}

/// `status` of a ClusterEgressFirewall.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Status {
    /// `metadata.generation` of the object that was looked at.
    pub observed_generation: i64,
    /// How many rules the object has.
    pub rules: usize,
    /// Accepted, Resolved and Programmed.
    pub conditions: Vec<Condition>,
    /// Its rules, with what they stand for now.
    pub resolved_rules: Vec<ResolvedRule>,
    /// Services that lead to what it denies; the first hundred.
    pub rejected_services: Vec<RejectedService>,
}

/// A condition, as Kubernetes has them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Condition {
    /// What it is about.
    pub r#type: &'static str,
    /// `True` or `False`.
    pub status: &'static str,
    /// Why, in one word.
    pub reason: &'static str,
    /// Why, for people.
    pub message: String,
}

/// A rule and what it stands for. A rule with the API server among its destinations is several, for that has
/// ports of its own.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ResolvedRule {
    /// Its index in the object's list.
    pub index: usize,
    /// Its name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<std::sync::Arc<str>>,
    /// `Allow` or `Deny`.
    pub action: &'static str,
    /// The destinations, sorted and merged.
    pub cidrs: Vec<IpNet>,
    /// The ports, sorted and merged; absent where every protocol and port is meant.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ports: Option<Vec<ResolvedPort>>,
    /// Whether ICMP is meant.
    pub icmp: bool,
    /// Where the destinations come from.
    pub source: BTreeSet<String>,
    /// Whether `cidrs` is only the beginning.
    pub truncated: bool,
    /// How many there are.
    pub total: usize,
}

/// Ports of a protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct ResolvedPort {
    /// The protocol.
    pub protocol: Transport,
    /// The lowest port.
    pub from: u16,
    /// The highest port.
    pub to: u16,
}

/// A Service with an endpoint that is denied.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct RejectedService {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// The port at the endpoint.
    pub port: u16,
    /// The endpoint.
    pub endpoint: IpAddr,
    /// The index of the rule.
    pub rule: usize,
}

/// The entries of a rule, all rules together: more than that is no readable status, and an object may have
/// no more than 1.5 MiB (etcd).
const MOST_CIDRS: usize = 1_000;
const MOST_SERVICES: usize = 100;

/// What an object comes to. The diagnostics are those of its lowering.
#[must_use]
pub fn resolve(
    policy: &Policy,
    diagnostics: &[Diagnostic],
    cluster: &Cluster<'_>,
    observed_generation: i64,
    programmed: ProgrammedNodes<'_>,
) -> Status {
    let rules = policy.egress.rules();
    let mut resolved: Vec<ResolvedRule> = rules
        .iter()
        .flat_map(|rule| resolve_rule(rule, cluster))
        .collect();
    let rejected_services = match policy.enforcement {
        Enforcement::Enforced => rejected_services(&resolved, cluster),
        Enforcement::Audited => Vec::new(),
    };
    let mut room = MOST_CIDRS;
    for rule in &mut resolved {
        rule.truncated = rule.cidrs.len() > room;
        rule.cidrs.truncate(room);
        room -= rule.cidrs.len();
    }
    Status {
        observed_generation,
        rules: rules.len(),
        conditions: conditions(policy, diagnostics, cluster, programmed),
        resolved_rules: resolved,
        rejected_services,
    }
}

/// Accepted, Resolved and Programmed of a policy of any kind. The diagnostics are those of its lowering, and those of
/// it beside other policies.
#[must_use]
pub fn conditions(
    policy: &Policy,
    diagnostics: &[Diagnostic],
    cluster: &Cluster<'_>,
    programmed: ProgrammedNodes<'_>,
) -> Vec<Condition> {
    let rules: Vec<&Rule> = policy.rules().collect();
    vec![
        accepted(diagnostics),
        is_resolved(&rules, cluster),
        match policy.enforcement {
            Enforcement::Enforced => is_programmed(programmed),
            Enforcement::Audited => in_audit(),
        },
    ]
}

/// Warns of policies that name nodes or an API server of which not all is known.
#[must_use]
pub fn unknown_addresses<'a>(
    policies: impl IntoIterator<Item = &'a Policy>,
    cluster: &Cluster<'_>,
) -> Vec<Diagnostic> {
    let mut diagnostics = Vec::new();
    for policy in policies {
        let rules: Vec<&Rule> = policy.egress.rules().iter().collect();
        let unreported = unreported_nodes(&rules, cluster);
        if !unreported.is_empty() {
            let found = format!("no NodeAddressReport of {}", few(&unreported));
            let enforced = "the addresses in their status, and on a node itself what is local to it";
            diagnostics.push(warning(policy, Code::NodeAddressesUnknown, found, enforced));
        }
        if is_api_server_unknown(&rules, cluster) {
            let found = "no Service default/kubernetes with ready endpoints".to_owned();
            let enforced = "the addresses that are declared";
            diagnostics.push(warning(policy, Code::ApiServerUnknown, found, enforced));
        }
    }
    diagnostics
}

fn warning(policy: &Policy, code: Code, found: String, enforced: &str) -> Diagnostic {
    Diagnostic {
        code,
        severity: code.severity(),
        object: ObjectRef::from(&policy.id),
        position: None,
        field: "spec.rules".to_owned(),
        found,
        accepted: code.fix().trim_end_matches('.').to_owned(),
        enforced: enforced.to_owned(),
    }
}

/// A warning leaves an object accepted.
fn accepted(diagnostics: &[Diagnostic]) -> Condition {
    let of = |severity: Severity| -> Vec<&Diagnostic> {
        diagnostics
            .iter()
            .filter(|found| found.severity == severity)
            .collect()
    };
    let (errors, warnings) = (of(Severity::Error), of(Severity::Warning));
    match (&errors[..], &warnings[..]) {
        ([], []) => condition(
            "Accepted",
            true,
            "Accepted",
            "everything is understood".to_owned(),
        ),
        ([], _) => condition("Accepted", true, "Warning", first_of(&warnings)),
        (_, _) => condition("Accepted", false, "Invalid", first_of(&errors)),
    }
}

/// The first one, and how many more there are.
fn first_of(diagnostics: &[&Diagnostic]) -> String {
    let first = diagnostics.first().map(ToString::to_string).unwrap_or_default();
    match diagnostics.len() {
        0 | 1 => first,
        number => format!("{first} (and {} more)", number - 1),
    }
}

fn is_resolved(rules: &[&Rule], cluster: &Cluster<'_>) -> Condition {
    let unreported = unreported_nodes(rules, cluster);
    if !unreported.is_empty() {
        let message = format!("no NodeAddressReport of {}", few(&unreported));
        return condition("Resolved", false, "NodeAddressesUnknown", message);
    }
    if is_api_server_unknown(rules, cluster) {
        let message = "no Service default/kubernetes with ready endpoints".to_owned();
        return condition("Resolved", false, "APIServerUnknown", message);
    }
    condition(
        "Resolved",
        true,
        "Resolved",
        "every destination is known".to_owned(),
    )
}

fn is_programmed(programmed: ProgrammedNodes<'_>) -> Condition {
    let ProgrammedNodes { nodes, of, behind } = programmed;
    let is_everywhere = nodes >= of;
    let reason = if is_everywhere { "Programmed" } else { "Pending" };
    let mut message = format!("{nodes}/{of} nodes");
    if let Some((node, why)) = behind {
        message += &format!("; {node}: {why}");
    }
    condition("Programmed", is_everywhere, reason, message)
}

fn in_audit() -> Condition {
    let message = "it is in audit: what it would deny is told, and nothing is denied".to_owned();
    condition("Programmed", false, "Audit", message)
}

const fn condition(r#type: &'static str, holds: bool, reason: &'static str, message: String) -> Condition {
    Condition {
        r#type,
        status: if holds { "True" } else { "False" },
        reason,
        message,
    }
}

/// Nodes that are named by their selector and have no report. Whatever is external is so without one.
fn unreported_nodes(rules: &[&Rule], cluster: &Cluster<'_>) -> BTreeSet<String> {
    let mut unreported = BTreeSet::new();
    for rule in rules {
        let peers = rule.peers.listed();
        if peers
            .iter()
            .any(|peer| matches!(peer, Peer::External(nets) if nets.iter().any(|net| net.prefix_len() == 0)))
        {
            continue;
        }
        for peer in peers {
            if let Peer::NodeAddresses(selector) = peer {
                unreported.extend(cluster.unreported(selector));
            }
        }
    }
    unreported
}

fn is_api_server_unknown(rules: &[&Rule], cluster: &Cluster<'_>) -> bool {
    let is_named = rules
        .iter()
        .any(|rule| rule.peers.listed().contains(&Peer::ApiServer));
    is_named && !cluster.knows_api_server()
}

fn few(names: &BTreeSet<String>) -> String {
    const SHOWN: usize = 3;
    let shown: Vec<&str> = names.iter().take(SHOWN).map(String::as_str).collect();
    match names.len().checked_sub(SHOWN) {
        Some(more) if more > 0 => format!("{} and {more} more", shown.join(", ")),
        Some(_) | None => shown.join(", "),
    }
}

/// One entry for all destinations that take the rule's own ports, and one for each port of the API server.
fn resolve_rule(rule: &Rule, cluster: &Cluster<'_>) -> Vec<ResolvedRule> {
    let mut plain = RuleDestinations::default();
    let mut at_port: BTreeMap<(Transport, u16), RuleDestinations> = BTreeMap::new();
    for peer in rule.peers.listed() {
        match peer {
            Peer::ApiServer => {
                for (address, transport, port, how) in cluster.api_server() {
                    let destinations = at_port.entry((transport, port)).or_default();
                    destinations.add(&[IpNet::from(address)], format!("APIServer/{how}"));
                }
                for (address, name) in cluster.declared_api_server() {
                    plain.add(&[IpNet::from(address)], format!("APIServer/{name}"));
                }
            }
            Peer::Networks(networks) => plain.add(networks, "Networks".to_owned()),
            Peer::External(networks) => plain.add(&cluster.outside(networks), "Networks".to_owned()),
            Peer::NodeAddresses(selector) => plain.add_nodes(cluster, selector, true),
            Peer::Nodes(selector) => plain.add_nodes(cluster, selector, false),
            Peer::Names(patterns) => {
                for pattern in patterns {
                    plain.add(&[], format!("Domain/{pattern}"));
                }
            }
            // A firewall names neither pods nor Services.
            Peer::Pods { .. } | Peer::Services { .. } => {}
        }
    }
    let (ports, icmp) = ports_of(&rule.ports);
    let mut entries = Vec::new();
    if !plain.sources.is_empty() || at_port.is_empty() {
        entries.push(plain.resolved(rule, ports.clone(), icmp));
    }
    for ((protocol, port), destinations) in at_port {
        let in_front = cluster.ports_in_front(protocol, port);
        let asked = ports.as_ref().is_none_or(|ports| {
            let has = |port: &u16| {
                let mut ranges = ports.iter().filter(|range| range.protocol == protocol);
                ranges.any(|range| (range.from..=range.to).contains(port))
            };
            has(&port) || in_front.iter().any(has)
        });
        if asked {
            let only = ResolvedPort {
                protocol,
                from: port,
                to: port,
            };
            entries.push(destinations.resolved(rule, Some(vec![only]), false));
        }
    }
    entries
}

/// Destinations while they are collected.
#[derive(Default)]
struct RuleDestinations {
    networks: Vec<IpNet>,
    sources: BTreeSet<String>,
}

impl RuleDestinations {
    fn add(&mut self, networks: &[IpNet], source: String) {
        self.networks.extend(networks);
        self.sources.insert(source);
    }

    fn add_nodes(&mut self, cluster: &Cluster<'_>, selector: &Selector, all: bool) {
        for name in cluster.selected(selector) {
            let addresses = cluster.addresses_of(&name, all);
            let networks: Vec<IpNet> = addresses.into_iter().map(IpNet::from).collect();
            self.add(&networks, format!("Node/{name}"));
        }
    }

    fn resolved(self, rule: &Rule, ports: Option<Vec<ResolvedPort>>, icmp: bool) -> ResolvedRule {
        let mut cidrs = IpNet::aggregate(&self.networks);
        cidrs.sort();
        ResolvedRule {
            index: rule.index,
            name: rule.name.clone(),
            action: match rule.action {
                Action::Allow | Action::Pass => "Allow",
                Action::Deny => "Deny",
            },
            total: cidrs.len(),
            cidrs,
            ports,
            icmp,
            source: self.sources,
            truncated: false,
        }
    }
}

/// Ports, sorted and merged, and whether ICMP is among them.
fn ports_of(ports: &Ports) -> (Option<Vec<ResolvedPort>>, bool) {
    let Ports::OneOf(ports) = ports else {
        return (None, true);
    };
    let mut ranges: Vec<(Transport, PortRange)> = ports
        .iter()
        .filter_map(|port| match port {
            Port::Range(transport, range) => Some((*transport, *range)),
            Port::Icmp | Port::Named { .. } => None,
        })
        .collect();
    ranges.sort();
    let mut merged: Vec<ResolvedPort> = Vec::new();
    for (protocol, range) in ranges {
        match merged.last_mut() {
            Some(last) if last.protocol == protocol && range.first() <= last.to.saturating_add(1) => {
                last.to = last.to.max(range.last());
            }
            Some(_) | None => merged.push(ResolvedPort {
                protocol,
                from: range.first(),
                to: range.last(),
            }),
        }
    }
    (Some(merged), ports.contains(&Port::Icmp))
}

/// Services with endpoints of which this object denies some, by its first match.
fn rejected_services(rules: &[ResolvedRule], cluster: &Cluster<'_>) -> Vec<RejectedService> {
    let mut rejected = BTreeSet::new();
    for slice in cluster.slices {
        let Some(service) = &slice.service else { continue };
        for address in slice.addresses.iter().map(IpAddr::to_canonical) {
            for (_, transport, port) in &slice.ports {
                let first = rules
                    .iter()
                    .find(|rule| rule.matches(address, *transport, port.get()));
                if let Some(rule) = first.filter(|rule| rule.action == "Deny") {
                    rejected.insert(RejectedService {
                        namespace: slice.key.namespace().to_owned(),
                        name: service.to_string(),
                        port: port.get(),
                        endpoint: address,
                        rule: rule.index,
                    });
                }
            }
        }
    }
    rejected.into_iter().take(MOST_SERVICES).collect()
}

impl ResolvedRule {
    fn matches(&self, address: IpAddr, transport: Transport, port: u16) -> bool {
        let has_port = self.ports.as_ref().is_none_or(|ports| {
            ports
                .iter()
                .any(|range| range.protocol == transport && (range.from..=range.to).contains(&port))
        });
        has_port && self.cidrs.iter().any(|network| network.contains(&address))
    }
}
