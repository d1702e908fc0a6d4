//! Ends what is open and forbidden by now. The next packet that a flow's opener sends is judged anew in any case; but what
//! only the other side sends are replies, which nobody judges, and the program waits for answers that never come. So a flow
//! that the new rules forbid is marked as revoked, which ends it in both directions, and its sockets in the pods are ended.
//!
//! Flows of a pod that is there are never deleted: conntrack would pick up the next packet of either side as a new flow, maybe the
//! other way round. A revoked flow lives on while somebody sends, so its mark is taken back when the rules allow it again.
//!
//! Flows of a pod that is gone have a mark of their own, which no rules take back. They are deleted when the address has another
//! pod: what the other side still sends is then a new connection to that pod, judged by its rules, and what that pod sends is its own,
//! though it may have the old pod's ports.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use egret_kernel::conntrack::{Conntrack, Filter, Flow, Tuple};
use egret_kernel::iptables::InterfaceName;
use egret_kernel::links::Links;
use egret_kernel::netlink;
use egret_policies::rules::{Direction, PodRules};
use egret_shared::switch::{Switch, is_off};

use super::affected::Suspects;
use super::flow_dump::{Question, Seen};
use super::pod_sockets::{self, Held};
use super::verdict::Judge;
use super::{Connections, InForce, Moved, Revoked};
use crate::backend::Ended;
use crate::backend::netfilter::marks::Marks;
use crate::backend::netfilter::model::pods::names_any;
use crate::backend::netfilter::names::PodChains;

/// What is to be done about a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    /// It ends, as long as the rules are what they are.
    Revoke,
    /// It ends for good: it is of a pod that is gone.
    Leave,
    /// Nobody knows it any more: it is of a pod that is gone, and the address has another one.
    Delete,
}

impl Connections {
    /// Ends what the batches so far forbid. What cannot be done now is done the next time.
    pub(crate) fn revoke(&mut self, in_force: InForce<'_>, is_broken: bool) -> Ended {
        let seen = self.seen.take();
        let opened = in_force.sets.lock().take_meanwhile();
        if !self.revoked.is_empty() {
            self.moved.sets.extend(opened);
        }
        if !self.has_work() || is_broken || is_off(Switch::Revoke) {
            return Ended::default();
        }
        self.try_to_revoke(in_force, seen).unwrap_or_else(|error| {
            tracing::warn!(%error, "connections that are forbidden by now may go on until it is tried again");
            Ended::default()
        })
    }

    fn try_to_revoke(&mut self, in_force: InForce<'_>, seen: Option<Seen>) -> Result<Ended, netlink::Error> {
        let mut conntrack = Conntrack::open()?;
        let own_node = Links::open()?.addresses()?;
        let own_node = own_node.into_iter().map(|address| address.net.addr()).collect();
        let seen = self.seen_or_look(in_force, &mut conntrack, seen)?;
        let forbidden = self.forbidden(in_force, seen, &own_node);
        self.forgive(in_force, &mut conntrack, &own_node)?;
        let mut ended = Ended::default();
        for (fate, one) in &forbidden {
            let marks = in_force.marks;
            ended.flows += u64::from(match fate {
                Fate::Revoke => conntrack.set_mark(&one.flow, marks.revoked(one.direction))?,
                Fate::Leave => conntrack.set_mark(&one.flow, marks.left(one.direction))?,
                Fate::Delete => conntrack.delete(&one.flow)?,
            });
        }
        ended.sockets = self.end_sockets(in_force, &forbidden);
        let revoked = forbidden.into_iter().filter(|(fate, _)| *fate == Fate::Revoke);
        self.revoked.extend(revoked.map(|(_, one)| one));
        self.asked.retain(|(pod, _)| in_force.refused.contains_key(pod));
        self.suspects = Suspects::default();
        self.left.clear();
        self.taken.clear();
        self.spare_sockets = false;
        Ok(ended)
    }

