//! Ports that are not those of the pods: names that no container has, and ports of Services.

use egret_policies::model::cluster::{Pod, Service, ServicePort, TargetPort};
use egret_policies::model::{Port, Ports};
use egret_shared::net::Transport;

use super::code::{SERVICE_PORT, UNSERVED_NAME};
use super::finding::Finding;
use super::scope::{LintScope, RuleRef, all_rules};

/// Named ports that none of the pods at the destination serves.
pub(super) fn unserved(scope: &LintScope<'_>) -> Vec<Finding> {
    let mut found = Vec::new();
    for (place, ports) in all_rules(scope.policies()).filter_map(with_ports) {
        let named = ports.iter().filter_map(|port| match port {
            Port::Named { name, transport } => Some((name, *transport)),
            Port::Range(..) | Port::Icmp => None,
        });
        for (name, transport) in named {
            let pods = scope.destinations(place.policy, place.direction, place.rule);
            if !pods.is_empty() && !pods.iter().any(|pod| serves(pod, name, transport)) {
                let protocol = transport.map(|transport| format!("{transport} "));
                let protocol = protocol.unwrap_or_default();
                let who = some(&pods);
                let message = format!("none of the pods that it is about ({who}) serves {protocol}{name}");
                found.push(scope.in_rule(UNSERVED_NAME, &place, message));
            }
        }
    }
    found
}

fn serves(pod: &Pod, name: &str, transport: Option<Transport>) -> bool {
    let mut ports = pod.ports.iter().filter(|port| port.name.as_ref() == name);
    ports.any(|port| transport.is_none_or(|transport| transport == port.transport))
}

/// Single ports that are a Service's, where all pods at the destination listen elsewhere.
pub(super) fn of_services(scope: &LintScope<'_>) -> Vec<Finding> {
    let mut found = Vec::new();
    for (place, ports) in all_rules(scope.policies()).filter_map(with_ports) {
        let pods = scope.destinations(place.policy, place.direction, place.rule);
        for port in ports {
            let Port::Range(transport, range) = port else {
                continue;
            };
            if range.first() != range.last() || pods.is_empty() {
                continue;
            }
            let behind = pods
                .iter()
                .map(|pod| behind_service(scope, pod, (*transport, range.first()), ports));
            // One pod that may be meant is enough for a rule to be right.
            if let Some(behind) = behind.collect::<Option<Vec<_>>>()
                && let Some((service, target)) = behind.first()
            {
                let message = format!(
                    "{transport} {range} is the port of the Service {}; its pods listen at {target}",
                    service.key
                );
                found.push(scope.in_rule(SERVICE_PORT, &place, message));
            }
        }
    }
    found
}

fn with_ports<'a>(place: RuleRef<'a>) -> Option<(RuleRef<'a>, &'a [Port])> {
    match &place.rule.ports {
        Ports::Any => None,
        Ports::OneOf(ports) => Some((place, ports)),
    }
}

/// The Service that has the port and leads to another at the pod; none where the pod may listen at the port
/// itself, or where the rule has the other port, too.
fn behind_service<'a>(
    scope: &LintScope<'a>,
    pod: &Pod,
    (transport, number): (Transport, u16),
    ports: &[Port],
) -> Option<(&'a Service, u16)> {
    let forwards: Vec<(&Service, &ServicePort, u16)> = scope
        .loaded
        .manifests
        .services
        .iter()
        .filter(|service| selects(service, pod))
        .flat_map(|service| service.ports.iter().map(move |port| (service, port)))
        .filter(|(_, port)| port.transport == transport)
        .filter_map(|(service, port)| Some((service, port, target(port, pod)?)))
        .collect();
    let is_served = forwards.iter().any(|(_, _, target)| *target == number)
        || pod
            .ports
            .iter()
            .any(|port| port.transport == transport && port.number.get() == number);
    let (service, _, target) = forwards
        .into_iter()
        .find(|(_, port, _)| port.number.get() == number)?;
    (!is_served && !has(ports, pod, transport, target)).then_some((service, target))
}

/// An empty selector selects nothing, as with none.
fn selects(service: &Service, pod: &Pod) -> bool {
    let Some(selector) = &service.selector else {
        return false;
    };
    service.key.namespace() == pod.key.namespace()
        && selector.iter().next().is_some()
        && selector
            .iter()
            .all(|(label, value)| pod.labels.get(label) == Some(value))
}

fn target(port: &ServicePort, pod: &Pod) -> Option<u16> {
    match &port.target {
        TargetPort::Number(number) => Some(number.get()),
        TargetPort::Name(name) => named(pod, name, port.transport),
    }
}

fn named(pod: &Pod, name: &str, transport: Transport) -> Option<u16> {
    let mut ports = pod.ports.iter();
    ports
        .find(|port| port.name.as_ref() == name && port.transport == transport)
        .map(|port| port.number.get())
}

fn has(ports: &[Port], pod: &Pod, transport: Transport, number: u16) -> bool {
    ports.iter().any(|port| match port {
        Port::Range(of, range) => *of == transport && range.contains(number),
        Port::Named { name, .. } => named(pod, name, transport) == Some(number),
        Port::Icmp => false,
    })
}

fn some(pods: &[&Pod]) -> String {
    match pods {
        [] => "none".to_owned(),
        [pod] => pod.key.to_string(),
        [first, others @ ..] => format!("{} and {} more", first.key, others.len()),
    }
}
