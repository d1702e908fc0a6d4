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
use egret_policies::rules::{Batch, Direction, PodRules, SetId};
use egret_shared::pod::PodKey;
use egret_shared::switch::{Switch, is_off};

use super::affected::Suspects;
use super::flow_dump::{Question, Seen};
use super::pod_sockets::{self, Held};
use super::verdict::Judge;
use crate::backend::Ended;
use crate::backend::netfilter::driver::Netfilter;
use crate::backend::netfilter::marks::Marks;
use crate::backend::netfilter::model::pods::Pods;
use crate::backend::netfilter::model::pods::is_another_run;
use crate::backend::netfilter::model::pods::names_any;
use crate::backend::netfilter::names::PodChains;

/// What is to be looked at, and what was revoked.
#[derive(Debug, Default)]
pub(crate) struct Revocations {
    /// Pods whose open flows are to be judged.
    asked: BTreeSet<(PodKey, Direction)>,
    /// Those of whose flows only some are.
    suspects: Suspects,
    /// Addresses that a pod had: what it opened ends, whoever has the address now.
    left: BTreeSet<IpAddr>,
    /// Addresses that have a pod, and had none or another one: what was allowed to that is deleted.
    taken: BTreeSet<IpAddr>,
    /// What may allow again what was revoked.
    moved: Moved,
    /// As of the last look, for there may be many and each change asks for them.
    revoked: Vec<Revoked>,
    /// The list is to be read from the kernel.
    recall: bool,
    /// The flows as they were when the rules in force had been written. What was opened later was judged by these.
    pub(crate) seen: Option<Seen>,
    /// Sockets stay: what is known may not be whole yet.
    spare_sockets: bool,
    said: BTreeSet<String>,
}

#[derive(Debug, Default)]
struct Moved {
    pods: BTreeSet<PodKey>,
    sets: BTreeSet<SetId>,
}

#[derive(Clone, Debug)]
struct Revoked {
    direction: Direction,
    flow: Flow,
}

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

impl Revocations {
    /// After a start everything is looked at, since the last life may have ended in the middle. Records may not be back yet, so
    /// nothing is done that cannot be taken back; but at the addresses of pods that the last life did not know, which may have had
    /// others by then.
    pub(crate) fn start<'a>(
        &mut self,
        pods: impl Iterator<Item = &'a PodRules>,
        is_new: impl Fn(&PodRules) -> bool,
    ) {
        for rules in pods {
            self.ask(Direction::ALL.map(|direction| (rules.pod.clone(), direction)));
            if is_new(rules) {
                self.taken.extend(&rules.addresses);
            }
        }
        self.recall = true;
        self.spare_sockets = true;
    }

    pub(crate) fn ask(&mut self, asked: impl IntoIterator<Item = (PodKey, Direction)>) {
        self.asked.extend(asked);
    }

    /// What these have open was seen, and what is to be judged again has no mark any more. Whoever is asked about besides has other
    /// flows.
    pub(crate) fn suspect(&mut self, suspects: Suspects, seen: Seen) {
        if seen.flows.is_empty() {
            return;
        }
        self.seen = (!self.has_asked()).then_some(seen);
        self.suspects.extend(suspects);
    }

    /// Takes note of a batch, before the pods are replaced.
    pub(crate) fn note(&mut self, batch: &Batch, pods: &Pods) {
        let had = |pod: &PodKey| pods.get(pod).map_or(&[][..], |local| &local.rules().addresses);
        for pod in &batch.pods_removed {
            self.left.extend(had(pod));
        }
        for rules in &batch.rules_replaced {
            let is_another = pods
                .get(&rules.pod)
                .is_some_and(|local| is_another_run(local.rules(), rules));
            let kept = |address: &&IpAddr| !is_another && rules.addresses.contains(address);
            let (kept, gone): (BTreeSet<IpAddr>, BTreeSet<IpAddr>) = had(&rules.pod).iter().partition(kept);
            self.left.extend(gone);
            let taken = rules.addresses.iter().filter(|address| !kept.contains(address));
            let taken: BTreeSet<IpAddr> = taken.copied().collect();
            if !taken.is_empty() {
                self.ask(Direction::ALL.map(|direction| (rules.pod.clone(), direction)));
            }
            self.taken.extend(taken);
        }
        if !self.revoked.is_empty() {
            let replaced = batch.rules_replaced.iter().map(|rules| rules.pod.clone());
            self.moved.pods.extend(replaced);
            let changed = batch.members_changed.iter().map(|change| change.set);
            self.moved.sets.extend(changed);
        }
    }

    /// Looks again which flows are revoked: those that ended are forgotten.
    pub(crate) fn look_again(&mut self) {
        self.recall |= !self.revoked.is_empty();
    }

    /// Rules are about to be written: flows of before may be opened until then.
    pub(crate) fn forget_seen(&mut self) {
        self.seen = None;
    }

    fn has_work(&self) -> bool {
        let has_moved = !self.moved.pods.is_empty() || !self.moved.sets.is_empty();
        has_moved || self.recall || self.has_asked()
    }

    fn has_asked(&self) -> bool {
        let has_left = !self.left.is_empty() || !self.taken.is_empty();
        has_left || !self.asked.is_empty() || !self.suspects.is_empty()
    }

    fn say_once(&mut self, hindered: String) {
        if self.said.len() < MOST_SAID && self.said.insert(hindered.clone()) {
            tracing::warn!(
                reason = hindered,
                "programs whose connections are revoked learn it only by their silence"
            );
        }
    }
}

