//! Which local pod an answer belongs to: the one that has the client's address when the answer comes.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;
use std::sync::Arc;

use egret_shared::observation::Observation;
use egret_shared::pod::PodKey;
use egret_shared::time::Timestamp;

use crate::records::{
    PodChanges, PodSnapshot, RecordCursor, RecordKey, RecordSnapshot, RecordStats, SnapshotChange,
    UnattributedObservations,
};

use super::Compiler;

/// Local pods, and observations whose pod is not known yet.
#[derive(Debug, Default)]
pub(super) struct LocalPods {
    /// The order of nothing depends on theirs.
    pods: HashMap<PodKey, PodRun>,
    unattributed: UnattributedObservations,
    /// How many runs of a pod ended that had records, since it last had no rules.
    ended_runs: BTreeMap<PodKey, u32>,
}

/// One run of a pod. Another run under the same name has no records.
#[derive(Clone, Debug)]
struct PodRun {
    uid: Option<Arc<str>>,
    addresses: BTreeSet<IpAddr>,
}

impl LocalPods {
    /// How many runs of a pod ended whose sets a backend may still have.
    pub(super) fn ended_runs(&self, pod: &PodKey) -> u32 {
        self.ended_runs.get(pod).copied().unwrap_or(0)
    }

    /// The pod has no rules any more, and its sets go with them.
    pub(super) fn forget_ended_runs(&mut self, pod: &PodKey) {
        self.ended_runs.remove(pod);
    }
}

impl<State> Compiler<State> {
    /// Takes in an answer.
    pub(super) fn observe(&mut self, observation: Observation, now: Timestamp) {
        match self.index.owner(observation.client.to_canonical()).cloned() {
            Some(pod) if self.local_pods.pods.contains_key(&pod) => self.record(&pod, &observation, now),
            Some(_) => self.records.stats.unattributed += 1,
            None => self.local_pods.unattributed.keep(observation, now),
        }
    }

    /// Takes in what a run of a pod was told in an earlier life.
    pub(super) fn restore(&mut self, remembered: &PodSnapshot, now: Timestamp) {
        let is_same_run = self.local_pods.pods.get(&remembered.pod).is_some_and(|local| {
            let has_kept = |address: &IpAddr| local.addresses.contains(&address.to_canonical());
            let had_any = !remembered.addresses.is_empty();
            local.uid == remembered.uid && had_any && remembered.addresses.iter().all(has_kept)
        });
        if is_same_run {
            let changed = self.records.restore(&remembered.pod, &remembered.records, now);
            self.refresh_records(&changed);
            if self.sets.refresh_expired(&remembered.pod) {
                self.set_due();
            }
        }
    }

    /// What changed in the records since the last call, to be kept for `Event::Restored`: put together with what
    /// `walk_records` gave before, in the order in which they were given, it is all that is to be remembered. Of a pod that
    /// is gone, nothing is left.
    pub fn take_record_changes(&mut self) -> Vec<SnapshotChange> {
        let news = self.records.take_changes().into_iter();
        let change = |news: PodChanges| SnapshotChange {
            is_reset: news.is_anew,
            forgotten: news.forgotten,
            snapshot: self.remembered(news.pod, news.records),
        };
        news.map(change).collect()
    }

    /// The next of all records, also those that are over: of one pod, and at most so many. None when there are no more.
    #[must_use]
    pub fn next_records(&self, walk: &mut RecordCursor, most: usize) -> Option<PodSnapshot> {
        let (pod, records) = self.records.next_records(walk, most)?;
        Some(self.remembered(pod, records))
    }

    fn remembered(&self, pod: PodKey, records: Vec<RecordSnapshot>) -> PodSnapshot {
        let local = self.local_pods.pods.get(&pod);
        PodSnapshot {
            uid: local.and_then(|local| local.uid.clone()),
            addresses: local
                .map(|local| local.addresses.iter().copied().collect())
                .unwrap_or_default(),
            records,
            pod,
        }
    }

    /// Counts and limits of records.
    #[must_use]
    pub fn record_stats(&self) -> RecordStats {
        let stats = self.records.stats();
        RecordStats {
            unattributed: stats.unattributed + self.local_pods.unattributed.lost,
            ..stats
        }
    }

    /// Lets records end whose time is over.
    pub(super) fn expire(&mut self, now: Timestamp) {
        for told in self.records.expire(now) {
            if self.sets.expire_record(&told, &self.records, now) {
                self.set_due();
            }
        }
    }

    /// Some pods may have won or lost addresses, or be others than before.
    pub(super) fn refresh_locals(&mut self, touched: &BTreeSet<PodKey>, now: Timestamp) {
        let mut won = Vec::new();
        for key in touched {
            let before = self.local_pods.pods.remove(key);
            let after = self.local(key);
            let none = BTreeSet::new();
            self.protect_pod(key, after.as_ref().map_or(&none, |local| &local.addresses));
            if let Some(before) = &before {
                self.leave(key, before, after.as_ref(), now);
            }
            if let Some(after) = after {
                let had = before.map(|before| before.addresses).unwrap_or_default();
                won.extend(
                    after
                        .addresses
                        .difference(&had)
                        .map(|address| (key.clone(), *address)),
                );
                self.local_pods.pods.insert(key.clone(), after);
            }
        }
        for (key, address) in won {
            for observation in self.local_pods.unattributed.take(address, now) {
                self.record(&key, &observation, now);
            }
        }
    }

    fn local(&self, key: &PodKey) -> Option<PodRun> {
        self.index
            .live(key)
            .filter(|pod| self.is_local(pod))
            .map(|pod| PodRun {
                uid: pod.pod.uid.clone(),
                addresses: pod.addresses.iter().copied().collect(),
            })
    }

    /// A pod that lost an address, or is another run under the same name, was told nothing.
    fn leave(&mut self, key: &PodKey, before: &PodRun, after: Option<&PodRun>, now: Timestamp) {
        let lost: Vec<IpAddr> = before
            .addresses
            .iter()
            .filter(|address| after.is_none_or(|after| !after.addresses.contains(address)))
            .copied()
            .collect();
        let is_same_run = after.is_some_and(|after| after.uid == before.uid);
        if is_same_run && lost.is_empty() {
            return;
        }
        for address in lost {
            self.local_pods.unattributed.give_up(address, now);
        }
        let has_expired = self.records.has_expired(key);
        let gone = self.records.forget_pod(key);
        // Nothing takes back what a backend remembers beyond its time, so the next run has sets of its own. A record that still
        // counts may expire in the kernel before its removal gets there.
        if has_expired || !gone.is_empty() {
            *self.local_pods.ended_runs.entry(key.clone()).or_default() += 1;
        }
        self.refresh_records(&gone);
    }

    fn record(&mut self, pod: &PodKey, observation: &Observation, now: Timestamp) {
        let changed = self
            .records
            .observe(pod, &observation.question, &observation.addresses, now);
        self.sets.answer(&changed);
    }

    pub(super) fn refresh_records(&mut self, changed: &[RecordKey]) {
        if !self.sets.refresh_records(changed).is_empty() {
            self.set_due();
        }
    }
}
