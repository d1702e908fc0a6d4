//! The state writer: each pass of the engine appends changed records before `Realized` is sent. A file that has grown

//! is rewritten into a new file in steps, while changes go to both; then the new file replaces it. So at each moment
//! the file at the path is complete, and no step depends on the number of records.
//!
//! If the disk hangs, the engine waits for a moment only. The file then lacks later changes, as after a failed write,
//! and is rewritten when the disk is back.

use std::time::Duration;

use egret_policies::records::{PodSnapshot, RecordCursor, SnapshotChange};
use egret_shared::time::Timestamp;

use super::file::StateFile;
use super::format::StateError;
use super::io_thread::{AppendResult, FileAccess, IsComplete, RewriteStep};
use super::{log, metrics};

/// Records of one step of a rewrite, and the time between steps.
const STEP_RECORDS: usize = 1024;
const STEP_INTERVAL: Duration = Duration::from_millis(5);
/// A file is rewritten when it is larger than its first size by this factor and this slack.
const GROWTH_FACTOR: u64 = 2;
const GROWTH_SLACK: u64 = 256 * 1024;
/// When a failed rewrite is tried again.
const RETRY: Duration = Duration::from_secs(1);

/// Writes records for the next process.
#[derive(Debug)]
pub struct StateWriter {
    io: FileAccess,
    /// The size of the file at the path, if it is complete.
    log: Option<u64>,
    /// The progress of a rewrite.
    next: Option<RecordCursor>,
    /// The size from which it is rewritten.
    rewrite_size: u64,
    /// When the next step of a rewrite is due; none without a rewrite.
    next_step_at: Option<Timestamp>,
    /// The error of the last step.
    last_error: Option<String>,
    buffer: Vec<u8>,
}

impl StateWriter {
    /// Writes to this file; the previous process's content stays until the first rewrite is done.
    #[must_use]
    pub fn new(file: StateFile) -> Self {
        Self {
            io: FileAccess::new(file),
            log: None,
            next: None,
            rewrite_size: 0,
            next_step_at: None,
            last_error: None,
            buffer: Vec::new(),
        }
    }

    /// Rewrites the file at once, with all records of the walk.
    pub fn rewrite(
        &mut self,
        now: Timestamp,
        walk: impl Fn(&mut RecordCursor, usize) -> Option<PodSnapshot>,
    ) {
        self.next_step_at = Some(now);
        while self
            .next_step_at
            .is_some_and(|next_step_at| next_step_at <= now.after(STEP_INTERVAL))
        {
            self.step(now, &walk);
        }
    }

    /// Appends changes.
    pub fn append(&mut self, changes: &[SnapshotChange], now: Timestamp) {
        if changes.is_empty() {
            return;
        }
        if let Err(error) = log::write(changes, &mut self.buffer) {
            return self.give_up_files(&error, now);
        }
        if self.log.is_none() && self.next.is_none() {
            return;
        }
        let buffer = std::mem::take(&mut self.buffer);
        match self.io.run(|files| files.append(buffer)) {
            Ok(appended) => self.appended(appended, now),
            Err(error) => self.give_up_files(&error, now),
        }
    }

    fn appended(&mut self, appended: AppendResult, now: Timestamp) {
        self.buffer = appended.buffer;
        self.log = appended.log;
        self.next = self.next.take().filter(|_| appended.has_next);
        if let Some(error) = appended.error {
            self.retry(&error, now);
        } else if self.log.is_some_and(|octets| octets > self.rewrite_size) && self.next_step_at.is_none() {
            self.next_step_at = Some(now);
        }
    }

    /// When `continue_rewrite` is due.
    #[must_use]
    pub const fn deadline(&self) -> Option<Timestamp> {
        self.next_step_at
    }

