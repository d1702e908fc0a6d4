//! The sets in use: what each should hold, what a backend was told that it holds, and which pods' rules
//! name it. A set is made when the first rule names it and goes when the last one is gone.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;
use std::sync::Arc;

use egret_shared::pod::PodKey;
use egret_shared::time::Timestamp;

use crate::compiler::index::{Index, LivePod};
use crate::compiler::set_content::{NamedSet, SetContent};
use crate::compiler::set_use::SetUse;
use crate::model::{NamespaceSelector, Selector};
use crate::records::{RecordKey, Records};
use crate::rules::{Member, SetId};

mod live_set;
mod pod_set_index;
mod name_set_index;
mod order;
mod affected;
mod set_users;
mod temporary_set;
mod answers;

pub(crate) use order::Batches;
pub(crate) use temporary_set::TemporarySet;

use affected::AffectedPods;
use live_set::{Contributor, LiveSet};
use name_set_index::NameSetIndex;
use order::{FormerUser, OrderedChange};
use pod_set_index::PodSetIndex;

/// Whose rules name a set.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum SetUser {
    Pod(PodKey),
    Node,
}

/// All sets that rules name, or that a backend still has.
#[derive(Debug, Default)]
pub(crate) struct Sets {
    /// By name, never walked through: the order of anything must not depend on it.
    live: HashMap<SetId, LiveSet>,
    of_pods: PodSetIndex,
    of_nodes: BTreeSet<SetId>,
    of_services: BTreeSet<SetId>,
    of_api_server: BTreeSet<SetId>,
    of_dns: BTreeSet<SetId>,
    of_records: NameSetIndex,
    touched: BTreeSet<SetId>,
    /// Those besides that answers are about which came since.
    answered: BTreeSet<SetId>,
    /// How rules that were just replaced named sets, and those of pods that are gone: a backend goes by them until it has
    /// the new ones.
    former: BTreeMap<SetId, (FormerUser, Vec<SetUse>)>,
    /// How often a set was asked for a pod.
    pub(crate) pods_tested: usize,
}

impl Sets {
    /// Somebody's rules name other sets than before.
    pub(crate) fn replace_uses(
        &mut self,
        user: &SetUser,
        before: Option<&BTreeMap<SetId, SetUse>>,
        after: &BTreeMap<SetId, SetUse>,
        index: &Index,
        records: &Records,
    ) {
        let gone = before
            .into_iter()
            .flatten()
            .filter(|(id, _)| !after.contains_key(id));
        for (id, used) in gone {
            self.change_use(user, *id, Some(used), None, index, records);
        }
        for (id, used) in after {
            let former = before.and_then(|before| before.get(id));
            if former != Some(used) {
                self.change_use(user, *id, former, Some(used), index, records);
            }
        }
    }

    /// Somebody's rules name a set otherwise than before, or not any more.
    pub(crate) fn change_use(
        &mut self,
        user: &SetUser,
        id: SetId,
        before: Option<&SetUse>,
        after: Option<&SetUse>,
        index: &Index,
        records: &Records,
    ) {
        if let (Some(before), Some(set)) = (before, self.live.get_mut(&id)) {
            set.users.remove(user);
            self.touched.insert(id);
            let (of, uses) = self
                .former
                .entry(id)
                .or_insert((FormerUser::Replaced, Vec::new()));
            *of = FormerUser::Replaced;
            uses.push(before.clone());
        }
        let Some(after) = after else { return };
        if !self.live.contains_key(&id) {
            self.make(&after.set, index, records);
        }
        if let Some(set) = self.live.get_mut(&id) {
            set.users.insert(user, after);
        }
    }

    /// The rules of somebody who is gone named a set.
    pub(crate) fn drop_use(&mut self, user: &SetUser, id: SetId, before: &SetUse) {
        if let Some(set) = self.live.get_mut(&id) {
            set.users.remove(user);
            self.touched.insert(id);
            let (_, uses) = self.former.entry(id).or_insert((FormerUser::Gone, Vec::new()));
            uses.push(before.clone());
        }
    }

