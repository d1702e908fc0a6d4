//! Programs one pod.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use egret_policies::rules::{Action, PeerMatch, PodRules, SetId, SetKind};
use egret_shared::pod::PodKey;

use super::cgroup::{self, PodCgroups, PodDirectories, PodSearch};
use super::counters::{Counters, Established};
use super::denied::DeniedSockets;
use super::guard::Guard;
use super::layout::{Behind, CounterKey, ListName, PodValue, RuleList, generation_of};
use super::lists::Lists;
use super::pins::{OtherReleases, Pins};
use super::programs::{self, PinnedLinks, Programs};
use super::render::{Rendered, Share, render};
use super::syscall::{Map, Update};
use super::tables::{Fault, Tables};
use super::translation::Translation;

/// All open kernel objects.
#[derive(Debug)]
pub(super) struct Kernel {
    pub(super) programs: Programs,
    pub(super) storage: Map,
    pub(super) tables: Tables,
    pub(super) lists: Lists,
    pub(super) denied: DeniedSockets,
    pub(super) counters: Arc<Counters>,
    pub(super) established: Established,
    pub(super) guard: Guard,
    pub(super) pins: Pins,
    pub(super) other_releases: OtherReleases,
    pub(super) cgroup_root: PathBuf,
    pub(super) pod_directories: PodDirectories,
    /// What judges behind the translation of Services.
    pub(super) translation: Translation,
    /// Whether a packet filter judges everything behind the programs.
    pub(super) has_filter: bool,
}

/// A pod of this node.
#[derive(Debug)]
pub(super) struct Pod {
    rules: PodRules,
    lists: PodLists,
    state: State,
    /// Whether its open flows are re-evaluated.
    reevaluate: bool,
    /// The id of the cgroup in which it is judged.
    cgroup: Option<u64>,
}

/// The lists that judge a pod or clients outside, with the numbers of their rules.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PodLists {
    pub(super) egress: ListName,
    ingress: ListName,
    audit: [ListName; 2],
    attributions: Vec<ListName>,
    counts: [usize; 2],
}

impl PodLists {
    pub(super) const CLOSED: Self = Self {
        egress: ListName::CLOSED,
        ingress: ListName::CLOSED,
        audit: [ListName::EMPTY; 2],
        attributions: Vec::new(),
        counts: [0; 2],
    };

    pub(super) fn names(&self) -> impl Iterator<Item = ListName> {
        let judging = [self.egress, self.ingress].into_iter().chain(self.audit);
        judging.chain(self.attributions.iter().copied())
    }
}

/// How far a pod is programmed.
#[derive(Clone, Debug, PartialEq, Eq)]
enum State {
    /// Its rules wait to be written.
    New,
    /// The kernel judges it by its rules.
    Programmed,
    /// The kernel denies it everything, because its rules cannot be written.
    Denied(String),
    /// It could not be programmed.
    Failed(String),
}

/// Which pods are programmed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Scope {
    /// Pods with new rules; records change no pod.
    Changed,
    /// Also those that are not programmed.
    Unsettled,
    /// All, compared with the kernel.
    All,
}

impl Pod {
    /// A pod with new rules.
    pub(super) fn with_rules(old: Option<Self>, rules: PodRules) -> Self {
        let (reevaluate, cgroup) = old.map_or((false, None), |old| (old.reevaluate, old.cgroup));
        Self {
            rules,
            lists: PodLists::CLOSED,
            state: State::New,
            reevaluate,
            cgroup,
        }
    }

    /// Re-evaluates its open connections and flows.
    pub(super) const fn reevaluate(&mut self) {
        self.reevaluate = true;
    }

    fn is_due(&self, scope: Scope) -> bool {
        match scope {
            Scope::Changed => self.state == State::New || self.reevaluate && self.state == State::Programmed,
            Scope::Unsettled => self.state != State::Programmed || self.reevaluate,
            Scope::All => true,
        }
    }

    /// The id of the cgroup in which it is judged.
    pub(super) const fn cgroup(&self) -> Option<u64> {
        self.cgroup
    }

