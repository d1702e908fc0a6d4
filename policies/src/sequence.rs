//! The sets in use: what each should hold, what a backend was told that it holds, and which pods' rules
//! name it. A set is made when the first rule names it and goes when the last one is gone.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use egret_shared::pod::PodKey;
use egret_shared::time::Timestamp;

use crate::compile::{NamedSet, SetContent, Use};
use crate::index::Index;
use crate::model::Direction;
use crate::records::{Records, Told};
use crate::rules::{Batch, Member, MembersChanged, SetId};

mod live;

use live::{Contributor, LiveSet};

/// All sets that rules name, or that a backend still has.
#[derive(Debug, Default)]
pub(crate) struct Sets {
    live: BTreeMap<SetId, LiveSet>,
    of_pods: BTreeSet<SetId>,
    of_nodes: BTreeSet<SetId>,
    of_records: BTreeMap<PodKey, BTreeSet<SetId>>,
    touched: BTreeSet<SetId>,
}

impl Sets {
    /// A pod's rules name other sets than before.
    pub(crate) fn replace_uses(
        &mut self,
        pod: &PodKey,
        before: Option<&BTreeMap<SetId, Use>>,
        after: &BTreeMap<SetId, Use>,
        index: &Index,
        records: &Records,
    ) {
        for id in before.into_iter().flat_map(BTreeMap::keys) {
            if let Some(set) = self.live.get_mut(id) {
                set.users.remove(pod);
                self.touched.insert(*id);
            }
        }
        for (id, used) in after {
            if !self.live.contains_key(id) {
                self.make(&used.set, index, records);
            }
            if let Some(set) = self.live.get_mut(id) {
                set.users.insert(pod.clone(), used.clone());
            }
        }
    }

    /// A pod, local or not, may look different.
    pub(crate) fn refresh_pod(&mut self, key: &PodKey, index: &Index) {
        let pod = index.live(key);
        for id in &self.of_pods {
            if let Some(set) = self.live.get_mut(id) {
                let members = pod
                    .as_ref()
                    .map(|pod| set.named.content.members_of_pod(pod))
                    .unwrap_or_default();
                if set.contribute(Contributor::Pod(key.clone()), members) {
                    self.touched.insert(*id);
                }
            }
        }
    }

    /// A node may look different.
    pub(crate) fn refresh_node(&mut self, name: &Arc<str>, index: &Index) {
        let node = index.node(name);
        for id in &self.of_nodes {
            if let Some(set) = self.live.get_mut(id) {
                let members = node
                    .map(|node| set.named.content.members_of_node(node))
                    .unwrap_or_default();
                if set.contribute(Contributor::Node(Arc::clone(name)), members) {
                    self.touched.insert(*id);
                }
            }
        }
    }

    /// A record came, changed or went; returns whether any set is about it.
    pub(crate) fn refresh_record(&mut self, told: &Told) -> bool {
        let mut is_wanted = false;
        for id in self.of_records.get(&told.pod).into_iter().flatten() {
            if let Some(set) = self.live.get_mut(id).filter(|set| set.is_about(&told.name)) {
                set.touch(Member::Address(told.address));
                self.touched.insert(*id);
                is_wanted = true;
            }
        }
        is_wanted
    }

    /// A record ended with its time: whoever holds it has dropped it too. Returns whether something is
    /// left to be said nevertheless.
    pub(crate) fn expire_record(&mut self, told: &Told, records: &Records, now: Timestamp) -> bool {
        let mut is_left = false;
        for id in self.of_records.get(&told.pod).into_iter().flatten() {
            if let Some(set) = self.live.get_mut(id).filter(|set| set.is_about(&told.name)) {
                let lives_on = set.record_expiry(told.address, records).is_some();
                if !lives_on && !set.drop_expired(Member::Address(told.address), now) {
                    set.touch(Member::Address(told.address));
                    self.touched.insert(*id);
                    is_left = true;
                }
            }
        }
        is_left
    }

    /// Writes what changed into a batch, in the order that its fields have; `is_old` tells the pods whose
    /// rules a backend had before.
    pub(crate) fn sequence(
        &mut self,
        batch: &mut Batch,
        records: &Records,
        now: Timestamp,
        is_old: impl Fn(&PodKey) -> bool,
    ) {
        let mut reevaluate: BTreeSet<(PodKey, Direction)> = batch.reevaluate.drain(..).collect();
        for id in std::mem::take(&mut self.touched) {
            let Some(set) = self.live.get_mut(&id) else {
                continue;
            };
            if set.users.is_empty() {
                if set.is_programmed {
                    batch.sets_destroyed.push(id);
                }
                self.unmake(id);
                continue;
            }
            let is_new = !set.is_programmed;
            if is_new {
                set.is_programmed = true;
                batch.sets_created.push(set.named.spec());
            }
            if let Some(changed) = set.changes(id, records, now) {
                if !is_new {
                    reevaluate.extend(set.suspects(&changed));
                }
                batch.members_changed.push(changed.members);
            }
        }
        batch
            .reevaluate
            .extend(reevaluate.into_iter().filter(|(pod, _)| is_old(pod)));
    }

    fn make(&mut self, named: &Arc<NamedSet>, index: &Index, records: &Records) {
        let mut set = LiveSet::new(Arc::clone(named));
        match &named.content {
            SetContent::Pods { .. } | SetContent::PodPorts { .. } => {
                self.of_pods.insert(named.id);
                for pod in index.live_pods(named.content.namespace()) {
                    let members = named.content.members_of_pod(&pod);
                    set.contribute(Contributor::Pod(pod.pod.key.clone()), members);
                }
            }
            SetContent::Nodes(_) => {
                self.of_nodes.insert(named.id);
                for node in index.nodes() {
                    let members = named.content.members_of_node(node);
                    set.contribute(Contributor::Node(Arc::clone(&node.name)), members);
                }
            }
            SetContent::Networks(networks) => {
                let members = networks.iter().copied().map(Member::Network).collect();
                set.contribute(Contributor::Policy, members);
            }
            SetContent::Records { pod, patterns } => {
                self.of_records.entry(pod.clone()).or_default().insert(named.id);
                let addresses: BTreeSet<IpAddr> = records.addresses(pod, patterns);
                for address in addresses {
                    set.touch(Member::Address(address));
                }
            }
        }
        self.live.insert(named.id, set);
        self.touched.insert(named.id);
    }

    fn unmake(&mut self, id: SetId) {
        let Some(set) = self.live.remove(&id) else {
            return;
        };
        self.of_pods.remove(&id);
        self.of_nodes.remove(&id);
        if let SetContent::Records { pod, .. } = &set.named.content
            && let Some(ids) = self.of_records.get_mut(pod)
        {
            ids.remove(&id);
            if ids.is_empty() {
                self.of_records.remove(pod);
            }
        }
    }
}

/// What happened to a set, with what of it opens and closes.
#[derive(Debug)]
struct Changed {
    members: MembersChanged,
    /// Whether a member came that was not there; one that only lives longer is not counted.
    has_new: bool,
}
