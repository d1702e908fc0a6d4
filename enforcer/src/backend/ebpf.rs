//! The backend `ebpf`: judges connect(2) and sendmsg(2) in the pod, so that a denied call fails with EPERM and costs no
//! packet. Packets are judged where they leave and reach sockets: those of raw sockets, those that others send to the
//! pod, and those of connections that were open before a change of policy.
//!
//! A pod is its cgroup. Programs are attached to it, and its rules are in the storage of the attach point. So a socket
//! is judged as the pod that created it, whatever process holds it. Sets, counters and rules are found by digests of
//! their content. Everything is pinned, and stays in force when the enforcer does not run.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use egret_kernel::links::Links;
use egret_policies::rules::{Batch, Digest, Member, MembersChanged, SetId, SetKind};
use egret_shared::pod::PodKey;
use egret_shared::time::Timestamp;

use super::bypass::{Bypass, BypassKind, BypassReport};
use super::netfilter::sets::merged::MergedSets;
use super::unknown_pods::Stance;
use super::{
    Backend, BackendError, ConcurrentSetUpdate, ConnectionSearch, EndedConnections, Pending, RemoveOther,
    SyncStatus, VerdictCount, VerdictCounters, remove_other,
};

mod pod;
mod outside;
mod render;
mod layout;
mod lists;
mod tables;
mod translation;
mod concurrent;
mod counters;
mod denied;
mod cgroup;
pub mod cleanup;
mod guard;
mod metrics;
pub mod events;
mod object;
mod programs;
mod pins;
mod syscall;

use cgroup::PodDirectories;
use concurrent::ConcurrentMembers;
use counters::{Counters, Established};
use denied::DeniedSockets;
use events::EventSource;
use guard::Guard;
pub use layout::Behind;
use layout::{POD_SIZE, Table};
use lists::Lists;
use outside::Outside;
use pins::Pins;
use pod::{Kernel, Pod, Scope};
use programs::Programs;
use syscall::Map;
use tables::Tables;
use translation::Translation;

/// What this backend does not do, on any kernel. Logged at start, and in its dump.
const LIMITS: [&str; 4] = [
    "packet sockets (AF_PACKET, AF_XDP) are not judged, and neither is what the kernel itself sends for a pod, such as echo replies",
    "what kube-proxy translates by IPVS, and others without conntrack, is judged by the address that the pod asks for",
    "a program hears that its connection is forbidden at the connection's next packet, not before",
    "cgroup version 2 alone: a pod that the runtime keeps in version 1 hierarchies is not found",
];

/// Also where nothing judges behind the translation of Services.
const LIMITS_OF_SERVICES: [&str; 2] = [
    "a Service is judged by its own address, not by those that it leads to: a ClusterEgressFirewall does not see behind it",
    "services.exposure of a ClusterEgressFirewall is not enforced",
];

const SWEEP_INTERVAL: Duration = Duration::from_secs(30);

/// Where this backend finds pods, and where it pins maps and programs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// The directory of a cgroup2 tree below which pods are.
    pub cgroup_root: PathBuf,
    /// A directory for pins. Where it is not in a BPF file system, one is mounted on it.
    pub pin_path: PathBuf,
    /// Whether pods are closed that are not known yet.
    pub unknown: Stance,
    /// How many events of one reason are told in a second; none if nobody reads them.
    pub events_per_second: Option<u32>,
    /// Who judges behind the pods' sockets.
    pub behind: Behind,
}

/// The backend.
#[derive(Debug)]
pub struct Ebpf {
    options: Options,
    object: Cow<'static, [u8]>,
    pins: Pins,
    stage: Stage,
    counters: Arc<SharedCounters>,
    merged_sets: MergedSets,
    sets: BTreeMap<SetId, SetKind>,
    concurrent: Arc<ConcurrentMembers>,
    pods: BTreeMap<PodKey, Pod>,
    /// None before the first batch.
    outside: Option<Outside>,
    last_sweep: Timestamp,
    services: BTreeSet<IpAddr>,
    node: BTreeSet<IpAddr>,
    /// Whether there is any policy; none before the first batch.
    has_policies: Option<bool>,
    /// Why unknown pods are not closed or opened.
    guard_fault: Option<String>,
    /// Whether open connections were to be judged again since the last search.
    is_search_due: bool,
    remove_other: Option<RemoveOther>,
}

