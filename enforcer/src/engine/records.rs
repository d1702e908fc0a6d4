//! Passes records to the state writer.

use egret_shared::time::Timestamp;

use super::{Engine, Phase};

impl Engine {
    /// Writes all records in place of the previous process's file. From then on changes are appended.
    pub(super) fn start_state_writer(&mut self, now: Timestamp) {
        if let (Phase::Running(compiler), Some(state_writer)) = (&mut self.compiler, &mut self.state_writer) {
            compiler.track_record_changes();
            state_writer.rewrite(now, |walk, most| compiler.next_records(walk, most));
        }
    }

    /// Appends changed records.
    pub(super) fn write_records(&mut self, now: Timestamp) {
        if let (Phase::Running(compiler), Some(state_writer)) = (&mut self.compiler, &mut self.state_writer) {
            state_writer.append(&compiler.take_record_changes(), now);
            state_writer.continue_rewrite(now, |walk, most| compiler.next_records(walk, most));
        }
    }
}
