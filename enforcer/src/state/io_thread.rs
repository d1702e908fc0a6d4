//! Who has the files of records. Where they are in memory, as in `/run`, nothing about them can hang, and what is to be done
//! is done at once: to wake a thread and to wait for it takes ten times what it would do. A disk may hang for as long as it
//! likes: there a thread has them, and who has something done waits for it for a moment and then goes on, and nothing more is
//! handed over until the thread is back. So nothing piles up.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel, sync_channel};
use std::time::Duration;

use super::file::{AppendFile, StateFile};
use super::format::StateError;

/// A disk that is well takes a thousandth of this.
const PATIENCE: Duration = Duration::from_millis(100);

/// The files, as only the thread has them.
#[derive(Debug)]
pub(super) struct Files {
    file: StateFile,
    /// What is at the path, as long as it has everything.
    pub(super) log: Option<AppendFile>,
    /// What is to take its place.
    next: Option<AppendFile>,
}

/// How files are after something came to them.
#[derive(Debug)]
pub(super) struct AppendResult {
    /// How large the log is, where there is one and it took everything.
    pub(super) log: Option<u64>,
    /// Whether the next one has everything.
    pub(super) has_next: bool,
    /// Why one of them does not.
    pub(super) error: Option<StateError>,
    /// What came, to be used again.
    pub(super) buffer: Vec<u8>,
}

/// A step of a file that is written anew.
#[derive(Debug, Default)]
pub(super) struct RewriteStep {
    /// It begins, and the log takes nothing more unless it has everything.
    pub(super) begins: Option<IsComplete>,
    pub(super) octets: Vec<u8>,
    /// It takes its place.
    pub(super) is_last: bool,
}

/// Whether the log has everything.
#[derive(Clone, Copy, Debug)]
pub(super) struct IsComplete(pub(super) bool);

impl Files {
    const fn of(file: StateFile) -> Self {
        Self {
            file,
            log: None,
            next: None,
        }
    }

    /// To the end of each.
    pub(super) fn append(&mut self, buffer: Vec<u8>) -> AppendResult {
        let mut last_error = None;
        for file in [&mut self.next, &mut self.log] {
            if let Some(open) = file
                && let Err(error) = open.append(&buffer)
            {
                *file = None;
                last_error = Some(error);
            }
        }
        AppendResult {
            log: self.log.as_ref().map(AppendFile::octets),
            has_next: self.next.is_some(),
            error: last_error,
            buffer,
        }
    }

    /// Takes a step; the size of the file with the last one. What cannot be finished goes.
    pub(super) fn step(&mut self, step: &RewriteStep) -> Result<Option<u64>, StateError> {
        let mut next = match (step.begins, self.next.take()) {
            (None, Some(next)) => next,
            (None, None) => return Ok(None),
            (Some(IsComplete(has_all)), before) => {
                drop(before);
                self.log = self.log.take().filter(|_| has_all);
                self.file.begin()?
            }
        };
        if !step.octets.is_empty() {
            next.append(&step.octets)?;
        }
        if !step.is_last {
            self.next = Some(next);
            return Ok(None);
        }
        self.file.replace(&mut next)?;
        let octets = next.octets();
        self.log = Some(next);
        Ok(Some(octets))
    }
}

type Job = Box<dyn FnOnce(&mut Files) + Send>;

/// Where things are handed over.
#[derive(Debug)]
pub(super) struct FileAccess {
    file: StateFile,
    place: Access,
    pub(super) patience: Duration,
}

/// Where the files are, as they were found at the start.
#[derive(Debug)]
enum Access {
    /// In memory.
    Memory(Files),
    IoThread(IoThread),
}

/// The thread of a disk.
#[derive(Debug)]
struct IoThread {
    /// None before the first.
    jobs: Option<Sender<Job>>,
    is_busy: Arc<AtomicBool>,
}

impl FileAccess {
    pub(super) fn new(file: StateFile) -> Self {
        if !file.is_in_memory() {
            return Self::threaded(file);
        }
        Self {
            place: Access::Memory(Files::of(file.clone())),
            file,
            patience: PATIENCE,
        }
    }

    pub(super) fn threaded(file: StateFile) -> Self {
        let place = Access::IoThread(IoThread {
            jobs: None,
            is_busy: Arc::default(),
        });
        Self {
            file,
            place,
            patience: PATIENCE,
        }
    }

    pub(super) const fn file(&self) -> &StateFile {
        &self.file
    }

    /// Has something done. If that takes too long it may be done later, and nobody hears of it.
    pub(super) fn run<T: Send + 'static>(
        &mut self,
        work: impl FnOnce(&mut Files) -> T + Send + 'static,
    ) -> Result<T, StateError> {
        match &mut self.place {
            Access::Memory(files) => Ok(work(files)),
            Access::IoThread(disk) => disk.run(&self.file, self.patience, work),
        }
    }
}

impl IoThread {
    fn run<T: Send + 'static>(
        &mut self,
        file: &StateFile,
        patience: Duration,
        work: impl FnOnce(&mut Files) -> T + Send + 'static,
    ) -> Result<T, StateError> {
        if self.is_busy.load(Ordering::Acquire) {
            return Err(StateError::Stalled);
        }
        let (told, hears) = sync_channel(1);
        let is_busy = Arc::clone(&self.is_busy);
        is_busy.store(true, Ordering::Release);
        let work: Job = Box::new(move |files| {
            let done = work(files);
            is_busy.store(false, Ordering::Release);
            // Nobody may wait for it any more.
            drop(told.send(done));
        });
        if self.jobs(file)?.send(work).is_err() {
            return Err(StateError::Stalled);
        }
        hears
            .recv_timeout(patience)
            .map_err(|_too_long| StateError::Stalled)
    }

    fn jobs(&mut self, file: &StateFile) -> Result<&Sender<Job>, StateError> {
        let jobs = match self.jobs.take() {
            Some(jobs) => jobs,
            None => begin(file.clone()).inspect_err(|_| self.is_busy.store(false, Ordering::Release))?,
        };
        Ok(self.jobs.insert(jobs))
    }
}

impl Drop for FileAccess {
    /// What was not finished is removed, if that can be done now.
    fn drop(&mut self) {
        if matches!(&self.place, Access::IoThread(disk) if disk.jobs.is_some()) {
            drop(self.run(|files| (files.log, files.next) = (None, None)));
        }
    }
}

fn begin(file: StateFile) -> Result<Sender<Job>, StateError> {
    let (jobs, inbox): (_, Receiver<Job>) = channel();
    let thread = std::thread::Builder::new().name("state".to_owned());
    let mut files = Files::of(file);
    let begun = thread.spawn(move || inbox.iter().for_each(|work| work(&mut files)));
    begun
        .map(|_ends_with_its_desk| jobs)
        .map_err(StateError::Unwritten)
}
