//! Connections to be judged: between everything that a story names, at its ports and beside them.

use std::net::IpAddr;

use egret_policies::simulator::Protocol;
use egret_shared::net::Transport;
use serde_json::Value;

use super::objects::{BRIDGE, DNSD, KUBERNETES, OUTSIDE, SERVICE, addresses_of};
use super::{Draw, Theme, ip};
use crate::scenario::{Flow, Scenario, Side, Step, Who};

/// How many connections are judged of a story.
const MOST: usize = 70;

/// A pod and one of its addresses.
type PodAddress = (String, IpAddr);

impl Draw {
    pub(super) fn flows(&mut self, story: &Scenario) -> Vec<Flow> {
        let mut pods: Vec<PodAddress> = Vec::new();
        let mut observed: Vec<IpAddr> = Vec::new();
        let mut clients: Vec<IpAddr> = Vec::new();
        let mut served: Vec<(String, Protocol)> = Vec::new();
        let mut ports = vec![53, 80, 65535];
        for step in &story.steps {
            match step {
                Step::Apply(object) if object["kind"] == "Pod" => {
                    let metadata = &object["metadata"];
                    let name = [&metadata["namespace"], &metadata["name"]].map(|text| text.as_str().unwrap());
                    let key = name.join("/");
                    pods.extend(
                        addresses_of(object)
                            .into_iter()
                            .map(|address| (key.clone(), address)),
                    );
                    served.extend(ports_of(object).into_iter().map(|port| (key.clone(), port)));
                    collect_ports(object, &mut ports);
                }
                Step::Apply(object) => collect_ports(object, &mut ports),
                Step::Observed(answer) => {
                    observed.extend(&answer.addresses);
                    clients.push(answer.client);
                }
                Step::Delete(_) | Step::Sleep(_) | Step::Restart => {}
            }
        }
        if pods.is_empty() {
            return Vec::new();
        }
        let points = Points {
            asking: pods
                .iter()
                .filter(|(_, address)| clients.contains(address))
                .cloned()
                .collect(),
            pods,
            observed,
            served,
            dnsd: story.setting.dnsd,
            ports,
        };
        (0..MOST).map(|_| self.flow(&points)).collect()
    }

    fn flow(&mut self, points: &Points) -> Flow {
        if self.chance(if self.theme == Theme::Firewalls { 15 } else { 3 }) {
            return self.entering(points);
        }
        let Points {
            pods,
            observed,
            ports,
            ..
        } = points;
        let is_about_names = self.theme == Theme::Names && self.chance(70) && !points.asking.is_empty();
        let (key, address) = self.pick(if is_about_names { &points.asking } else { pods });
        let subject = Side {
            address,
            who: Who::Pod(key.clone()),
        };
        if let Some(dnsd) = points.dnsd.filter(|_| self.chance(8)) {
            let transport = self.pick(&[Transport::Udp, Transport::Tcp]);
            return Flow {
                from: subject,
                to: other(dnsd),
                protocol: Protocol::Port(transport, 53),
                dialled: None,
            };
        }
        let is_usual = self.theme == Theme::Old && self.chance(50);
        let ports = if is_usual { &vec![53, 80, 443, 6379] } else { ports };
        let protocol = match self.below(12) {
            0 => Protocol::Icmp,
            1 => Protocol::Other,
            2..5 => Protocol::Port(Transport::Udp, self.pick(ports)),
            5..7 => Protocol::Port(Transport::Sctp, self.pick(ports)),
            _ => Protocol::Port(Transport::Tcp, self.pick(ports)),
        };
        let is_observed = is_about_names && self.chance(75);
        let peer = if is_observed {
            other(self.pick(observed))
        } else {
            self.peer(&subject, pods, observed)
        };
        // The form of 2016 is about ingress only.
        let often = if self.theme == Theme::Old { 25 } else { 58 };
        let is_egress = is_observed || self.chance(often);
        let (from, to) = if is_egress {
            (subject, peer)
        } else {
            (peer, subject)
        };
        let often = if self.theme == Theme::Ports { 60 } else { 30 };
        let protocol = if self.chance(often) {
            self.served_at(&to, points).unwrap_or(protocol)
        } else {
            protocol
        };
        let is_to_itself = from.who == to.who;
        let dialled = (is_to_itself || self.chance(15)).then(|| self.dialled(observed, ports));
        Flow {
            from,
            to,
            protocol,
            dialled,
        }
    }

