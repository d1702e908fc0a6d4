//! The compiler: events go in, batches come out. Between two batches everything is coalesced; one batch
//! leads from the state that the last one reached to the state that all events so far call for.

use std::collections::{BTreeMap, BTreeSet};
use std::marker::PhantomData;
use std::net::IpAddr;
use std::sync::Arc;

use egret_shared::link::ClusterDns;
use egret_shared::name::DnsName;
use egret_shared::observation::Observation;
use egret_shared::pod::PodKey;
use egret_shared::revision::Revision;
use egret_shared::time::Timestamp;

use crate::model::cluster::{Entity, EntityKey};
use crate::records::{PodSnapshot, Record, Records};
use crate::rules::{Batch, SetId};

mod settings;
mod work;
mod index;
mod directions;
mod set_content;
mod set_use;
mod policies;
mod pod_rules;
mod node_rules;
mod local_pods;
mod pod_networks;
mod protected;
mod interests;
mod cluster_events;
mod recompile;
mod sequence;

pub use index::Owner;
pub use pod_networks::{NetworkNotCovered, PodNetwork};
pub use settings::{DnsStandIn, NodeScope, PodToOwnNode, Settings};
pub use work::Work;

use index::{Index, LivePod};
use interests::Interests;
use local_pods::LocalPods;
use node_rules::CompiledNode;
use pod_networks::PodNetworks;
use pod_rules::{CompiledPod, DnsRules};
use policies::{Policies, PolicyOrder};
use sequence::{Batches, Sets, TemporarySet};

/// Something that happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// An object is now like this.
    Apply(Entity),
    /// An object is gone.
    Delete(EntityKey),
    /// A client was given addresses.
    Observed(Observation),
    /// The records of a pod from before a restart. Ignored for a pod that is unknown or another run: objects come first.
    Restored(PodSnapshot),
    /// The node on which the compiler runs holds these addresses now, and no others. No name opens them, as those in the
    /// report of a node.
    NodeHolds(Vec<IpAddr>),
    /// A pod of this node has its network, as the CNI plugin reports it.
    NetworkAdded(PodNetwork),
    /// The CNI plugin has removed a pod's network.
    NetworkRemoved(PodKey),
}

/// Not all objects are known: rules compiled now could be weaker than the policies.
#[derive(Debug)]
pub struct Syncing(());

/// All objects are known.
#[derive(Debug)]
pub struct InSync(());

/// Turns events into batches. Only `Compiler<InSync>` gives any.
#[derive(Debug)]
pub struct Compiler<State> {
    settings: Settings,
    index: Index,
    policies: Policies,
    records: Records,
    local_pods: LocalPods,
    pod_networks: PodNetworks,
    sets: Sets,
    compiled: BTreeMap<PodKey, CompiledPod>,
    compiled_node: Option<CompiledNode>,
    /// As the last batch said it.
    has_policies: bool,
    interests: Interests,
    /// The addresses of the node on which the compiler runs.
    node_addresses: Vec<IpAddr>,
    dirty: Dirty,
    work: Work,
    /// Of the last batch that is due or was given.
    revision: Revision,
    /// What is to follow the batch that was given last.
    next_batch: Option<Batch>,
    sync: PhantomData<State>,
}

/// What is to be looked at again.
#[derive(Debug, Default)]
struct Dirty {
    /// Whether a batch is due.
    is_due: bool,
    pods: BTreeSet<PodKey>,
    nodes: BTreeSet<Arc<str>>,
    services: BTreeSet<PodKey>,
    /// Whether the API server may be elsewhere.
    api_server: bool,
    subjects: BTreeSet<PodKey>,
    /// Policies that select a pod with rules, or did.
    policies: BTreeSet<PolicyOrder>,
    /// Whether the node's own rules may be others.
    node_rules: bool,
    /// Addresses of pods that came, went or changed, each with whether a pod had it before.
    owned: BTreeMap<IpAddr, bool>,
}

impl Compiler<Syncing> {
    /// A compiler that knows nothing.
    #[must_use]
    pub fn new(settings: Settings) -> Self {
        Self {
            index: Index::new(settings.dns.clone()),
            policies: Policies::new(dns_rules(&settings)),
            records: Records::new(settings.records.clone()),
            local_pods: LocalPods::default(),
            pod_networks: PodNetworks::default(),
            sets: Sets::default(),
            compiled: BTreeMap::new(),
            compiled_node: None,
            has_policies: false,
            interests: Interests::default(),
            node_addresses: Vec::new(),
            dirty: Dirty::default(),
            work: Work::default(),
            revision: Revision::ZERO,
            next_batch: None,
            settings,
            sync: PhantomData,
        }
    }

