//! Keeping what pods are told: each pass of the engine appends what it changed, before anybody hears that it is so. A file
//! that has grown is written anew beside, step by step, while both take what changes; then it takes the place of the one
//! before. So at each moment there is a file at the path with all that was told, and no step takes longer for what was told
//! before.
//!
//! Where the disk hangs, nobody waits for it for longer than a moment: what is at the path then lacks what comes, as where it
//! cannot be written, and is written anew when the disk is back.

use std::time::Duration;

use egret_policies::records::{PodSnapshot, RecordCursor, SnapshotChange};
use egret_shared::time::Timestamp;

use super::desk::{Appended, Desk, HasAll, Step};
use super::file::StateFile;
use super::format::Problem;
use super::log;
use crate::metrics;

/// Records that are written anew in one step, and the time from one to the next.
const AT_ONCE: usize = 1024;
const PACE: Duration = Duration::from_millis(5);
/// A file may grow to so many times the size that it had when it was new, and by this.
const TIMES: u64 = 2;
const ROOM: u64 = 256 * 1024;
/// When a file that could not be written is tried again.
const RETRY: Duration = Duration::from_secs(1);

/// Keeps what pods are told.
#[derive(Debug)]
pub struct Keeper {
    desk: Desk,
    /// The size of what is at the path, as long as it has everything; before `begin`, that is an earlier life's.
    log: Option<u64>,
    /// How far what is to take its place has come.
    next: Option<RecordCursor>,
    /// At what size it is written anew.
    room: u64,
    /// When the next step is due; none where there is none.
    due: Option<Timestamp>,
    /// Why the last step could not be done.
    trouble: Option<String>,
    buffer: Vec<u8>,
}

impl Keeper {
    /// Keeps in this file; what is there stays until there is what takes its place.
    #[must_use]
    pub fn new(file: StateFile) -> Self {
        Self {
            desk: Desk::new(file),
            log: None,
            next: None,
            room: 0,
            due: None,
            trouble: None,
            buffer: Vec::new(),
        }
    }

    /// Puts all that is walked through in the place of what an earlier life kept, at once.
    pub fn begin(&mut self, now: Timestamp, walk: impl Fn(&mut RecordCursor, usize) -> Option<PodSnapshot>) {
        self.due = Some(now);
        while self.due.is_some_and(|due| due <= now.after(PACE)) {
            self.step(now, &walk);
        }
    }

    /// Keeps what changed.
    pub fn keep(&mut self, changes: &[SnapshotChange], now: Timestamp) {
        if changes.is_empty() {
            return;
        }
        if let Err(problem) = log::write(changes, &mut self.buffer) {
            return self.lose(&problem, now);
        }
        if self.log.is_none() && self.next.is_none() {
            return;
        }
        let buffer = std::mem::take(&mut self.buffer);
        match self.desk.have_done(|files| files.append(buffer)) {
            Ok(appended) => self.appended(appended, now),
            Err(problem) => self.lose(&problem, now),
        }
    }

    fn appended(&mut self, appended: Appended, now: Timestamp) {
        self.buffer = appended.buffer;
        self.log = appended.log;
        self.next = self.next.take().filter(|_| appended.has_next);
        if let Some(problem) = appended.problem {
            self.retry(&problem, now);
        } else if self.log.is_some_and(|octets| octets > self.room) && self.due.is_none() {
            self.due = Some(now);
        }
    }

    /// When `go_on` is to be called.
    #[must_use]
    pub const fn deadline(&self) -> Option<Timestamp> {
        self.due
    }

    /// Writes the next records of a file that is written anew, if that is due.
    pub fn go_on(&mut self, now: Timestamp, walk: impl Fn(&mut RecordCursor, usize) -> Option<PodSnapshot>) {
        if self.due.is_some_and(|due| due <= now) {
            self.step(now, &walk);
        }
    }

    fn step(&mut self, now: Timestamp, walk: &impl Fn(&mut RecordCursor, usize) -> Option<PodSnapshot>) {
        self.due = Some(now.after(PACE));
        match self.take_step(walk) {
            Ok(next) => self.next = next,
            Err(problem @ Problem::Stalled) => self.lose(&problem, now),
            Err(problem) => self.retry(&problem, now),
        }
    }