/// Then it is known.
const MOST_SAID: usize = 16;

impl Netfilter {
    /// Ends what the batches so far forbid. What cannot be done now is done the next time.
    pub(crate) fn revoke(&mut self) -> Ended {
        let seen = self.revocations.seen.take();
        let opened = self.sets.lock().take_meanwhile();
        if !self.revocations.revoked.is_empty() {
            self.revocations.moved.sets.extend(opened);
        }
        if !self.revocations.has_work() || self.broken.is_some() || is_off(Switch::Revoke) {
            return Ended::default();
        }
        self.try_to_revoke(seen).unwrap_or_else(|error| {
            tracing::warn!(%error, "connections that are forbidden by now may go on until it is tried again");
            Ended::default()
        })
    }

    fn try_to_revoke(&mut self, seen: Option<Seen>) -> Result<Ended, netlink::Error> {
        let mut conntrack = Conntrack::open()?;
        let own_node = Links::open()?.addresses()?;
        let own_node = own_node.into_iter().map(|address| address.net.addr()).collect();
        let seen = self.seen_or_look(&mut conntrack, seen)?;
        let forbidden = self.forbidden(seen, &own_node);
        self.forgive(&mut conntrack, &own_node)?;
        let mut ended = Ended::default();
        for (fate, one) in &forbidden {
            let marks = self.settings.marks;
            ended.flows += u64::from(match fate {
                Fate::Revoke => conntrack.set_mark(&one.flow, marks.revoked(one.direction))?,
                Fate::Leave => conntrack.set_mark(&one.flow, marks.left(one.direction))?,
                Fate::Delete => conntrack.delete(&one.flow)?,
            });
        }
        ended.sockets = self.end_sockets(&forbidden);
        let refused = &self.refused;
        let revocations = &mut self.revocations;
        let revoked = forbidden.into_iter().filter(|(fate, _)| *fate == Fate::Revoke);
        revocations.revoked.extend(revoked.map(|(_, one)| one));
        revocations.asked.retain(|(pod, _)| refused.contains_key(pod));
        revocations.suspects = Suspects::default();
        revocations.left.clear();
        revocations.taken.clear();
        revocations.spare_sockets = false;
        Ok(ended)
    }

    /// The flows in question, and which flows are revoked where that is to be read.
    fn seen_or_look(
        &mut self,
        conntrack: &mut Conntrack,
        seen: Option<Seen>,
    ) -> Result<Seen, netlink::Error> {
        let question = self.ends_in_question();
        // What has a new pod by now may be that pod's own by now.
        let before = seen.filter(|seen| seen.has(&question) && self.revocations.taken.is_empty());
        let more = if self.revocations.recall {
            Direction::ALL.len()
        } else {
            0
        };
        let Some(before) = before else {
            let seen = Seen::look(conntrack, question, more)?;
            self.recall(conntrack, Some(&seen).filter(|seen| seen.is_all))?;
            return Ok(seen);
        };
        // Some may have been revoked since.
        self.recall(conntrack, None)?;
        Ok(before)
    }

