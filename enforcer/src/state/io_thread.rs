//! Access to the files of records. In a tmpfs such as `/run` nothing can hang: the caller writes at once, because
//! waking a thread takes ten times as long. A disk may hang: there a thread writes, and the caller waits for it up to a
//! timeout. No further job is accepted until the thread is done, so none queue up.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel, sync_channel};
use std::time::Duration;

use super::file::{AppendFile, StateFile};
use super::format::StateError;

/// How long a caller waits. A healthy disk takes a thousandth of this.
const PATIENCE: Duration = Duration::from_millis(100);

/// The open files.
#[derive(Debug)]
pub(super) struct Files {
    file: StateFile,
    /// The file at the path, as long as it is complete.
    pub(super) log: Option<AppendFile>,
    /// The file that will replace it.
    next: Option<AppendFile>,
}

/// The result of an append.
#[derive(Debug)]
pub(super) struct AppendResult {
    /// The size of the log, if it is complete.
    pub(super) log: Option<u64>,
    /// Whether the next file is complete.
    pub(super) has_next: bool,
    /// Why one of them is not.
    pub(super) error: Option<StateError>,
    /// The buffer, for reuse.
    pub(super) buffer: Vec<u8>,
}

/// A step of a rewrite.
#[derive(Debug, Default)]
pub(super) struct RewriteStep {
    /// Set in the first step; the log is closed if it is incomplete.
    pub(super) begins: Option<IsComplete>,
    pub(super) octets: Vec<u8>,
    /// Set in the last step: the new file replaces the log.
    pub(super) is_last: bool,
}

/// Whether the log is complete.
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

    /// Appends to both files.
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

    /// Does a step. Returns the size after the last one. A file that cannot be finished is removed.
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

/// Runs jobs on the files.
#[derive(Debug)]
pub(super) struct FileAccess {
    file: StateFile,
    place: Access,
    pub(super) patience: Duration,
}

/// Where jobs run.
#[derive(Debug)]
enum Access {
    /// In the caller's thread: the files are in memory.
    Memory(Files),
    IoThread(IoThread),
}

/// A thread for files on a disk.
#[derive(Debug)]
struct IoThread {
    /// None before the first job.
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

    /// Runs a job. After the timeout the job may still run later, and its result is lost.
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
        let (sender, receiver) = sync_channel(1);
        let is_busy = Arc::clone(&self.is_busy);
        is_busy.store(true, Ordering::Release);
        let work: Job = Box::new(move |files| {
            let done = work(files);
            is_busy.store(false, Ordering::Release);
            // The caller may have timed out.
            drop(sender.send(done));
        });
        if self.jobs(file)?.send(work).is_err() {
            return Err(StateError::Stalled);
        }
        receiver
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
    /// Removes an unfinished file, unless the disk hangs.
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
