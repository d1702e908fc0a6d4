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

pub(crate) use affected::AffectedConnections;

use flow_dump::FlowDump;
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
    reevaluated: BTreeSet<(PodKey, Direction)>,
    /// Those of whose flows only some are.
    affected: AffectedConnections,
    /// Addresses that a pod had: what it opened ends, whoever has the address now.
    vacated: BTreeSet<IpAddr>,
    /// Addresses that have a pod, and had none or another one: what was allowed to that is deleted.
    reassigned: BTreeSet<IpAddr>,
    /// What may allow again what was revoked.
    changed_since: Changed,
    /// As of the last look, for there may be many and each change asks for them.
    revoked: Vec<Revoked>,
    /// The list is to be read from the kernel.
    reload: bool,
    /// The flows as they were when the rules in force had been written. What was opened later was judged by these.
    dump: Option<FlowDump>,
    /// Sockets stay: what is known may not be whole yet.
    keep_sockets: bool,
    warned: BTreeSet<String>,
    inquiry: MemberInquiry,
}

#[derive(Debug, Default)]
struct Changed {
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
                self.reassigned.extend(&rules.addresses);
            }
        }
        self.reload = true;
        self.keep_sockets = true;
    }

    pub(crate) fn reevaluate(&mut self, reevaluated: impl IntoIterator<Item = (PodKey, Direction)>) {
        self.reevaluated.extend(reevaluated);
    }

    /// What these have open was seen, and what is to be judged again has no mark any more. Whoever is asked about besides has other
    /// flows.
    fn suspect(&mut self, affected: AffectedConnections, dump: FlowDump) {
        if dump.flows.is_empty() {
            return;
        }
        self.dump = (!self.has_reevaluated()).then_some(dump);
        self.affected.extend(affected);
    }

    /// Takes note of a batch, before the pods are replaced.
    pub(crate) fn note(&mut self, batch: &Batch, pods: &Pods) {
        let had = |pod: &PodKey| pods.get(pod).map_or(&[][..], |local| &local.rules().addresses);
        for pod in &batch.pods_removed {
            self.vacated.extend(had(pod));
        }
        for rules in &batch.rules_replaced {
            let is_another = pods
                .get(&rules.pod)
                .is_some_and(|local| pods::is_another_run(local.rules(), rules));
            let kept = |address: &&IpAddr| !is_another && rules.addresses.contains(address);
            let (kept, gone): (BTreeSet<IpAddr>, BTreeSet<IpAddr>) = had(&rules.pod).iter().partition(kept);
            self.vacated.extend(gone);
            let reassigned = rules.addresses.iter().filter(|address| !kept.contains(address));
            let reassigned: BTreeSet<IpAddr> = reassigned.copied().collect();
            if !reassigned.is_empty() {
                self.reevaluate(Direction::ALL.map(|direction| (rules.pod.clone(), direction)));
            }
            self.reassigned.extend(reassigned);
        }
        if !self.revoked.is_empty() {
            let replaced = batch.rules_replaced.iter().map(|rules| rules.pod.clone());
            self.changed_since.pods.extend(replaced);
            let changed = batch.members_changed.iter().map(|change| change.set);
            self.changed_since.sets.extend(changed);
        }
    }

    /// Looks again which flows are revoked: those that ended are forgotten.
    pub(crate) fn reload_revoked(&mut self) {
        self.reload |= !self.revoked.is_empty();
    }

    /// Rules are about to be written: flows of before may be opened until then.
    pub(crate) fn forget_dump(&mut self) {
        self.dump = None;
    }

    fn has_work(&self) -> bool {
        let has_moved = !self.changed_since.pods.is_empty() || !self.changed_since.sets.is_empty();
        has_moved || self.reload || self.has_reevaluated()
    }

    fn has_reevaluated(&self) -> bool {
        let has_vacated = !self.vacated.is_empty() || !self.reassigned.is_empty();
        has_vacated || !self.reevaluated.is_empty() || !self.affected.is_empty()
    }

    fn warn_once(&mut self, hindered: String) {
        if self.warned.len() < MOST_WARNED && self.warned.insert(hindered.clone()) {
            tracing::warn!(
                reason = hindered,
                "programs whose connections are revoked learn it only by their silence"
            );
        }
    }
}

/// Then it is known.
const MOST_WARNED: usize = 16;