    /// The flows in question, and which flows are revoked where that is to be read.
    fn seen_or_look(
        &mut self,
        in_force: InForce<'_>,
        conntrack: &mut Conntrack,
        seen: Option<Seen>,
    ) -> Result<Seen, netlink::Error> {
        let question = self.ends_in_question(in_force);
        // What has a new pod by now may be that pod's own by now.
        let before = seen.filter(|seen| seen.has(&question) && self.taken.is_empty());
        let more = if self.recall { Direction::ALL.len() } else { 0 };
        let Some(before) = before else {
            let seen = Seen::look(conntrack, question, more)?;
            self.recall(in_force, conntrack, Some(&seen).filter(|seen| seen.is_all))?;
            return Ok(seen);
        };
        // Some may have been revoked since.
        self.recall(in_force, conntrack, None)?;
        Ok(before)
    }

    /// Takes note of the flows that are revoked, out of all that there are now or as the kernel tells.
    fn recall(
        &mut self,
        in_force: InForce<'_>,
        conntrack: &mut Conntrack,
        all: Option<&Seen>,
    ) -> Result<(), netlink::Error> {
        if !self.recall {
            return Ok(());
        }
        let mut revoked = Vec::new();
        for direction in Direction::ALL {
            let mark = in_force.marks.revoked(direction);
            let flows = match all {
                Some(seen) => {
                    let marked = seen.flows.iter().filter(|flow| mark.is_in(flow.mark));
                    marked.cloned().collect()
                }
                None => conntrack.dump(&Filter {
                    mark: Some(mark),
                    ..Filter::ALL
                })?,
            };
            revoked.extend(flows.into_iter().map(|flow| Revoked { direction, flow }));
        }
        self.moved.pods.extend(in_force.pods.keys().cloned());
        self.revoked = revoked;
        self.recall = false;
        Ok(())
    }

    /// Flows that were allowed under earlier rules, or by none, and are not any more; and those of pods that are gone.
    fn forbidden(
        &self,
        in_force: InForce<'_>,
        seen: Seen,
        own_node: &BTreeSet<IpAddr>,
    ) -> Vec<(Fate, Revoked)> {
        let owners = in_force.pods.by_address();
        let judge = Judge {
            sets: in_force.sets,
            own_node: Some(own_node),
        };
        let mut forbidden = Vec::new();
        for flow in seen.flows {
            let fates = Direction::ALL.map(|direction| {
                let owner = owners.get(&pods_end(direction, &flow)).copied();
                (self.fate(in_force, direction, &flow, owner, judge), direction)
            });
            // What is deleted needs no mark.
            let deleted = fates.iter().find(|(fate, _)| *fate == Some(Fate::Delete));
            let ended = deleted.map_or(&fates[..], std::slice::from_ref);
            for (fate, direction) in ended {
                let revoked = Revoked {
                    direction: *direction,
                    flow: flow.clone(),
                };
                forbidden.extend(fate.map(|fate| (fate, revoked)));
            }
        }
        forbidden
    }

    /// Where flows are that may have to end.
    pub(super) fn ends_in_question(&self, in_force: InForce<'_>) -> Question {
        let Self {
            asked,
            suspects,
            left,
            taken,
            ..
        } = self;
        let programmed = asked
            .iter()
            .filter(|(pod, _)| !in_force.refused.contains_key(pod));
        let asked = programmed.flat_map(|(pod, direction)| {
            let local = in_force.pods.get(pod).into_iter();
            let addresses = local.flat_map(|local| &local.rules().addresses);
            addresses.map(|address| (*direction, *address))
        });
        let whoever = left.iter().chain(taken);
        let whoever = whoever.flat_map(|address| Direction::ALL.map(|direction| (direction, *address)));
        Question::about(asked.chain(whoever).collect()).and(suspects.question())
    }

    /// What becomes of a flow for the sake of the pod at one of its ends.
    fn fate(
        &self,
        in_force: InForce<'_>,
        direction: Direction,
        flow: &Flow,
        owner: Option<&PodRules>,
        judge: Judge<'_>,
    ) -> Option<Fate> {
        let Self {
            asked,
            suspects,
            left,
            taken,
            ..
        } = self;
        let address = pods_end(direction, flow);
        let marks: Marks = in_force.marks;
        let is_unmarked = marks.unmarked(direction).is_in(flow.mark);
        let is_revoked = marks.revoked(direction).is_in(flow.mark);
        let is_left = marks.left(direction).is_in(flow.mark);
        let is_present = is_of_present_rules(in_force, direction, flow, owner);
        let is_of_another =
            (left.contains(&address) || taken.contains(&address)) && !is_unmarked && !is_present;
        match owner {
            Some(_) if is_left || is_of_another => return Some(Fate::Delete),
            None if is_of_another && !is_left => return Some(Fate::Leave),
            Some(_) | None => {}
        }
        let rules = owner.filter(|rules| !in_force.refused.contains_key(&rules.pod))?;
        let is_asked =
            asked.contains(&(rules.pod.clone(), direction)) || suspects.concern(&rules.pod, direction, flow);
        if !is_asked || is_revoked || is_present {
            return None;
        }
        // What the own node opens is never judged, and never marked.
        let is_exempt =
            is_unmarked && direction == Direction::Ingress && judge.is_of_own_node(flow.original.source);
        (!is_exempt && !judge.allows(rules, direction, flow)).then_some(Fate::Revoke)
    }

