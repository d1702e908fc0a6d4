//! Ends open connections that the rules forbid by now. The next packet of the opener is judged anew in any
//! case; but replies are judged by nobody, and the program would wait for answers that never come. So a
//! forbidden flow gets the revoked mark, which ends it in both directions, and its sockets in the pods are
//! destroyed.
//!
//! Flows of a pod that is there are never deleted: conntrack would pick up the next packet of either side as a new flow, maybe the
//! other way round. A revoked flow lives on while somebody sends, so its mark is taken back when the rules allow it again.
//!
//! Flows of a pod that is gone have a mark of their own, which no rules take back. They are deleted when the address has another
//! pod: what the other side still sends is then a new connection to that pod, judged by its rules, and what that pod sends is its own,
//! though it may have the old pod's ports.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use egret_kernel::conntrack::{Conntrack, Flow, Tuple};
use egret_kernel::iptables::InterfaceName;
use egret_kernel::links::Links;
use egret_kernel::netlink;
use egret_kernel::sock_diag::Connection;
use egret_policies::rules::{Direction, PodRules};

use super::flow_dump::pods_end;
use super::pod_sockets;
use super::revoked::{Changed, Revoked};
use super::verdict::Evaluator;
use super::{Connections, InForce, Reevaluation};
use crate::backend::EndedConnections;
use crate::backend::netfilter::marks::{Marks, PodMarks};
use crate::backend::netfilter::model::pods::names_any;
use crate::backend::netfilter::names::PodChains;

/// So many flows end, or go on again, in one slice: some milliseconds, for which the next change waits.
const SLICE: usize = 512;

/// So many flows are looked at in one slice, for either of the two: what is allowed costs a look, too.
const LOOKED_AT: usize = 4 * SLICE;

/// What is to be done about a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FlowAction {
    /// It ends, as long as the rules are what they are.
    Revoke,
    /// It ends for good: it is of a pod that is gone.
    MarkGone,
    /// Nobody knows it any more: it is of a pod that is gone, and the address has another one.
    Delete,
}

impl Connections {
    /// Ends what the rules forbid, out of what the searches so far found: one slice of it. What cannot be done now is done the next
    /// time.
    pub(in crate::backend) fn revoke(&mut self, in_force: InForce<'_>, is_broken: bool) -> EndedConnections {
        self.revoked
            .reconsider(BTreeSet::new(), in_force.sets.take_concurrent());
        self.settle(in_force);
        let has_work = self.revoked.has_reconsidered() || !self.unjudged.as_slice().is_empty();
        if is_broken || !has_work {
            return EndedConnections::default();
        }
        self.try_to_revoke(in_force).unwrap_or_else(|error| {
            self.unjudged = Vec::new().into_iter();
            let judged = std::mem::take(&mut self.judged);
            self.put_off(judged, &error);
            EndedConnections::default()
        })
    }

    fn try_to_revoke(&mut self, in_force: InForce<'_>) -> Result<EndedConnections, netlink::Error> {
        let mut conntrack = Conntrack::open()?;
        let own_node = Links::open()?.addresses()?;
        let own_node = own_node.into_iter().map(|address| address.net.addr()).collect();
        let mut unjudged = std::mem::take(&mut self.unjudged);
        let forbidden = self.forbidden(in_force, &mut unjudged, &own_node);
        self.unrevoke(in_force, &mut conntrack, &own_node)?;
        let marks = in_force.marks;
        let marked: Vec<_> = forbidden
            .iter()
            .filter_map(|(flow_action, one)| match flow_action {
                FlowAction::Revoke => Some((&one.flow, marks.revoked(one.direction))),
                FlowAction::MarkGone => Some((&one.flow, marks.gone(one.direction))),
                FlowAction::Delete => None,
            })
            .collect();
        let mut were_there = conntrack.set_marks(&marked)?;
        for (_, one) in forbidden
            .iter()
            .filter(|(flow_action, _)| *flow_action == FlowAction::Delete)
        {
            were_there.push(conntrack.delete(&one.flow)?);
        }
        let flows = were_there.into_iter().map(u64::from).sum();
        let sockets = self.end_sockets(in_force, &forbidden);
        let revoked = forbidden
            .into_iter()
            .filter(|(flow_action, _)| *flow_action == FlowAction::Revoke);
        self.revoked.add(revoked.map(|(_, one)| one));
        let is_judged = unjudged.as_slice().is_empty();
        self.unjudged = unjudged;
        self.settle(in_force);
        Ok(EndedConnections {
            flows,
            sockets,
            is_unfinished: !is_judged || self.revoked.has_reconsidered(),
        })
    }

