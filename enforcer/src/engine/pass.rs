//! One pass of the engine. Observations come first because clients wait for them. The rest goes to the backend worker
//! if it takes long.

use std::sync::Arc;

use egret_policies::rules::Batch;
use egret_shared::time::Timestamp;

use super::worker::{BackendWorker, Completion, Work, WorkResult};
use super::{AdminRequest, Engine, Phase, Received, interception_of, update_owners};
use crate::apply::retry::Retry;
use crate::backend::{SearchResult, SyncStatus};

impl Engine {
    /// Applies, repairs and reports what follows from the inputs. Admin requests are answered last, so that no reply
    /// claims that all is well before earlier inputs are in the kernel.
    pub fn pass(&mut self, now: Timestamp) {
        self.follow_up(now);
        self.received = Received::Nothing;
        if let Some(backend) = self.worker.backend_mut() {
            self.search.begin(&mut **backend);
            let questions = std::mem::take(&mut self.questions);
            self.answer_all(questions);
        }
    }

    fn follow_up(&mut self, now: Timestamp) {
        self.begin_when_ready(now);
        let Phase::Running(compiler) = &mut self.compiler else {
            return;
        };
        compiler.handle_timeout(now);
        let is_all_open = self.add_all_records(now);
        // Before `Realized` is sent.
        self.write_records(now);
        if is_all_open {
            self.send_realized();
        }
        if is_all_open && self.has_nothing_else(now) {
            return self.end_denied_connections();
        }
        if self.worker.backend().is_none() {
            // A dnsd that joins does not wait for a poll or a comparison.
            if is_all_open && !self.worker.is_changing() {
                self.tell();
            }
            return;
        }
        let work = self.gather(now);
        // If a client waits for this batch, apply it synchronously: concurrent set updates would starve it.
        let left = if is_all_open {
            self.worker
                .send(work, &mut self.questions, &self.metrics, now)
                .err()
        } else {
            Some(work)
        };
        if let (Some(work), Some(backend)) = (left, self.worker.backend_mut()) {
            let done = work.run(&mut **backend, &self.metrics, now);
            self.finish_work(done, now);
            self.write_records(now);
            self.tell();
        }
    }

    /// Whether all inputs were observations, they are in the kernel, and nothing else is due.
    fn has_nothing_else(&self, now: Timestamp) -> bool {
        let is_compiled = matches!(&self.compiler, Phase::Running(compiler) if !compiler.has_batch());
        let is_due = || self.deadline().is_some_and(|at| at <= now);
        self.received == Received::Answers && is_compiled && self.worker.backend().is_some() && !is_due()
    }

    /// Records may have allowed again what was denied.
    fn end_denied_connections(&mut self) {
        if let Some(backend) = self.worker.backend_mut() {
            self.metrics.ended(backend.end_denied_connections());
        }
    }

    /// Adds observed addresses to sets, as far as no rule has to change. Returns whether all are added.
    fn add_all_records(&mut self, now: Timestamp) -> bool {
        while let Some(batch) = self.next_records(now) {
            let started = self.metrics.start();
            match &mut self.worker {
                BackendWorker::Here(backend) => {
                    if let Some(status) = backend.add_records(&batch, now) {
                        self.update_status(status, now);
                    }
                }
                BackendWorker::Away(in_flight) => in_flight.open(&batch, now),
                BackendWorker::Moving => {}
            }
            self.metrics.programmed(started, false);
        }
        matches!(&self.compiler, Phase::Running(compiler) if !compiler.has_pending_answers())
    }

    fn next_records(&mut self, now: Timestamp) -> Option<Batch> {
        match &mut self.compiler {
            Phase::Running(compiler) => compiler.poll_answers(self.worker.busy(), now),
            Phase::Starting { .. } | Phase::Moving => None,
        }
    }

    /// Collects all work that is due.
    fn gather(&mut self, now: Timestamp) -> Work {
        let mut work = Work {
            links_changed: std::mem::take(&mut self.links_changed),
            poll_drift: self.drift.is_poll_due(now),
            found: self.search.take_found() == Some(SearchResult::Something),
            ..Work::default()
        };
        if let Phase::Running(compiler) = &mut self.compiler {
            let mut may_be_others = self.pods.is_none();
            while let Some(batch) = compiler.poll_batch(now) {
                may_be_others |= update_owners(&mut self.owners, &mut self.local, &batch);
                work.batches.push(batch);
            }
            if may_be_others {
                self.update_pods();
            }
        }
        let is_due = |at: Option<Timestamp>| at.is_some_and(|at| at <= now);
        work.compare = is_due(self.retry.deadline()) || is_due(self.next_resync) || self.drift.is_due(now);
        work
    }

    /// Updates the pods that dnsd intercepts. Peers compare the `Arc` by pointer.
    fn update_pods(&mut self) {
        let pods = interception_of(&self.owners, &self.excluded_namespaces);
        if self.pods.as_deref() != Some(&pods) {
            self.pods = Some(Arc::new(pods));
        }
    }

    /// The backend is back from a batch.
    pub(super) fn complete(&mut self, completion: Completion, now: Timestamp) {
        let Completion { backend, done } = completion;
        let before = std::mem::replace(&mut self.worker, BackendWorker::Here(backend));
        self.finish_work(done, now);
        // First the records of sets that the batch made, then the interests that belong to them.
        if self.add_all_records(now) {
            self.write_records(now);
            self.tell();
        }
        if let BackendWorker::Away(in_flight) = before {
            self.retry = self
                .retry
                .after(in_flight.was_refused || self.status.wants_retry(), now);
            self.answer_all(in_flight.questions);
        }
        for lookups in std::mem::take(&mut self.lookups) {
            self.look_up_endpoints(lookups);
        }
    }

    fn finish_work(&mut self, done: WorkResult, now: Timestamp) {
        for status in done.statuses {
            self.update_status(status, now);
        }
        if let Some(cause) = done.drift {
            self.drift.raise(cause, now);
        }
        if let Some(status) = done.compared {
            self.drift.compared(&status, now);
            if self.retry != Retry::Idle && status.wants_retry() {
                self.metrics.refused(&status);
            }
            self.update_status(status, now);
            self.set_resync(self.resync, now);
        }
        self.metrics.ended(done.ended);
    }

    fn update_status(&mut self, status: SyncStatus, now: Timestamp) {
        if self.retry == Retry::Idle && status.wants_retry() {
            self.metrics.refused(&status);
        }
        self.metrics.status(&status);
        // Differences with names are logged together with who made them.
        for (kind, number) in status.repaired.iter().filter(|_| status.differences.is_empty()) {
            tracing::warn!(
                kind,
                number,
                "the kernel differed from what it should hold, and was repaired"
            );
        }
        self.retry = self.retry.after(status.wants_retry(), now);
        self.status = status;
    }

    fn answer_all(&self, questions: Vec<AdminRequest>) {
        let Some(backend) = self.worker.backend() else {
            return;
        };
        for AdminRequest { query, reply } in questions {
            // The asker may have timed out.
            drop(reply.send(self.answer(backend, query)));
        }
    }
}