    /// Takes note of the flows that are revoked, out of all that there are now or as the kernel tells.
    fn recall(&mut self, conntrack: &mut Conntrack, all: Option<&Seen>) -> Result<(), netlink::Error> {
        if !self.revocations.recall {
            return Ok(());
        }
        let mut revoked = Vec::new();
        for direction in Direction::ALL {
            let mark = self.settings.marks.revoked(direction);
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
        self.revocations.moved.pods.extend(self.pods.keys().cloned());
        self.revocations.revoked = revoked;
        self.revocations.recall = false;
        Ok(())
    }

    /// Flows that were allowed under earlier rules, or by none, and are not any more; and those of pods that are gone.
    fn forbidden(&self, seen: Seen, own_node: &BTreeSet<IpAddr>) -> Vec<(Fate, Revoked)> {
        let owners = self.pods.by_address();
        let judge = Judge {
            sets: &self.sets,
            own_node,
        };
        let mut forbidden = Vec::new();
        for flow in seen.flows {
            let fates = Direction::ALL.map(|direction| {
                let owner = owners.get(&pods_end(direction, &flow)).copied();
                (self.fate(direction, &flow, owner, judge), direction)
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
    pub(crate) fn ends_in_question(&self) -> Question {
        let Revocations {
            asked,
            suspects,
            left,
            taken,
            ..
        } = &self.revocations;
        let in_force = asked.iter().filter(|(pod, _)| !self.refused.contains_key(pod));
        let asked = in_force.flat_map(|(pod, direction)| {
            let local = self.pods.get(pod).into_iter();
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
        direction: Direction,
        flow: &Flow,
        owner: Option<&PodRules>,
        judge: Judge<'_>,
    ) -> Option<Fate> {
        let Revocations {
            asked,
            suspects,
            left,
            taken,
            ..
        } = &self.revocations;
        let address = pods_end(direction, flow);
        let marks: Marks = self.settings.marks;
        let is_unmarked = marks.unmarked(direction).is_in(flow.mark);
        let is_revoked = marks.revoked(direction).is_in(flow.mark);
        let is_left = marks.left(direction).is_in(flow.mark);
        let is_present = self.is_of_present_rules(direction, flow, owner);
        let is_of_another =
            (left.contains(&address) || taken.contains(&address)) && !is_unmarked && !is_present;
        match owner {
            Some(_) if is_left || is_of_another => return Some(Fate::Delete),
            None if is_of_another && !is_left => return Some(Fate::Leave),
            Some(_) | None => {}
        }
        let rules = owner.filter(|rules| !self.refused.contains_key(&rules.pod))?;
        let is_asked =
            asked.contains(&(rules.pod.clone(), direction)) || suspects.concern(&rules.pod, direction, flow);
        if !is_asked || is_revoked || is_present {
            return None;
        }
        // What the own node opens is never judged, and never marked.
        let is_exempt =
            is_unmarked && direction == Direction::Ingress && judge.own_node.contains(&flow.original.source);
        (!is_exempt && !judge.allows(rules, direction, flow)).then_some(Fate::Revoke)
    }

    /// Whether the rules that the owner of the address has now allowed it.
    fn is_of_present_rules(&self, direction: Direction, flow: &Flow, owner: Option<&PodRules>) -> bool {
        let present = owner.and_then(|rules| self.generations.marks(PodChains::of(&rules.pod)));
        present.is_some_and(|present| match direction {
            Direction::Egress => present.egress.is_in(flow.mark),
            Direction::Ingress => present.ingress.is_in(flow.mark),
        })
    }

    /// Takes the mark off what is allowed again: its next packet is judged.
    fn forgive(
        &mut self,
        conntrack: &mut Conntrack,
        own_node: &BTreeSet<IpAddr>,
    ) -> Result<(), netlink::Error> {
        let Moved { pods, sets } = std::mem::take(&mut self.revocations.moved);
        let revoked = std::mem::take(&mut self.revocations.revoked);
        let owners = self.pods.by_address();
        let judge = Judge {
            sets: &self.sets,
            own_node,
        };
        let is_forgiven = |one: &Revoked| {
            let owner = owners.get(&pods_end(one.direction, &one.flow));
            let owner = owner.filter(|rules| !self.refused.contains_key(&rules.pod));
            owner.is_some_and(|rules| {
                (pods.contains(&rules.pod) || names_any(rules, one.direction, &sets))
                    && judge.allows(rules, one.direction, &one.flow)
            })
        };
        let (forgiven, kept): (Vec<_>, Vec<_>) = revoked.into_iter().partition(is_forgiven);
        self.revocations.revoked = kept;
        for one in forgiven {
            let unmarked = self.settings.marks.unmarked(one.direction);
            if let Err(error) = conntrack.set_mark(&one.flow, unmarked) {
                self.revocations.recall = true;
                return Err(error);
            }
        }
        Ok(())
    }

    /// Ends the sockets of both ends, where they are pods of this node. The socket knows the addresses that it sends by: the
    /// opener's those before any rewriting (a Service's), the other's those behind it.
    fn end_sockets(&mut self, forbidden: &[(Fate, Revoked)]) -> u64 {
        if self.revocations.spare_sockets {
            return 0;
        }
        let interfaces = self.pods.interfaces_by_address();
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
            self.revocations.say_once(hindered);
        }
        outcome.ended
    }

    /// Who sends in a flow that ends. A pod that took an address has no socket of the one before.
    fn senders(&self, fate: Fate, flow: &Flow) -> impl Iterator<Item = Tuple> + use<'_> {
        let is_new =
            move |tuple: &Tuple| fate == Fate::Delete && self.revocations.taken.contains(&tuple.source);
        let both = [flow.original, flow.reply].into_iter();
        both.filter(move |tuple| !is_new(tuple))
    }
}

/// The end of a flow at which a pod is judged.
fn pods_end(direction: Direction, flow: &Flow) -> IpAddr {
    match direction {
        Direction::Egress => flow.original.source,
        Direction::Ingress => flow.reply.source,
    }
}
