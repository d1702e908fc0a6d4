//! Pods of one workload that policies treat alike are one: they have equal rules, and are in the same sets.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use egret_policies::diagnostic::ObjectRef;
use egret_policies::model::{Direction, Labels};
use egret_shared::net::Family;
use egret_shared::pod::PodKey;

use crate::cluster::PodMember;

use super::connection_end::Workload;
use super::{FactsId, Reach, RulesId};

/// Pods that are treated alike.
#[derive(Clone, Debug)]
pub struct Unit {
    /// Who they are.
    pub workload: Arc<Workload>,
    /// The rules for what they open.
    pub egress: RulesId,
    /// The rules for what is opened to them.
    pub ingress: RulesId,
    /// What is to be known of their addresses, by the families that they have.
    pub facts: BTreeMap<Family, FactsId>,
    /// The families in which they may meet somebody outside. Nobody knows those of a pod without addresses.
    pub families: BTreeSet<Family>,
    /// Whether there may be another pod of them for each.
    pub is_several: bool,
    /// Addresses of their own nodes that differ in what policies make of them; one stands for all otherwise.
    pub own: Vec<OwnNodeFacts>,
}

impl Unit {
    /// The rules of a direction.
    #[must_use]
    pub const fn rules(&self, direction: Direction) -> RulesId {
        match direction {
            Direction::Egress => self.egress,
            Direction::Ingress => self.ingress,
        }
    }
}

/// What is to be known of an address of the own node; without an address, of all of them.
pub type OwnNodeFacts = (Option<IpAddr>, FactsId);

/// What pods may be folded by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Folding {
    /// By owner, or by namespace and labels.
    Workloads,
    /// Not at all.
    Pods,
}

/// The workload that a pod belongs to, or the likeness of pods that belong to none.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum UnitGroup {
    /// An owner, or a workload itself.
    Owner(ObjectRef),
    /// Namespace and labels, without those that tell pods of a workload apart.
    Labels(Arc<str>, Vec<(String, String)>),
    /// Only itself.
    Pod(PodKey),
}

/// Labels that controllers give to tell their pods, or the generations of them, apart.
const TELLING_APART: [&str; 8] = [
    "pod-template-hash",
    "controller-revision-hash",
    "pod-template-generation",
    "statefulset.kubernetes.io/pod-name",
    "apps.kubernetes.io/pod-index",
    "batch.kubernetes.io/job-completion-index",
    "batch.kubernetes.io/controller-uid",
    "controller-uid",
];

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct UnitClass {
    egress: RulesId,
    ingress: RulesId,
    facts: BTreeMap<Family, FactsId>,
    families: BTreeSet<Family>,
    /// What is said of the own node, in a text: pods run on several.
    own: Vec<(Option<IpAddr>, String)>,
}

impl Reach {
    /// All pods that policies are about, folded; those of groups in `apart` each for itself.
    #[must_use]
    pub fn units(&self, folding: Folding, apart: &BTreeSet<UnitGroup>) -> Vec<Unit> {
        let mut units = Vec::new();
        for (group, members) in self.groups(folding, apart) {
            let alike = self.by_class(members);
            let is_split = alike.len() > 1;
            for (likeness, members) in alike {
                units.push(self.unit(&group, likeness, &members, is_split));
            }
        }
        units.sort_by(|one, other| one.workload.cmp(&other.workload));
        units
    }

    /// Groups whose pods are not all alike.
    #[must_use]
    pub fn split_groups(&self) -> BTreeSet<UnitGroup> {
        self.groups(Folding::Workloads, &BTreeSet::new())
            .into_iter()
            .filter(|(_, members)| self.by_class(members.clone()).len() > 1)
            .map(|(group, _)| group)
            .collect()
    }

