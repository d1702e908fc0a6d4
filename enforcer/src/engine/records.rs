//! Handing over what pods were told, so that it is kept.

use egret_shared::time::Timestamp;

use super::{Engine, Phase};

impl Engine {
    /// Everything that is known takes the place of what an earlier life left; from now on, what changes is kept.
    pub(super) fn start_state_writer(&mut self, now: Timestamp) {
        if let (Phase::Running(compiler), Some(state_writer)) = (&mut self.compiler, &mut self.state_writer) {
            compiler.note_record_changes();
            state_writer.rewrite(now, |walk, most| compiler.walk_records(walk, most));
        }
    }

    /// Keeps what changed.
    pub(super) fn write_records(&mut self, now: Timestamp) {
        if let (Phase::Running(compiler), Some(state_writer)) = (&mut self.compiler, &mut self.state_writer) {
            state_writer.append(&compiler.take_record_changes(), now);
            state_writer.continue_rewrite(now, |walk, most| compiler.walk_records(walk, most));
        }
    }
}