    /// Why it is not programmed.
    pub(super) fn fault(&self) -> Option<String> {
        match &self.state {
            State::Programmed => None,
            State::New => Some("its rules are not in the kernel yet".to_owned()),
            State::Denied(why) => Some(format!("everything that it opens is refused: {why}")),
            State::Failed(why) => Some(why.clone()),
        }
    }

    /// Detaches its programs. First it is unknown, and closed as such.
    pub(super) fn release(&self, kernel: &mut Kernel) -> io::Result<()> {
        if let Some(id) = self.cgroup {
            kernel.guard.remove(id)?;
            kernel.translation.forget(id)?;
        }
        match self.uid() {
            Ok(uid) => kernel.pins.release(uid),
            Err(_) => Ok(()),
        }
    }

    fn uid(&self) -> Result<&str, String> {
        let uid = self
            .rules
            .uid
            .as_deref()
            .ok_or("it has no UID, by which its cgroup would be found")?;
        if cgroup::is_uid(uid) {
            Ok(uid)
        } else {
            Err(format!("its UID {uid:?} cannot be the name of a cgroup"))
        }
    }

    /// The sets of records that its rules for what it opens name.
    pub(super) fn record_sets(&self, sets: &BTreeMap<SetId, SetKind>) -> BTreeSet<SetId> {
        let named = self.rules.egress.sets();
        named
            .filter(|set| sets.get(set) == Some(&SetKind::Records))
            .collect()
    }

    /// Programs it. Returns whether something was not as it should be.
    fn program(
        &mut self,
        kernel: &mut Kernel,
        cgroups: &mut PodSearch<'_>,
        rendered: Result<Rendered, String>,
    ) -> bool {
        let lists = rendered.and_then(|rendered| write_lists(kernel, &rendered));
        let (lists, state) = match lists {
            Ok(lists) => (lists, State::Programmed),
            Err(why) => (PodLists::CLOSED, State::Denied(why)),
        };
        if self.lists != lists && self.lists != PodLists::CLOSED {
            kernel.lists.let_go();
        }
        self.lists = lists;
        match self.write(kernel, cgroups) {
            Ok(changed) => {
                self.state = self.missing_member(kernel).map_or(state, State::Failed);
                changed
            }
            Err(why) => {
                self.state = State::Failed(why);
                false
            }
        }
    }

    fn render(&self, kernel: &Kernel, sets: &BTreeMap<SetId, SetKind>) -> Result<Rendered, String> {
        if let Some(why) = self.wrong_set(kernel) {
            return Err(why);
        }
        render(&self.rules, kernel.share(), |set| sets.get(&set).copied()).map_err(|error| error.to_string())
    }

    /// A set that would let through too much. Only a missing member of an Allow does no harm.
    fn wrong_set(&self, kernel: &Kernel) -> Option<String> {
        self.sets()
            .find_map(|(action, set)| match (action, kernel.tables.fault(set)?) {
                (Action::Allow, Fault::Missing(_)) => None,
                (Action::Deny | Action::Pass, Fault::Missing(why)) => Some(not_written(set, why)),
                (_, Fault::Surplus(why)) => Some(format!(
                    "a member of set {} cannot be removed: {why}",
                    set.digest()
                )),
            })
    }

    fn missing_member(&self, kernel: &Kernel) -> Option<String> {
        self.sets().find_map(|(_, set)| match kernel.tables.fault(set)? {
            Fault::Missing(why) => Some(not_written(set, why)),
            Fault::Surplus(_) => None,
        })
    }

    fn sets(&self) -> impl Iterator<Item = (Action, SetId)> {
        let tiers = self.rules.egress.tiers.iter().chain(&self.rules.ingress.tiers);
        let rules = tiers.flat_map(|tier| tier.rules.iter());
        rules.flat_map(|rule| {
            let peer = match rule.peer {
                PeerMatch::In(set) => Some((rule.action, set)),
                PeerMatch::Any | PeerMatch::OwnNode | PeerMatch::Itself => None,
            };
            // A missing member of an Allow's exception lets through too much.
            peer.into_iter().chain(rule.except.map(|set| (Action::Pass, set)))
        })
    }