    /// A pod, local or not, may look different.
    pub(crate) fn refresh_pod(&mut self, key: &PodKey, index: &Index) {
        let pod = index.live(key);
        for id in self.of_pods.concerned(key, pod.as_ref()) {
            if let Some(set) = self.live.get_mut(&id) {
                self.pods_tested += 1;
                let members = pod
                    .as_ref()
                    .map(|pod| set.named.content.members_of_pod(pod, index))
                    .unwrap_or_default();
                self.of_pods.note(key, id, !members.is_empty());
                if set.contribute(Contributor::Pod(key.clone()), members) {
                    self.touched.insert(id);
                }
            }
        }
    }

    /// A node may look different.
    pub(crate) fn refresh_node(&mut self, name: &Arc<str>, index: &Index) {
        for id in &self.of_nodes {
            if let Some(set) = self.live.get_mut(id) {
                let members = match index.knows_node(name) {
                    true => set.named.content.members_of_node(name, index),
                    false => BTreeSet::new(),
                };
                if set.contribute(Contributor::Node(Arc::clone(name)), members) {
                    self.touched.insert(*id);
                }
            }
        }
    }

    /// A Service may look different.
    pub(crate) fn refresh_service(&mut self, key: &PodKey, index: &Index) {
        for id in &self.of_services {
            if let Some(set) = self.live.get_mut(id) {
                let members = index
                    .service(key)
                    .map(|service| set.named.content.members_of_service(service))
                    .unwrap_or_default();
                if set.contribute(Contributor::Service(key.clone()), members) {
                    self.touched.insert(*id);
                }
            }
        }
    }

    /// The API server may be elsewhere.
    pub(crate) fn refresh_api_server(&mut self, index: &Index) {
        for id in &self.of_api_server {
            if let Some(set) = self.live.get_mut(id) {
                let members = set.named.content.members_of_api_server(index);
                if set.contribute(Contributor::Policy, members) {
                    self.touched.insert(*id);
                }
            }
        }
    }

    /// dnsd may answer in the place of other pods.
    pub(crate) fn refresh_dns(&mut self, index: &Index) {
        for id in &self.of_dns {
            if let Some(set) = self.live.get_mut(id) {
                let members = set.named.content.members_of_dns(index);
                if set.contribute(Contributor::Policy, members) {
                    self.touched.insert(*id);
                }
            }
        }
    }

    /// Whether some set is about what is no address of any node.
    pub(crate) fn depends_on_node_addresses(&self) -> bool {
        !self.of_services.is_empty()
    }

    /// Records came, changed or went; returns the sets that are about them. Those of one answer have one name, which
    /// is compared once.
    pub(crate) fn refresh_records(&mut self, changed: &[RecordKey]) -> Vec<SetId> {
        let concerned = self.mark_changed(changed);
        self.touched.extend(&concerned);
        concerned
    }

    fn mark_changed(&mut self, changed: &[RecordKey]) -> Vec<SetId> {
        self.mark_records(changed, |set, told| {
            set.touch(told.iter().map(|told| Member::Address(told.address)));
        })
    }

    /// The cluster itself took the addresses of records, live or over, or gave them up; returns the sets that are about
    /// them.
    pub(crate) fn refresh_protected(&mut self, changed: &[RecordKey]) -> Vec<SetId> {
        let concerned = self.mark_records(changed, |set, told| {
            set.protect(told.iter().map(|told| told.address));
        });
        self.touched.extend(&concerned);
        concerned
    }

    fn mark_records(
        &mut self,
        changed: &[RecordKey],
        mark: impl Fn(&mut LiveSet, &[RecordKey]),
    ) -> Vec<SetId> {
        let mut concerned = Vec::new();
        for told in changed.chunk_by(|one, other| (&one.pod, &one.name) == (&other.pod, &other.name)) {
            let RecordKey { pod, name, .. } = &told[0];
            for id in self.of_records.about(pod, name) {
                if let Some(set) = self.live.get_mut(&id) {
                    mark(set, told);
                    concerned.push(id);
                }
            }
        }
        concerned
    }