    fn groups(&self, folding: Folding, apart: &BTreeSet<UnitGroup>) -> BTreeMap<UnitGroup, Vec<&PodMember>> {
        let mut groups: BTreeMap<UnitGroup, Vec<&PodMember>> = BTreeMap::new();
        for member in self.loaded.manifests.members.values() {
            if member.is_policed() && !self.loaded.cluster.addresses(member).is_empty() {
                groups.entry(self.group(member)).or_default().push(member);
            }
        }
        let mut folded: BTreeMap<UnitGroup, Vec<&PodMember>> = BTreeMap::new();
        for (group, mut members) in groups {
            self.leave_out_owners(&mut members);
            for member in members {
                let is_apart = folding == Folding::Pods || apart.contains(&group);
                let group = if is_apart {
                    UnitGroup::Pod(member.pod.key.clone())
                } else {
                    group.clone()
                };
                folded.entry(group).or_default().push(member);
            }
        }
        folded
    }

    /// What is printed from a cluster has workloads beside their pods: then only the pods count, and without
    /// pods only the first of the line.
    fn leave_out_owners(&self, members: &mut Vec<&PodMember>) {
        if members.iter().any(|member| !self.is_template(member)) {
            return members.retain(|member| !self.is_template(member));
        }
        let owners = &self.loaded.manifests.owners;
        let is_owned = |member: &PodMember| {
            self.origin(member)
                .is_some_and(|origin| owners.contains_key(origin))
        };
        if members.iter().any(|member| !is_owned(member)) {
            members.retain(|member| !is_owned(member));
        }
    }

    fn origin(&self, member: &PodMember) -> Option<&ObjectRef> {
        self.loaded.manifests.origins.get(&member.pod.key)
    }

    fn is_template(&self, member: &PodMember) -> bool {
        self.origin(member)
            .is_some_and(|origin| origin.kind.as_ref() != "Pod")
    }

    fn group(&self, member: &PodMember) -> UnitGroup {
        let pod = &member.pod;
        let Some(origin) = self.origin(member) else {
            return UnitGroup::Pod(pod.key.clone());
        };
        let root = self.root(origin);
        if root.kind.as_ref() != "Pod" {
            return UnitGroup::Owner(deployment_of(root, &pod.labels));
        }
        let labels: Vec<(String, String)> = pod
            .labels
            .iter()
            .filter(|(key, _)| !TELLING_APART.contains(key))
            .map(|(key, value)| (key.to_owned(), value.to_owned()))
            .collect();
        if labels.is_empty() {
            return UnitGroup::Pod(pod.key.clone());
        }
        UnitGroup::Labels(pod.key.namespace().into(), labels)
    }

    /// The last owner of a line that ends where nobody owns, or where it meets itself.
    fn root<'a>(&'a self, origin: &'a ObjectRef) -> &'a ObjectRef {
        let owners = &self.loaded.manifests.owners;
        let mut seen = BTreeSet::from([origin]);
        let mut root = origin;
        while let Some(owner) = owners.get(root).filter(|owner| seen.insert(owner)) {
            root = owner;
        }
        root
    }

