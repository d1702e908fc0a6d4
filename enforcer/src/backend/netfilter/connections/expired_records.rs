//! Connections whose DNS record has expired. An expired record ends no connection. So when a pod gets a new
//! generation for another reason, its connections to an address that a name resolved to get the new mark
//! here, as long as the rule over that name stands: the kernel no longer knows the address.

use egret_kernel::conntrack::{Conntrack, Flow};
use egret_kernel::{Mark, netlink};
use egret_policies::rules::{Direction, DirectionRules, PeerMatch, PodRules, Rule, SetId};
use egret_shared::pod::PodKey;

use super::InForce;
use super::flow_dump::{FlowDump, FlowQuery};
use super::verdict::Evaluator;
use crate::backend::netfilter::marks::PodMarks;
use crate::backend::netfilter::model::set_contents::SetContents;
use crate::backend::netfilter::names::PodChains;

/// Carries over what pods that are asked again had opened, where those were the marks before. What cannot be carried over ends, at
/// worst.
pub(in crate::backend) fn carry_over(in_force: InForce<'_>, before: &[(PodKey, PodMarks)]) {
    if let Err(error) = try_to_carry_over(in_force, before) {
        tracing::warn!(%error, "connections of expired records may end with the change of rules");
    }
}

fn try_to_carry_over(in_force: InForce<'_>, before: &[(PodKey, PodMarks)]) -> Result<(), netlink::Error> {
    let carried = before.iter().filter_map(|(pod, before)| {
        let rules = in_force.pods.get(pod)?.rules();
        let after = in_force.generations.marks(PodChains::of(pod))?;
        may_stand_between(rules, in_force.sets).then_some((rules, before.egress, after.egress))
    });
    let carried: Vec<_> = carried.collect();
    if carried.is_empty() {
        return Ok(());
    }
    let mut conntrack = Conntrack::open()?;
    let opened = carried.iter().flat_map(|(rules, ..)| &rules.addresses);
    let opened = FlowQuery::about(opened.map(|address| (Direction::Egress, *address)).collect());
    let mut flows = FlowDump::query(&mut conntrack, &opened, 0)?.flows;
    for (rules, old, new) in carried {
        let pod = &rules.pod;
        match carry_over_pod(&mut conntrack, &mut flows, rules, in_force.sets, old, new) {
            Ok(0) => {}
            Ok(flows) => {
                tracing::debug!(%pod, flows, "connections of expired records go on under the new rules")
            }
            Err(error) => {
                tracing::warn!(%pod, %error, "connections of expired records may end with the change of rules")
            }
        }
    }
    Ok(())
}

/// Whether there are records that may have expired.
fn may_stand_between(rules: &PodRules, sets: &dyn SetContents) -> bool {
    let mut rules = rules.egress.tiers.iter().flat_map(|tier| tier.rules.iter());
    rules.any(|rule| has_lapsed(rule, sets))
}

/// Carries a pod's flows over to its new mark where only an expired record stands between them and an Allow.
/// Returns how many.
fn carry_over_pod(
    conntrack: &mut Conntrack,
    flows: &mut [Flow],
    rules: &PodRules,
    sets: &dyn SetContents,
    old: Mark,
    new: Mark,
) -> Result<usize, netlink::Error> {
    let is_carried = |flow: &&mut Flow| {
        let is_own = old.is_in(flow.mark) && rules.addresses.contains(&flow.original.source);
        is_own && outlasts(flow, rules, sets)
    };
    let mut carried: Vec<&mut Flow> = flows.iter_mut().filter(is_carried).collect();
    let marks: Vec<_> = carried.iter().map(|flow| (&**flow, new)).collect();
    let were_there = conntrack.set_marks(&marks)?;
    for (flow, was_there) in carried.iter_mut().zip(&were_there) {
        if *was_there {
            flow.mark = flow.mark & !new.mask().get() | new.value();
        }
    }
    Ok(were_there.into_iter().filter(|was_there| *was_there).count())
}

/// Whether a flow that a pod opened goes on although the record is over that it was opened by.
pub(super) fn outlasts(flow: &Flow, rules: &PodRules, sets: &dyn SetContents) -> bool {
    let address = flow.reply.source;
    let was_told = || sets_with(&rules.egress).any(|id| sets.has_record(id, address));
    // The addresses of names are neither the node's own nor the pod's.
    let evaluator = Evaluator { sets, own_node: None };
    was_told() && evaluator.allows(rules, Direction::Egress, flow)
}

fn has_lapsed(rule: &Rule, sets: &dyn SetContents) -> bool {
    match &rule.peer {
        PeerMatch::In(id) => sets.has_expired(*id),
        PeerMatch::Any | PeerMatch::OwnNode | PeerMatch::Itself => false,
    }
}

fn sets_with(rules: &DirectionRules) -> impl Iterator<Item = SetId> {
    rules
        .tiers
        .iter()
        .flat_map(|tier| tier.rules.iter())
        .flat_map(Rule::sets)
}