    /// Of a pod more is known that is over; returns whether a set is to be told.
    pub(crate) fn refresh_expired(&mut self, pod: &PodKey) -> bool {
        let mut has_any = false;
        for id in self.of_records.of_pod(pod) {
            if let Some(set) = self.live.get_mut(&id) {
                set.is_expired_programmed = false;
                self.touched.insert(id);
                has_any = true;
            }
        }
        has_any
    }

    /// A record ended with its time: whoever holds it has dropped it too. Returns whether something is
    /// left to be said nevertheless.
    pub(crate) fn expire_record(&mut self, told: &RecordKey, records: &Records, now: Timestamp) -> bool {
        let mut is_left = false;
        for id in self.of_records.about(&told.pod, &told.name) {
            if let Some(set) = self.live.get_mut(&id) {
                let lives_on = set.record_expiry(told.address, records).is_some();
                if !lives_on && !set.drop_expired(Member::Address(told.address), now) {
                    set.touch([Member::Address(told.address)]);
                    self.touched.insert(id);
                    is_left = true;
                }
            }
        }
        is_left
    }

    /// Writes what changed into a batch, in the order that its fields have, and into a later one what
    /// may only be opened when the rules of the first are in place; `passing` are the addresses that no pod had before, or
    /// none has any more; `is_old` tells the pods whose rules a backend had before. Returns the sets that no order makes safe: they change while no rule names them.
    pub(crate) fn sequence(
        &mut self,
        batches: &mut Batches,
        records: &Records,
        now: Timestamp,
        passing: &BTreeSet<IpAddr>,
        is_old: impl Fn(&PodKey) -> bool,
    ) -> Vec<TemporarySet> {
        let pods = batches.first.rules_replaced.iter().map(|rules| &rules.pod);
        let of_pods = pods.filter(|pod| is_old(pod)).cloned().map(SetUser::Pod);
        let of_node = batches.first.node_rules.as_ref().map(|_| SetUser::Node);
        let mut replaced: BTreeSet<SetUser> = of_pods.chain(of_node).collect();
        let former = std::mem::take(&mut self.former);
        let mut changed_sets = Vec::new();
        self.touched.append(&mut self.answered);
        for id in std::mem::take(&mut self.touched) {
            let Some(set) = self.live.get_mut(&id) else {
                continue;
            };
            if set.users.is_empty() {
                if set.is_programmed {
                    batches.first.sets_destroyed.push(id);
                }
                self.unmake(id);
                continue;
            }
            let is_new = !std::mem::replace(&mut set.is_programmed, true);
            if is_new {
                batches.first.sets_created.push(set.named.spec());
            }
            batches.first.expired.extend(set.take_expired(id, records));
            let Some(changed) = set.changes(id, records, now) else {
                continue;
            };
            if is_new {
                batches.first.members_changed.push(changed.members);
                continue;
            }
            changed_sets.push(changed);
        }
        let mut suspects = AffectedPods::default();
        let mut changes = Vec::new();
        for changed in changed_sets {
            let Some(set) = self.live.get(&changed.members.set) else {
                continue;
            };
            suspects.add(set, &changed);
            let (of, former) = former
                .get(&changed.members.set)
                .map_or((FormerUser::Nobody, &[][..]), |(of, uses)| (*of, uses.as_slice()));
            changes.push(OrderedChange::new(
                &set.users,
                former,
                of,
                changed.members,
                passing,
            ));
        }
        let aside = order::into_batches(changes, &mut replaced, batches);
        let suspects = suspects.all().into_iter().filter(|(pod, _)| is_old(pod));
        batches.first.reevaluate_by_members(suspects.collect());
        let live = aside.iter().filter_map(|id| self.live.get(id));
        live.map(|set| TemporarySet::of(set, records, now)).collect()
    }

