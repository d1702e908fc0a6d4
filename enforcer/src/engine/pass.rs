//! One pass of the engine. Observations come first because clients wait for them. The rest goes to the backend worker
//! if it takes long.

use std::collections::BTreeSet;
use std::sync::Arc;

use egret_policies::rules::{Batch, SetId};
use egret_shared::time::Timestamp;

use super::worker::{BackendWorker, Completion, Work, WorkResult};
use super::{AdminRequest, Engine, Phase, Received, interception_of, update_owners};
use crate::apply::retry::Retry;
use crate::backend::{EndedConnections, SearchResult, SyncStatus};

impl Engine {
    /// Applies, repairs and reports what follows from the inputs. Admin requests are answered last, so that no reply
    /// claims that all is well before earlier inputs are in the kernel.
    pub fn pass(&mut self, now: Timestamp) {
        self.apply_inputs(now);
        self.expire_networks(now);
        self.received = Received::Nothing;
        if let Some(backend) = self.worker.backend_mut() {
            self.search.start(&mut **backend);
            let admin_requests = std::mem::take(&mut self.admin_requests);
            self.reply_all(admin_requests);
        }
    }

    fn apply_inputs(&mut self, now: Timestamp) {
        self.start_when_ready(now);
        let Phase::Running(compiler) = &mut self.compiler else {
            return;
        };
        compiler.handle_timeout(now);
        let all_records_added = self.add_all_records(now);
        // Before `Realized` is sent.
        self.write_records(now);
        if all_records_added {
            self.send_realized();
        }
        if all_records_added && self.is_done(now) {
            return self.end_denied_connections(now);
        }
        if self.worker.backend().is_none() {
            // A dnsd that joins does not wait for a poll or a comparison.
            let changes_rules = self.worker.in_flight().is_some_and(|batch| batch.changes_rules);
            if all_records_added && !changes_rules {
                self.notify_peers();
            }
            return;
        }
        let work = self.collect_work(now);
        // If a client waits for this batch, apply it synchronously: concurrent set updates would starve it.
        let left = if all_records_added {
            self.worker
                .send(work, &mut self.admin_requests, &self.metrics, now)
                .err()
        } else {
            Some(work)
        };
        if let (Some(work), Some(backend)) = (left, self.worker.backend_mut()) {
            let result = work.run(&mut **backend, &self.metrics, now);
            self.finish_work(result, now);
            self.write_records(now);
            self.notify_peers();
        }
    }

    /// Whether all inputs were observations, they are in the kernel, and nothing else is due.
    fn is_done(&self, now: Timestamp) -> bool {
        let is_compiled = matches!(&self.compiler, Phase::Running(compiler) if !compiler.has_batch());
        let is_due = || self.deadline().is_some_and(|at| at <= now);
        self.received == Received::Observations && is_compiled && self.worker.backend().is_some() && !is_due()
    }

    /// Records may have allowed again what was denied.
    fn end_denied_connections(&mut self, now: Timestamp) {
        if let Some(backend) = self.worker.backend_mut() {
            let ended = backend.end_denied_connections();
            self.note_ended(ended, now);
        }
    }

    /// What is left is ended by the next work, together with the changes that have come by then.
    fn note_ended(&mut self, ended: EndedConnections, now: Timestamp) {
        self.metrics.ended(ended);
        self.denied_left_since = ended.is_unfinished.then_some(now);
    }

    /// Adds observed addresses to sets, as far as no rule has to change. Returns whether all are added.
    fn add_all_records(&mut self, now: Timestamp) -> bool {
        while let Some(batch) = self.next_records(now) {
            let started = self.metrics.start();
            match &mut self.worker {
                BackendWorker::Idle(backend) => {
                    if let Some(status) = backend.add_records(&batch, now) {
                        self.update_status(status, now);
                    }
                }
                BackendWorker::Busy(in_flight) => in_flight.add_members(&batch, now),
                BackendWorker::Transition => {}
            }
            self.metrics.programmed(started, false);
        }
        matches!(&self.compiler, Phase::Running(compiler) if !compiler.has_pending_answers())
    }

    fn next_records(&mut self, now: Timestamp) -> Option<Batch> {
        match &mut self.compiler {
            Phase::Running(compiler) => {
                const NONE: &BTreeSet<SetId> = &BTreeSet::new();
                let sets = self.worker.in_flight().map_or(NONE, |batch| &batch.sets);
                compiler.poll_answers(sets, now)
            }
            Phase::Starting { .. } | Phase::Transition => None,
        }
    }

    /// Collects all work that is due.
    fn collect_work(&mut self, now: Timestamp) -> Work {
        let has_found = self.search.take_result() == Some(SearchResult::Something);
        let mut work = Work {
            services: self.services.take_changed(),
            links_changed: std::mem::take(&mut self.links_changed),
            poll_drift: self.drift.is_poll_due(now),
            are_denied_left: self.denied_left_since.take().is_some() | has_found,
            ..Work::default()
        };
        if let Phase::Running(compiler) = &mut self.compiler {
            let mut owners_changed = self.pods.is_none();
            while let Some(batch) = compiler.poll_batch(now) {
                owners_changed |= update_owners(&mut self.owners, &mut self.local, &batch);
                work.batches.push(batch);
            }
            if owners_changed {
                self.update_pods();
            }
            self.networks.set_collected();
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
        let Completion { mut backend, result } = completion;
        // Here too: with changes one after the other, the backend is not at hand between passes.
        self.search.start(&mut *backend);
        let before = std::mem::replace(&mut self.worker, BackendWorker::Idle(backend));
        self.finish_work(result, now);
        // First the records of sets that the batch made, then the interests that belong to them.
        if self.add_all_records(now) {
            self.write_records(now);
            self.notify_peers();
        }
        if let BackendWorker::Busy(in_flight) = before {
            self.retry = self
                .retry
                .after(in_flight.was_refused || self.status.wants_retry(), now);
            self.reply_all(in_flight.admin_requests);
        }
        for lookups in std::mem::take(&mut self.lookups) {
            self.look_up_endpoints(lookups);
        }
    }

    fn finish_work(&mut self, result: WorkResult, now: Timestamp) {
        for status in result.statuses {
            self.update_status(status, now);
        }
        if let Some(cause) = result.drift {
            self.drift.suspect(cause, now);
        }
        if let Some(status) = result.compared {
            self.drift.record_comparison(&status, now);
            if self.retry != Retry::Idle && status.wants_retry() {
                self.metrics.refused(&status);
            }
            self.update_status(status, now);
            self.set_resync(self.resync, now);
        }
        self.note_ended(result.ended, now);
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

    fn reply_all(&self, admin_requests: Vec<AdminRequest>) {
        let Some(backend) = self.worker.backend() else {
            return;
        };
        for AdminRequest { query, reply } in admin_requests {
            // The asker may have timed out.
            drop(reply.send(self.answer(backend, query)));
        }
    }
}
