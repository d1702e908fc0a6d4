//! Rules for nodes with IPVS. IPVS takes a packet in behind INPUT, rewrites it, and sends it through OUTPUT
//! with the sender's address and without a socket (`ip_vs_nat_xmit` of net/netfilter/ipvs/ip_vs_xmit.c).
//! FORWARD never sees it:
//!
//! ```text
//!  INPUT ── EGRET-INPUT ── EGRET-FROM: the address of the Service
//!  OUTPUT ─ EGRET-OUTPUT ─ replies ▸ return ─ EGRET-BEHIND ─ -s pod ▸ goto EGRET-E2-x: the endpoint
//!                                           └ EGRET-LED ──── EGRET-TO ─ -o veth ▸ goto EGRET-I-x
//! ```
//!
//! OUTPUT has no input interface, so the source address identifies the sender; the source check has verified it. INPUT judges the
//! address of the Service, OUTPUT judges the endpoint. OUTPUT judges each packet: the mark of the connection only says that the
//! address of the Service was allowed.

use egret_kernel::Family;
use egret_kernel::iptables::{ChainName, InterfaceName, Match, Rule as Line, Target};
use egret_policies::rules::{Direction, PodRules, Tier};

use super::chains::Chains;
use super::conn_state::{neighbours, replies};
use super::through;
use crate::backend::netfilter::model::attachment::{PodAttachment, PodInterface};
use crate::backend::netfilter::names;

/// A pod whose packets IPVS may forward, or that may be an endpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IpvsPod {
    attached: PodAttachment,
    /// The chain that judges its egress without a look at marks; none without egress rules.
    egress: Option<ChainName>,
    /// Whether it may reach itself whatever its rules say.
    meets_itself: bool,
}

impl IpvsPod {
    /// A pod with its rules.
    #[must_use]
    pub fn of(attached: &PodAttachment, rules: &PodRules) -> Self {
        let first = rules.egress.tiers.first();
        let may_isolate_alone = |tier: &Tier| match tier {
            Tier::NetworkPolicy => true,
            Tier::ClusterEgressFirewall | Tier::Admin | Tier::Baseline => false,
        };
        Self {
            egress: first.map(|first| attached.chains.tier(Direction::Egress, first.tier, 0)),
            meets_itself: rules
                .ingress
                .tiers
                .iter()
                .all(|tier| may_isolate_alone(&tier.tier)),
            attached: attached.clone(),
        }
    }

    /// A pod whose rules the kernel refuses: which of its chains exist is unknown.
    #[must_use]
    pub(in crate::backend::netfilter) fn refused(self) -> Self {
        Self {
            egress: Some(names::deny()),
            ..self
        }
    }

    fn behind(&self, family: Family) -> Vec<Line> {
        let ask = |chain: &ChainName| {
            let line = |host| Line::to(Target::Goto(chain.clone())).source(host);
            self.attached.hosts(family).map(line).collect::<Vec<_>>()
        };
        self.egress.iter().flat_map(ask).collect()
    }

    /// Hairpin traffic of a Service. Elsewhere its rule matches the input interface, which OUTPUT does not have.
    fn itself(&self, family: Family) -> Vec<Line> {
        let interfaces = self.attached.interfaces.iter().map(|port| match port {
            PodInterface::Own(name)
            | PodInterface::Shared(name)
            | PodInterface::BridgePort { bridge: name, .. } => name,
        });
        let back = |name: &InterfaceName| {
            let line = |host| Line::to(Target::Return).source(host).destination(host);
            let line = |host| through(line(host), Direction::Ingress, name.clone());
            self.attached.hosts(family).map(line).collect::<Vec<_>>()
        };
        let lines = interfaces.flat_map(back);
        lines.filter(|_| self.meets_itself).collect()
    }
}

/// Adds the chains that judge IPVS traffic to the shared chains.
pub fn add(chains: &mut Chains, pods: &[IpvsPod], family: Family) {
    let each = |lines: fn(&IpvsPod, Family) -> Vec<Line>| {
        let lines = pods.iter().flat_map(|pod| lines(pod, family));
        lines.map(|line| line.to_string()).collect::<Vec<String>>()
    };
    let mut put = |name: ChainName, lines| chains.insert(name.as_str().to_owned(), lines);
    put(names::ipvs_egress(), each(IpvsPod::behind));
    let to = Line::to(Target::Goto(names::to())).to_string();
    put(names::ipvs_ingress(), [each(IpvsPod::itself), vec![to]].concat());
    let output = names::output();
    let of_node = chains.remove(output.as_str());
    let replies: Vec<String> = replies(family).iter().map(Line::to_string).collect();
    let of_node = of_node
        .into_iter()
        .flatten()
        .filter(|line| !replies.contains(line));
    let asked = |chain| passing(Line::to(Target::Jump(chain))).to_string();
    let lines = neighbours(family)
        .chain(replies.clone())
        .chain([asked(names::ipvs_egress())])
        .chain(of_node)
        .chain([asked(names::ipvs_ingress())]);
    chains.insert(output.as_str().to_owned(), lines.collect());
}

/// Packets without a local socket. A connection of the node in its last state has no socket either.
pub(super) fn passing(line: Line) -> Line {
    line.unless(Match::FromThisHost).unless(Match::OfSocket)
}