    fn make(&mut self, named: &Arc<NamedSet>, index: &Index, records: &Records) {
        let mut set = LiveSet::new(Arc::clone(named));
        match &named.content {
            SetContent::Pods { namespaces, pods } | SetContent::PodPorts { namespaces, pods, .. } => {
                self.of_pods.insert(named.id, namespaces, pods);
                for pod in index.selected(namespaces, pods) {
                    self.contribute_pod(&mut set, &pod, index);
                }
            }
            SetContent::Nodes(_) | SetContent::NodeAddresses(_) => {
                self.of_nodes.insert(named.id);
                contribute_nodes(&mut set, index);
            }
            SetContent::Cluster => {
                self.of_pods.insert_everywhere(named.id);
                self.of_nodes.insert(named.id);
                self.of_services.insert(named.id);
                contribute_nodes(&mut set, index);
                for pod in index.selected(&everywhere(), &Selector::everything()) {
                    self.contribute_pod(&mut set, &pod, index);
                }
                contribute_services(&mut set, index);
            }
            SetContent::ApiServer | SetContent::ApiServerBehind(..) | SetContent::ApiServerAddresses => {
                self.of_api_server.insert(named.id);
                let members = named.content.members_of_api_server(index);
                set.contribute(Contributor::Policy, members);
            }
            SetContent::DnsStandIn { .. } => {
                self.of_dns.insert(named.id);
                let members = named.content.members_of_dns(index);
                set.contribute(Contributor::Policy, members);
            }
            SetContent::Services { .. } => {
                self.of_services.insert(named.id);
                contribute_services(&mut set, index);
            }
            SetContent::Networks(networks) => {
                let members = networks.iter().copied().map(Member::Network).collect();
                set.contribute(Contributor::Policy, members);
            }
            SetContent::Records { pod, patterns, .. } => {
                self.of_records.insert(named.id, pod, patterns);
                let addresses: BTreeSet<IpAddr> = records.addresses(pod, patterns);
                set.touch(addresses.into_iter().map(Member::Address));
            }
        }
        set.pack();
        self.live.insert(named.id, set);
        self.touched.insert(named.id);
    }

    fn contribute_pod(&mut self, set: &mut LiveSet, pod: &LivePod<'_>, index: &Index) {
        let members = set.named.content.members_of_pod(pod, index);
        if !members.is_empty() {
            self.of_pods.note(&pod.pod.key, set.named.id, true);
            set.contribute(Contributor::Pod(pod.pod.key.clone()), members);
        }
    }

    fn unmake(&mut self, id: SetId) {
        let Some(set) = self.live.remove(&id) else {
            return;
        };
        for pod in set.pods() {
            self.of_pods.note(pod, id, false);
        }
        match &set.named.content {
            SetContent::Pods { namespaces, pods } | SetContent::PodPorts { namespaces, pods, .. } => {
                self.of_pods.remove(id, namespaces, pods);
            }
            SetContent::Cluster => self.of_pods.remove_everywhere(id),
            SetContent::Records { pod, .. } => self.of_records.remove(id, pod),
            SetContent::DnsStandIn { .. }
            | SetContent::Networks(_)
            | SetContent::Nodes(_)
            | SetContent::NodeAddresses(_)
            | SetContent::Services { .. }
            | SetContent::ApiServer
            | SetContent::ApiServerBehind(..)
            | SetContent::ApiServerAddresses => {}
        }
        self.of_nodes.remove(&id);
        self.of_services.remove(&id);
        self.of_api_server.remove(&id);
        self.of_dns.remove(&id);
    }
}

fn contribute_nodes(set: &mut LiveSet, index: &Index) {
    for name in index.node_names() {
        let members = set.named.content.members_of_node(&name, index);
        set.contribute(Contributor::Node(name), members);
    }
}

fn contribute_services(set: &mut LiveSet, index: &Index) {
    for service in index.services() {
        let members = set.named.content.members_of_service(service);
        set.contribute(Contributor::Service(service.key.clone()), members);
    }
}

const fn everywhere() -> NamespaceSelector {
    NamespaceSelector::Matching(Selector::everything())
}
