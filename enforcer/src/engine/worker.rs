//! The backend worker. Work that touches rules takes long: the backend then moves with it to another thread, and comes
//! back with the result. One batch is in flight at a time. Meanwhile inputs queue, except observations: they go into
//! sets that the batch does not touch.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;

use egret_policies::rules::{Batch, SetId};
use egret_shared::rt::allocator;
use egret_shared::time::Timestamp;
use tokio::task::JoinHandle;

use super::input::AdminRequest;
use super::metrics::Metrics;
use crate::backend::{Backend, ConcurrentSetUpdate, EndedConnections, SyncStatus};

/// Sets and pods' rules of a batch from which the heap is trimmed afterwards. Trimming takes as long as a small change.
const BULK: usize = 1000;

/// Where the backend is.
#[derive(Debug)]
pub(super) enum BackendWorker {
    /// With the engine.
    Idle(Box<dyn Backend>),
    /// With a batch in flight.
    Busy(InFlight),
    /// Between the two.
    Transition,
}

/// A batch in flight.
#[derive(Debug)]
pub(super) struct InFlight {
    completion: JoinHandle<Completion>,
    set_update: Arc<dyn ConcurrentSetUpdate>,
    /// Sets that it creates or changes.
    pub(super) sets: BTreeSet<SetId>,
    /// Whether it changes rules.
    pub(super) changes_rules: bool,
    /// Whether the kernel refused a concurrent set update.
    pub(super) was_refused: bool,
    /// Admin requests from before it; they are answered after it.
    pub(super) admin_requests: Vec<AdminRequest>,
}

/// The completion of a batch.
#[derive(Debug)]
pub(super) struct Completion {
    pub(super) backend: Box<dyn Backend>,
    pub(super) result: WorkResult,
}

impl BackendWorker {
    /// The backend, unless it works.
    pub(super) fn backend(&self) -> Option<&dyn Backend> {
        match self {
            Self::Idle(backend) => Some(&**backend),
            Self::Busy(_) | Self::Transition => None,
        }
    }

    /// The batch in flight, if there is one.
    pub(super) const fn in_flight(&self) -> Option<&InFlight> {
        match self {
            Self::Busy(in_flight) => Some(in_flight),
            Self::Idle(_) | Self::Transition => None,
        }
    }

    /// The backend, unless it works.
    pub(super) fn backend_mut(&mut self) -> Option<&mut Box<dyn Backend>> {
        match self {
            Self::Idle(backend) => Some(backend),
            Self::Busy(_) | Self::Transition => None,
        }
    }

    /// Starts the work on another thread, if it takes long and the backend takes concurrent set updates. Returns the
    /// work otherwise.
    pub(super) fn send(
        &mut self,
        work: Work,
        admin_requests: &mut Vec<AdminRequest>,
        metrics: &Metrics,
        now: Timestamp,
    ) -> Result<(), Work> {
        let set_update = self
            .backend()
            .filter(|_| work.is_long())
            .and_then(Backend::concurrent_set_update);
        let Some(set_update) = set_update else {
            return Err(work);
        };
        let Self::Idle(mut backend) = std::mem::replace(self, Self::Transition) else {
            unreachable!("it was at hand when it was asked for what may be done meanwhile")
        };
        let (sets, changes_rules) = (work.sets(), !work.batches.is_empty());
        let metrics = metrics.clone();
        let completion = tokio::task::spawn_blocking(move || {
            let result = work.run(&mut *backend, &metrics, now);
            Completion { backend, result }
        });
        *self = Self::Busy(InFlight {
            completion,
            set_update,
            sets,
            changes_rules,
            was_refused: false,
            admin_requests: std::mem::take(admin_requests),
        });
        Ok(())
    }

    /// Waits for the completion of the batch in flight; for ever if there is none.
    pub(super) async fn completion(&mut self) -> Completion {
        match self {
            Self::Busy(in_flight) => in_flight.complete().await,
            Self::Idle(_) | Self::Transition => std::future::pending().await,
        }
    }