    /// All objects were applied: from now on there are batches. The first one comes even if it is empty.
    #[must_use]
    pub fn in_sync(mut self) -> Compiler<InSync> {
        self.set_due();
        self.index.pack();
        self.policies.pack();
        Compiler {
            settings: self.settings,
            index: self.index,
            policies: self.policies,
            records: self.records,
            local_pods: self.local_pods,
            pod_networks: self.pod_networks,
            sets: self.sets,
            compiled: self.compiled,
            compiled_node: self.compiled_node,
            has_policies: self.has_policies,
            interests: self.interests,
            node_addresses: self.node_addresses,
            dirty: self.dirty,
            work: self.work,
            revision: self.revision,
            next_batch: self.next_batch,
            sync: PhantomData,
        }
    }
}

impl<State> Compiler<State> {
    /// Takes in an event. The state that the returned revision stands for includes it.
    pub fn handle(&mut self, event: Event, now: Timestamp) -> Revision {
        self.expire(now);
        match event {
            Event::Apply(entity) => self.apply(entity, now),
            Event::Delete(key) => self.delete(&key, now),
            Event::Observed(observation) => self.observe(observation, now),
            Event::Restored(remembered) => self.restore(&remembered, now),
            Event::NodeHolds(addresses) => self.set_node_addresses(addresses),
            Event::NetworkAdded(network) => self.add_network(network, now),
            Event::NetworkRemoved(pod) => self.remove_network(&pod, now),
        }
        self.pending_revision()
    }

    /// When `handle_timeout` is to be called, if nothing happens before.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Timestamp> {
        self.records.next_expiry()
    }

    /// Lets records end whose time is over. Members of sets time out where they are: no batch says so.
    pub fn handle_timeout(&mut self, now: Timestamp) {
        self.expire(now);
    }

    /// Live records, by expiry.
    pub fn records(&self) -> impl Iterator<Item = Record<'_>> {
        self.records.iter()
    }

    /// From now on, what changes in the records is noted for `take_record_changes`, which is to be called after each batch.
    pub const fn track_record_changes(&mut self) {
        self.records.track_changes();
    }

    /// What was done so far.
    #[must_use]
    pub fn work(&self) -> Work {
        Work {
            set_lookups: self.sets.pods_tested,
            record_steps: self.records.steps(),
            ..self.work
        }
    }

    /// The names for which a pod was given an address, live or expired, latest expiry first.
    #[must_use]
    pub fn names_observed(&self, pod: &PodKey, address: IpAddr, most: usize) -> Vec<Arc<DnsName>> {
        let mut names = self.records.names_observed(pod, address);
        names.truncate(most);
        names
    }

    /// Whose address it is, in the whole cluster.
    #[must_use]
    pub fn owner(&self, address: IpAddr) -> Option<Owner> {
        self.index.address_owner(address)
    }

    /// Whether no name opens an address for a pod: it is configured, a node's, the API server's, a Service's or the pod's own.
    #[must_use]
    pub fn is_protected(&self, pod: &PodKey, address: IpAddr) -> bool {
        self.records.is_protected(pod, address)
    }

    /// The revision that includes all events so far.
    fn pending_revision(&self) -> Revision {
        if self.is_due() {
            self.revision_after_change()
        } else {
            self.revision
        }
    }

    /// A change may take two batches, so it has two numbers, and the second is the one to wait for.
    const fn revision_after_change(&self) -> Revision {
        self.revision.next().next()
    }

    /// Makes a batch due.
    const fn set_due(&mut self) {
        self.dirty.is_due = true;
    }

    fn is_due(&self) -> bool {
        self.dirty.is_due || self.sets.has_answered()
    }

    /// Whether the pod is one of those that get rules.
    fn is_local(&self, pod: &LivePod<'_>) -> bool {
        match &self.settings.node {
            NodeScope::One(name) => pod.pod.node.as_ref() == Some(name),
            NodeScope::All => true,
        }
    }
}

