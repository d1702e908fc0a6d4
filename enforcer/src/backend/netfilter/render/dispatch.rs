//! The dispatch: leads a packet to the chains of its pod, by the interface that it comes from or goes to,
//! whatever address it carries. Where several pods share an interface (a bridge), the address is compared as
//! well.
//!
//! ```text
//!  EGRET-FORWARD ─ ended ▸ deny ─ replies ▸ return ─ EGRET-FROM ─ rewritten, of no pod ▸ EGRET-E-n ─ EGRET-TO
//!  EGRET-INPUT ─── neighbours ▸ return ─ ended ▸ deny ─ replies ▸ return ─ EGRET-FROM ─ rewritten ▸ EGRET-E-n
//! ```

use std::collections::BTreeMap;

use egret_kernel::Family;
use egret_kernel::Mark;
use egret_kernel::iptables::{ChainName, ConnState, InterfaceName, Match, Rule as Line, Target};
use egret_policies::rules::Direction;
use ipnet::IpNet;

use super::chains::Chains;
use super::conn_state::{self, neighbours};
use super::deny::deny_lines;
use super::ipvs;
use super::through;
use super::unknown_pods;
use crate::backend::netfilter::marks::Marks;
use crate::backend::netfilter::model::attachment::{PodAttachment, PodInterface};
use crate::backend::netfilter::model::settings::DenyAction;
use crate::backend::netfilter::model::unknown_pods::ClosedInterfaces;
use crate::backend::netfilter::names::{self, PodChains};

pub(in crate::backend::netfilter) mod by_address;
mod by_interface;

pub(crate) use by_interface::MOST_BRANCHES;

/// The position of the node's own rules, if it has any.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exposed {
    /// The mark of a connection that no pod of the node opened.
    pub unmarked: Mark,
    /// Whether IPVS forwards Services too.
    pub by_ipvs: bool,
}

impl Exposed {
    /// Packets with DNAT and without a pod as source. For a pod's packets its own rules come first, and mark them. IPVS packets do
    /// not pass here.
    fn rewritten(self) -> Line {
        self.jump()
            .when(Match::ConnState(vec![ConnState::Dnat]))
            .when(Match::Connmark(self.unmarked))
    }

    /// IPVS receives a packet at INPUT, rewrites it, and sends it from the node with the client's source address and without a
    /// socket (`ip_vs_nat_xmit` of net/netfilter/ipvs/ip_vs_xmit.c). The pod's rules judged the address of the Service, so
    /// packets of pods are judged here too.
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
    pods: &[PodAttachment],
    closed: &ClosedInterfaces,
    exposed: Option<Exposed>,
    marks: Marks,
    deny: DenyAction,
    family: Family,
) -> Chains {
    let [from, to] = Direction::ALL.map(|direction| by_pod(pods, closed, direction, family));
    let judged = [conn_state::ends(marks), conn_state::reply()]
        .into_iter()
        .chain(from.question)
        .chain(exposed.map(Exposed::rewritten));
    let output = exposed
        .and_then(Exposed::sent_by_ipvs)
        .map(|line| texts(conn_state::replies(family).into_iter().chain([line])));
    let (forward, input) = (judged.clone().chain(to.question), judged);
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
            names::revoked().as_str().to_owned(),
            texts(conn_state::ended(marks).into_iter()),
        ),
        (
            names::deny().as_str().to_owned(),
            texts(deny_lines(deny, family).into_iter()),
        ),
    ]);
    let asking = from.chains.into_iter().chain(to.chains);
    chains.extend(asking.map(|(chain, lines)| (chain.as_str().to_owned(), texts(lines.into_iter()))));
    if !closed.is_empty() {
        chains.extend(Direction::ALL.map(|direction| {
            let name = names::unknown(direction).as_str().to_owned();
            (name, unknown_pods::chain(direction, family))
        }));
    }
    chains.extend(output.map(|lines| (names::output().as_str().to_owned(), lines)));
    chains
}

fn texts(lines: impl Iterator<Item = Line>) -> Vec<String> {
    lines.map(|line| line.to_string()).collect()
}

/// How a packet finds the chain of its pod.
struct PodLookup {
    /// The lines of the dispatch.
    question: Vec<Line>,
    chains: BTreeMap<ChainName, Vec<Line>>,
}

/// Each line is a `goto`: a packet that a pod's rules allow returns to the caller of the dispatch, and skips the lines of other and
/// unknown pods.
fn by_pod(
    pods: &[PodAttachment],
    closed: &ClosedInterfaces,
    direction: Direction,
    family: Family,
) -> PodLookup {
    let judged = pods.iter().map(|pod| (pod, pod.chains.entry(direction)));
    let refused = closed.pods.iter().map(|pod| (pod, names::unknown(direction)));
    let (mut own, mut shared, mut hints) = (Vec::new(), Vec::new(), Vec::new());
    for (pod, chain) in judged.chain(refused) {
        for (interface, line) in lines(pod, chain, direction, family) {
            let Some(interface) = interface else {
                shared.push(line);
                continue;
            };
            hints.extend(pod.hosts(family).map(|host| (host, line.clone())));
            own.push((interface, line));
        }
    }
    let is_tree = by_interface::is_worth(own.len());
    // Shared interfaces come first: their lines compare addresses.
    let hints = (is_tree && shared.is_empty())
        .then(|| by_address::of(direction, hints, &own))
        .flatten();
    let mut chains = by_interface::chains(direction, shared, own, closed.lines(direction).collect());
    match hints {
        Some(hints) => {
            let question = hints.question(direction);
            chains.extend(hints.chains);
            PodLookup { question, chains }
        }
        None => PodLookup {
            question: vec![Line::to(Target::Jump(names::pod_lookup(direction)))],
            chains,
        },
    }
}

/// The lines that lead to a pod's chain, each with its interface if it matches nothing else.
fn lines(
    pod: &PodAttachment,
    chain: ChainName,
    direction: Direction,
    family: Family,
) -> Vec<(Option<InterfaceName>, Line)> {
    let jump = || Line::to(Target::Goto(chain.clone()));
    let hosts: Vec<IpNet> = pod.hosts(family).collect();
    let addressed = |line: Line, host: &IpNet| match direction {
        Direction::Egress => line.source(*host),
        Direction::Ingress => line.destination(*host),
    };
    let by_address = |name: &InterfaceName| {
        let line = || through(jump(), direction, name.clone());
        let lines = hosts.iter().map(|host| (None, addressed(line(), host)));
        lines.collect()
    };
    let each = |port: &PodInterface| match (port, direction) {
        (PodInterface::Own(name), _) => vec![(Some(name.clone()), through(jump(), direction, name.clone()))],
        (PodInterface::Shared(name), _) => by_address(name),
        (PodInterface::BridgePort { bridge, port }, Direction::Egress) => {
            let line = through(jump(), direction, bridge.clone()).when(Match::BridgePortIn(port.clone()));
            vec![(None, line)]
        }
        (PodInterface::BridgePort { bridge, .. }, Direction::Ingress) => by_address(bridge),
    };
    pod.interfaces.iter().flat_map(each).collect()
}

/// With br_netfilter, neighbour discovery between pods of one bridge passes iptables.
fn neighbours_over_bridges(pods: &[PodAttachment], family: Family) -> impl Iterator<Item = String> {
    let mut ports = pods.iter().flat_map(|pod| &pod.interfaces);
    let is_seen = ports.any(|port| match port {
        PodInterface::BridgePort { .. } => true,
        PodInterface::Own(_) | PodInterface::Shared(_) => false,
    });
    neighbours(family).filter(move |_| is_seen)
}