    /// Waits for the batch in flight, and takes the backend.
    pub(super) async fn take(self) -> Box<dyn Backend> {
        match self {
            Self::Idle(backend) => backend,
            Self::Busy(mut in_flight) => in_flight.complete().await.backend,
            Self::Transition => {
                unreachable!("the backend moves while one function runs, which does not wait")
            }
        }
    }
}

impl InFlight {
    async fn complete(&mut self) -> Completion {
        match (&mut self.completion).await {
            Ok(completion) => completion,
            Err(error) => std::panic::resume_unwind(error.into_panic()),
        }
    }

    /// Adds observed addresses while the batch is in flight.
    pub(super) fn add_members(&mut self, batch: &Batch, now: Timestamp) {
        if let Err(error) = self.set_update.add_members(&batch.members_changed, now) {
            tracing::warn!(%error, "it is tried again when the rules are written");
            self.was_refused = true;
        }
    }
}

/// Work for the backend, in this order.
#[derive(Debug, Default)]
pub(super) struct Work {
    /// The addresses of Services, if they changed.
    pub(super) services: Option<BTreeSet<IpAddr>>,
    pub(super) batches: Vec<Batch>,
    pub(super) links_changed: bool,
    pub(super) poll_drift: bool,
    pub(super) compare: bool,
    /// Whether connections are left to be ended: a connection search found some, or not all were ended at once.
    pub(super) are_denied_left: bool,
}

/// The result of the work.
#[derive(Debug)]
pub(super) struct WorkResult {
    /// The status after each step.
    pub(super) statuses: Vec<SyncStatus>,
    /// A sign that others changed something.
    pub(super) drift: Option<String>,
    /// The status after a comparison, if there was one.
    pub(super) compared: Option<SyncStatus>,
    pub(super) ended: EndedConnections,
}

impl Work {
    /// Whether it may run a program or read a table.
    fn is_long(&self) -> bool {
        let reads = self.links_changed || self.poll_drift || self.compare || self.are_denied_left;
        reads || self.batches.iter().any(touches_rules)
    }

    fn sets(&self) -> BTreeSet<SetId> {
        let of_batch = |batch: &Batch| {
            let created = batch.sets_created.iter().map(|spec| spec.id);
            let changed = batch.members_changed.iter().map(|changed| changed.set);
            let lapsed = batch.expired.iter().map(|lapsed| lapsed.set);
            let destroyed = batch.sets_destroyed.iter().copied();
            created
                .chain(changed)
                .chain(lapsed)
                .chain(destroyed)
                .collect::<Vec<_>>()
        };
        self.batches.iter().flat_map(of_batch).collect()
    }

    /// Does the work.
    pub(super) fn run(self, backend: &mut dyn Backend, metrics: &Metrics, now: Timestamp) -> WorkResult {
        let mut statuses = Vec::new();
        if let Some(addresses) = &self.services {
            backend.set_services(addresses);
        }
        for batch in &self.batches {
            let started = metrics.start();
            statuses.push(backend.apply(batch, now));
            metrics.programmed(started, touches_rules(batch));
        }
        if self.links_changed {
            statuses.push(backend.links_changed(now));
        }
        let drift = self.poll_drift.then(|| backend.poll_drift(now)).flatten();
        let compared = self.compare.then(|| backend.reconcile(now));
        let ended = backend.end_denied_connections();
        if self.is_bulk() {
            drop(self.batches);
            allocator::trim();
        }
        WorkResult {
            statuses,
            drift,
            compared,
            ended,
        }
    }
}

impl Work {
    /// Whether it is as large as a first sync, after which most of the heap is free.
    fn is_bulk(&self) -> bool {
        let made = |batch: &Batch| batch.sets_created.len() + batch.rules_replaced.len();
        self.batches.iter().map(made).sum::<usize>() > BULK
    }
}

fn touches_rules(batch: &Batch) -> bool {
    let mut asked = batch.reevaluate.iter();
    !batch.rules_replaced.is_empty()
        || !batch.pods_removed.is_empty()
        || asked.any(|asked| !batch.by_members.contains(asked))
        || batch.node_rules.is_some()
        || batch.has_policies.is_some()
}
