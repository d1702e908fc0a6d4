//! Open connections that a change of rules or set members concerns: which are re-evaluated, and which end.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use egret_kernel::conntrack::Flow;
use egret_policies::rules::{Batch, Direction, PodRules};
use egret_shared::pod::PodKey;

mod flow_dump;
mod affected;
mod revoked;
mod search;
mod verdict;
mod revocation;
mod expired_records;
mod pod_sockets;

pub(in crate::backend) use affected::AffectedConnections;
pub(in crate::backend) use expired_records::carry_over;

use flow_dump::FlowQuery;
use revoked::RevokedFlows;
use search::Search;

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
    /// What the next search is about.
    due: Reevaluation,
    /// Whether what is due waits for the next batch or comparison: the kernel refused something.
    is_waiting: bool,
    search: Search,
    /// What the last search was about, until its flows are judged.
    judged: Reevaluation,
    /// Flows of the last search that the slices so far did not come to.
    unjudged: std::vec::IntoIter<Flow>,
    revoked: RevokedFlows,
    /// Whether `revoked` is to be read from the kernel.
    reload: bool,
    warned: BTreeSet<String>,
}

/// Which open connections are to be judged again.
#[derive(Debug, Default)]
struct Reevaluation {
    /// Pods whose open flows are to be judged.
    pods: BTreeSet<(PodKey, Direction)>,
    /// Connections of other pods that changed members affect.
    affected: AffectedConnections,
    /// Addresses that a pod had: what it opened ends, even if another pod has the address now.
    vacated: BTreeSet<IpAddr>,
    /// Addresses that have a new pod: flows that were allowed to an earlier one are deleted.
    reassigned: BTreeSet<IpAddr>,
    /// Whether sockets are kept: after a start, records may not be complete yet.
    keep_sockets: bool,
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
                self.due.reassigned.extend(&rules.addresses);
            }
        }
        self.due.keep_sockets = true;
        self.reload = true;
    }

    pub(in crate::backend) fn reevaluate(
        &mut self,
        reevaluated: impl IntoIterator<Item = (PodKey, Direction)>,
    ) {
        self.due.pods.extend(reevaluated);
    }

    /// Takes note of a batch, before the pods are replaced.
    pub(in crate::backend) fn note(&mut self, batch: &Batch, pods: &Pods) {
        self.is_waiting = false;
        let had = |pod: &PodKey| pods.get(pod).map_or(&[][..], |local| &local.rules().addresses);
        for pod in &batch.pods_removed {
            self.due.vacated.extend(had(pod));
        }
        for rules in &batch.rules_replaced {
            let is_another = pods
                .get(&rules.pod)
                .is_some_and(|local| pods::is_another_run(local.rules(), rules));
            let kept = |address: &&IpAddr| !is_another && rules.addresses.contains(address);
            let (kept, gone): (BTreeSet<IpAddr>, BTreeSet<IpAddr>) = had(&rules.pod).iter().partition(kept);
            self.due.vacated.extend(gone);
            let reassigned = rules.addresses.iter().filter(|address| !kept.contains(address));
            let reassigned: BTreeSet<IpAddr> = reassigned.copied().collect();
            if !reassigned.is_empty() {
                self.reevaluate(Direction::ALL.map(|direction| (rules.pod.clone(), direction)));
            }
            self.due.reassigned.extend(reassigned);
        }
        if !self.revoked.is_empty() {
            let replaced = batch.rules_replaced.iter().map(|rules| rules.pod.clone());
            let changed = batch.members_changed.iter().map(|change| change.set);
            self.revoked.reconsider(replaced.collect(), changed.collect());
        }
    }

    /// Reads the revoked flows again: those that ended are forgotten.
    pub(in crate::backend) fn reload_revoked(&mut self) {
        self.reload |= !self.revoked.is_empty();
        self.is_waiting = false;
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

impl Reevaluation {
    fn is_empty(&self) -> bool {
        let Self {
            pods,
            affected,
            vacated,
            reassigned,
            keep_sockets: _,
        } = self;
        pods.is_empty() && affected.is_empty() && vacated.is_empty() && reassigned.is_empty()
    }

    fn extend(&mut self, other: Self) {
        self.pods.extend(other.pods);
        self.affected.extend(other.affected);
        self.vacated.extend(other.vacated);
        self.reassigned.extend(other.reassigned);
        self.keep_sockets |= other.keep_sockets;
    }

    /// Takes out what can be judged now. What is about pods whose rules the kernel refuses waits.
    fn take_programmed(&mut self, in_force: InForce<'_>) -> Self {
        let mut programmed = std::mem::take(self);
        self.pods = programmed
            .pods
            .extract_if(.., |(pod, _)| in_force.refused.contains_key(pod))
            .collect();
        programmed
    }

    /// Where flows are that the rules may forbid, whatever members changed.
    fn query(&self, in_force: InForce<'_>) -> FlowQuery {
        let reevaluated = self.pods.iter().flat_map(|(pod, direction)| {
            let local = in_force.pods.get(pod).into_iter();
            let addresses = local.flat_map(|local| &local.rules().addresses);
            addresses.map(|address| (*direction, *address))
        });
        let whoever = self.vacated.iter().chain(&self.reassigned);
        let whoever = whoever.flat_map(|address| Direction::ALL.map(|direction| (direction, *address)));
        FlowQuery::about(reevaluated.chain(whoever).collect())
    }
}

/// More warnings of this kind would say nothing new.
const MOST_WARNED: usize = 16;
