//! The other end against one peer of a rule.

use egret_policies::model::{Direction, Labels, NamespaceSelector, Peer, Requirement, Selector, Values};
use egret_shared::net::IpNet;
use egret_shared::pod::PodKey;

use crate::cluster::PodMember;

use super::addresses::{NodeAddress, labels_of_node, nodes_at, of_api_server, of_cluster};
use super::compiled::OWN_NODE;
use super::records::compare_names;
use super::report::MatchResult;
use super::viewpoint::{Viewpoint, protocol_words};

/// Where dnsd stands for pods.
const DNS_PORT: u16 = 53;

/// Compares the other end with a peer; `holding` tells in which sets of the rule it stands.
pub(super) fn compare_peer(
    view: &Viewpoint<'_>,
    peer: &Peer,
    holding: &impl Fn() -> Vec<String>,
) -> MatchResult {
    match peer {
        Peer::Pods { namespaces, pods } => compare_pod(view, namespaces, pods),
        Peer::Networks(networks) => compare_networks(view, networks),
        Peer::Nodes(selector) => compare_node(view, selector),
        Peer::NodeAddresses(selector) => compare_all_addresses(view, selector, &holding()),
        Peer::External(networks) => compare_external(view, networks, &holding()),
        Peer::ApiServer => compare_api_server(view, &holding()),
        Peer::Services { namespace, name } => compare_service(view, namespace.as_deref(), name.as_deref()),
        Peer::Names(patterns) => compare_names(view, patterns),
    }
}

fn compare_pod(view: &Viewpoint<'_>, namespaces: &NamespaceSelector, pods: &Selector) -> MatchResult {
    if let Some(peer) = view.peer {
        return match select(view, peer, namespaces, pods) {
            Ok(selected) => MatchResult::passed(selected),
            Err(reasons) => MatchResult::failed(reasons),
        };
    }
    let cluster = &view.asked.cluster;
    let (address, service) = (view.address, &cluster.dns().service);
    if !cluster.is_dnsd(address) || view.direction == Direction::Ingress {
        return MatchResult::failed(format!("{} is no pod that selectors see", view.peer_name()));
    }
    let stands = format!("{address} stands in for {service} at port {DNS_PORT}");
    if !view.asks_dnsd() {
        let asked = protocol_words(view.protocol);
        return MatchResult::failed(format!("{stands} over UDP and TCP, and not at {asked}"));
    }
    let tests = view
        .stood_in_for()
        .into_iter()
        .map(|pod| match select(view, pod, namespaces, pods) {
            Ok(selected) => MatchResult::passed(format!("{stands}: {selected}")),
            Err(reasons) => MatchResult::failed(format!("{stands}, and {reasons}")),
        });
    MatchResult::any_of(tests, &format!("{stands}, which has no pod"))
}

/// Whether the selectors select a pod, and by what.
pub(super) fn select(
    view: &Viewpoint<'_>,
    pod: &PodMember,
    namespaces: &NamespaceSelector,
    pods: &Selector,
) -> Result<String, String> {
    let in_namespace = compare_namespace(view, pod, namespaces);
    let labels = compare_labels(&format!("pod {}", pod.pod.key), &pod.pod.labels, pods);
    match (in_namespace, labels) {
        (Ok(namespace), Ok(labels)) => Ok(format!("{} {namespace}, {labels}", pod.pod.key)),
        (namespace, labels) => {
            let reasons: Vec<String> = [namespace.err(), labels.err()].into_iter().flatten().collect();
            Err(reasons.join(", "))
        }
    }
}

fn compare_namespace(
    view: &Viewpoint<'_>,
    peer: &PodMember,
    namespaces: &NamespaceSelector,
) -> Result<String, String> {
    let own = peer.pod.key.namespace();
    match namespaces {
        NamespaceSelector::Named(name) if name.as_ref() == own => Ok(format!("is in namespace {name}")),
        NamespaceSelector::Named(name) => Err(format!("pod {} is not in namespace {name}", peer.pod.key)),
        NamespaceSelector::Matching(selector) => {
            let labels = view.labels_of_namespace(own);
            compare_labels(&format!("namespace {own}"), &labels, selector)
                .map(|labels| format!("is in namespace {own} ({labels})"))
        }
    }
}

/// What is selected by, or which requirement does not hold.
fn compare_labels(whose: &str, labels: &Labels, selector: &Selector) -> Result<String, String> {
    let holds = |requirement: &&Requirement| Selector::all_of([(*requirement).clone()]).matches(labels);
    let failed: Vec<String> = selector
        .requirements()
        .filter(|requirement| !holds(requirement))
        .map(|requirement| {
            format!(
                "{whose} has {}, not {}",
                value(labels, requirement),
                words(requirement)
            )
        })
        .collect();
    if !failed.is_empty() {
        return Err(failed.join(", "));
    }
    let required: Vec<String> = selector.requirements().map(words).collect();
    if required.is_empty() {
        return Ok("whatever its labels".to_owned());
    }
    Ok(format!("has {}", required.join(", ")))
}

fn value(labels: &Labels, requirement: &Requirement) -> String {
    let key = match requirement {
        Requirement::In(key, _)
        | Requirement::NotIn(key, _)
        | Requirement::Exists(key)
        | Requirement::DoesNotExist(key) => key,
    };
    labels
        .get(key)
        .map_or_else(|| format!("no label {key}"), |value| format!("{key}={value}"))
}