    /// Does the next step of a rewrite, if it is due.
    pub fn continue_rewrite(
        &mut self,
        now: Timestamp,
        walk: impl Fn(&mut RecordCursor, usize) -> Option<PodSnapshot>,
    ) {
        if self.next_step_at.is_some_and(|next_step_at| next_step_at <= now) {
            self.step(now, &walk);
        }
    }

    fn step(&mut self, now: Timestamp, walk: &impl Fn(&mut RecordCursor, usize) -> Option<PodSnapshot>) {
        self.next_step_at = Some(now.after(STEP_INTERVAL));
        match self.take_step(walk) {
            Ok(next) => self.next = next,
            Err(error @ StateError::Stalled) => self.give_up_files(&error, now),
            Err(error) => self.retry(&error, now),
        }
    }

    /// Does a step. Returns the progress; none when the rewrite is done.
    fn take_step(
        &mut self,
        walk: &impl Fn(&mut RecordCursor, usize) -> Option<PodSnapshot>,
    ) -> Result<Option<RecordCursor>, StateError> {
        let mut step = RewriteStep {
            begins: self.next.is_none().then_some(IsComplete(self.log.is_some())),
            ..RewriteStep::default()
        };
        let mut next = self.next.take().unwrap_or_default();
        let (mut some, mut left) = (Vec::new(), STEP_RECORDS);
        while left > 0
            && let Some(remembered) = walk(&mut next, left)
        {
            left -= remembered.records.len().min(left);
            some.push(SnapshotChange::from(remembered));
        }
        if !some.is_empty() {
            log::write(&some, &mut step.octets)?;
        }
        step.is_last = left > 0;
        let Some(octets) = self.io.run(move |files| files.step(&step))?? else {
            return Ok(Some(next));
        };
        self.rewrite_size = octets.saturating_mul(GROWTH_FACTOR).saturating_add(GROWTH_SLACK);
        self.log = Some(octets);
        self.next_step_at = None;
        if self.last_error.take().is_some() {
            tracing::info!(path = % self.io.file().path().display(), "the state file is written again");
        }
        Ok(None)
    }

    /// Gives up both files, because it is unknown what was written.
    fn give_up_files(&mut self, error: &StateError, now: Timestamp) {
        (self.log, self.next) = (None, None);
        self.retry(error, now);
    }

