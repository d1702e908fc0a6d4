//! Handing over what pods were told, so that it is kept. Not at each change: a burst of answers is one.

use std::time::Duration;

use egret_shared::time::Timestamp;

use super::{Engine, Phase};
use crate::state::Keeper;

/// How long after a change the records are handed over.
const COLLECTED_FOR: Duration = Duration::from_millis(100);

/// The keeper, and when it is to be told.
#[derive(Debug)]
pub(super) struct Keeping {
    keeper: Keeper,
    due: Option<Timestamp>,
}

impl Keeping {
    pub(super) const fn new(keeper: Keeper) -> Self {
        Self { keeper, due: None }
    }

    pub(super) const fn deadline(&self) -> Option<Timestamp> {
        self.due
    }

    /// What an earlier life left is replaced, though nothing should change from now on.
    pub(super) const fn begin(&mut self, now: Timestamp) {
        self.due = Some(now);
    }
}

impl Engine {
    /// Hands over what changed, when it is time.
    pub(super) fn keep_records(&mut self, now: Timestamp) {
        let (Phase::Running(compiler), Some(keeping)) = (&mut self.compiler, &mut self.keeping) else {
            return;
        };
        if keeping.due.is_none() && compiler.has_changed_records() {
            keeping.due = Some(now.after(COLLECTED_FOR));
        }
        if keeping.due.is_some_and(|due| due <= now) {
            keeping.due = None;
            keeping.keeper.keep(compiler.take_changed_records());
        }
    }

    /// Hands over all that changed, since there is no later.
    pub(super) fn keep_the_last(&mut self) {
        let (Phase::Running(compiler), Some(keeping)) = (&mut self.compiler, &mut self.keeping) else {
            return;
        };
        keeping.keeper.keep(compiler.take_changed_records());
    }
}