/// How far it has come.
#[derive(Debug)]
enum Stage {
    /// The kernel was not read.
    Unread,
    /// The kernel was read; the first batch decides what stays.
    Adopted(Box<Kernel>),
    /// The kernel holds what the batches say.
    Running(Box<Kernel>),
}

impl Stage {
    fn kernel(&mut self) -> Option<&mut Kernel> {
        match self {
            Self::Unread => None,
            Self::Adopted(kernel) | Self::Running(kernel) => Some(kernel),
        }
    }
}

impl Ebpf {
    /// A backend that has not touched the kernel.
    #[must_use]
    pub fn new(options: Options) -> Self {
        let layouts = Digest::of(programs::LAYOUTS).to_string();
        Self {
            pins: Pins::new(&options.pin_path, layouts),
            options,
            object: Cow::Borrowed(programs::OBJECT),
            stage: Stage::Unread,
            counters: Arc::default(),
            merged_sets: MergedSets::default(),
            sets: BTreeMap::new(),
            concurrent: Arc::default(),
            pods: BTreeMap::new(),
            outside: None,
            last_sweep: Timestamp::from_millis(0),
            services: BTreeSet::new(),
            node: BTreeSet::new(),
            has_policies: None,
            guard_fault: None,
            is_search_due: false,
            remove_other: None,
        }
    }

    /// Removes what another backend left, once all pods are judged here.
    #[must_use]
    pub fn replacing(self, remove: RemoveOther) -> Self {
        Self {
            remove_other: Some(remove),
            ..self
        }
    }

    /// Runs programs of another build over the same maps, instead of its own.
    #[must_use]
    pub fn with_programs(self, object: Vec<u8>) -> Self {
        Self {
            object: object.into(),
            ..self
        }
    }

    /// Has each rule look into its own sets and count by itself.
    #[must_use]
    pub const fn without_merged_sets(mut self) -> Self {
        self.merged_sets.leave_each_alone();
        self
    }

    /// Where denied calls and packets are told.
    #[must_use]
    pub fn events(&self) -> EventSource {
        EventSource::new(self.pins.maps(), Arc::clone(&self.counters))
    }

    fn has_filter(&self) -> bool {
        self.options.behind == Behind::Filter
    }

    fn open(&self) -> Result<Kernel, BackendError> {
        let maps = self.pins.maps();
        let given = &self.options.cgroup_root;
        let cgroup_root = cgroup::cgroup2_root(given)
            .map_err(|error| BackendError::new("find the tree of cgroups", error))?;
        if cgroup_root != *given {
            tracing::warn!(
                "{} is not in a cgroup2 tree: looking for pods in {}",
                given.display(),
                cgroup_root.display()
            );
        }
        self.pins
            .prepare()
            .map_err(|error| BackendError::new("prepare the directory for pins", error))?;
        let (programs, services) = std::thread::scope(|scope| {
            let is_judged = self.options.behind == Behind::Services;
            let services = is_judged.then(|| scope.spawn(translation::read));
            let programs = Programs::load(&maps, &self.object);
            let services = services.map(|thread| thread.join().expect("reading does not panic"));
            programs.map(|programs| (programs, services))
        })
        .map_err(|error| BackendError::new("load the eBPF programs", error))?;
        events::set_limit(&maps, self.options.events_per_second.unwrap_or(0))
            .map_err(|error| BackendError::new("limit events", error))?;
        let opened = |error| BackendError::new("open the pinned eBPF maps", error);
        self.concurrent.open(&maps).map_err(opened)?;
        let processors = aya::util::nr_cpus().map_err(|(path, error)| BackendError::new(path, error))?;
        Ok(Kernel {
            programs,
            storage: Map::open(&maps.join("egret_pods"), (size_of::<u64>(), POD_SIZE), 1).map_err(opened)?,
            tables: Tables::open(&maps).map_err(opened)?,
            lists: Lists::open(&maps).map_err(opened)?,
            denied: DeniedSockets::open(&maps).map_err(opened)?,
            counters: Arc::new(Counters::open(&maps, processors).map_err(opened)?),
            established: Established::open(&maps, processors).map_err(opened)?,
            guard: Guard::open(&maps).map_err(opened)?,
            pins: self.pins.clone(),
            other_releases: self.pins.other_releases().map_err(opened)?,
            cgroup_root,
            pod_directories: PodDirectories::default(),
            translation: Translation::open(&self.pins, services).map_err(opened)?,
            has_filter: self.has_filter(),
        })
    }