    /// A client outside that a Service leads on.
    fn entering(&mut self, points: &Points) -> Flow {
        let (key, address) = self.pick(&points.pods);
        let pod = Side {
            address,
            who: Who::Pod(key),
        };
        let to = match self.below(6) {
            0 => pod,
            1 => Side {
                address: self.node_address(),
                who: Who::OwnNode,
            },
            _ => self.peer(&pod, &points.pods, &points.observed),
        };
        let port = if self.chance(30) {
            443
        } else {
            self.pick(&points.ports)
        };
        let port = if self.chance(20) { 6443 } else { port };
        Flow {
            from: other(ip("203.0.113.99")),
            to,
            protocol: if self.chance(10) {
                Protocol::Icmp
            } else {
                Protocol::Port(Transport::Tcp, port)
            },
            dialled: Some(self.dialled(&points.observed, &points.ports)),
        }
    }

    /// A port that the destination serves.
    fn served_at(&mut self, to: &Side, points: &Points) -> Option<Protocol> {
        let Who::Pod(key) = &to.who else {
            return None;
        };
        let own: Vec<Protocol> = points
            .served
            .iter()
            .filter(|(pod, _)| pod == key)
            .map(|(_, port)| *port)
            .collect();
        (!own.is_empty()).then(|| self.pick(&own))
    }

    /// What was dialled where a Service led on: its address, or one that a name has.
    fn dialled(&mut self, observed: &[IpAddr], ports: &[u16]) -> (IpAddr, u16) {
        let address = if !observed.is_empty() && self.chance(30) {
            self.pick(observed)
        } else {
            ip(SERVICE)
        };
        (address, self.pick(ports))
    }

    fn peer(&mut self, subject: &Side, pods: &[PodAddress], observed: &[IpAddr]) -> Side {
        let same_family = |address: &IpAddr| address.is_ipv4() == subject.address.is_ipv4();
        match self.below(20) {
            0..8 => {
                let reachable: Vec<&PodAddress> =
                    pods.iter().filter(|(_, address)| same_family(address)).collect();
                let (key, address) = self.pick(&reachable).clone();
                Side {
                    address,
                    who: Who::Pod(key),
                }
            }
            8..11 => {
                let address = self.node_address();
                Side {
                    address,
                    who: Who::OwnNode,
                }
            }
            11 | 12 => other(self.node_address()),
            13 if self.chance(30) => other(ip(DNSD)),
            13..16 if !observed.is_empty() => other(self.pick(observed)),
            _ => {
                let more = [SERVICE, KUBERNETES, BRIDGE, "10.0.0.200", "fd00::200", "10.0.1.9"];
                let all: Vec<&str> = OUTSIDE.iter().chain(&more).copied().collect();
                other(ip(self.pick(&all)))
            }
        }
    }

    fn node_address(&mut self) -> IpAddr {
        ip(self.pick(&[
            "192.0.2.1",
            "192.0.2.1",
            "192.0.2.2",
            "2001:db8::1",
            BRIDGE,
            "172.17.0.1",
            "10.0.0.253",
            SERVICE,
        ]))
    }
}

/// What there is to be asked about.
struct Points {
    pods: Vec<PodAddress>,
    /// Those that asked for names.
    asking: Vec<PodAddress>,
    observed: Vec<IpAddr>,
    served: Vec<(String, Protocol)>,
    dnsd: Option<IpAddr>,
    ports: Vec<u16>,
}

const fn other(address: IpAddr) -> Side {
    Side {
        address,
        who: Who::Other,
    }
}

/// The ports with names of a pod's containers.
fn ports_of(pod: &Value) -> Vec<Protocol> {
    let containers = ["containers", "initContainers"].map(|list| &pod["spec"][list]);
    let containers = containers.into_iter().filter_map(Value::as_array).flatten();
    let ports = containers
        .filter_map(|container| container["ports"].as_array())
        .flatten();
    ports
        .filter(|port| port.get("name").is_some())
        .map(|port| {
            let transport = match port["protocol"].as_str() {
                Some("UDP") => Transport::Udp,
                Some("SCTP") => Transport::Sctp,
                Some(_) | None => Transport::Tcp,
            };
            Protocol::Port(
                transport,
                u16::try_from(port["containerPort"].as_u64().unwrap()).unwrap(),
            )
        })
        .collect()
}

/// The ports that an object names, and, less often, those beside them.
fn collect_ports(value: &Value, ports: &mut Vec<u16>) {
    match value {
        Value::Object(fields) => {
            for (key, value) in fields {
                let is_port = matches!(
                    key.as_str(),
                    "port" | "endPort" | "number" | "start" | "end" | "containerPort" | "targetPort"
                );
                if let Some(number) = value.as_u64().filter(|_| is_port) {
                    let near = [number.saturating_sub(1), number, number, number + 1].into_iter();
                    ports.extend(
                        near.filter_map(|number| u16::try_from(number).ok())
                            .filter(|number| *number > 0),
                    );
                }
                collect_ports(value, ports);
            }
        }
        Value::Array(items) => items.iter().for_each(|item| collect_ports(item, ports)),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}
