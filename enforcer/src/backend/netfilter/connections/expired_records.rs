//! Connections whose record is over. That a record expires ends nothing; so when the rules of a pod are asked again for
//! another reason, what is open to an address that a name *was* live for must not end either, as long as the rule
//! over that name stands. Such flows are given the new generation here, since the kernel no longer knows the address.

use std::net::IpAddr;

use egret_kernel::conntrack::{Conntrack, Detail, Flow};
use egret_kernel::{Mark, netlink};
use egret_policies::rules::{
    Action, Direction, DirectionRules, Otherwise, PeerMatch, PodRules, PortMatch, Rule, SetId,
};
use egret_shared::net::Transport;
use egret_shared::pod::PodKey;
use egret_shared::switch::{Switch, is_off};

use super::flow_dump::Seen;
use crate::backend::netfilter::driver::Netfilter;
use crate::backend::netfilter::marks::PodMarks;
use crate::backend::netfilter::names::PodChains;
use crate::backend::netfilter::sets::concurrent::SharedSets;

impl Netfilter {
    /// Carries over what pods that are asked again had opened, where those were the marks before.
    pub(crate) fn carry_over(&mut self, before: &[(PodKey, PodMarks)]) -> Result<(), netlink::Error> {
        let carried = before.iter().filter_map(|(pod, before)| {
            let rules = self.pods.get(pod)?.rules();
            let after = self.generations.marks(PodChains::of(pod))?;
            may_stand_between(rules, &self.sets).then_some((rules, before.egress, after.egress))
        });
        let carried: Vec<_> = carried.collect();
        if carried.is_empty() {
            return Ok(());
        }
        let mut conntrack = Conntrack::open()?;
        let opened = carried.iter().flat_map(|(rules, ..)| &rules.addresses);
        let mut ends = self.ends_in_question();
        ends.ends
            .extend(opened.map(|address| (Direction::Egress, *address)));
        let mut seen = Seen::look(&mut conntrack, ends, 0)?;
        for (rules, old, new) in carried {
            let pod = &rules.pod;
            match carry_over(&mut conntrack, &mut seen.flows, rules, &self.sets, old, new) {
                Ok(0) => {}
                Ok(flows) => {
                    tracing::debug!(%pod, flows, "connections of expired records go on under the new rules")
                }
                Err(error) => {
                    tracing::warn!(%pod, %error, "connections of expired records may end with the change of rules")
                }
            }
        }
        self.revocations.seen = Some(seen);
        Ok(())
    }
}

/// Whether there are records that may have expired.
fn may_stand_between(rules: &PodRules, sets: &SharedSets) -> bool {
    let mut rules = rules.egress.tiers.iter().flat_map(|tier| &tier.rules);
    !is_off(Switch::KeepLapsed) && rules.any(|rule| has_lapsed(rule, sets))
}

/// Carries a pod's flows over to its new mark where only an expired record stands between them and an Allow.
/// Returns how many.
fn carry_over(
    conntrack: &mut Conntrack,
    flows: &mut [Flow],
    rules: &PodRules,
    sets: &SharedSets,
    old: Mark,
    new: Mark,
) -> Result<usize, netlink::Error> {
    let is_own = |flow: &&mut Flow| old.is_in(flow.mark) && rules.addresses.contains(&flow.original.source);
    let mut carried = 0;
    for flow in flows.iter_mut().filter(is_own) {
        if outlasts(flow, rules, sets) && conntrack.set_mark(flow, new)? {
            flow.mark = flow.mark & !new.mask().get() | new.value();
            carried += 1;
        }
    }
    Ok(carried)
}

/// Whether a flow that a pod opened goes on although the record is over that it was opened by.
pub(crate) fn outlasts(flow: &Flow, rules: &PodRules, sets: &SharedSets) -> bool {
    let end = End::of(flow);
    let was_told = || sets_with(&rules.egress).any(|id| sets.lock().was_told(id, end.address));
    !is_off(Switch::KeepLapsed) && was_told() && is_allowed(&rules.egress, &end, sets)
}

/// The other end of a flow, behind any translation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct End {
    address: IpAddr,
    transport: Option<Transport>,
    port: Option<u16>,
    is_icmp: bool,
}

impl End {
    fn of(flow: &Flow) -> Self {
        let port = match flow.reply.detail {
            Detail::Ports { source, .. } => Some(source),
            Detail::Icmp { .. } | Detail::Nothing => None,
        };
        let transport = Transport::ALL
            .into_iter()
            .find(|transport| transport.number() == flow.reply.protocol);
        Self {
            address: flow.reply.source,
            transport,
            port,
            is_icmp: matches!(flow.reply.detail, Detail::Icmp { .. }),
        }
    }
}

fn has_lapsed(rule: &Rule, sets: &SharedSets) -> bool {
    match &rule.peer {
        PeerMatch::In(id) => sets.lock().has_lapsed(*id),
        PeerMatch::Any | PeerMatch::OwnNode | PeerMatch::Itself => false,
    }
}

fn sets_with(rules: &DirectionRules) -> impl Iterator<Item = SetId> {
    rules
        .tiers
        .iter()
        .flat_map(|tier| &tier.rules)
        .flat_map(Rule::sets)
}

/// The rules' verdict, with expired records as if they were live.
fn is_allowed(rules: &DirectionRules, end: &End, sets: &SharedSets) -> bool {
    for tier in &rules.tiers {
        match tier
            .rules
            .iter()
            .find(|rule| matches(rule, end, sets))
            .map(|rule| rule.action)
        {
            Some(Action::Allow) => return true,
            Some(Action::Deny) => return false,
            Some(Action::Pass) => {}
            None => match tier.otherwise {
                Otherwise::Deny => return false,
                Otherwise::NextTier => {}
            },
        }
    }
    true
}

fn matches(rule: &Rule, end: &End, sets: &SharedSets) -> bool {
    let port = match rule.port {
        PortMatch::Any => true,
        PortMatch::Icmp => end.is_icmp,
        PortMatch::Range(transport, range) => {
            end.transport == Some(transport) && end.port.is_some_and(|port| range.contains(port))
        }
    };
    let holds = |id: SetId| sets.lock().holds(id, end.address, end.transport.zip(end.port));
    port && !rule.except.is_some_and(holds)
        && match &rule.peer {
            PeerMatch::Any => true,
            PeerMatch::In(id) => holds(*id),
            // The node's own addresses are no names' addresses, and neither are the pod's.
            PeerMatch::OwnNode | PeerMatch::Itself => false,
        }
}
