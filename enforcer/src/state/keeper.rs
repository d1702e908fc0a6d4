//! Keeping what pods are told: each pass of the engine appends what it changed, before anybody hears that it is so. A file
//! that has grown is written anew beside, step by step, while both take what changes; then it takes the place of the one
//! before. So at each moment there is a file at the path with all that was told, and no step takes longer for what was told
//! before.

use std::time::Duration;

use egret_policies::records::{Remembered, RememberedChange, Walk};
use egret_shared::time::Timestamp;

use super::file::{Growing, StateFile};
use super::format::Problem;
use super::log;
use crate::metrics;

/// Records that are written anew in one step, and the time from one to the next.
const STEP: usize = 1024;
const PACE: Duration = Duration::from_millis(5);
/// A file may grow to so many times the size that it had when it was new, and by this.
const TIMES: u64 = 2;
const ROOM: u64 = 256 * 1024;
/// When a file that could not be written is tried again.
const RETRY: Duration = Duration::from_secs(1);

/// Keeps what pods are told.
#[derive(Debug)]
pub struct Keeper {
    file: StateFile,
    /// What is at the path, as long as it has everything; before `begin`, that is an earlier life's.
    log: Option<Growing>,
    next: Option<Next>,
    /// At what size it is written anew.
    room: u64,
    /// When the next step is due; none where there is none.
    due: Option<Timestamp>,
    /// Why the last step could not be done.
    trouble: Option<String>,
    buffer: Vec<u8>,
}

/// What is to take the place of the log, and how far it has come.
#[derive(Debug)]
struct Next {
    growing: Growing,
    walk: Walk,
}

impl Keeper {
    /// Keeps in this file; what is there stays until there is what takes its place.
    #[must_use]
    pub const fn new(file: StateFile) -> Self {
        Self {
            file,
            log: None,
            next: None,
            room: 0,
            due: None,
            trouble: None,
            buffer: Vec::new(),
        }
    }

    /// Puts all that is walked through in the place of what an earlier life kept, at once.
    pub fn begin(&mut self, now: Timestamp, walk: impl Fn(&mut Walk, usize) -> Option<Remembered>) {
        self.due = Some(now);
        while self.due.is_some_and(|due| due <= now.after(PACE)) {
            self.step(now, &walk);
        }
    }

    /// Keeps what changed.
    pub fn keep(&mut self, changes: &[RememberedChange], now: Timestamp) {
        if changes.is_empty() {
            return;
        }
        if let Err(problem) = log::write(changes, &mut self.buffer) {
            self.log = None;
            self.next = None;
            return self.retry(&problem, now);
        }
        if let Some(next) = &mut self.next
            && let Err(problem) = next.growing.append(&self.buffer)
        {
            self.next = None;
            self.retry(&problem, now);
        }
        let Some(log) = &mut self.log else { return };
        if let Err(problem) = log.append(&self.buffer) {
            self.log = None;
            self.retry(&problem, now);
        } else if log.octets() > self.room && self.due.is_none() {
            self.due = Some(now);
        }
    }

    /// When `go_on` is to be called.
    #[must_use]
    pub const fn deadline(&self) -> Option<Timestamp> {
        self.due
    }

    /// Writes the next records of a file that is written anew, if that is due.
    pub fn go_on(&mut self, now: Timestamp, walk: impl Fn(&mut Walk, usize) -> Option<Remembered>) {
        if self.due.is_some_and(|due| due <= now) {
            self.step(now, &walk);
        }
    }

    fn step(&mut self, now: Timestamp, walk: &impl Fn(&mut Walk, usize) -> Option<Remembered>) {
        self.due = Some(now.after(PACE));
        match self.take_step(walk) {
            Ok(next) => self.next = next,
            Err(problem) => self.retry(&problem, now),
        }
    }