impl Compiler<InSync> {
    /// What leads from the last batch to now; none if nothing happened. To be called until there is none:
    /// a change that closes some connections and opens others may take two batches. One may be empty:
    /// then nothing changed, but there is a revision that somebody may wait for.
    pub fn poll_batch(&mut self, now: Timestamp) -> Option<Batch> {
        self.expire(now);
        if let Some(rest) = self.next_batch.take() {
            return Some(rest);
        }
        if !self.is_due() {
            return None;
        }
        let dirty = std::mem::take(&mut self.dirty);
        let mut batches = Batches {
            first: Batch::empty(self.revision.next()),
            then: Batch::empty(self.revision_after_change()),
        };
        for name in &dirty.nodes {
            self.sets.refresh_node(name, &self.index);
        }
        for key in &dirty.services {
            self.sets.refresh_service(key, &self.index);
        }
        if dirty.api_server {
            self.sets.refresh_api_server(&self.index);
        }
        if self.index.take_dns_change() {
            self.sets.refresh_dns(&self.index);
        }
        for key in &dirty.pods {
            self.sets.refresh_pod(key, &self.index);
        }
        let mut new = BTreeSet::new();
        for (key, which) in self.affected_pods(&dirty) {
            if self.recompile(&key, which, &mut batches.first) {
                new.insert(key);
            }
        }
        if !dirty.policies.is_empty() || !dirty.pods.is_empty() {
            self.policies.forget_unused();
        }
        if dirty.node_rules {
            self.recompile_node(&mut batches.first);
        }
        let has_passed =
            |(address, was_owned): &(&IpAddr, &bool)| self.index.owner(**address).is_some() != **was_owned;
        let passing = dirty
            .owned
            .iter()
            .filter(has_passed)
            .map(|(address, _)| *address)
            .collect();
        let has_policies = !self.settings.enforcement.is_audit() && self.policies.has_enforced();
        if self.has_policies != has_policies {
            self.has_policies = has_policies;
            batches.first.has_policies = Some(has_policies);
        }
        let aside = self
            .sets
            .sequence(&mut batches, &self.records, now, &passing, |pod| {
                !new.contains(pod)
            });
        let pods = self.compiled.iter().map(|(key, compiled)| (key, &compiled.rules));
        let node = self.compiled_node.as_ref().map(|node| &node.rules);
        TemporarySet::substitute(aside, &mut batches, pods, node);
        self.revision = batches.then.revision;
        if batches.then.members_changed.is_empty() {
            batches.first.revision = self.revision;
        } else {
            self.next_batch = Some(batches.then);
        }
        Some(batches.first)
    }

    /// What answers open, as far as it can be had ahead of the next batch: a batch of new members alone, of sets that are
    /// there, that only allow, and that are not `busy`. Any order is safe for it, and it may be applied while another batch is
    /// on its way that names none of its sets. None where there is nothing; what is left is in the next batch. The last
    /// of them has the revision to wait for.
    pub fn poll_answers(&mut self, busy: &BTreeSet<SetId>, now: Timestamp) -> Option<Batch> {
        self.expire(now);
        if !self.sets.has_answered() || self.next_batch.is_some() {
            return None;
        }
        let after = self.revision_after_change();
        let members_changed = self.sets.sequence_answers(&self.records, now, busy);
        if !self.sets.has_answered() {
            self.revision = after;
        }
        let is_told = self.revision == after || !members_changed.is_empty();
        is_told.then(|| Batch {
            members_changed,
            ..Batch::empty(self.revision)
        })
    }

    /// Whether `poll_batch` has one.
    #[must_use]
    pub fn has_batch(&self) -> bool {
        self.next_batch.is_some() || self.is_due()
    }

    /// Whether answers came of which no batch has told yet.
    #[must_use]
    pub fn has_pending_answers(&self) -> bool {
        self.sets.has_answered()
    }

    /// Where the cluster's own DNS is, if that may be another place than at the last call: the ready endpoints of the Service
    /// in whose place dnsd answers, and what else can be asked by way of a Service.
    pub fn poll_cluster_dns(&mut self) -> Option<ClusterDns> {
        self.index.take_cluster_dns()
    }

    /// The revision that is reached when `poll_batch` has no more.
    #[must_use]
    pub const fn revision(&self) -> Revision {
        self.revision
    }
}

fn dns_rules(settings: &Settings) -> DnsRules {
    if settings.dns.addresses.is_empty() {
        DnsRules::PodsAlone
    } else {
        DnsRules::WithStandIn
    }
}
