//! Who has the backend. What touches rules takes its time: the backend then goes with it to a thread of its own, and comes back
//! with how it went. There is one such flight at a time; what happens meanwhile waits for it, but for what pods are
//! told, which goes into sets that the flight does not touch.

use std::collections::BTreeSet;
use std::sync::Arc;

use egret_kernel::allocator;
use egret_policies::rules::{Batch, SetId};
use egret_shared::time::Timestamp;
use tokio::task::JoinHandle;

use super::input::Question;
use crate::backend::{Backend, Ended, Meanwhile, Standing};
use crate::metrics::Metrics;

/// Sets and rules of pods. To look for memory that is free takes as long as a small change does.
const MUCH: usize = 1000;

/// Where the backend is.
#[derive(Debug)]
pub(super) enum Hands {
    /// With the engine.
    Here(Box<dyn Backend>),
    /// At work.
    Away(Flight),
    /// Between the two.
    Moving,
}

/// A backend at work.
#[derive(Debug)]
pub(super) struct Flight {
    landing: JoinHandle<Landed>,
    meanwhile: Arc<dyn Meanwhile>,
    /// Sets that are made or changed by it.
    busy: BTreeSet<SetId>,
    /// Whether rules change with it.
    is_change: bool,
    /// Whether the kernel refused what was handed in meanwhile.
    pub(super) was_refused: bool,
    /// What was asked before it, and is answered after it.
    pub(super) questions: Vec<Question>,
}

/// A backend that comes back.
#[derive(Debug)]
pub(super) struct Landed {
    pub(super) backend: Box<dyn Backend>,
    pub(super) done: Done,
}

impl Hands {
    /// The backend, where it is at hand.
    pub(super) fn backend(&self) -> Option<&dyn Backend> {
        match self {
            Self::Here(backend) => Some(&**backend),
            Self::Away(_) | Self::Moving => None,
        }
    }

    /// Sets that are being made or changed.
    pub(super) const fn busy(&self) -> &BTreeSet<SetId> {
        const NONE: &BTreeSet<SetId> = &BTreeSet::new();
        match self {
            Self::Away(flight) => &flight.busy,
            Self::Here(_) | Self::Moving => NONE,
        }
    }

    /// Whether what was compiled last is on its way, and not in force yet.
    pub(super) const fn is_changing(&self) -> bool {
        match self {
            Self::Away(flight) => flight.is_change,
            Self::Here(_) | Self::Moving => false,
        }
    }

    /// Whether the kernel refused what was handed in while the backend is away.
    pub(super) const fn was_refused(&self) -> bool {
        match self {
            Self::Away(flight) => flight.was_refused,
            Self::Here(_) | Self::Moving => false,
        }
    }

    /// The same, to be worked with.
    pub(super) fn backend_mut(&mut self) -> Option<&mut Box<dyn Backend>> {
        match self {
            Self::Here(backend) => Some(backend),
            Self::Away(_) | Self::Moving => None,
        }
    }

    /// Sends it away with work, where others need not wait for that; otherwise the work is left.
    pub(super) fn send(
        &mut self,
        work: Work,
        questions: &mut Vec<Question>,
        metrics: &Metrics,
        now: Timestamp,
    ) -> Result<(), Work> {
        let meanwhile = self
            .backend()
            .filter(|_| work.is_long())
            .and_then(Backend::meanwhile);
        let Some(meanwhile) = meanwhile else {
            return Err(work);
        };
        let Self::Here(mut backend) = std::mem::replace(self, Self::Moving) else {
            unreachable!("it was at hand when it was asked for what may be done meanwhile")
        };
        let (busy, is_change) = (work.sets(), !work.batches.is_empty());
        let metrics = metrics.clone();
        let landing = tokio::task::spawn_blocking(move || {
            let done = work.do_with(&mut *backend, &metrics, now);
            Landed { backend, done }
        });
        *self = Self::Away(Flight {
            landing,
            meanwhile,
            busy,
            is_change,
            was_refused: false,
            questions: std::mem::take(questions),
        });
        Ok(())
    }

    /// Waits until the flight ends; without one, for ever.
    pub(super) async fn landing(&mut self) -> Landed {
        match self {
            Self::Away(flight) => flight.land().await,
            Self::Here(_) | Self::Moving => std::future::pending().await,
        }
    }

    /// The backend, after what it is at.
    pub(super) async fn take(self) -> Box<dyn Backend> {
        match self {
            Self::Here(backend) => backend,
            Self::Away(mut flight) => flight.land().await.backend,
            Self::Moving => unreachable!("the backend moves while one function runs, which does not wait"),
        }
    }
}

impl Flight {
    async fn land(&mut self) -> Landed {
        match (&mut self.landing).await {
            Ok(landed) => landed,
            Err(error) => std::panic::resume_unwind(error.into_panic()),
        }
    }

    /// Hands in what answers open.
    pub(super) fn open(&mut self, batch: &Batch, now: Timestamp) {
        if let Err(error) = self.meanwhile.add_members(&batch.members_changed, now) {
            tracing::warn!(%error, "it is tried again when the rules are written");
            self.was_refused = true;
        }
    }
}

/// What a backend is to do, in this order.
#[derive(Debug, Default)]
pub(super) struct Work {
    pub(super) batches: Vec<Batch>,
    pub(super) links_changed: bool,
    pub(super) look: bool,
    pub(super) compare: bool,
    /// What an inquiry found is to be taken in.
    pub(super) found: bool,
}

/// How it went.
#[derive(Debug)]
pub(super) struct Done {
    /// After each thing that was done.
    pub(super) standings: Vec<Standing>,
    /// What makes one think that others changed something.
    pub(super) alarm: Option<String>,
    /// After everything was compared, where it was.
    pub(super) compared: Option<Standing>,
    pub(super) ended: Ended,
}

impl Work {
    /// Whether a program may run, or a table be read.
    fn is_long(&self) -> bool {
        let reads = self.links_changed || self.look || self.compare || self.found;
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

    /// Does it.
    pub(super) fn do_with(self, backend: &mut dyn Backend, metrics: &Metrics, now: Timestamp) -> Done {
        let mut standings = Vec::new();
        for batch in &self.batches {
            let started = metrics.start();
            standings.push(backend.apply(batch, now));
            metrics.programmed(started, touches_rules(batch));
        }
        if self.links_changed {
            standings.push(backend.links_changed(now));
        }
        let alarm = self.look.then(|| backend.look(now)).flatten();
        let compared = self.compare.then(|| backend.reconcile(now));
        let ended = backend.end_forbidden();
        if self.is_much() {
            drop(self.batches);
            allocator::trim();
        }
        Done {
            standings,
            alarm,
            compared,
            ended,
        }
    }
}

impl Work {
    /// Whether it is that of a start: what it was made of is many times what stays of it.
    fn is_much(&self) -> bool {
        let made = |batch: &Batch| batch.sets_created.len() + batch.rules_replaced.len();
        self.batches.iter().map(made).sum::<usize>() > MUCH
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