    /// Writes some; what is left to do, if anything is.
    fn take_step(
        &mut self,
        walk: &impl Fn(&mut RecordCursor, usize) -> Option<PodSnapshot>,
    ) -> Result<Option<RecordCursor>, Problem> {
        let mut step = Step {
            begins: self.next.is_none().then_some(HasAll(self.log.is_some())),
            ..Step::default()
        };
        let mut next = self.next.take().unwrap_or_default();
        let (mut some, mut left) = (Vec::new(), AT_ONCE);
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
        let Some(octets) = self.desk.have_done(move |files| files.step(&step))?? else {
            return Ok(Some(next));
        };
        self.room = octets.saturating_mul(TIMES).saturating_add(ROOM);
        self.log = Some(octets);
        self.due = None;
        if self.trouble.take().is_some() {
            tracing::info!(path = %self.desk.file().path().display(), "the state file is written again");
        }
        Ok(None)
    }

    /// Nobody knows how far what was to be written has come.
    fn lose(&mut self, problem: &Problem, now: Timestamp) {
        (self.log, self.next) = (None, None);
        self.retry(problem, now);
    }

    /// What is at the path stays as it is, and lacks what comes; it is written anew in a second. That is said once.
    fn retry(&mut self, problem: &Problem, now: Timestamp) {
        metrics::state_problem(problem.reason());
        self.due = Some(now.after(RETRY));
        let trouble = Some(problem.to_string());
        if self.trouble != trouble {
            let path = self.desk.file().path().display();
            tracing::warn!(%path, %problem, "the state file stays as it is, and is tried again every second");
        }
        self.trouble = trouble;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::BootId;
    use crate::state::file::Growing;
    use egret_policies::records::RecordSnapshot;
    use egret_shared::rt::clock;
    use std::cell::Cell;
    use std::path::{Path, PathBuf};
    use std::sync::Arc;

    const NOW: Timestamp = Timestamp::from_millis(1_000_000);
    const LONG: Duration = Duration::from_secs(60);

    /// A folder that goes with the test.
    struct Folder(PathBuf);

    impl Folder {
        fn make(test: &str) -> Self {
            let folder = std::env::temp_dir().join(format!("egret-keeper-{test}-{}", std::process::id()));
            std::fs::create_dir(&folder).unwrap();
            Self(folder)
        }

        fn file(&self) -> StateFile {
            StateFile::new(&self.0.join("state"), BootId::read().unwrap(), 100_000)
        }

        /// One on a disk, that waits for a busy machine.
        fn keeper(&self) -> Keeper {
            let mut keeper = Keeper::new(self.file());
            keeper.desk = Desk::on_a_disk(self.file());
            keeper.desk.patience = LONG;
            keeper
        }

        /// The names that are kept, in their order.
        fn kept(&self) -> Vec<String> {
            let kept = self.file().read().unwrap();
            assert_eq!(kept.torn, 0);
            let records = kept.remembered.iter().flat_map(|pod| &pod.records);
            records.map(|record| record.name.to_string()).collect()
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            std::fs::remove_dir_all(&self.0).unwrap();
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
        let folder = Folder::make("begin");
        let mut former = folder.keeper();
        former.begin(NOW, walk(7));
        assert_eq!(folder.kept(), names(0..7));
        drop(former);
        let mut keeper = folder.keeper();
        assert_eq!(folder.kept(), names(0..7), "nothing is written before");
        keeper.begin(NOW, walk(3 * AT_ONCE));
        assert_eq!((folder.kept(), keeper.deadline()), (names(0..3 * AT_ONCE), None));
        for number in 3 * AT_ONCE..3 * AT_ONCE + 5 {
            keeper.keep(&[told(number..number + 1).into()], NOW);
            assert_eq!(
                folder.kept(),
                names(0..number + 1),
                "it is there when the call returns"
            );
        }
    }

    #[test]
    fn a_file_that_has_grown_is_written_anew_in_steps_and_lacks_nothing_at_any_of_them() {
        let folder = Folder::make("grown");
        let mut keeper = folder.keeper();
        keeper.begin(NOW, walk(2 * AT_ONCE + 1));
        let new = keeper.log.unwrap();
        let mut size = new;
        while keeper.deadline().is_none() {
            keeper.keep(&[told(0..AT_ONCE).into()], NOW);
            size = keeper.log.unwrap();
            assert!(size <= keeper.room + new, "it is bounded");
        }
        let walk = walk(2 * AT_ONCE + 1);
        let (mut now, mut steps) = (NOW, 0);
        while let Some(due) = keeper.deadline() {
            now = due;
            keeper.go_on(now, &walk);
            steps += 1;
            let late = 10_000 + steps;
            keeper.keep(&[told(late..late + 1).into()], now);
            assert_eq!(
                folder.kept().len(),
                2 * AT_ONCE + 1 + steps,
                "an end here loses nothing"
            );
        }
        assert_eq!(steps, 3);
        assert!(keeper.log.unwrap() < size);
        assert_eq!(now.since(NOW), PACE * 2, "others have their turn between steps");
        assert!(!folder.0.join("state.new").exists());
    }

    #[test]
    fn a_file_in_memory_is_written_by_who_tells_it_and_one_on_a_disk_by_another_thread() {
        let folder = Folder(format!("/dev/shm/egret-keeper-memory-{}", std::process::id()).into());
        let mut keeper = Keeper::new(folder.file());
        keeper.begin(NOW, walk(3));
        keeper.keep(&[told(3..4).into()], NOW);
        assert_eq!(folder.kept(), names(0..4));
        let writer = |keeper: &mut Keeper| keeper.desk.have_done(|_| std::thread::current().id());
        let own = std::thread::current().id();
        assert_eq!(writer(&mut keeper).unwrap(), own);
        assert_ne!(writer(&mut folder.keeper()).unwrap(), own);
        let elsewhere = Path::new("/proc/egret/state");
        assert!(!StateFile::new(elsewhere, BootId::read().unwrap(), 1).is_in_memory());
    }

    #[test]
    fn what_cannot_be_written_is_tried_again_every_second_and_then_lacks_nothing() {
        let folder = Folder::make("refused");
        let in_the_way = folder.0.join("state.new");
        std::fs::create_dir(&in_the_way).unwrap();
        let mut keeper = folder.keeper();
        keeper.begin(NOW, walk(3));
        keeper.keep(&[told(3..4).into()], NOW);
        let due = keeper.deadline().unwrap();
        assert_eq!((folder.kept(), due.since(NOW)), (vec![], RETRY));
        keeper.go_on(due, walk(4));
        assert!(folder.kept().is_empty());
        std::fs::remove_dir(&in_the_way).unwrap();
        keeper.go_on(keeper.deadline().unwrap(), walk(4));
        assert_eq!((folder.kept(), keeper.deadline()), (names(0..4), None));
    }

    #[test]
    fn a_keeper_that_ends_in_the_middle_of_a_new_file_leaves_the_one_before() {
        let folder = Folder::make("middle");
        let mut keeper = folder.keeper();
        keeper.begin(NOW, walk(3));
        keeper.due = Some(NOW);
        keeper.go_on(NOW, walk(3 * AT_ONCE));
        assert!(folder.0.join("state.new").exists());
        keeper.keep(&[told(3..4).into()], NOW);
        drop(keeper);
        assert_eq!(folder.kept(), names(0..4));
        assert!(!folder.0.join("state.new").exists());
    }

    #[test]
    fn a_disk_that_hangs_holds_up_nobody_and_when_it_is_back_nothing_is_lacking() {
        let folder = Folder::make("hangs");
        let mut keeper = folder.keeper();
        keeper.begin(NOW, walk(3));
        // What comes to the log is read by nobody, and a pipe has no room for all of it.
        let (reader, writer) = std::io::pipe().unwrap();
        let pipe = Growing::into_pipe(writer);
        keeper.desk.have_done(|files| files.log = Some(pipe)).unwrap();
        keeper.desk.patience = Duration::from_millis(50);
        let mut written = 0;
        while keeper.trouble.is_none() {
            keeper.keep(&[told(0..AT_ONCE).into()], NOW);
            written += 1;
            assert!(written < 1000, "nobody finds out that the disk hangs");
        }
        assert_eq!(keeper.trouble, Some(Problem::Stalled.to_string()));
        // From now on nobody waits, though he would for long.
        keeper.desk.patience = LONG;
        let begun = clock::now();
        for number in 3..1000 {
            keeper.keep(&[told(number..number + 1).into()], NOW);
        }
        let due = keeper.deadline().unwrap();
        keeper.go_on(due, walk(1000));
        assert!(
            clock::now().since(begun) < LONG / 2,
            "somebody waits for the disk"
        );
        assert_eq!(keeper.deadline().unwrap().since(due), RETRY, "it is tried again");
        assert_eq!(folder.kept(), names(0..3), "what is at the path stays as it is");
        drop(reader);
        let mut now = due;
        while let Some(due) = keeper.deadline() {
            now = now.max(due);
            keeper.go_on(now, walk(1000));
            assert!(clock::now().since(begun) < LONG, "the disk is back and not used");
            std::thread::yield_now();
        }
        assert_eq!((folder.kept(), &keeper.trouble), (names(0..1000), &None));
        keeper.keep(&[told(1000..1001).into()], NOW);
        assert_eq!(folder.kept(), names(0..1001), "it is kept again at once");
    }
}
