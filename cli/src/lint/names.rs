//! Rules with domain names: whether the pods may ask for names at all, and names that cannot mean what is meant.

use std::collections::BTreeSet;
use std::net::IpAddr;

use egret_policies::diagnostic::ObjectRef;
use egret_policies::model::cluster::{Pod, Service};
use egret_policies::model::{Direction, Peer, Peers, Policy, Tier};
use egret_policies::simulator::{Connection, Decision, Protocol, Verdict};
use egret_shared::name::{DnsName, NamePattern};
use egret_shared::net::{Family, Transport};
use egret_shared::pod::PodKey;

use crate::manifests::cluster::NOW;
use crate::manifests::objects::text_at;
use crate::output::count;

use super::code::{BASELINE_NAMES, DNS_BLOCKED, DNS_UNKNOWN, SERVICE_NAME};
use super::finding::Finding;
use super::scope::{LintScope, RuleRef, pods, rules};

pub(super) const DNS_PORT: u16 = 53;

/// Where pods ask for names; the pod that has the address, if one does.
pub(super) type DnsServers = BTreeSet<(IpAddr, Option<PodKey>)>;

/// Policies with names whose pods may not ask for names.
pub(super) fn without_dns(scope: &LintScope<'_>, servers: &DnsServers) -> Vec<Finding> {
    let mut found = Vec::new();
    for policy in scope.policies() {
        let (Some(place), [_, ..]) = (first_with_names(policy), scope.selected(policy)) else {
            continue;
        };
        if servers.is_empty() {
            let message = "whether its pods may ask for names cannot be said".to_owned();
            found.push(scope.in_rule(DNS_UNKNOWN, &place, message));
            continue;
        }
        for transport in [Transport::Udp, Transport::Tcp] {
            let blocked: Vec<(&Pod, String)> = scope
                .selected(policy)
                .iter()
                .filter_map(|pod| Some((*pod, blocked(scope, pod, servers, transport)?)))
                .collect();
            if let Some((pod, by)) = blocked.first() {
                let more = match blocked.len() {
                    1 => String::new(),
                    all => format!(", as are {}", count(all - 1, "other", "others")),
                };
                let message = format!(
                    "{} may not ask a DNS server over {transport}: {by}{more}",
                    pod.key
                );
                found.push(scope.in_rule(DNS_BLOCKED, &place, message));
            }
        }
    }
    found
}

/// Names of Services with a cluster address.
pub(super) fn of_services(scope: &LintScope<'_>) -> Vec<Finding> {
    let services: Vec<(DnsName, &Service)> = scope
        .loaded
        .manifests
        .services
        .iter()
        .filter(|service| has_cluster_address(scope, service))
        .filter_map(|service| Some((dns_name(service)?, service)))
        .collect();
    let mut found = Vec::new();
    for place in scope
        .policies()
        .iter()
        .flat_map(|policy| rules(policy, Direction::Egress))
    {
        for name in names(&place) {
            if let Some((_, service)) = services.iter().find(|(of_service, _)| name.matches(of_service)) {
                let message = format!(
                    "{name} stands for the cluster address of the Service {}",
                    service.key
                );
                found.push(scope.in_rule(SERVICE_NAME, &place, message));
            }
        }
    }
    found
}

/// Names in the Baseline tier.
pub(super) fn in_baseline(scope: &LintScope<'_>) -> Vec<Finding> {
    let policies = scope.policies().iter();
    policies
        .filter(|policy| policy.rank.tier == Tier::Baseline)
        .filter_map(first_with_names)
        .map(|place| scope.in_rule(BASELINE_NAMES, &place, "domainNames in tier Baseline".to_owned()))
        .collect()
}

pub(super) fn first_with_names(policy: &Policy) -> Option<RuleRef<'_>> {
    rules(policy, Direction::Egress).find(|place| names(place).next().is_some())
}

fn names<'a>(place: &RuleRef<'a>) -> impl Iterator<Item = &'a NamePattern> {
    let peers = match &place.rule.peers {
        Peers::Any => [].as_slice(),
        Peers::OneOf(peers) => peers,
    };
    peers.iter().flat_map(|peer| match peer {
        Peer::Names(names) => names.as_slice(),
        Peer::Pods { .. }
        | Peer::Networks(_)
        | Peer::Nodes(_)
        | Peer::NodeAddresses(_)
        | Peer::External(_)
        | Peer::ApiServer
        | Peer::Services { .. } => &[],
    })
}

/// The addresses that are declared; without any, the pods that kubeadm and most others label `k8s-app: kube-dns`.
pub(super) fn servers(scope: &LintScope<'_>, declared: &[IpAddr]) -> DnsServers {
    if !declared.is_empty() {
        let of_pod = |address: IpAddr| {
            scope
                .loaded
                .cluster
                .pod_at(address)
                .map(|member| member.pod.key.clone())
        };
        return declared
            .iter()
            .map(|address| (*address, of_pod(*address)))
            .collect();
    }
    let is_dns =
        |pod: &&Pod| pod.key.namespace() == "kube-system" && pod.labels.get("k8s-app") == Some("kube-dns");
    pods(scope.loaded)
        .filter(is_dns)
        .flat_map(|pod| {
            pod.addresses
                .iter()
                .map(|address| (*address, Some(pod.key.clone())))
        })
        .collect()
}

/// What keeps a pod from every server of its families; none where one can be asked, or none is of its families.
fn blocked(scope: &LintScope<'_>, pod: &Pod, servers: &DnsServers, transport: Transport) -> Option<String> {
    let mut why = None;
    for (server, of) in servers {
        let same = |address: &&IpAddr| Family::of(**address) == Family::of(*server);
        let Some(own) = pod.addresses.iter().find(same) else {
            continue;
        };
        let decide = |pod: &PodKey, direction, peer, peer_is_own_node| {
            scope.loaded.simulator.decide(
                &Connection {
                    pod: pod.clone(),
                    direction,
                    peer,
                    peer_is_own_node,
                    protocol: Protocol::Port(transport, DNS_PORT),
                },
                NOW,
            )
        };
        let is_own_node = scope.loaded.cluster.is_own_node(pod, *server);
        let egress = decide(&pod.key, Direction::Egress, *server, is_own_node);
        let ingress = of.as_ref().map(|of| decide(of, Direction::Ingress, *own, false));
        let denied = [Some(egress), ingress]
            .into_iter()
            .flatten()
            .find(|decision| decision.verdict == Verdict::Deny)?;
        why.get_or_insert_with(|| format!("{server} is denied by {}", decider(&denied)));
    }
    why
}

pub(super) fn decider(decision: &Decision) -> String {
    match (decision.policy(), decision.rule()) {
        (Some(policy), Some(rule)) => format!("rule {rule} of {policy}"),
        _ => format!("tier {}, where no rule allows it", decision.tier),
    }
}

/// A Service gets an address unless it says otherwise.
fn has_cluster_address(scope: &LintScope<'_>, service: &Service) -> bool {
    let reference = ObjectRef {
        kind: "Service".into(),
        namespace: Some(service.key.namespace().into()),
        name: service.key.name().into(),
    };
    let Some(object) = scope.objects.get(&reference) else {
        return !service.addresses.is_empty();
    };
    text_at(object, &["spec", "clusterIP"]) != Some("None")
        && text_at(object, &["spec", "type"]) != Some("ExternalName")
}

/// By the default domain of clusters (Kubernetes DNS-Based Service Discovery).
fn dns_name(service: &Service) -> Option<DnsName> {
    format!(
        "{}.{}.svc.cluster.local",
        service.key.name(),
        service.key.namespace()
    )
    .parse()
    .ok()
}