    /// Writes some; what is left to do, if anything is.
    fn take_step(
        &mut self,
        walk: &impl Fn(&mut Walk, usize) -> Option<Remembered>,
    ) -> Result<Option<Next>, Problem> {
        let mut next = match self.next.take() {
            Some(next) => next,
            None => Next {
                growing: self.file.begin()?,
                walk: Walk::default(),
            },
        };
        let (mut some, mut left) = (Vec::new(), STEP);
        while left > 0
            && let Some(remembered) = walk(&mut next.walk, left)
        {
            left -= remembered.records.len().min(left);
            some.push(RememberedChange::from(remembered));
        }
        if !some.is_empty() {
            log::write(&some, &mut self.buffer)?;
            next.growing.append(&self.buffer)?;
        }
        if left == 0 {
            return Ok(Some(next));
        }
        self.file.replace(&mut next.growing)?;
        self.room = next.growing.octets().saturating_mul(TIMES).saturating_add(ROOM);
        self.log = Some(next.growing);
        self.due = None;
        if self.trouble.take().is_some() {
            tracing::info!(path = %self.file.path().display(), "the state file is written again");
        }
        Ok(None)
    }

    /// What is at the path stays as it is, and lacks what comes; it is written anew in a second. That is said once.
    fn retry(&mut self, problem: &Problem, now: Timestamp) {
        metrics::state_problem(problem.reason());
        self.due = Some(now.after(RETRY));
        let trouble = Some(problem.to_string());
        if self.trouble != trouble {
            let path = self.file.path().display();
            tracing::warn!(%path, %problem, "the state file stays as it is, and is tried again every second");
        }
        self.trouble = trouble;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::BootId;
    use egret_policies::records::RememberedRecord;
    use std::cell::Cell;
    use std::path::PathBuf;
    use std::sync::Arc;

    const NOW: Timestamp = Timestamp::from_millis(1_000_000);

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

    fn told(names: impl Iterator<Item = usize>) -> Remembered {
        let record = |number: usize| RememberedRecord {
            name: Arc::new(name(number).parse().unwrap()),
            address: "203.0.113.7".parse().unwrap(),
            expires: Timestamp::from_millis(1),
        };
        Remembered {
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
    fn walk(all: usize) -> impl Fn(&mut Walk, usize) -> Option<Remembered> {
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
        let mut former = Keeper::new(folder.file());
        former.begin(NOW, walk(7));
        assert_eq!(folder.kept(), names(0..7));
        drop(former);
        let mut keeper = Keeper::new(folder.file());
        assert_eq!(folder.kept(), names(0..7), "nothing is written before");
        keeper.begin(NOW, walk(3 * STEP));
        assert_eq!((folder.kept(), keeper.deadline()), (names(0..3 * STEP), None));
        for number in 3 * STEP..3 * STEP + 5 {
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
        let mut keeper = Keeper::new(folder.file());
        keeper.begin(NOW, walk(2 * STEP + 1));
        let new = keeper.log.as_ref().unwrap().octets();
        let mut size = new;
        while keeper.deadline().is_none() {
            keeper.keep(&[told(0..STEP).into()], NOW);
            size = keeper.log.as_ref().unwrap().octets();
            assert!(size <= keeper.room + new, "it is bounded");
        }
        let walk = walk(2 * STEP + 1);
        let (mut now, mut steps) = (NOW, 0);
        while let Some(due) = keeper.deadline() {
            now = due;
            keeper.go_on(now, &walk);
            steps += 1;
            let late = 10_000 + steps;
            keeper.keep(&[told(late..late + 1).into()], now);
            assert_eq!(
                folder.kept().len(),
                2 * STEP + 1 + steps,
                "an end here loses nothing"
            );
        }
        assert_eq!(steps, 3);
        assert!(keeper.log.as_ref().unwrap().octets() < size);
        assert_eq!(now.since(NOW), PACE * 2, "others have their turn between steps");
        assert!(!folder.0.join("state.new").exists());
    }

    #[test]
    fn what_cannot_be_written_is_tried_again_every_second_and_then_lacks_nothing() {
        let folder = Folder::make("refused");
        let in_the_way = folder.0.join("state.new");
        std::fs::create_dir(&in_the_way).unwrap();
        let mut keeper = Keeper::new(folder.file());
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
        let mut keeper = Keeper::new(folder.file());
        keeper.begin(NOW, walk(3));
        keeper.due = Some(NOW);
        keeper.go_on(NOW, walk(3 * STEP));
        assert!(folder.0.join("state.new").exists());
        keeper.keep(&[told(3..4).into()], NOW);
        drop(keeper);
        assert_eq!(folder.kept(), names(0..4));
        assert!(!folder.0.join("state.new").exists());
    }
}
