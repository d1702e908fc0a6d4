//! What the kernel refuses is left out, so that it concerns those alone who need it: a pod whose chains are refused is closed, as an
//! unknown pod is, and a rule over a set that is refused closes. All of it is tried again.
//!
//! Rules of before are not kept for a pod: they name sets that the same transaction changes.

use std::collections::{BTreeMap, BTreeSet};

use egret_kernel::nftables::{Object, Refusal};
use egret_policies::rules::{NodeRules, SetId};
use egret_shared::pod::PodKey;
use nix::errno::Errno;

use super::sets::SharedSets;
use crate::backend::netfilter::model::pods::Pods;
use crate::backend::{Pending, SyncStatus};

/// Those whom an object of the table concerns.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Concerned {
    pub(super) pods: BTreeSet<PodKey>,
    /// The rules for clients outside.
    pub(super) is_exposed: bool,
    pub(super) sets: BTreeSet<SetId>,
}

impl Concerned {
    pub(super) fn extend(&mut self, other: Self) {
        self.pods.extend(other.pods);
        self.is_exposed |= other.is_exposed;
        self.sets.extend(other.sets);
    }

    fn is_within(&self, other: &Self) -> bool {
        self.pods.is_subset(&other.pods)
            && self.is_exposed <= other.is_exposed
            && self.sets.is_subset(&other.sets)
    }
}

/// Who is left out, sets excepted, which know it themselves.
#[derive(Debug, Default)]
pub(super) struct Refusals {
    pods: BTreeMap<PodKey, String>,
    exposed: Option<String>,
    /// Those who were left out of a table that was written as a whole: what is refused to them is not due to what others did to it.
    known: Concerned,
}

impl Refusals {
    pub(super) fn has_pod(&self, pod: &PodKey) -> bool {
        self.pods.contains_key(pod)
    }

    pub(super) const fn pods(&self) -> &BTreeMap<PodKey, String> {
        &self.pods
    }

    pub(super) const fn has_exposed(&self) -> bool {
        self.exposed.is_some()
    }

    /// Has a pod tried again.
    pub(super) fn forget(&mut self, pod: &PodKey) {
        self.pods.remove(pod);
    }

    /// Has all tried again but sets.
    pub(super) fn forget_all(&mut self) {
        self.pods.clear();
        self.exposed = None;
    }

    /// Forgets who was left out of a whole table.
    pub(super) fn forget_known(&mut self) {
        self.known = Concerned::default();
    }

    /// Whether the same was refused of a table that was written as a whole.
    pub(super) fn is_known(&self, concerned: &Concerned) -> bool {
        concerned.is_within(&self.known)
    }

    /// Leaves these out; says whether any of them was not before.
    pub(super) fn leave_out(&mut self, concerned: Concerned, reason: &str, sets: &SharedSets) -> bool {
        let mut is_new = false;
        for pod in &concerned.pods {
            tracing::error!(%pod, reason, "a pod is closed: its rules are refused by the kernel");
            is_new |= self.pods.insert(pod.clone(), reason.to_owned()).is_none();
        }
        for set in &concerned.sets {
            tracing::error!(set = %set.digest(), reason, "a set is refused by the kernel: rules that name it close");
            is_new |= sets.lock().leave_out(*set, reason.to_owned());
        }
        if concerned.is_exposed {
            tracing::error!(
                reason,
                "the rules for clients outside are refused by the kernel: they close"
            );
            is_new |= self.exposed.replace(reason.to_owned()).is_none();
        }
        self.known.extend(concerned);
        is_new
    }

    /// Adds to a status who waits for what was refused.
    pub(super) fn add_to(&self, status: &mut SyncStatus, pods: &Pods, sets: &SharedSets) {
        let sets = sets.lock();
        let refused = sets.refused();
        for rules in pods.rules() {
            let named = rules.egress.sets().chain(rules.ingress.sets());
            if let Some(reason) = first_refused(refused, named) {
                status.pending.insert(rules.pod.clone(), Pending::Refused(reason));
            }
        }
        let closed = self.pods.iter();
        let closed =
            closed.map(|(pod, reason)| (pod.clone(), Pending::Refused(format!("it is closed: {reason}"))));
        status.pending.extend(closed);
        let of_node = || first_refused(refused, pods.node_rules().into_iter().flat_map(NodeRules::sets));
        let in_audit = || first_refused(refused, pods.rules().flat_map(|rules| rules.audit.sets()));
        let outside = self.exposed.clone().or_else(of_node);
        let outside = outside.map(|why| format!("rules for clients outside are closed: {why}"));
        status.refused =
            outside.or_else(|| in_audit().map(|why| format!("rules in audit are not asked: {why}")));
    }
}

/// Why the first of these sets that is refused is.
fn first_refused(
    refused: &BTreeMap<SetId, String>,
    mut named: impl Iterator<Item = SetId>,
) -> Option<String> {
    if refused.is_empty() {
        return None;
    }
    named.find_map(|id| refused.get(&id)).cloned()
}

/// Of refused messages those that are not refused for the sake of others: what a refused one was to make is missing behind it. Where all
/// say that something is missing, the first is the cause.
pub(super) fn causes(refused: &[Refusal]) -> Vec<&Refusal> {
    let is_missing = |refusal: &&Refusal| refusal.error.refusal_code() == Some(Errno::ENOENT as i32);
    let causes: Vec<&Refusal> = refused.iter().filter(|refusal| !is_missing(refusal)).collect();
    if causes.is_empty() {
        return refused.iter().take(1).collect();
    }
    causes
}

/// A refusal in words.
pub(super) fn reason(refusal: &Refusal) -> String {
    let name = match &refusal.object {
        Object::Table => return refusal.error.to_string(),
        Object::Chain(name) | Object::Set(name) | Object::Counter(name) => name,
    };
    format!("{name}: {}", refusal.error)
}

#[cfg(test)]
mod tests {
    use egret_kernel::netlink::Error;

    use super::*;

    #[test]
    fn what_is_missing_behind_a_refused_message_is_not_the_cause() {
        let refusal = |name: &str, errno| Refusal {
            object: Object::Chain(name.to_owned()),
            error: Error::refused("x", errno),
        };
        let row = |refused: &[(&str, Errno)]| {
            let refused: Vec<Refusal> = refused
                .iter()
                .map(|(name, errno)| refusal(name, *errno))
                .collect();
            let names = causes(&refused).into_iter().map(|cause| match &cause.object {
                Object::Chain(name) => name.clone(),
                object => panic!("{object:?}"),
            });
            names.collect::<Vec<String>>()
        };
        assert_eq!(row(&[("a", Errno::EINVAL), ("map", Errno::ENOENT)]), ["a"]);
        assert_eq!(
            row(&[("map", Errno::ENOENT), ("a", Errno::EINVAL), ("b", Errno::EEXIST)]),
            ["a", "b"]
        );
        assert_eq!(row(&[("a", Errno::ENOENT), ("b", Errno::ENOENT)]), ["a"]);
        assert!(row(&[]).is_empty());
    }
}