/// A requirement as `kubectl --selector` writes it.
fn words(requirement: &Requirement) -> String {
    let list = |values: &Values| values.iter().map(AsRef::as_ref).collect::<Vec<&str>>().join(", ");
    match requirement {
        Requirement::In(key, values) if values.len() == 1 => format!("{key}={}", list(values)),
        Requirement::In(key, values) => format!("{key} in ({})", list(values)),
        Requirement::NotIn(key, values) => format!("{key} notin ({})", list(values)),
        Requirement::Exists(key) => key.to_string(),
        Requirement::DoesNotExist(key) => format!("!{key}"),
    }
}

fn compare_networks(view: &Viewpoint<'_>, networks: &[IpNet]) -> MatchResult {
    const SHOWN: usize = 5;
    let address = view.address;
    if let Some(network) = networks.iter().find(|network| network.contains(&address)) {
        return MatchResult::passed(format!("{address} is in {network}"));
    }
    let mut list: Vec<String> = networks.iter().take(SHOWN).map(IpNet::to_string).collect();
    if networks.len() > SHOWN {
        list.push(format!("{} more", networks.len() - SHOWN));
    }
    MatchResult::failed(match list.as_slice() {
        [] => "no network is left of the rule's".to_owned(),
        [only] => format!("{address} is not in {only}"),
        several => format!("{address} is in none of {}", several.join(", ")),
    })
}

fn compare_external(view: &Viewpoint<'_>, networks: &[IpNet], holding: &[String]) -> MatchResult {
    let inside = compare_networks(view, networks);
    if !inside.matches {
        return inside;
    }
    if !holding.is_empty() {
        return MatchResult::passed(format!("{}, and no pod's or Service's", inside.because));
    }
    let whose = of_cluster(view).unwrap_or_else(|| "a pod's or Service's".to_owned());
    MatchResult::failed(format!(
        "{} is {whose}, and the rule is about what is outside of the cluster",
        view.address
    ))
}

fn compare_all_addresses(view: &Viewpoint<'_>, selector: &Selector, holding: &[String]) -> MatchResult {
    let address = view.address;
    let is_held = |set: &String| set == OWN_NODE || set.starts_with("all addresses of nodes");
    let tests: Vec<MatchResult> = nodes_at(view)
        .iter()
        .map(|NodeAddress { node, source }| {
            let whose = format!("node {node}");
            match compare_labels(&whose, &labels_of_node(view, node), selector) {
                Ok(labels) => {
                    MatchResult::passed(format!("{address} is an address of {whose} ({source}): {labels}"))
                }
                Err(failed) => MatchResult::failed(failed),
            }
        })
        .collect();
    let because_found = |matches: bool, otherwise: String| {
        let found = MatchResult::any_of(
            tests.into_iter().filter(|test| test.matches == matches),
            &otherwise,
        );
        found.because
    };
    if holding.iter().any(is_held) {
        let otherwise = format!("{address} is an address of a node of the rule's");
        return MatchResult::passed(because_found(true, otherwise));
    }
    let otherwise = match of_cluster(view) {
        Some(whose) => format!("{address} is {whose}, and no node's"),
        None => format!("{address} is no node's, neither by status nor by NodeAddressReport"),
    };
    MatchResult::failed(because_found(false, otherwise))
}

fn compare_api_server(view: &Viewpoint<'_>, holding: &[String]) -> MatchResult {
    let (address, asked) = (view.address, protocol_words(view.protocol));
    let ways = of_api_server(view);
    if holding.iter().any(|set| set.contains("API server")) {
        let way = ways.iter().find(|way| way.has(view.protocol));
        let how = way.map(|way| format!(" ({})", way.how)).unwrap_or_default();
        return MatchResult::passed(format!("{address} is the API server{how} at {asked}"));
    }
    MatchResult::failed(match ways.first() {
        Some(way) => format!(
            "{address} is the API server ({}) at {}, and not at {asked}",
            way.how,
            way.ports()
        ),
        None => format!(
            "{address} is not the API server: not its Service default/kubernetes, no endpoint of it, no address of \
             a node that has one, and in no APIServerAddresses"
        ),
    })
}

/// Before any endpoint is chosen.
fn compare_service(view: &Viewpoint<'_>, namespace: Option<&str>, name: Option<&str>) -> MatchResult {
    let wanted = format!("{}/{}", namespace.unwrap_or("*"), name.unwrap_or("*"));
    let services = view.asked.cluster.services_at(view.address);
    let is_wanted = |key: &&PodKey| {
        namespace.is_none_or(|one| one == key.namespace()) && name.is_none_or(|one| one == key.name())
    };
    match (services.iter().find(is_wanted), services.first()) {
        (Some(service), _) => MatchResult::passed(format!("{} is service {service}", view.address)),
        (None, Some(service)) => MatchResult::failed(format!(
            "{} is service {service}, and not of {wanted}",
            view.address
        )),
        (None, None) => MatchResult::failed(format!("{} is the address of no Service", view.address)),
    }
}

fn compare_node(view: &Viewpoint<'_>, selector: &Selector) -> MatchResult {
    let address = view.address;
    let has_address = |node: &&egret_policies::model::cluster::Node| {
        node.addresses.iter().any(|of| of.to_canonical() == address)
    };
    let nodes = view.asked.manifests.nodes.iter().filter(has_address);
    let tests = nodes.map(|node| {
        let whose = format!("node {}", node.name);
        match compare_labels(&whose, &node.labels, selector) {
            Ok(labels) => MatchResult::passed(format!("{address} is {whose}: {labels}")),
            Err(failed) => MatchResult::failed(failed),
        }
    });
    MatchResult::any_of(tests, &format!("{address} is no node's address"))
}
