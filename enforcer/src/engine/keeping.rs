//! Handing over what pods were told, so that it is kept.

use egret_shared::time::Timestamp;

use super::{Engine, Phase};

impl Engine {
    /// Everything that is known takes the place of what an earlier life left; from now on, what changes is kept.
    pub(super) fn begin_keeping(&mut self, now: Timestamp) {
        if let (Phase::Running(compiler), Some(keeper)) = (&mut self.compiler, &mut self.keeper) {
            compiler.track_record_changes();
            keeper.begin(now, |walk, most| compiler.next_records(walk, most));
        }
    }

    /// Keeps what changed.
    pub(super) fn keep_records(&mut self, now: Timestamp) {
        if let (Phase::Running(compiler), Some(keeper)) = (&mut self.compiler, &mut self.keeper) {
            keeper.keep(&compiler.take_record_changes(), now);
            keeper.go_on(now, |walk, most| compiler.next_records(walk, most));
        }
    }
}