    /// Adds members while a method runs on another thread.
    #[must_use]
    pub fn concurrent_members(&self) -> Arc<dyn ConcurrentSetUpdate> {
        Arc::clone(&self.concurrent) as Arc<dyn ConcurrentSetUpdate>
    }

    /// Takes over what was added meanwhile.
    fn adopt_concurrent(&mut self) {
        let Some(kernel) = self.stage.kernel() else { return };
        for (set, member, expires) in self.concurrent.take() {
            kernel.tables.add(set, &member, expires);
        }
    }

    /// Applies sets and members. The first time it also adopts records of the previous process.
    fn apply_sets(&mut self, batch: &Batch, now: Timestamp) {
        self.sets
            .extend(batch.sets_created.iter().map(|set| (set.id, set.kind)));
        let Some(kernel) = self.stage.kernel() else { return };
        for changed in &batch.members_changed {
            change(&mut kernel.tables, changed);
        }
        for expired in &batch.expired {
            for (address, expires) in &expired.addresses {
                kernel
                    .tables
                    .add(expired.set, &Member::Address(*address), Some(*expires));
            }
        }
        if matches!(self.stage, Stage::Adopted(_)) {
            self.adopt_records(now);
        }
    }

    /// The first batch is complete except for records: only these are adopted from the kernel.
    fn adopt_records(&mut self, now: Timestamp) {
        let records = self.sets.iter().filter(|(_, kind)| **kind == SetKind::Records);
        let records: BTreeSet<Vec<u8>> = records.map(|(set, _)| set.digest().as_str().into()).collect();
        let Some(kernel) = self.stage.kernel() else { return };
        kernel.tables.adopt_records(|set| records.contains(set), now);
    }

    fn apply_pods(&mut self, batch: &Batch) {
        for rules in &batch.rules_replaced {
            let pod = self.pods.remove(&rules.pod);
            if pod.is_some() {
                self.let_go_of_lists();
            }
            self.pods
                .insert(rules.pod.clone(), Pod::with_rules(pod, rules.clone()));
        }
        self.is_search_due |= !batch.reevaluate.is_empty();
        for (pod, _) in &batch.reevaluate {
            if let Some(pod) = self.pods.get_mut(pod) {
                pod.reevaluate();
            }
        }
        for removed in &batch.pods_removed {
            self.remove(removed);
        }
        self.program(Scope::Changed);
        if let Some(rules) = &batch.node_rules {
            self.let_go_of_lists();
            self.outside = Some(Outside::of(rules));
            self.program_outside(Scope::Changed);
        }
    }

    /// Has clients outside judged. Their sets are written.
    fn program_outside(&mut self, scope: Scope) {
        if let (Some(outside), Some(kernel)) = (&mut self.outside, self.stage.kernel())
            && outside.is_due(scope)
        {
            outside.program(kernel, &self.sets);
        }
    }