    fn write(&mut self, kernel: &mut Kernel, cgroups: &mut PodSearch<'_>) -> Result<bool, String> {
        let uid = self.uid()?.to_owned();
        let (cgroup, id) = cgroups
            .of(&uid)?
            .ok_or_else(|| format!("no cgroup of pod {uid} in {}", kernel.cgroup_root.display()))?;
        let pins = kernel.pins.pod(&uid);
        let held = kernel
            .storage
            .lookup(&id.to_ne_bytes())
            .map_err(|error| format!("cannot read its rules: {error}"))?;
        let links = PinnedLinks::open(&pins).map_err(|error| format!("cannot read its links: {error}"))?;
        let value = self.value(id, held.as_deref(), kernel.behind());
        kernel
            .translation
            .set_pod(&self.rules.addresses, &value)
            .map_err(|error| format!("it cannot be judged behind the translation of Services: {error}"))?;
        let is_in_place = kernel.programs.are_in_place(&links, id) && held.as_ref() == Some(&value);
        if !is_in_place {
            let write = || kernel.storage.update(&id.to_ne_bytes(), &value, Update::Any);
            kernel
                .programs
                .attach(&cgroup, id, &pins, links, write)
                .map_err(|error| format!("cannot attach to {}: {error}", cgroup.display()))?;
        }
        self.cgroup = Some(id);
        kernel
            .guard
            .add(id)
            .map_err(|error| format!("it stays closed as an unknown pod: {error}"))?;
        if is_in_place {
            return Ok(false);
        }
        kernel
            .other_releases
            .detach_pod(&uid)
            .map_err(|error| format!("cannot detach what another release left: {error}"))?;
        self.reevaluate = false;
        Ok(true)
    }

    /// The value of its attach point. The generation changes only if flows are re-evaluated.
    fn value(&self, id: u64, held: Option<&[u8]>, behind: Behind) -> Vec<u8> {
        let before = held.and_then(generation_of).unwrap_or(0);
        let generation = if self.reevaluate || before == 0 {
            before.wrapping_add(1).max(1)
        } else {
            before
        };
        PodValue {
            id,
            generation,
            own: self.rules.addresses.clone(),
            egress: self.lists.egress,
            ingress: self.lists.ingress,
            audit: self.lists.audit,
            behind,
        }
        .to_octets()
    }
}

/// Writes the lists of a pod, before its storage names them.
pub(super) fn write_lists(kernel: &mut Kernel, rendered: &Rendered) -> Result<PodLists, String> {
    let [audit_egress, audit_ingress] = &rendered.audit;
    let judging = [&rendered.egress, &rendered.ingress, audit_egress, audit_ingress];
    let judging = judging.map(|rules| RuleList::of(rules));
    // Those that others name come first.
    for list in rendered.attributions.iter().chain(&judging) {
        kernel
            .lists
            .write(list)
            .map_err(|error| format!("its rules cannot be written: {error}"))?;
    }
    let [egress, ingress, audit_egress, audit_ingress] = judging.map(|list| list.name);
    Ok(PodLists {
        egress,
        ingress,
        audit: [audit_egress, audit_ingress],
        attributions: rendered.attributions.iter().map(|list| list.name).collect(),
        counts: [rendered.egress.len(), rendered.ingress.len()],
    })
}

fn not_written(set: SetId, why: &str) -> String {
    format!("a member of set {} cannot be written: {why}", set.digest())
}

impl fmt::Display for Pod {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let uid = self.rules.uid.as_deref().unwrap_or("unknown");
        let [egress, ingress] = self.lists.counts;
        write!(f, "uid {uid}, {egress} egress rules, {ingress} ingress rules")?;
        match self.fault() {
            Some(fault) => write!(f, ", {fault}"),
            None => f.write_str(", programmed"),
        }
    }
}

