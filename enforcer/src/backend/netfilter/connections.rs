//! Open connections that a change of rules or set members concerns: which are re-evaluated, and which end.

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

pub(in crate::backend) use affected::AffectedConnections;

use flow_dump::FlowDump;
use inquiry::MemberInquiry;

use crate::backend::netfilter::marks::Marks;
use crate::backend::netfilter::marks::generations::Generations;
use crate::backend::netfilter::model::pods::{self, Pods};
use crate::backend::netfilter::model::set_contents::SetContents;

/// The rules in force, by which connections are judged.
#[derive(Clone, Copy, Debug)]
pub(in crate::backend) struct InForce<'a> {
    pub(in crate::backend) pods: &'a Pods,
    pub(in crate::backend) sets: &'a dyn SetContents,
    pub(in crate::backend) generations: &'a Generations,
    pub(in crate::backend) marks: Marks,
    /// Pods whose rules the kernel refuses: theirs are not in force.
    pub(in crate::backend) refused: &'a BTreeMap<PodKey, String>,
}

/// Connections that are to be judged again, and those that were revoked.
#[derive(Debug, Default)]
pub(in crate::backend) struct Connections {
    /// Pods whose open flows are to be judged.
    reevaluated: BTreeSet<(PodKey, Direction)>,
    /// Connections of other pods that changed members affect.
    affected: AffectedConnections,
    /// Addresses that a pod had: what it opened ends, even if another pod has the address now.
    vacated: BTreeSet<IpAddr>,
    /// Addresses that have a new pod: flows that were allowed to an earlier one are deleted.
    reassigned: BTreeSet<IpAddr>,
    /// Pods and sets that changed since: they may allow again what was revoked.
    changed_since: Changed,
    /// Revoked flows, cached: each change needs them, and there may be many.
    revoked: Vec<Revoked>,
    /// Whether `revoked` is to be read from the kernel.
    reload: bool,
    /// Flows as of when the rules in force were written. What opened later was judged by these rules.
    dump: Option<FlowDump>,
    /// Flows that the slices so far did not come to. None when more than these are to be judged.
    unjudged: Option<std::vec::IntoIter<Flow>>,
    /// Whether sockets are kept: after a start, records may not be complete yet.
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
    /// After a start everything is re-evaluated, since the last life may have ended in the middle. Records may not be complete yet,
    /// so nothing is done that cannot be undone, except at the addresses of pods that the last life did not know: they may have had
    /// other pods.
    pub(in crate::backend) fn start<'a>(
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

    pub(in crate::backend) fn reevaluate(
        &mut self,
        reevaluated: impl IntoIterator<Item = (PodKey, Direction)>,
    ) {
        self.reevaluated.extend(reevaluated);
    }

    /// Takes affected connections with their flows, whose marks are cleared. With other re-evaluations pending the dump does not
    /// serve.
    fn suspect(&mut self, affected: AffectedConnections, dump: FlowDump) {
        if dump.flows.is_empty() {
            return;
        }
        self.dump = (!self.has_reevaluated()).then_some(dump);
        self.unjudged = None;
        self.affected.extend(affected);
    }

    /// Takes note of a batch, before the pods are replaced.
    pub(in crate::backend) fn note(&mut self, batch: &Batch, pods: &Pods) {
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

    /// Reads the revoked flows again: those that ended are forgotten.
    pub(in crate::backend) fn reload_revoked(&mut self) {
        self.reload |= !self.revoked.is_empty();
    }

    /// Rules are about to be written: flows may still open under the earlier ones.
    pub(in crate::backend) fn forget_dump(&mut self) {
        self.dump = None;
        self.unjudged = None;
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

/// More warnings of this kind would say nothing new.
const MOST_WARNED: usize = 16;