    /// What it does not do here.
    fn limits(&self) -> Vec<&'static str> {
        let is_judged = match &self.stage {
            Stage::Adopted(kernel) | Stage::Running(kernel) => kernel.translation.fault().is_none(),
            Stage::Unread => false,
        };
        let of_services = LIMITS_OF_SERVICES.iter().filter(|_| !is_judged);
        let limits = LIMITS.iter().chain(of_services).copied();
        limits.filter(|_| !self.has_filter()).collect()
    }

    /// Programs pods and clients outside. Returns how many pods were not as they should be.
    fn program(&mut self, scope: Scope) -> u64 {
        let Some(kernel) = self.stage.kernel() else {
            return 0;
        };
        let scope = if kernel.tables.take_faults_changed() {
            Scope::All
        } else {
            scope
        };
        let kept = self.outside.iter().flat_map(Outside::lists).collect();
        let changed = pod::program(kernel, &mut self.pods, &self.sets, scope, kept);
        self.program_outside(scope);
        changed
    }

    fn let_go_of_lists(&mut self) {
        if let Some(kernel) = self.stage.kernel() {
            kernel.lists.let_go();
        }
    }

    fn remove(&mut self, key: &PodKey) {
        self.let_go_of_lists();
        let (Some(pod), Some(kernel)) = (self.pods.remove(key), self.stage.kernel()) else {
            return;
        };
        if let Err(error) = pod.release(kernel) {
            tracing::error!(pod = %key, %error, "the pins of a pod that left stay");
        }
    }

    fn destroy_sets(&mut self, batch: &Batch) {
        let Some(kernel) = self.stage.kernel() else { return };
        for set in &batch.sets_destroyed {
            kernel.tables.clear(*set);
            self.sets.remove(set);
        }
    }

    /// Takes away what judged Services before, when the pods do not count on it any more.
    fn detach_unwanted(&mut self) {
        let Stage::Running(kernel) = &mut self.stage else {
            return;
        };
        let unwanted = kernel.translation.detach_unwanted();
        if let Err(error) = unwanted.and_then(|()| kernel.other_releases.detach_services_without_pods()) {
            tracing::warn!(%error, "what judged Services before stays");
        }
    }

    fn sweep(&mut self, now: Timestamp) {
        if now.since(self.last_sweep) < SWEEP_INTERVAL {
            return;
        }
        self.last_sweep = now;
        self.detach_unwanted();
        let Some(kernel) = self.stage.kernel() else { return };
        kernel.tables.sweep(now);
        kernel.remove_severed(self.pods.values());
        if let Err(error) = kernel.forget_gone_pods() {
            tracing::warn!(%error, "pods that are gone stay known");
        }
        metrics::publish(kernel);
    }

    /// Closes or opens unknown pods. Known pods have programs before.
    fn guard_unknown(&mut self) {
        let is_closed = !self.has_filter() && self.options.unknown.closes(self.has_policies);
        let Some(kernel) = self.stage.kernel() else { return };
        let before = kernel.guard.fault().map(ToOwned::to_owned);
        self.guard_fault = kernel.set_unknown_closed(is_closed).err();
        if let Some(fault) = kernel
            .guard
            .fault()
            .filter(|fault| Some(*fault) != before.as_deref())
        {
            tracing::warn!("{fault}");
        }
    }

    /// How it stands after all was tried. What another backend left goes when nothing is missing here.
    fn standing(&mut self, node: Option<String>) -> SyncStatus {
        let status = SyncStatus {
            broken: node,
            ..self.status()
        };
        if status.broken.is_none() && status.refused.is_none() && status.pending.is_empty() {
            remove_other(&mut self.remove_other);
        }
        status
    }

    fn status(&mut self) -> SyncStatus {
        let broken = matches!(self.stage, Stage::Unread).then(|| "the kernel was not read".to_owned());
        let pending = |(key, pod): (&PodKey, &Pod)| {
            let fault = pod.fault()?;
            Some((key.clone(), Pending::Refused(fault)))
        };
        SyncStatus {
            pending: self.pods.iter().filter_map(pending).collect(),
            broken,
            refused: self.guard_fault.clone(),
            ..SyncStatus::default()
        }
    }

    /// The records by which a pod may connect, as the kernel holds them.
    fn dump_records(&self, key: &PodKey, pod: &Pod) -> Vec<String> {
        let (Stage::Adopted(kernel) | Stage::Running(kernel)) = &self.stage else {
            return Vec::new();
        };
        let sets = pod.record_sets(&self.sets).into_iter();
        let lines = sets.flat_map(|set| match kernel.tables.records_of(set) {
            Ok(records) => records
                .iter()
                .map(|(address, expires)| {
                    format!(
                        "{key}: record {address} in {} until {}",
                        set.digest(),
                        expires.as_millis()
                    )
                })
                .collect(),
            Err(error) => vec![format!("{key}: records of {} unknown: {error}", set.digest())],
        });
        lines.collect()
    }

    fn read_node(&mut self) -> Option<String> {
        let kernel = self.stage.kernel()?;
        match node_addresses() {
            Ok(own) => {
                kernel.tables.set_addresses(Table::Node, own.iter().copied());
                self.node = own;
                self.write_translated();
                None
            }
            Err(error) => Some(format!("cannot list the node's addresses: {error}")),
        }
    }

    /// What the node may translate: Services, and ports of its own addresses.
    fn write_translated(&mut self) {
        let translated = self.services.union(&self.node).copied();
        if let Some(kernel) = self.stage.kernel() {
            kernel.tables.set_addresses(Table::Translated, translated);
        }
    }
}

