//! What follows from what happened: one pass. Answers first, for somebody waits for them; then everything else, which
//! takes the backend away if it takes long.

use std::sync::Arc;

use egret_policies::rules::Batch;
use egret_shared::time::Timestamp;

use super::flight::{Done, Hands, Landed, Work};
use super::{Came, Engine, Phase, Question, note_owners, pods_of_node};
use crate::apply::retry::Retry;
use crate::backend::{Found, Standing};

impl Engine {
    /// Follows up: applies, repairs, tells. Who asks is answered last, so that nobody hears that all is well while
    /// something that came before the question is not in the kernel.
    pub fn pass(&mut self, now: Timestamp) {
        self.follow_up(now);
        self.came = Came::Nothing;
        if let Some(backend) = self.hands.backend_mut() {
            self.inquirer.begin(&mut **backend);
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
        let is_all_open = self.open_answers(now);
        // Before anybody hears that it is so.
        self.keep_records(now);
        if is_all_open {
            self.tell_realized();
        }
        if is_all_open && self.has_nothing_else(now) {
            return self.end_forbidden();
        }
        if self.hands.backend().is_none() {
            // A dnsd that joins need not wait for a look or a comparison.
            if is_all_open && !self.hands.is_changing() {
                self.tell();
            }
            return;
        }
        let work = self.gather(now);
        // What goes the long way and is waited for has nobody overtake it: each flight would leave others behind.
        let left = if is_all_open {
            self.hands
                .send(work, &mut self.questions, &self.metrics, now)
                .err()
        } else {
            Some(work)
        };
        if let (Some(work), Some(backend)) = (left, self.hands.backend_mut()) {
            let done = work.do_with(&mut **backend, &self.metrics, now);
            self.note_done(done, now);
            self.keep_records(now);
            self.tell();
        }
    }

    /// Whether pods were told something, that is open, and nothing else follows from what happened.
    fn has_nothing_else(&self, now: Timestamp) -> bool {
        let is_compiled = matches!(&self.compiler, Phase::Running(compiler) if !compiler.has_batch());
        let is_due = || self.deadline().is_some_and(|at| at <= now);
        self.came == Came::Answers && is_compiled && self.hands.backend().is_some() && !is_due()
    }

    /// What was told may have opened again what was forbidden.
    fn end_forbidden(&mut self) {
        if let Some(backend) = self.hands.backend_mut() {
            self.metrics.ended(backend.end_forbidden());
        }
    }

    /// Opens what pods were told, as far as that needs nothing else; says whether it is all.
    fn open_answers(&mut self, now: Timestamp) -> bool {
        while let Some(batch) = self.next_answer(now) {
            let started = self.metrics.start();
            match &mut self.hands {
                Hands::Here(backend) => {
                    if let Some(standing) = backend.open_answer(&batch, now) {
                        self.note_standing(standing, now);
                    }
                }
                Hands::Away(flight) => flight.open(&batch, now),
                Hands::Moving => {}
            }
            self.metrics.programmed(started, false);
        }
        matches!(&self.compiler, Phase::Running(compiler) if !compiler.has_pending_answers())
    }

    fn next_answer(&mut self, now: Timestamp) -> Option<Batch> {
        match &mut self.compiler {
            Phase::Running(compiler) => compiler.poll_answers(self.hands.busy(), now),
            Phase::Starting { .. } | Phase::Moving => None,
        }
    }

    /// All that there is to do.
    fn gather(&mut self, now: Timestamp) -> Work {
        let mut work = Work {
            links_changed: std::mem::take(&mut self.links_changed),
            look: self.alert.is_look_due(now),
            found: self.inquirer.take_found() == Some(Found::Something),
            ..Work::default()
        };
        if let Phase::Running(compiler) = &mut self.compiler {
            let mut may_be_others = self.pods.is_none();
            while let Some(batch) = compiler.poll_batch(now) {
                may_be_others |= note_owners(&mut self.owners, &mut self.local, &batch);
                work.batches.push(batch);
            }
            if may_be_others {
                self.note_pods();
            }
        }
        let is_due = |at: Option<Timestamp>| at.is_some_and(|at| at <= now);
        work.compare = is_due(self.retry.deadline()) || is_due(self.next_resync) || self.alert.is_due(now);
        work
    }

    /// All pods of the node are known now. Those to whom they were told know them by identity.
    fn note_pods(&mut self) {
        let pods = pods_of_node(&self.owners, &self.spares);
        if self.pods.as_deref() != Some(&pods) {
            self.pods = Some(Arc::new(pods));
        }
    }

    /// The backend is back.
    pub(super) fn land(&mut self, landed: Landed, now: Timestamp) {
        let Landed { backend, done } = landed;
        let before = std::mem::replace(&mut self.hands, Hands::Here(backend));
        self.note_done(done, now);
        // With what was told meanwhile about sets that it made; only then the interests that go with it.
        if self.open_answers(now) {
            self.keep_records(now);
            self.tell();
        }
        if let Hands::Away(flight) = before {
            self.retry = self
                .retry
                .after(flight.was_refused || self.standing.wants_retry(), now);
            self.answer_all(flight.questions);
        }
        for meetings in std::mem::take(&mut self.meetings) {
            self.meet(meetings);
        }
    }

    fn note_done(&mut self, done: Done, now: Timestamp) {
        for standing in done.standings {
            self.note_standing(standing, now);
        }
        if let Some(cause) = done.alarm {
            self.alert.raise(cause, now);
        }
        if let Some(standing) = done.compared {
            self.alert.compared(&standing, now);
            if self.retry != Retry::Idle && standing.wants_retry() {
                self.metrics.refused(&standing);
            }
            self.note_standing(standing, now);
            self.set_resync(self.resync, now);
        }
        self.metrics.ended(done.ended);
    }

    fn note_standing(&mut self, standing: Standing, now: Timestamp) {
        if self.retry == Retry::Idle && standing.wants_retry() {
            self.metrics.refused(&standing);
        }
        self.retry = self.metrics.repaired(&standing, self.retry, now);
        self.standing = standing;
    }

    fn answer_all(&self, questions: Vec<Question>) {
        let Some(backend) = self.hands.backend() else {
            return;
        };
        for Question { what, answer } in questions {
            // Who asked may have stopped waiting.
            drop(answer.send(self.answer(backend, what)));
        }
    }
}