    /// Schedules a rewrite. The file at the path lacks later changes. The same error is logged once.
    fn retry(&mut self, error: &StateError, now: Timestamp) {
        metrics::count(error);
        self.next_step_at = Some(now.after(RETRY));
        let last_error = Some(error.to_string());
        if self.last_error != last_error {
            let path = self.io.file().path().display();
            tracing::warn!(%path, %error, "the state file stays as it is, and is tried again every second");
        }
        self.last_error = last_error;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::BootId;
    use crate::state::file::AppendFile;
    use egret_policies::records::RecordSnapshot;
    use egret_shared::rt::clock;
    use std::cell::Cell;
    use std::path::Path;
    use std::sync::Arc;

    const NOW: Timestamp = Timestamp::from_millis(1_000_000);
    const LONG: Duration = Duration::from_secs(60);

    struct Folder(tempfile::TempDir);

    impl Folder {
        fn make() -> Self {
            Self(tempfile::tempdir().unwrap())
        }

        fn file(&self) -> StateFile {
            StateFile::new(&self.0.path().join("state"), BootId::read().unwrap(), 100_000)
        }

        /// A writer for a disk, with a timeout for a busy machine.
        fn writer(&self) -> StateWriter {
            let mut writer = StateWriter::new(self.file());
            writer.io = FileAccess::threaded(self.file());
            writer.io.patience = LONG;
            writer
        }

        /// The names in the file, in their order.
        fn kept(&self) -> Vec<String> {
            let kept = self.file().read().unwrap();
            assert_eq!(kept.torn, 0);
            let records = kept.remembered.iter().flat_map(|pod| &pod.records);
            records.map(|record| record.name.to_string()).collect()
        }
    }

    fn told(names: impl Iterator<Item = usize>) -> PodSnapshot {
        let record = |number: usize| RecordSnapshot {
            name: Arc::new(name(number).parse().unwrap()),
            address: "203.0.113.7".parse().unwrap(),
            expires: Timestamp::from_millis(1),
        };
        PodSnapshot {
            pod: "default/a".parse().unwrap(),
            uid: None,
            addresses: vec!["10.0.0.1".parse().unwrap()],
            records: names.map(record).collect(),
        }
    }

    fn name(number: usize) -> String {
        format!("n{number}.example.test")
    }

    fn names(numbers: impl Iterator<Item = usize>) -> Vec<String> {
        numbers.map(name).collect()
    }

    /// A walk over this many records, which starts again with each file; the end of a file is asked for once more.
    fn walk(all: usize) -> impl Fn(&mut RecordCursor, usize) -> Option<PodSnapshot> {
        let done = Cell::new(0);
        move |_, most| {
            let from = done.get();
            let to = all.min(from + most);
            done.set(if from == to { 0 } else { to });
            (from < to).then(|| told(from..to))
        }
    }

    #[test]
    fn a_new_file_takes_the_place_of_an_earlier_one_at_once_and_then_takes_what_changes() {
        let folder = Folder::make();
        let mut former = folder.writer();
        former.rewrite(NOW, walk(7));
        assert_eq!(folder.kept(), names(0..7));
        drop(former);
        let mut writer = folder.writer();
        assert_eq!(folder.kept(), names(0..7), "nothing is written before");
        writer.rewrite(NOW, walk(3 * STEP_RECORDS));
        assert_eq!(
            (folder.kept(), writer.deadline()),
            (names(0..3 * STEP_RECORDS), None)
        );
        for number in 3 * STEP_RECORDS..3 * STEP_RECORDS + 5 {
            writer.append(&[told(number..number + 1).into()], NOW);
            assert_eq!(
                folder.kept(),
                names(0..number + 1),
                "it is there when the call returns"
            );
        }
    }

    #[test]
    fn a_grown_file_is_rewritten_in_steps_and_complete_after_each() {
        let folder = Folder::make();
        let mut writer = folder.writer();
        writer.rewrite(NOW, walk(2 * STEP_RECORDS + 1));
        let new = writer.log.unwrap();
        let mut size = new;
        while writer.deadline().is_none() {
            writer.append(&[told(0..STEP_RECORDS).into()], NOW);
            size = writer.log.unwrap();
            assert!(size <= writer.rewrite_size + new, "it is bounded");
        }
        let walk = walk(2 * STEP_RECORDS + 1);
        let (mut now, mut steps) = (NOW, 0);
        while let Some(next_step_at) = writer.deadline() {
            now = next_step_at;
            writer.continue_rewrite(now, &walk);
            steps += 1;
            let late = 10_000 + steps;
            writer.append(&[told(late..late + 1).into()], now);
            assert_eq!(
                folder.kept().len(),
                2 * STEP_RECORDS + 1 + steps,
                "an end here loses nothing"
            );
        }
        assert_eq!(steps, 3);
        assert!(writer.log.unwrap() < size);
        assert_eq!(
            now.since(NOW),
            STEP_INTERVAL * 2,
            "others have their turn between steps"
        );
        assert!(!folder.0.path().join("state.new").exists());
    }

    #[test]
    fn a_file_in_memory_is_written_by_the_caller_and_one_on_a_disk_by_a_thread() {
        let folder = Folder(tempfile::tempdir_in("/dev/shm").unwrap());
        let mut writer = StateWriter::new(folder.file());
        writer.rewrite(NOW, walk(3));
        writer.append(&[told(3..4).into()], NOW);
        assert_eq!(folder.kept(), names(0..4));
        let thread_of = |writer: &mut StateWriter| writer.io.run(|_| std::thread::current().id());
        let own = std::thread::current().id();
        assert_eq!(thread_of(&mut writer).unwrap(), own);
        assert_ne!(thread_of(&mut folder.writer()).unwrap(), own);
        let elsewhere = Path::new("/proc/egret/state");
        assert!(!StateFile::new(elsewhere, BootId::read().unwrap(), 1).is_in_memory());
    }

    #[test]
    fn what_cannot_be_written_is_tried_again_every_second_and_then_lacks_nothing() {
        let folder = Folder::make();
        let in_the_way = folder.0.path().join("state.new");
        std::fs::create_dir(&in_the_way).unwrap();
        let mut writer = folder.writer();
        writer.rewrite(NOW, walk(3));
        writer.append(&[told(3..4).into()], NOW);
        let next_step_at = writer.deadline().unwrap();
        assert_eq!((folder.kept(), next_step_at.since(NOW)), (vec![], RETRY));
        writer.continue_rewrite(next_step_at, walk(4));
        assert!(folder.kept().is_empty());
        std::fs::remove_dir(&in_the_way).unwrap();
        writer.continue_rewrite(writer.deadline().unwrap(), walk(4));
        assert_eq!((folder.kept(), writer.deadline()), (names(0..4), None));
    }

    #[test]
    fn a_writer_that_ends_during_a_rewrite_leaves_the_file_of_before() {
        let folder = Folder::make();
        let mut writer = folder.writer();
        writer.rewrite(NOW, walk(3));
        writer.next_step_at = Some(NOW);
        writer.continue_rewrite(NOW, walk(3 * STEP_RECORDS));
        assert!(folder.0.path().join("state.new").exists());
        writer.append(&[told(3..4).into()], NOW);
        drop(writer);
        assert_eq!(folder.kept(), names(0..4));
        assert!(!folder.0.path().join("state.new").exists());
    }

    #[test]
    fn a_hanging_disk_delays_nothing_and_later_the_file_is_complete() {
        let folder = Folder::make();
        let mut writer = folder.writer();
        writer.rewrite(NOW, walk(3));
        // Nobody reads the pipe, and it does not hold everything.
        let (read_end, write_end) = std::io::pipe().unwrap();
        let pipe = AppendFile::into_pipe(write_end);
        writer.io.run(|files| files.log = Some(pipe)).unwrap();
        writer.io.patience = Duration::from_millis(50);
        let mut written = 0;
        while writer.last_error.is_none() {
            writer.append(&[told(0..STEP_RECORDS).into()], NOW);
            written += 1;
            assert!(written < 1000, "nobody finds out that the disk hangs");
        }
        assert_eq!(writer.last_error, Some(StateError::Stalled.to_string()));
        // From now on the writer must not wait, though the timeout is long.
        writer.io.patience = LONG;
        let begun = clock::now();
        for number in 3..1000 {
            writer.append(&[told(number..number + 1).into()], NOW);
        }
        let next_step_at = writer.deadline().unwrap();
        writer.continue_rewrite(next_step_at, walk(1000));
        assert!(
            clock::now().since(begun) < LONG / 2,
            "somebody waits for the disk"
        );
        assert_eq!(
            writer.deadline().unwrap().since(next_step_at),
            RETRY,
            "it is tried again"
        );
        assert_eq!(folder.kept(), names(0..3), "what is at the path stays as it is");
        drop(read_end);
        let mut now = next_step_at;
        while let Some(next_step_at) = writer.deadline() {
            now = now.max(next_step_at);
            writer.continue_rewrite(now, walk(1000));
            assert!(clock::now().since(begun) < LONG, "the disk is back and not used");
            std::thread::yield_now();
        }
        assert_eq!((folder.kept(), &writer.last_error), (names(0..1000), &None));
        writer.append(&[told(1000..1001).into()], NOW);
        assert_eq!(folder.kept(), names(0..1001), "it is kept again at once");
    }
}