impl Backend for Ebpf {
    fn name(&self) -> &'static str {
        "ebpf"
    }

    fn adopt(&mut self, _now: Timestamp) -> Result<(), BackendError> {
        let kernel = self.open()?;
        if let Some(why) = kernel
            .translation
            .fault()
            .filter(|_| self.options.behind == Behind::Services)
        {
            tracing::warn!(why, "nothing judges where Services lead to");
        }
        self.counters.set(Arc::clone(&kernel.counters));
        metrics::describe();
        metrics::publish(&kernel);
        self.stage = Stage::Adopted(Box::new(kernel));
        let limits = self.limits();
        limits
            .iter()
            .for_each(|limit| tracing::warn!(backend = "ebpf", "{limit}"));
        super::metrics::publish_limits(self.name(), &limits);
        Ok(())
    }

    fn is_in_force(&self) -> bool {
        match &self.stage {
            Stage::Unread => false,
            // Where the pins cannot be read, what may be in force stays.
            Stage::Adopted(_) | Stage::Running(_) => self.pins.have_pods().unwrap_or(true),
        }
    }

    fn close_unknown_pods(&mut self) -> Result<bool, BackendError> {
        if self.is_in_force() || !self.options.unknown.closes(None) {
            return Ok(false);
        }
        let failed = |why: String| BackendError::new("close unknown pods", why);
        self.read_node().map_or(Ok(()), |why| Err(failed(why)))?;
        self.guard_unknown();
        match (self.guard_fault.clone(), self.stage.kernel()) {
            (Some(why), _) => Err(failed(why)),
            (None, Some(kernel)) => Ok(kernel.guard.fault().is_none()),
            (None, None) => Ok(false),
        }
    }

    fn apply(&mut self, batch: &Batch, now: Timestamp) -> SyncStatus {
        self.adopt_concurrent();
        let batch = &*self.merged_sets.merge(batch);
        if !self.has_filter() {
            super::metrics::ordered_rules(self.merged_sets.ordered());
        }
        let is_first = matches!(self.stage, Stage::Adopted(_));
        let node = is_first.then(|| self.read_node()).flatten();
        self.apply_sets(batch, now);
        self.apply_pods(batch);
        self.has_policies = batch.has_policies.or(self.has_policies);
        // Records wait: the tree of cgroups is walked only where something may change.
        if is_first || batch.has_policies.is_some() || self.guard_fault.is_some() {
            self.guard_unknown();
        }
        self.destroy_sets(batch);
        self.stage = match std::mem::replace(&mut self.stage, Stage::Unread) {
            Stage::Adopted(mut kernel) => {
                kernel.tables.settle();
                Stage::Running(kernel)
            }
            stage => stage,
        };
        // Answers touch no pod: nothing is listed for them.
        if !(batch.rules_replaced.is_empty() && batch.pods_removed.is_empty()) {
            self.detach_unwanted();
        }
        self.sweep(now);
        self.standing(node)
    }

    fn wants_services(&self) -> bool {
        true
    }

    fn set_services(&mut self, addresses: &BTreeSet<IpAddr>) {
        self.services.clone_from(addresses);
        self.write_translated();
    }

    fn links_changed(&mut self, _now: Timestamp) -> SyncStatus {
        self.adopt_concurrent();
        let node = self.read_node();
        self.program(Scope::Unsettled);
        self.detach_unwanted();
        self.guard_unknown();
        SyncStatus {
            broken: node,
            ..self.status()
        }
    }

    fn reconcile(&mut self, now: Timestamp) -> SyncStatus {
        self.adopt_concurrent();
        let node = self.read_node();
        let mut repaired = BTreeMap::new();
        if let Stage::Running(kernel) = &mut self.stage {
            if let Err(error) = kernel.tables.list() {
                return SyncStatus {
                    broken: Some(format!("cannot list the maps: {error}")),
                    ..self.status()
                };
            }
            let (written, removed) = kernel.tables.settle();
            let counters = kernel.counters.repair().unwrap_or_else(|error| {
                tracing::error!(%error, "a rule is not counted");
                0
            });
            repaired.extend([
                ("member missing", written),
                ("member surplus", removed),
                ("counter missing", counters),
            ]);
        }
        repaired.insert("pod", self.program(Scope::All));
        let attached = self
            .stage
            .kernel()
            .map_or(Ok(()), |kernel| kernel.translation.attach());
        if let Err(error) = attached {
            tracing::error!(%error, "what pods send to Services is not judged");
        }
        self.guard_unknown();
        repaired.retain(|_, count| *count > 0);
        self.sweep(now);
        SyncStatus {
            repaired,
            ..self.standing(node)
        }
    }

    fn connection_search(&mut self) -> Option<ConnectionSearch> {
        let is_due = std::mem::take(&mut self.is_search_due);
        let kernel = self.stage.kernel().filter(|_| is_due)?;
        Some(kernel.denied.search())
    }

    fn end_denied_connections(&mut self) -> EndedConnections {
        let kernel = self.stage.kernel();
        kernel.map_or_else(EndedConnections::default, |kernel| {
            kernel.denied.end(&kernel.cgroup_root)
        })
    }

    fn pod_in_cgroup(&self, id: u64) -> Option<PodKey> {
        let mut pods = self.pods.iter();
        pods.find(|(_, pod)| pod.cgroup() == Some(id))
            .map(|(key, _)| key.clone())
    }

    fn bypass_report(&self) -> BypassReport {
        let mut report = BypassReport::default();
        if let Stage::Adopted(kernel) | Stage::Running(kernel) = &self.stage {
            report.bypasses.extend(kernel.guard.fault().map(|what| Bypass {
                kind: BypassKind::UnknownPods,
                what: what.to_owned(),
            }));
        }
        report
    }

    fn counters(&self) -> Arc<dyn VerdictCounters> {
        Arc::clone(&self.counters) as Arc<dyn VerdictCounters>
    }

    fn dump(&self) -> String {
        let limits = self.limits().into_iter();
        let mut lines: Vec<String> = limits.map(|limit| format!("not done: {limit}")).collect();
        if let Stage::Adopted(kernel) | Stage::Running(kernel) = &self.stage {
            let (members, pending) = kernel.tables.counts();
            let sets = self.sets.len();
            let chunks = kernel.lists.count();
            lines.push(format!(
                "sets {sets}, members {members}, pending {pending}, chunks of rules {chunks}"
            ));
            let attached = kernel.guard.attached().iter().map(|path| path.display());
            let attached: Vec<String> = attached.map(|path| path.to_string()).collect();
            lines.push(format!(
                "unknown pods closed below [{}], {} pods known",
                attached.join(", "),
                kernel.guard.known()
            ));
            lines.push(match kernel.established.read() {
                Ok([opened, accepted]) => format!("TCP connections opened {opened}, accepted {accepted}"),
                Err(error) => format!("TCP connections unknown: {error}"),
            });
        }
        lines.extend(self.merged_sets.dump().lines().map(str::to_owned));
        for (key, pod) in &self.pods {
            lines.push(format!("{key}: {pod}"));
            lines.extend(self.dump_records(key, pod));
        }
        lines.join("\n") + "\n"
    }

    fn remove_everything(&mut self) -> Result<(), BackendError> {
        self.stage = Stage::Unread;
        self.pods.clear();
        self.sets.clear();
        self.merged_sets.forget();
        self.pins
            .remove_everything()
            .map_err(|error| BackendError::new("remove the pins", error))
    }
}

