//! The status of the backend: for which pods the kernel is not as desired, and why.

use std::collections::BTreeMap;

use egret_policies::rules::{NodeRules, SetId};
use egret_shared::pod::PodKey;

use super::Netfilter;
use crate::backend::netfilter::sets::Failure;
use crate::backend::{Pending, SyncStatus};

impl Netfilter {
    pub(super) fn standing(&self, standing: SyncStatus) -> SyncStatus {
        let mut pending: BTreeMap<PodKey, Pending> = BTreeMap::new();
        let failed = self.sets.lock().failed().clone();
        for (pod, local) in self.pods.iter() {
            if let Err(reason) = local.locations() {
                pending.insert(pod.clone(), Pending::Unattached(reason.clone()));
            } else if local.has_moved() {
                let reason = "its address leads to another cable than before, which may be another pod's: that is closed";
                pending.insert(pod.clone(), Pending::Unattached(reason.to_owned()));
            }
            let named = local.rules().egress.sets().chain(local.rules().ingress.sets());
            if let Some(reason) = first_failed(&failed, named) {
                pending.insert(pod.clone(), Pending::Refused(reason.to_owned()));
            }
        }
        let refused = self.ruleset.refused().iter().map(|(pod, reason)| {
            let in_force = if self.ruleset.has_chains(pod) {
                ""
            } else {
                "it is closed: "
            };
            (pod.clone(), Pending::Refused(format!("{in_force}{reason}")))
        });
        pending.extend(refused);
        SyncStatus {
            pending,
            refused: self.refused_of_no_pod(&failed),
            broken: self
                .ruleset
                .broken()
                .map(str::to_owned)
                .or_else(|| self.stranded.clone()),
            bypassed_by: self.ruleset.bypassing_rules(),
            foreign_marks: self.drift_poll.foreign_marks().to_vec(),
            ..standing
        }
    }

    /// Sets by which no pod is judged, so that no pod waits for them.
    fn refused_of_no_pod(&self, failed: &BTreeMap<SetId, Failure>) -> Option<String> {
        let of_node = self.pods.node_rules().into_iter().flat_map(NodeRules::sets);
        let in_audit = self.pods.rules().flat_map(|rules| rules.audit.sets());
        let outside =
            first_failed(failed, of_node).map(|why| format!("rules for clients outside are closed: {why}"));
        outside.or_else(|| {
            first_failed(failed, in_audit).map(|why| format!("rules in audit are not asked: {why}"))
        })
    }
}

/// Why one of these sets is not as it should be.
fn first_failed(failed: &BTreeMap<SetId, Failure>, mut named: impl Iterator<Item = SetId>) -> Option<&str> {
    if failed.is_empty() {
        return None;
    }
    named
        .find_map(|id| failed.get(&id))
        .map(|failure| failure.reason.as_str())
}
