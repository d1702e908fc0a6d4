//! Which packets are a pod's: by the interface that they come from or go to, whatever address they carry. Where
//! several pods share an interface (a bridge), the address is asked as well.
//!
//! ```text
//!  EGRET-FORWARD ─ revoked ▸ deny ─ replies ▸ return ─ EGRET-FROM ─ rewritten, of no pod ▸ EGRET-E-n ─ EGRET-TO
//!  EGRET-INPUT ─── neighbours ▸ return ─ revoked ▸ deny ─ replies ▸ return ─ EGRET-FROM ─ rewritten ▸ EGRET-E-n
//! ```

use std::collections::BTreeMap;
use std::net::IpAddr;

use egret_kernel::Family;
use egret_kernel::Mark;
use egret_kernel::Transport;
use egret_kernel::iptables::Protocol;
use egret_kernel::iptables::{
    ChainName, ConnState, Hook, InterfaceName, InterfacePattern, Match, RejectWith, Rule as Line, Target,
};
use egret_policies::rules::Direction;
use egret_shared::switch::{Switch, is_off};
use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use super::ipvs;
use super::marks::Marks;
use super::names::{self, PodChains};
use super::render::{Chains, replies};
use super::unknown::{self, Closed};

mod tree;

pub(super) use tree::MOST_BRANCHES;

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
    /// A bridge, and the port of it behind which the pod is alone. By which port a packet will leave is not known when it
    /// is routed to the bridge, so what goes to the pod is known by its address.
    Of {
        /// The bridge.
        bridge: InterfaceName,
        /// Its port.
        port: InterfaceName,
    },
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

/// Where the node's own rules are asked, if it has any.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exposed {
    /// What a flow bears that no pod of the node has opened.
    pub unmarked: Mark,
    /// Whether Services are led on by IPVS as well.
    pub by_ipvs: bool,
}

impl Exposed {
    /// What was rewritten on the way here and comes from no pod: that is judged by its own rules, in front of this,
    /// and marked by them. With IPVS nothing of it is seen here.
    fn rewritten(self) -> Line {
        self.jump()
            .when(Match::ConnState(vec![ConnState::Dnat]))
            .when(Match::Connmark(self.unmarked))
    }

    /// IPVS takes a packet in where the node takes what is for itself, rewrites it, and sends it from there as if the
    /// node did, but with the address of whoever sent it and without a socket (`ip_vs_nat_xmit` of
    /// net/netfilter/ipvs/ip_vs_xmit.c). What the pod's rules allowed was the address of the Service, so pods
    /// are asked as well.
    fn sent_by_ipvs(self) -> Option<Line> {
        self.by_ipvs.then(|| ipvs::passing(self.jump()))
    }

    fn jump(self) -> Line {
        Line::to(Target::Jump(PodChains::of_node().entry(Direction::Egress)))
    }
}

/// The chains that all pods share.
#[must_use]
pub fn shared(
    pods: &[Attached],
    closed: &Closed,
    exposed: Option<Exposed>,
    marks: Marks,
    deny: DenyAction,
    family: Family,
) -> Chains {
    let ask = |chain: ChainName| std::iter::once(Line::to(Target::Jump(chain)));
    let judged = Direction::ALL
        .map(|direction| revoked(marks, direction))
        .into_iter()
        .chain(replies())
        .chain(ask(names::from()))
        .chain(exposed.map(Exposed::rewritten));
    let output = exposed
        .and_then(Exposed::sent_by_ipvs)
        .map(|line| texts(replies().into_iter().chain([line])));
    let (forward, input) = (judged.clone().chain(ask(names::to())), judged);
    let mut chains = Chains::from([
        (
            names::forward().as_str().to_owned(),
            neighbours_over_bridges(pods, family)
                .chain(texts(forward))
                .collect(),
        ),
        (
            names::input().as_str().to_owned(),
            neighbours(family).chain(texts(input)).collect(),
        ),
        (
            names::deny().as_str().to_owned(),
            texts(refusal(deny, family).into_iter()),
        ),
    ]);
    for direction in Direction::ALL {
        let asking = by_pod(pods, closed, direction, family).into_iter();
        chains.extend(asking.map(|(chain, lines)| (chain.as_str().to_owned(), texts(lines.into_iter()))));
    }
    if !closed.is_empty() {
        chains.extend(Direction::ALL.map(|direction| {
            let name = names::unknown(direction).as_str().to_owned();
            (name, unknown::chain(direction, family))
        }));
    }
    chains.extend(output.map(|lines| (names::output().as_str().to_owned(), lines)));
    chains
}

/// A jump from a hook. It is to be there as long as its chain is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Jump {
    /// Where from.
    pub hook: Hook,
    /// Where to.
    pub chain: ChainName,
    /// What it reads.
    pub text: String,
}

/// All jumps that there may be.
#[must_use]
pub fn jumps() -> [Jump; 3] {
    let chains = [
        (Hook::Forward, names::forward()),
        (Hook::Input, names::input()),
        (Hook::Output, names::output()),
    ];
    chains.map(|(hook, chain)| Jump {
        hook,
        text: Line::to(Target::Jump(chain.clone())).comment("egret").to_string(),
        chain,
    })
}

