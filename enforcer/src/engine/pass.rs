//! AdminQuery follows from what happened: one pass. Answers first, for somebody waits for them; then everything else, which
//! takes the backend away if it takes long.

use std::sync::Arc;

use egret_policies::rules::Batch;
use egret_shared::time::Timestamp;

use super::worker::{BackendWorker, Completion, Work, WorkResult};
use super::{AdminRequest, Engine, Phase, Received, interception_of, update_owners};
use crate::apply::retry::Retry;
use crate::backend::{SearchResult, SyncStatus};

impl Engine {
    /// Follows up: applies, repairs, tells. Who asks is answered last, so that nobody hears that all is well while
    /// something that received before the question is not in the kernel.
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
        // Before anybody hears that it is so.
        self.write_records(now);
        if is_all_open {
            self.send_realized();
        }
        if is_all_open && self.has_nothing_else(now) {
            return self.end_denied_connections();
        }
        if self.worker.backend().is_none() {
            // A dnsd that joins need not wait for a look or a comparison.
            if is_all_open && !self.worker.is_changing() {
                self.tell();
            }
            return;
        }
        let work = self.gather(now);
        // AdminQuery goes the long way and is waited for has nobody overtake it: each in_flight would leave others behind.
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

    /// Whether pods were told something, that is open, and nothing else follows from what happened.
    fn has_nothing_else(&self, now: Timestamp) -> bool {
        let is_compiled = matches!(&self.compiler, Phase::Running(compiler) if !compiler.has_batch());
        let is_due = || self.deadline().is_some_and(|at| at <= now);
        self.received == Received::Answers && is_compiled && self.worker.backend().is_some() && !is_due()
    }

    /// AdminQuery was told may have opened again what was forbidden.
    fn end_denied_connections(&mut self) {
        if let Some(backend) = self.worker.backend_mut() {
            self.metrics.ended(backend.end_denied_connections());
        }
    }

    /// Opens what pods were told, as far as that needs nothing else; says whether it is all.
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
        matches!(&self.compiler, Phase::Running(compiler) if !compiler.has_answers())
    }

    fn next_records(&mut self, now: Timestamp) -> Option<Batch> {
        match &mut self.compiler {
            Phase::Running(compiler) => compiler.poll_answers(self.worker.busy(), now),
            Phase::Starting { .. } | Phase::Moving => None,
        }
    }

    /// All that there is to do.
    fn gather(&mut self, now: Timestamp) -> Work {
        let mut work = Work {
            links_changed: std::mem::take(&mut self.links_changed),
            look: self.drift.is_poll_due(now),
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

    /// All pods of the node are known now. Those to whom they were told know them by identity.
    fn update_pods(&mut self) {
        let pods = interception_of(&self.owners, &self.excluded_namespaces);
        if self.pods.as_deref() != Some(&pods) {
            self.pods = Some(Arc::new(pods));
        }
    }

    /// The backend is back.
    pub(super) fn complete(&mut self, completion: Completion, now: Timestamp) {
        let Completion { backend, done } = completion;
        let before = std::mem::replace(&mut self.worker, BackendWorker::Here(backend));
        self.finish_work(done, now);
        // With what was told meanwhile about sets that it made; only then the interests that go with it.
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
        if let Some(cause) = done.timer {
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
        // Differences that are known by name are logged with who made them.
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
            // Who asked may have stopped waiting.
            drop(reply.send(self.answer(backend, query)));
        }
    }
}