/// The counters, before and after the maps are open.
#[derive(Debug, Default)]
struct SharedCounters(std::sync::OnceLock<Arc<Counters>>);

impl SharedCounters {
    /// A second `adopt` opens the same pinned map: the first handle goes on reading it.
    fn set(&self, counters: Arc<Counters>) {
        drop(self.0.set(counters));
    }

    /// Waits until the maps are open.
    fn wait(&self) -> Arc<Counters> {
        Arc::clone(self.0.wait())
    }
}

impl VerdictCounters for SharedCounters {
    fn read(&self) -> Result<Vec<VerdictCount>, BackendError> {
        self.0
            .get()
            .map_or_else(|| Ok(Vec::new()), |counters| counters.read())
    }

    fn by_series(&self, most: usize) -> Result<Vec<VerdictCount>, BackendError> {
        self.0
            .get()
            .map_or_else(|| Ok(Vec::new()), |counters| counters.by_series(most))
    }
}

fn change(tables: &mut Tables, changed: &MembersChanged) {
    for (member, expires) in &changed.added {
        tables.add(changed.set, member, *expires);
    }
    for member in &changed.removed {
        tables.remove(changed.set, member);
    }
}

fn node_addresses() -> Result<BTreeSet<IpAddr>, egret_kernel::netlink::Error> {
    let addresses = Links::open()?.addresses()?;
    Ok(addresses
        .into_iter()
        .map(|address| address.net.addr())
        .filter(|own| !own.is_loopback())
        .collect())
}
