//! The thread that writes objects. What changed waits for it by path, so a disk that hangs costs at most the texts of the
//! source.

use std::io;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use egret_shared::rt::allocator;
use egret_shared::rt::clock;
use egret_shared::time::Timestamp;

use super::TextChanges;
use super::file::{ObjectFile, ObjectLog};
use crate::state::format::StateError;
use crate::state::metrics;

/// The shortest time between two writes, once the whole source is written.
const MIN_INTERVAL: Duration = Duration::from_secs(2);

/// Sends the source's content to the writer thread.
#[derive(Clone, Debug)]
pub struct ObjectWriter {
    pending: Arc<Pending>,
    wake: SyncSender<()>,
}

#[derive(Debug, Default)]
struct Pending(Mutex<Changes>);

/// What is not written yet.
#[derive(Debug, Default)]
struct Changes {
    texts: TextChanges,
    is_consistent: bool,
    /// Whether there is something to write, which may be that nothing changes any more.
    is_due: bool,
    has_ended: bool,
}

impl ObjectWriter {
    /// Stores changes. `is_consistent` says that together with all earlier ones they are what the source says.
    pub fn store(&self, texts: TextChanges, is_consistent: bool) {
        let mut pending = self.pending.lock();
        pending.texts.extend(texts);
        pending.is_consistent = is_consistent;
        pending.is_due = true;
        drop(pending);
        self.wake();
    }

    /// Ends the writer after the last content is written.
    pub fn end(&self) {
        self.pending.lock().has_ended = true;
        self.wake();
    }

    fn wake(&self) {
        // A full channel wakes it as well, and a writer that ended has logged why.
        match self.wake.try_send(()) {
            Ok(()) | Err(_) => {}
        }
    }
}

impl Pending {
    fn lock(&self) -> MutexGuard<'_, Changes> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Starts the thread.
pub(super) fn start(file: ObjectFile) -> io::Result<(ObjectWriter, JoinHandle<()>)> {
    let (wake, wakes) = sync_channel(1);
    let pending = Arc::<Pending>::default();
    let writer = Writer {
        file,
        log: None,
        pending: Arc::clone(&pending),
        earliest: Timestamp::from_millis(0),
        last_error: None,
    };
    let thread = std::thread::Builder::new().name("objects".to_owned());
    let thread = thread.spawn(move || writer.work(&wakes))?;
    Ok((ObjectWriter { pending, wake }, thread))
}

struct Writer {
    file: ObjectFile,
    /// None before the first change, and where it could not be begun.
    log: Option<ObjectLog>,
    pending: Arc<Pending>,
    earliest: Timestamp,
    /// The error of the last write.
    last_error: Option<String>,
}

impl Writer {
    fn work(mut self, wakes: &Receiver<()>) {
        loop {
            let is_due = self.pending.lock().is_due;
            let woken = match is_due {
                true => wakes.recv_timeout(self.earliest.since(clock::now())),
                false => wakes.recv().map_err(|_gone| RecvTimeoutError::Disconnected),
            };
            let ends = woken == Err(RecvTimeoutError::Disconnected) || self.pending.lock().has_ended;
            if ends || woken == Err(RecvTimeoutError::Timeout) {
                self.write();
            }
            if ends {
                return;
            }
        }
    }

    /// Writes what waits, if something does. What could not be written waits for the next time.
    fn write(&mut self) {
        let (texts, is_consistent) = {
            let mut pending = self.pending.lock();
            if !std::mem::take(&mut pending.is_due) {
                return;
            }
            (std::mem::take(&mut pending.texts), pending.is_consistent)
        };
        let is_first = self.log.as_ref().is_none_or(|log| !log.is_consistent());
        let written = self.append(&texts, is_consistent);
        if written.is_err() || is_consistent {
            self.earliest = clock::now().after(MIN_INTERVAL);
        }
        let is_written = written.is_ok();
        if !is_written {
            let mut pending = self.pending.lock();
            for (path, before) in texts {
                pending.texts.entry(path).or_insert(before);
            }
            pending.is_due = true;
        }
        let rewritten = match (&mut self.log, is_written) {
            (Some(log), true) => log.rewrite_if_grown(),
            (Some(_) | None, _) => Ok(()),
        };
        self.report(written.and(rewritten));
        // What the start needed is free by now, and between what stays.
        if is_first && is_consistent && is_written {
            allocator::trim();
        }
    }

    fn append(&mut self, texts: &TextChanges, is_consistent: bool) -> Result<(), StateError> {
        let log = match &mut self.log {
            Some(log) => log,
            None => self.log.insert(ObjectLog::begin(&self.file)?),
        };
        log.append(texts, clock::since_epoch().as_secs(), is_consistent)
    }

    /// Each error is counted; the same error is logged once.
    fn report(&mut self, written: Result<(), StateError>) {
        let path = self.file.path().display();
        let last_error = written.err().map(|error| {
            metrics::count(&error);
            error.to_string()
        });
        match &last_error {
            Some(error) if self.last_error != last_error => {
                tracing::warn!(%path, error, "the file of objects stays as it is, and is tried again every other second");
            }
            None if self.last_error.is_some() => {
                tracing::info!(%path, "the file of objects is written again")
            }
            Some(_) | None => {}
        }
        self.last_error = last_error;
    }
}
