//! Which packets are a pod's: by the interface that they come from or go to, whatever address they carry. Where
//! several pods share an interface (a bridge), the address is asked as well.

use std::net::IpAddr;

use egret_kernel::Family;
use egret_kernel::Transport;
use egret_kernel::iptables::Protocol;
use egret_kernel::iptables::{Hook, InterfaceName, RejectWith, Rule as Line, Target};
use egret_policies::rules::Direction;
use egret_shared::switch::{Switch, is_off};
use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use super::names::{self, PodChains};
use super::render::{Chains, replies};

/// Where a pod is attached to the node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attached {
    /// Its chains.
    pub chains: PodChains,
    /// Its interfaces on the node's side.
    pub interfaces: Vec<Port>,
    /// Its addresses.
    pub addresses: Vec<IpAddr>,
}

/// An interface of a pod.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Port {
    /// Everything that passes it is this pod's.
    Own(InterfaceName),
    /// It is shared with other pods.
    Shared(InterfaceName),
}

/// What a sender is told when its packet is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum DenyAction {
    /// Nothing.
    Drop,
    /// A reset for TCP, "administratively prohibited" for the rest.
    Reject,
}

/// The chains that all pods share.
#[must_use]
pub fn shared(pods: &[Attached], deny: DenyAction, family: Family) -> Chains {
    let egress = pods.iter().flat_map(|pod| lines(pod, Direction::Egress, family));
    let ingress = pods.iter().flat_map(|pod| lines(pod, Direction::Ingress, family));
    let forward = replies().into_iter().chain(egress.clone()).chain(ingress);
    let input = replies().into_iter().chain(egress);
    Chains::from([
        (names::forward().as_str().to_owned(), texts(forward)),
        (
            names::input().as_str().to_owned(),
            neighbours(family).chain(texts(input)).collect(),
        ),
        (
            names::deny().as_str().to_owned(),
            texts(refusal(deny, family).into_iter()),
        ),
    ])
}

/// The hooks that we jump from, and what the jump reads.
#[must_use]
pub fn jumps() -> [(Hook, String); 2] {
    [(Hook::Forward, names::forward()), (Hook::Input, names::input())]
        .map(|(hook, chain)| (hook, Line::to(Target::Jump(chain)).comment("egret").to_string()))
}

fn texts(lines: impl Iterator<Item = Line>) -> Vec<String> {
    lines.map(|line| line.to_string()).collect()
}

fn lines(pod: &Attached, direction: Direction, family: Family) -> Vec<Line> {
    let jump = || Line::to(Target::Jump(pod.chains.entry(direction)));
    let hosts: Vec<IpNet> = pod
        .addresses
        .iter()
        .filter(|address| Family::of(**address) == family)
        .map(|address| IpNet::from(*address))
        .collect();
    let addressed = |line: Line, host: &IpNet| match direction {
        Direction::Egress => line.source(*host),
        Direction::Ingress => line.destination(*host),
    };
    if is_off(Switch::DispatchByInterface) {
        return hosts.iter().map(|host| addressed(jump(), host)).collect();
    }
    let through = |line: Line, name: &InterfaceName| match direction {
        Direction::Egress => line.input(name.clone()),
        Direction::Ingress => line.output(name.clone()),
    };
    let each = |port: &Port| match port {
        Port::Own(name) => vec![through(jump(), name)],
        Port::Shared(name) => hosts
            .iter()
            .map(|host| addressed(through(jump(), name), host))
            .collect(),
    };
    pod.interfaces.iter().flat_map(each).collect()
}

/// Neighbour discovery (RFC 4861: 133 to 137) and listener reports (RFC 2710, RFC 3810: 130 to 132, 143) are how IPv6
/// finds its neighbours at all. Only towards the node: they are never forwarded.
fn neighbours(family: Family) -> impl Iterator<Item = String> {
    const TYPES: [u8; 9] = [130, 131, 132, 133, 134, 135, 136, 137, 143];
    let types: &[u8] = match family {
        Family::V4 => &[],
        Family::V6 => &TYPES,
    };
    types
        .iter()
        .map(|number| format!("-p ipv6-icmp -m icmp6 --icmpv6-type {number} -j RETURN"))
}

fn refusal(deny: DenyAction, family: Family) -> Vec<Line> {
    let prohibited = match family {
        Family::V4 => RejectWith::IcmpProhibited,
        Family::V6 => RejectWith::IcmpV6Prohibited,
    };
    match deny {
        DenyAction::Drop => vec![Line::to(Target::Drop)],
        DenyAction::Reject => vec![
            Line::to(Target::Reject(RejectWith::TcpReset)).protocol(Protocol::any_port(Transport::Tcp)),
            Line::to(Target::Reject(prohibited)),
        ],
    }
}
