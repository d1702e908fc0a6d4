//! The compiler: events go in, batches come out. Between two batches everything is coalesced; one batch
//! leads from the state that the last one reached to the state that all events so far call for.

use std::collections::BTreeSet;
use std::marker::PhantomData;
use std::net::IpAddr;
use std::sync::Arc;

use egret_shared::link::{ClusterDns, Interest};
use egret_shared::name::DnsName;
use egret_shared::observation::Observation;
use egret_shared::pod::PodKey;
use egret_shared::revision::Revision;
use egret_shared::time::Timestamp;

use crate::model::cluster::{Entity, EntityKey};
use crate::records::{Record, RecordStats, Remembered, RememberedChange, Walk};
use crate::rules::{Batch, SetId};

mod settings;
mod engine;
mod policies;
mod locals;
mod interests;
mod guard;
mod work;

pub use settings::{DnsStandIn, NodeScope, PodToOwnNode, Settings};

pub use work::Work;

pub use crate::index::Owner;

use engine::Engine;

/// Something that happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// An object is now like this.
    Apply(Entity),
    /// An object is gone.
    Delete(EntityKey),
    /// A client was told addresses.
    Observed(Observation),
    /// A pod was told this in an earlier life of the compiler. A pod that is not known, or is another run than was
    /// told, gets nothing: the objects come before.
    Restored(Remembered),
    /// The node on which the compiler runs holds these addresses now, and no others. No name opens them, as those in the
    /// report of a node.
    NodeHolds(Vec<IpAddr>),
}

/// Not everything is known yet: rules made now would be weaker or harder than what the cluster says.
#[derive(Debug)]
pub struct Syncing(());

/// Everything was told once.
#[derive(Debug)]
pub struct InSync(());

/// Turns events into batches. Only `Compiler<InSync>` gives any.
#[derive(Debug)]
pub struct Compiler<State> {
    engine: Engine,
    state: PhantomData<State>,
}

impl Compiler<Syncing> {
    /// A compiler that knows nothing.
    #[must_use]
    pub fn new(settings: Settings) -> Self {
        Self {
            engine: Engine::new(settings),
            state: PhantomData,
        }
    }

    /// All objects that there are have been told: from now on there are batches, and the first one comes
    /// whether or not there is anything in it.
    #[must_use]
    pub fn in_sync(mut self) -> Compiler<InSync> {
        self.engine.mark();
        Compiler {
            engine: self.engine,
            state: PhantomData,
        }
    }
}

impl<State> Compiler<State> {
    /// Takes in an event. The state that the returned revision stands for includes it.
    pub fn handle(&mut self, event: Event, now: Timestamp) -> Revision {
        self.engine.expire(now);
        match event {
            Event::Apply(entity) => self.engine.apply(entity, now),
            Event::Delete(key) => self.engine.delete(&key, now),
            Event::Observed(observation) => self.engine.observe(observation, now),
            Event::Restored(remembered) => self.engine.restore(&remembered, now),
            Event::NodeHolds(addresses) => self.engine.hold(addresses),
        }
        self.engine.pending_revision()
    }

    /// When `handle_timeout` is to be called, if nothing happens before.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Timestamp> {
        self.engine.records.next_expiry()
    }

    /// Lets records end whose time is over. Members of sets time out where they are: no batch says so.
    pub fn handle_timeout(&mut self, now: Timestamp) {
        self.engine.expire(now);
    }

    /// Live records, in the order in which they end.
    pub fn records(&self) -> impl Iterator<Item = Record<'_>> {
        self.engine.records.iter()
    }

    /// From now on, what changes in the records is noted for `take_record_changes`, which is to be called after each batch.
    pub const fn note_record_changes(&mut self) {
        self.engine.records.note_news();
    }

    /// What changed in the records since the last call, to be kept for `Event::Restored`: put together with what
    /// `walk_records` gave before, in the order in which they were given, it is all that is to be remembered.
    pub fn take_record_changes(&mut self) -> Vec<RememberedChange> {
        self.engine.take_record_changes()
    }

    /// The next of all records, also those that are over: of one pod, and at most so many. None when there are no more.
    #[must_use]
    pub fn walk_records(&self, walk: &mut Walk, most: usize) -> Option<Remembered> {
        self.engine.walk_records(walk, most)
    }

    /// What was done so far.
    #[must_use]
    pub fn work(&self) -> Work {
        self.engine.work()
    }

    /// The names for which a pod was told an address, live or over: what ended last, or has not ended, first.
    #[must_use]
    pub fn names_told(&self, pod: &PodKey, address: IpAddr, most: usize) -> Vec<Arc<DnsName>> {
        let mut names = self.engine.records.names_told(pod, address);
        names.truncate(most);
        names
    }

    /// Whose address it is, in the whole cluster.
    #[must_use]
    pub fn owner(&self, address: IpAddr) -> Option<Owner> {
        self.engine.index.whose(address)
    }

    /// Whether no name opens an address for a pod: it is configured, a node's, the API server's, a Service's or the pod's own.
    #[must_use]
    pub fn is_protected(&self, pod: &PodKey, address: IpAddr) -> bool {
        self.engine.records.is_protected(pod, address)
    }

    /// Counts and limits of records.
    #[must_use]
    pub fn record_stats(&self) -> RecordStats {
        self.engine.record_stats()
    }
}

impl Compiler<InSync> {
    /// What leads from the last batch to now; none if nothing happened. To be called until there is none:
    /// a change that closes some connections and opens others may take two batches. One may be empty:
    /// then nothing changed, but there is a revision that somebody may wait for.
    pub fn poll_batch(&mut self, now: Timestamp) -> Option<Batch> {
        self.engine.poll_batch(now)
    }

    /// What answers open, as far as it can be had ahead of the next batch: a batch of new members alone, of sets that are
    /// there, that only allow, and that are not `busy`. Any order is safe for it, and it may be applied while another batch is
    /// on its way that names none of its sets. None where there is nothing; what is left is in the next batch.
    pub fn poll_answers(&mut self, busy: &BTreeSet<SetId>, now: Timestamp) -> Option<Batch> {
        self.engine.poll_answers(busy, now)
    }

    /// Whether `poll_batch` has one.
    #[must_use]
    pub fn has_batch(&self) -> bool {
        self.engine.has_batch()
    }

    /// Whether answers came of which no batch has told yet.
    #[must_use]
    pub fn has_answers(&self) -> bool {
        self.engine.sets.has_answered()
    }

    /// The interests that changed since the last call, as of the last batch; one without patterns is over.
    pub fn poll_interests(&mut self) -> Vec<Interest> {
        self.engine.poll_interests()
    }

    /// All interests, as of the last batch.
    #[must_use]
    pub fn interests(&self) -> Vec<Interest> {
        self.engine.interests()
    }

    /// Where the cluster's own DNS is, if that may be another place than at the last call: the ready endpoints of the Service
    /// in whose place dnsd answers, and what else can be asked by way of a Service.
    pub fn poll_cluster_dns(&mut self) -> Option<ClusterDns> {
        self.engine.index.take_cluster_dns()
    }

    /// The revision that is reached when `poll_batch` has no more.
    #[must_use]
    pub const fn revision(&self) -> Revision {
        self.engine.revision()
    }
}