    /// Forgets what the last search was about, once all its flows are judged. Pods whose rules the kernel refuses are asked about
    /// again.
    fn settle(&mut self, in_force: InForce<'_>) {
        if self.unjudged.as_slice().is_empty() {
            let judged = std::mem::take(&mut self.judged).pods.into_iter();
            self.due
                .pods
                .extend(judged.filter(|(pod, _)| in_force.refused.contains_key(pod)));
        }
    }

    /// Flows that were allowed under earlier rules, or by none, and are not any more; and those of pods that are gone. As many as
    /// a slice has; the others stay unjudged.
    fn forbidden(
        &self,
        in_force: InForce<'_>,
        unjudged: &mut impl Iterator<Item = Flow>,
        own_node: &BTreeSet<IpAddr>,
    ) -> Vec<(FlowAction, Revoked)> {
        let owners = Owner::by_address(in_force);
        let evaluator = Evaluator {
            sets: in_force.sets,
            own_node: Some(own_node),
        };
        let mut forbidden = Vec::new();
        for flow in unjudged.take(LOOKED_AT) {
            let actions = Direction::ALL.map(|direction| {
                let owner = owners.get(&pods_end(direction, &flow));
                (
                    self.flow_action(in_force, direction, &flow, owner, evaluator),
                    direction,
                )
            });
            // What is deleted needs no mark.
            let deleted = actions
                .iter()
                .find(|(flow_action, _)| *flow_action == Some(FlowAction::Delete));
            let ended = deleted.map_or(&actions[..], std::slice::from_ref);
            for (flow_action, direction) in ended {
                let revoked = Revoked {
                    direction: *direction,
                    flow: flow.clone(),
                };
                forbidden.extend(flow_action.map(|flow_action| (flow_action, revoked)));
            }
            if forbidden.len() >= SLICE {
                break;
            }
        }
        forbidden
    }

    /// What becomes of a flow for the sake of the pod at one of its ends.
    fn flow_action(
        &self,
        in_force: InForce<'_>,
        direction: Direction,
        flow: &Flow,
        owner: Option<&Owner<'_>>,
        evaluator: Evaluator<'_>,
    ) -> Option<FlowAction> {
        let Reevaluation {
            pods,
            affected,
            vacated,
            reassigned,
            ..
        } = &self.judged;
        let address = pods_end(direction, flow);
        // What has a new pod since may be that pod's own by now: the next search tells.
        if self.due.reassigned.contains(&address) {
            return None;
        }
        let marks: Marks = in_force.marks;
        let is_unmarked = marks.unmarked(direction).is_in(flow.mark);
        let is_revoked = marks.revoked(direction).is_in(flow.mark);
        let is_gone = marks.gone(direction).is_in(flow.mark);
        let is_present = owner.is_some_and(|owner| owner.has_allowed(direction, flow));
        let is_of_another =
            (vacated.contains(&address) || reassigned.contains(&address)) && !is_unmarked && !is_present;
        match owner {
            Some(_) if is_gone || is_of_another => return Some(FlowAction::Delete),
            None if is_of_another && !is_gone => return Some(FlowAction::MarkGone),
            Some(_) | None => {}
        }
        let rules = owner.map(|owner| owner.rules);
        let rules = rules.filter(|rules| !in_force.refused.contains_key(&rules.pod))?;
        let is_asked =
            pods.contains(&(rules.pod.clone(), direction)) || affected.concern(&rules.pod, direction, flow);
        if !is_asked || is_revoked || is_present {
            return None;
        }
        // What the own node opens is never judged, and never marked.
        let is_exempt =
            is_unmarked && direction == Direction::Ingress && evaluator.is_of_own_node(flow.original.source);
        (!is_exempt && !evaluator.allows(rules, direction, flow)).then_some(FlowAction::Revoke)
    }