/// Programs pods, and keeps these lists of others. Returns how many were not as they should be.
pub(super) fn program(
    kernel: &mut Kernel,
    pods: &mut BTreeMap<PodKey, Pod>,
    sets: &BTreeMap<SetId, SetKind>,
    scope: Scope,
    kept: BTreeSet<ListName>,
) -> u64 {
    if !pods.values().any(|pod| pod.is_due(scope)) {
        return 0;
    }
    let due = pods.iter().filter(|(_, pod)| pod.is_due(scope));
    let due: Vec<PodKey> = due.map(|(key, _)| key.clone()).collect();
    let (root, mut directories) = (
        kernel.cgroup_root.clone(),
        std::mem::take(&mut kernel.pod_directories),
    );
    let mut cgroups = PodSearch::below(&root, &mut directories);
    let (mut changed, mut used) = (0, None);
    for key in due {
        let rendered = pods[&key].render(kernel, sets);
        if let Ok(rendered) = &rendered {
            register_counters(kernel, rendered, |key| {
                let used = used.get_or_insert_with(|| used_counters(kernel, pods, sets));
                used.contains(&key)
            });
        }
        if let Some(pod) = pods.get_mut(&key) {
            changed += u64::from(pod.program(kernel, &mut cgroups, rendered));
        }
    }
    kernel.pod_directories = directories;
    if scope != Scope::Changed {
        kernel.lists.let_go();
    }
    kernel.remove_unused_lists(pods.values(), kept);
    changed
}

/// Creates counters before the rules that use them. Without space for a counter, its rule decides uncounted.
fn register_counters(kernel: &Kernel, rendered: &Rendered, is_used: impl FnMut(CounterKey) -> bool) {
    if let Err(error) = kernel.counters.register(&rendered.labels, is_used) {
        tracing::error!(%error, "a rule is not counted");
    }
}

/// The counters of all pods' rules: asked where there is no room for further ones.
fn used_counters(
    kernel: &Kernel,
    pods: &BTreeMap<PodKey, Pod>,
    sets: &BTreeMap<SetId, SetKind>,
) -> BTreeSet<CounterKey> {
    let rendered = pods.values().filter_map(|pod| pod.render(kernel, sets).ok());
    let labels = rendered.flat_map(|rendered| rendered.labels);
    labels.map(|(key, _)| key).collect()
}

impl Kernel {
    /// What the programs judge.
    pub(super) const fn share(&self) -> Share {
        match self.has_filter {
            true => Share::WhatItOpens,
            false => Share::Everything,
        }
    }

    /// Who judges behind the pods' sockets.
    fn behind(&self) -> Behind {
        match (self.has_filter, self.translation.fault()) {
            (true, _) => Behind::Filter,
            (false, None) => Behind::Services,
            (false, Some(_)) => Behind::Nothing,
        }
    }

    /// Closes or opens unknown pods.
    pub(super) fn set_unknown_closed(&mut self, is_closed: bool) -> Result<(), String> {
        self.guard.set_closed(
            is_closed,
            &self.programs,
            &self.pins,
            &self.other_releases,
            &self.cgroup_root,
        )
    }

    /// Forgets pods whose cgroups are gone: no other cgroup has their ids.
    pub(super) fn forget_gone_pods(&mut self) -> io::Result<()> {
        let cgroups = PodCgroups::find(&self.cgroup_root)?;
        self.guard.retain(&cgroups.ids())?;
        self.translation.retain(&cgroups.ids())
    }

    /// Removes lists that no pod names. A pod whose storage still names one is denied everything.
    fn remove_unused_lists<'a>(&mut self, pods: impl Iterator<Item = &'a Pod>, mut used: BTreeSet<ListName>) {
        if !self.lists.may_be_unused() {
            return;
        }
        used.extend(pods.flat_map(|pod| pod.lists.names()));
        if let Err(error) = self.lists.retain(&used) {
            tracing::error!(%error, "lists of rules that no pod has stay");
        }
    }

    /// Removes pins of pods that are gone, if their cgroup is gone.
    pub(super) fn remove_severed<'a>(&self, pods: impl Iterator<Item = &'a Pod>) {
        let wanted: Vec<&str> = pods.filter_map(|pod| pod.uid().ok()).collect();
        let unwanted = |uid: &String| !wanted.contains(&uid.as_str());
        for uid in self
            .pins
            .pinned_pods()
            .unwrap_or_default()
            .into_iter()
            .filter(unwanted)
        {
            let removed = match programs::is_severed(&self.pins.pod(&uid)) {
                Ok(true) => self.pins.release(&uid),
                Ok(false) => Ok(()),
                Err(error) => Err(error),
            };
            if let Err(error) = removed {
                tracing::warn!(uid, %error, "the pins of a pod that is gone stay");
            }
        }
    }
}