    /// Takes the mark off what is allowed again: its next packet is judged.
    fn forgive(
        &mut self,
        in_force: InForce<'_>,
        conntrack: &mut Conntrack,
        own_node: &BTreeSet<IpAddr>,
    ) -> Result<(), netlink::Error> {
        let Moved { pods, sets } = std::mem::take(&mut self.moved);
        let revoked = std::mem::take(&mut self.revoked);
        let owners = in_force.pods.by_address();
        let judge = Judge {
            sets: in_force.sets,
            own_node: Some(own_node),
        };
        let is_forgiven = |one: &Revoked| {
            let owner = owners.get(&pods_end(one.direction, &one.flow));
            let owner = owner.filter(|rules| !in_force.refused.contains_key(&rules.pod));
            owner.is_some_and(|rules| {
                (pods.contains(&rules.pod) || names_any(rules, one.direction, &sets))
                    && judge.allows(rules, one.direction, &one.flow)
            })
        };
        let (forgiven, kept): (Vec<_>, Vec<_>) = revoked.into_iter().partition(is_forgiven);
        self.revoked = kept;
        for one in forgiven {
            let unmarked = in_force.marks.unmarked(one.direction);
            if let Err(error) = conntrack.set_mark(&one.flow, unmarked) {
                self.recall = true;
                return Err(error);
            }
        }
        Ok(())
    }

    /// Ends the sockets of both ends, where they are pods of this node. The socket knows the addresses that it sends by: the
    /// opener's those before any rewriting (a Service's), the other's those behind it.
    fn end_sockets(&mut self, in_force: InForce<'_>, forbidden: &[(Fate, Revoked)]) -> u64 {
        if self.spare_sockets {
            return 0;
        }
        let interfaces = in_force.pods.interfaces_by_address();
        let mut wanted: BTreeMap<InterfaceName, Vec<Held>> = BTreeMap::new();
        for tuple in forbidden
            .iter()
            .flat_map(|(fate, one)| self.senders(*fate, &one.flow))
        {
            let interface = interfaces.get(&tuple.source);
            if let Some((interface, held)) = interface.zip(Held::sending(&tuple)) {
                wanted.entry((*interface).clone()).or_default().push(held);
            }
        }
        let outcome = pod_sockets::end(&wanted);
        if let Some(hindered) = outcome.hindered {
            self.say_once(hindered);
        }
        outcome.ended
    }

    /// Who sends in a flow that ends. A pod that took an address has no socket of the one before.
    fn senders(&self, fate: Fate, flow: &Flow) -> impl Iterator<Item = Tuple> + use<'_> {
        let is_new = move |tuple: &Tuple| fate == Fate::Delete && self.taken.contains(&tuple.source);
        let both = [flow.original, flow.reply].into_iter();
        both.filter(move |tuple| !is_new(tuple))
    }
}

/// Whether the rules that the owner of the address has now allowed it.
fn is_of_present_rules(
    in_force: InForce<'_>,
    direction: Direction,
    flow: &Flow,
    owner: Option<&PodRules>,
) -> bool {
    let present = owner.and_then(|rules| in_force.generations.marks(PodChains::of(&rules.pod)));
    present.is_some_and(|present| match direction {
        Direction::Egress => present.egress.is_in(flow.mark),
        Direction::Ingress => present.ingress.is_in(flow.mark),
    })
}

/// The end of a flow at which a pod is judged.
fn pods_end(direction: Direction, flow: &Flow) -> IpAddr {
    match direction {
        Direction::Egress => flow.original.source,
        Direction::Ingress => flow.reply.source,
    }
}