    /// Takes the mark off what is allowed again: its next packet is judged. One slice of it.
    fn unrevoke(
        &mut self,
        in_force: InForce<'_>,
        conntrack: &mut Conntrack,
        own_node: &BTreeSet<IpAddr>,
    ) -> Result<(), netlink::Error> {
        let owners = in_force.pods.by_address();
        let evaluator = Evaluator {
            sets: in_force.sets,
            own_node: Some(own_node),
        };
        let is_allowed_again = |one: &Revoked, Changed { pods, sets }: &Changed| {
            let owner = owners.get(&pods_end(one.direction, &one.flow));
            let owner = owner.filter(|rules| !in_force.refused.contains_key(&rules.pod));
            owner.is_some_and(|rules| {
                (pods.contains(&rules.pod) || names_any(rules, one.direction, sets))
                    && evaluator.allows(rules, one.direction, &one.flow)
            })
        };
        let allowed_again = self.revoked.take_allowed((SLICE, LOOKED_AT), is_allowed_again);
        let unmarked = allowed_again
            .iter()
            .map(|one| (&one.flow, in_force.marks.unmarked(one.direction)));
        let unmarked: Vec<_> = unmarked.collect();
        if let Err(error) = conntrack.set_marks(&unmarked) {
            self.reload = true;
            return Err(error);
        }
        Ok(())
    }

    /// Ends the sockets of both ends, where they are pods of this node. The socket knows the addresses that it sends by: the
    /// opener's those before any rewriting (a Service's), the other's those behind it.
    fn end_sockets(&mut self, in_force: InForce<'_>, forbidden: &[(FlowAction, Revoked)]) -> u64 {
        if self.judged.keep_sockets {
            return 0;
        }
        let interfaces = in_force.pods.interfaces_by_address();
        let mut wanted: BTreeMap<InterfaceName, Vec<Connection>> = BTreeMap::new();
        for tuple in forbidden
            .iter()
            .flat_map(|(flow_action, one)| self.senders(*flow_action, &one.flow))
        {
            let interface = interfaces.get(&tuple.source);
            if let Some((interface, held)) = interface.zip(pod_sockets::sending(&tuple)) {
                wanted.entry((*interface).clone()).or_default().push(held);
            }
        }
        let outcome = pod_sockets::end(&wanted);
        if let Some(hindered) = outcome.hindered {
            self.warn_once(hindered);
        }
        outcome.ended
    }

    /// Who sends in a flow that ends. A pod that took an address has no socket of the one before.
    fn senders(&self, flow_action: FlowAction, flow: &Flow) -> impl Iterator<Item = Tuple> + use<'_> {
        let is_new = move |tuple: &Tuple| {
            flow_action == FlowAction::Delete && self.judged.reassigned.contains(&tuple.source)
        };
        let both = [flow.original, flow.reply].into_iter();
        both.filter(move |tuple| !is_new(tuple))
    }
}

/// A pod at an end of flows.
#[derive(Clone, Copy, Debug)]
struct Owner<'a> {
    rules: &'a PodRules,
    /// Of flows that the rules of now allowed.
    marks: Option<PodMarks>,
}

impl<'a> Owner<'a> {
    /// All of this node. To find the marks of a pod takes longer than to judge a flow: not for each flow.
    fn by_address(in_force: InForce<'a>) -> BTreeMap<IpAddr, Self> {
        let mut found = BTreeMap::new();
        for rules in in_force.pods.rules() {
            let marks = in_force.generations.marks(PodChains::of(&rules.pod));
            let owner = Self { rules, marks };
            found.extend(rules.addresses.iter().map(|address| (*address, owner)));
        }
        found
    }

    /// Whether the rules of now allowed it.
    fn has_allowed(&self, direction: Direction, flow: &Flow) -> bool {
        self.marks
            .is_some_and(|marks| marks.of(direction).is_in(flow.mark))
    }
}