/// Whether IPVS is there: its list of Services is, once the module is.
pub(super) fn has_ipvs() -> bool {
    std::path::Path::new("/proc/thread-self/net/ip_vs").exists()
}

/// In front of replies: what was revoked, or is of a pod that is gone, ends in both directions.
pub(super) fn revoked(marks: Marks, direction: Direction) -> Line {
    Line::to(Target::Goto(names::deny())).when(Match::Connmark(marks.ended(direction)))
}

fn texts(lines: impl Iterator<Item = Line>) -> Vec<String> {
    lines.map(|line| line.to_string()).collect()
}

/// Each line ends the question which pod it is: by `goto`, so that what a pod's rules let pass returns behind the
/// question, and not to the lines of other pods and of none.
fn by_pod(
    pods: &[Attached],
    closed: &Closed,
    direction: Direction,
    family: Family,
) -> BTreeMap<ChainName, Vec<Line>> {
    let judged = pods
        .iter()
        .flat_map(|pod| lines(pod, pod.chains.entry(direction), direction, family));
    let refused = closed
        .pods
        .iter()
        .flat_map(|pod| lines(pod, names::unknown(direction), direction, family));
    let (mut own, mut shared) = (Vec::new(), Vec::new());
    for (interface, line) in judged.chain(refused) {
        match interface {
            Some(interface) => own.push((interface, line)),
            None => shared.push(line),
        }
    }
    tree::chains(direction, shared, own, closed.lines(direction).collect())
}

/// The lines that lead to a pod's chain, each with the interface that is all that it asks for, if it is.
fn lines(
    pod: &Attached,
    chain: ChainName,
    direction: Direction,
    family: Family,
) -> Vec<(Option<InterfaceName>, Line)> {
    let jump = || Line::to(Target::Goto(chain.clone()));
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
        let by_address = hosts.iter().map(|host| (None, addressed(jump(), host)));
        return by_address.collect();
    }
    let by_address = |name: &InterfaceName| {
        let line = || through(jump(), direction, name.clone());
        let lines = hosts.iter().map(|host| (None, addressed(line(), host)));
        lines.collect()
    };
    let each = |port: &Port| match (port, direction) {
        (Port::Own(name), _) => vec![(Some(name.clone()), through(jump(), direction, name.clone()))],
        (Port::Shared(name), _) => by_address(name),
        (Port::Of { bridge, port }, Direction::Egress) => {
            let line = through(jump(), direction, bridge.clone()).when(Match::BridgePortIn(port.clone()));
            vec![(None, line)]
        }
        (Port::Of { bridge, .. }, Direction::Ingress) => by_address(bridge),
    };
    pod.interfaces.iter().flat_map(each).collect()
}

/// A line about what comes from an interface, or goes to it.
pub(super) fn through(line: Line, direction: Direction, interface: impl Into<InterfacePattern>) -> Line {
    match direction {
        Direction::Egress => line.input(interface),
        Direction::Ingress => line.output(interface),
    }
}

/// Where iptables sees what goes from port to port, it sees pods of one bridge look for each other.
fn neighbours_over_bridges(pods: &[Attached], family: Family) -> impl Iterator<Item = String> {
    let mut ports = pods.iter().flat_map(|pod| &pod.interfaces);
    let is_seen = ports.any(|port| match port {
        Port::Of { .. } => true,
        Port::Own(_) | Port::Shared(_) => false,
    });
    neighbours(family).filter(move |_| is_seen)
}

/// Neighbour discovery (RFC 4861: 133 to 137) and listener reports (RFC 2710, RFC 3810: 130 to 132, 143) are how IPv6
/// finds its neighbours at all. Only towards the node: they are never forwarded.
pub(super) fn neighbours(family: Family) -> impl Iterator<Item = String> {
    const TYPES: [u8; 9] = [130, 131, 132, 133, 134, 135, 136, 137, 143];
    let types: &[u8] = match family {
        Family::V4 => &[],
        Family::V6 if is_off(Switch::PassNeighbours) => &[],
        Family::V6 => &TYPES,
    };
    types
        .iter()
        .map(|number| format!("-p ipv6-icmp -m icmp6 --icmpv6-type {number} -j RETURN"))
}

pub(super) fn refusal(deny: DenyAction, family: Family) -> Vec<Line> {
    let prohibited = match family {
        Family::V4 => RejectWith::IcmpProhibited,
        Family::V6 => RejectWith::IcmpV6Prohibited,
    };
    match deny {
        DenyAction::Reject if is_off(Switch::TellSender) => vec![Line::to(Target::Drop)],
        DenyAction::Drop => vec![Line::to(Target::Drop)],
        DenyAction::Reject => vec![
            Line::to(Target::Reject(RejectWith::TcpReset)).protocol(Protocol::any_port(Transport::Tcp)),
            Line::to(Target::Reject(prohibited)),
        ],
    }
}
