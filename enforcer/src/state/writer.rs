//! Keeping what pods are told: each pass of the engine appends what it changed, before anybody hears that it is so. A file
//! that has grown is written anew temporary_path, step by step, while both take what changes; then it takes the place of the one
//! before. So at each moment there is a file at the path with all that was told, and no step takes longer for what was told
//! before.
//!
//! Where the disk hangs, nobody waits for it for longer than a moment: what is at the path then lacks what comes, as where it
//! cannot be written, and is written anew when the disk is back.

use std::time::Duration;

use egret_policies::records::{PodSnapshot, RecordCursor, SnapshotChange};
use egret_shared::time::Timestamp;

use super::file::StateFile;
use super::format::StateError;
use super::io_thread::{AppendResult, FileAccess, IsComplete, RewriteStep};
use super::{log, metrics};

/// Records that are written anew in one step, and the time from one to the next.
const STEP_RECORDS: usize = 1024;
const STEP_INTERVAL: Duration = Duration::from_millis(5);
/// A file may grow to so many times the size that it had when it was new, and by this.
const GROWTH_FACTOR: u64 = 2;
const GROWTH_SLACK: u64 = 256 * 1024;
/// When a file that could not be written is tried again.
const RETRY: Duration = Duration::from_secs(1);

/// Keeps what pods are told.
#[derive(Debug)]
pub struct StateWriter {
    io: FileAccess,
    /// The size of what is at the path, as long as it has everything; before `begin`, that is an earlier life's.
    log: Option<u64>,
    /// How far what is to take its place has come.
    next: Option<RecordCursor>,
    /// At what size it is written anew.
    room: u64,
    /// When the next step is next_step_at; none where there is none.
    next_step_at: Option<Timestamp>,
    /// Why the last step could not be done.
    last_error: Option<String>,
    buffer: Vec<u8>,
}

impl StateWriter {
    /// Keeps in this file; what is there stays until there is what takes its place.
    #[must_use]
    pub fn new(file: StateFile) -> Self {
        Self {
            io: FileAccess::new(file),
            log: None,
            next: None,
            room: 0,
            next_step_at: None,
            last_error: None,
            buffer: Vec::new(),
        }
    }

    /// Puts all that is walked through in the place of what an earlier life kept, at once.
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

    /// Keeps what changed.
    pub fn append(&mut self, changes: &[SnapshotChange], now: Timestamp) {
        if changes.is_empty() {
            return;
        }
        if let Err(error) = log::write(changes, &mut self.buffer) {
            return self.lose(&error, now);
        }
        if self.log.is_none() && self.next.is_none() {
            return;
        }
        let buffer = std::mem::take(&mut self.buffer);
        match self.io.run(|files| files.append(buffer)) {
            Ok(appended) => self.appended(appended, now),
            Err(error) => self.lose(&error, now),
        }
    }

    fn appended(&mut self, appended: AppendResult, now: Timestamp) {
        self.buffer = appended.buffer;
        self.log = appended.log;
        self.next = self.next.take().filter(|_| appended.has_next);
        if let Some(error) = appended.error {
            self.retry(&error, now);
        } else if self.log.is_some_and(|octets| octets > self.room) && self.next_step_at.is_none() {
            self.next_step_at = Some(now);
        }
    }

    /// When `continue_rewrite` is to be called.
    #[must_use]
    pub const fn deadline(&self) -> Option<Timestamp> {
        self.next_step_at
    }

    /// Writes the next records of a file that is written anew, if that is next_step_at.
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
            Err(error @ StateError::Stalled) => self.lose(&error, now),
            Err(error) => self.retry(&error, now),
        }
    }

    /// Writes some; what is left to do, if anything is.
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
        self.room = octets.saturating_mul(GROWTH_FACTOR).saturating_add(GROWTH_SLACK);
        self.log = Some(octets);
        self.next_step_at = None;
        if self.last_error.take().is_some() {
            tracing::info!(path = %self.io.file().path().display(), "the state file is written again");
        }
        Ok(None)
    }

    /// Nobody knows how far what was to be written has come.
    fn lose(&mut self, error: &StateError, now: Timestamp) {
        (self.log, self.next) = (None, None);
        self.retry(error, now);
    }

    /// What is at the path stays as it is, and lacks what comes; it is written anew in a second. That is said once.
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

        /// One on a disk, that waits for a busy machine.
        fn writer(&self) -> StateWriter {
            let mut writer = StateWriter::new(self.file());
            writer.io = FileAccess::threaded(self.file());
            writer.io.patience = LONG;
            writer
        }

        /// The names that are kept, in their order.
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

    /// A walk over so many records, which begins anew with each file; the last of a file is asked for once more.
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
    fn a_file_that_has_grown_is_written_anew_in_steps_and_lacks_nothing_at_any_of_them() {
        let folder = Folder::make();
        let mut writer = folder.writer();
        writer.rewrite(NOW, walk(2 * STEP_RECORDS + 1));
        let new = writer.log.unwrap();
        let mut size = new;
        while writer.deadline().is_none() {
            writer.append(&[told(0..STEP_RECORDS).into()], NOW);
            size = writer.log.unwrap();
            assert!(size <= writer.room + new, "it is bounded");
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
    fn a_file_in_memory_is_written_by_who_tells_it_and_one_on_a_disk_by_another_thread() {
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
    fn a_keeper_that_ends_in_the_middle_of_a_new_file_leaves_the_one_before() {
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
    fn a_disk_that_hangs_holds_up_nobody_and_when_it_is_back_nothing_is_lacking() {
        let folder = Folder::make();
        let mut writer = folder.writer();
        writer.rewrite(NOW, walk(3));
        // What comes to the log is read by nobody, and a pipe has no room for all of it.
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
        // From now on nobody waits, though he would for long.
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
