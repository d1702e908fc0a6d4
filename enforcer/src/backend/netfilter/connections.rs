//! Open connections that a change of rules or members concerns: which are judged again, and which end.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use egret_kernel::conntrack::Flow;
use egret_policies::rules::{Batch, Direction, PodRules, SetId};
use egret_shared::pod::PodKey;

mod flow_dump;
mod affected;
mod inquiry;
mod verdict;
mod revocation;
mod expired_records;
mod pod_sockets;

pub(crate) use affected::Suspects;

use flow_dump::Seen;
use inquiry::MemberInquiry;

use crate::backend::netfilter::marks::Marks;
use crate::backend::netfilter::marks::generations::Generations;
use crate::backend::netfilter::model::pods::{self, Pods};
use crate::backend::netfilter::sets::concurrent::SharedSets;

/// The rules in force, by which connections are judged.
#[derive(Clone, Copy, Debug)]
pub(crate) struct InForce<'a> {
    pub(crate) pods: &'a Pods,
    pub(crate) sets: &'a SharedSets,
    pub(crate) generations: &'a Generations,
    pub(crate) marks: Marks,
    /// Pods whose rules the kernel refuses: theirs are not in force.
    pub(crate) refused: &'a BTreeMap<PodKey, String>,
}

/// Connections that are to be judged again, and those that were revoked.
#[derive(Debug, Default)]
pub(crate) struct Connections {
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
    seen: Option<Seen>,
    /// Sockets stay: what is known may not be whole yet.
    spare_sockets: bool,
    said: BTreeSet<String>,
    inquiry: MemberInquiry,
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

impl Connections {
    /// After a start everything is looked at, since the last life may have ended in the middle. Records may not be back yet, so
    /// nothing is done that cannot be taken back; but at the addresses of pods that the last life did not know, which may have had
    /// others by then.
    pub(crate) fn start<'a>(
        &mut self,
        pods: impl Iterator<Item = &'a PodRules>,
        is_new: impl Fn(&PodRules) -> bool,
    ) {
        for rules in pods {
            self.reevaluate(Direction::ALL.map(|direction| (rules.pod.clone(), direction)));
            if is_new(rules) {
                self.taken.extend(&rules.addresses);
            }
        }
        self.recall = true;
        self.spare_sockets = true;
    }

    pub(crate) fn reevaluate(&mut self, asked: impl IntoIterator<Item = (PodKey, Direction)>) {
        self.asked.extend(asked);
    }

    /// What these have open was seen, and what is to be judged again has no mark any more. Whoever is asked about besides has other
    /// flows.
    fn suspect(&mut self, suspects: Suspects, seen: Seen) {
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
                .is_some_and(|local| pods::is_another_run(local.rules(), rules));
            let kept = |address: &&IpAddr| !is_another && rules.addresses.contains(address);
            let (kept, gone): (BTreeSet<IpAddr>, BTreeSet<IpAddr>) = had(&rules.pod).iter().partition(kept);
            self.left.extend(gone);
            let taken = rules.addresses.iter().filter(|address| !kept.contains(address));
            let taken: BTreeSet<IpAddr> = taken.copied().collect();
            if !taken.is_empty() {
                self.reevaluate(Direction::ALL.map(|direction| (rules.pod.clone(), direction)));
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