    fn by_class<'a>(&self, members: Vec<&'a PodMember>) -> BTreeMap<UnitClass, Vec<&'a PodMember>> {
        let mut alike: BTreeMap<UnitClass, Vec<&PodMember>> = BTreeMap::new();
        for member in members {
            if let Some(likeness) = self.class_of(member) {
                alike.entry(likeness).or_default().push(member);
            }
        }
        alike
    }

    fn class_of(&self, member: &PodMember) -> Option<UnitClass> {
        let egress = self.rules_of(&member.pod.key, Direction::Egress)?;
        let ingress = self.rules_of(&member.pod.key, Direction::Ingress)?;
        let mut facts = BTreeMap::new();
        for address in self.loaded.cluster.addresses(member) {
            let of_address = self.facts_of(address, false);
            facts.entry(Family::of(address)).or_insert(of_address);
        }
        let families = if member.is_made_up {
            BTreeSet::from(Family::ALL)
        } else {
            facts.keys().copied().collect()
        };
        let said =
            |(address, facts): OwnNodeFacts| (address, format!("{:?}", self.judge(egress, facts).slices));
        let own = self.own(member, egress, &facts).into_iter().map(said).collect();
        Some(UnitClass {
            egress,
            ingress,
            facts,
            families,
            own,
        })
    }

    /// The addresses of the own node. Where all are judged alike, which they are is left out: other pods of
    /// the workload run on other nodes.
    fn own(
        &self,
        member: &PodMember,
        egress: RulesId,
        facts: &BTreeMap<Family, FactsId>,
    ) -> Vec<OwnNodeFacts> {
        let cluster = &self.loaded.cluster;
        let dnsd = &cluster.dns().addresses;
        let own: Vec<(IpAddr, FactsId)> = self
            .nodes
            .values()
            .flatten()
            .chain(dnsd)
            .filter(|address| {
                facts.contains_key(&Family::of(**address)) && cluster.is_own_node(&member.pod, **address)
            })
            .map(|address| (*address, self.facts_of(*address, true)))
            .collect();
        // What is said of dnsd stands for no other address of a node that nothing else is known of.
        let known = own.iter().find(|(address, _)| !dnsd.contains(address));
        let says = |facts: FactsId| self.judge(egress, facts);
        match known {
            Some((_, known)) if own.iter().all(|(_, facts)| says(*facts) == says(*known)) => {
                vec![(None, *known)]
            }
            Some(_) | None => own
                .into_iter()
                .map(|(address, facts)| (Some(address), facts))
                .collect(),
        }
    }

    fn unit(&self, group: &UnitGroup, likeness: UnitClass, members: &[&PodMember], is_split: bool) -> Unit {
        let pods: BTreeSet<PodKey> = members.iter().map(|member| member.pod.key.clone()).collect();
        let is_template = members.iter().any(|member| self.is_template(member));
        let own = |member: &&PodMember| self.own(member, likeness.egress, &likeness.facts);
        let own = members.first().map(own).unwrap_or_default();
        Unit {
            is_several: pods.len() > 1 || is_template,
            workload: Arc::new(workload(group, pods, is_split)),
            egress: likeness.egress,
            ingress: likeness.ingress,
            facts: likeness.facts,
            families: likeness.families,
            own,
        }
    }
}

/// The Deployment of a ReplicaSet whose pods have the hash that its name ends with.
fn deployment_of(root: &ObjectRef, labels: &Labels) -> ObjectRef {
    let name = labels
        .get("pod-template-hash")
        .filter(|_| root.kind.as_ref() == "ReplicaSet")
        .and_then(|hash| root.name.strip_suffix(hash)?.strip_suffix('-'));
    match name {
        Some(name) => ObjectRef {
            kind: "Deployment".into(),
            name: name.into(),
            ..root.clone()
        },
        None => root.clone(),
    }
}

fn workload(group: &UnitGroup, pods: BTreeSet<PodKey>, is_split: bool) -> Workload {
    let first = pods.first().expect("a unit has a pod");
    let namespace = first.namespace().into();
    let (kind, name): (Arc<str>, Arc<str>) = match group {
        UnitGroup::Owner(owner) if !is_split => (Arc::clone(&owner.kind), Arc::clone(&owner.name)),
        UnitGroup::Owner(_) | UnitGroup::Labels(..) | UnitGroup::Pod(_) => {
            ("Pod".into(), name_of(&pods, is_split).into())
        }
    };
    Workload {
        namespace,
        name,
        kind,
        pods: Arc::new(pods),
    }
}

/// What the names of pods have in common: `web-*`.
fn name_of(pods: &BTreeSet<PodKey>, is_split: bool) -> String {
    let names: Vec<&str> = pods.iter().map(PodKey::name).collect();
    match names.as_slice() {
        [only] => (*only).to_owned(),
        [first, ..] => {
            let common = names
                .iter()
                .fold(*first, |common, name| common_start(common, name));
            match common.rfind('-') {
                Some(dash) if !is_split => format!("{}*", &common[..=dash]),
                Some(_) | None => format!("{first} and {} more", names.len() - 1),
            }
        }
        [] => String::new(),
    }
}

fn common_start<'a>(one: &'a str, other: &str) -> &'a str {
    let length: usize = one
        .chars()
        .zip(other.chars())
        .take_while(|(one, other)| one == other)
        .map(|(letter, _)| letter.len_utf8())
        .sum();
    &one[..length]
}
