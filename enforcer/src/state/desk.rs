//! Who has the files of records. Where they are in memory, as in `/run`, nothing about them can hang, and what is to be done
//! is done at once: to wake a thread and to wait for it takes ten times what it would do. A disk may hang for as long as it
//! likes: there a thread has them, and who has something done waits for it for a moment and then goes on, and nothing more is
//! handed over until the thread is back. So nothing piles up.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel, sync_channel};
use std::time::Duration;

use super::file::{Growing, StateFile};
use super::format::Problem;

/// A disk that is well takes a thousandth of this.
const PATIENCE: Duration = Duration::from_millis(100);

/// The files, as only the thread has them.
#[derive(Debug)]
pub(super) struct Files {
    file: StateFile,
    /// What is at the path, as long as it has everything.
    pub(super) log: Option<Growing>,
    /// What is to take its place.
    next: Option<Growing>,
}

/// How files are after something came to them.
#[derive(Debug)]
pub(super) struct Appended {
    /// How large the log is, where there is one and it took everything.
    pub(super) log: Option<u64>,
    /// Whether the next one has everything.
    pub(super) has_next: bool,
    /// Why one of them does not.
    pub(super) problem: Option<Problem>,
    /// What came, to be used again.
    pub(super) buffer: Vec<u8>,
}

/// A step of a file that is written anew.
#[derive(Debug, Default)]
pub(super) struct Step {
    /// It begins, and the log takes nothing more unless it has everything.
    pub(super) begins: Option<HasAll>,
    pub(super) octets: Vec<u8>,
    /// It takes its place.
    pub(super) is_last: bool,
}

/// Whether the log has everything.
#[derive(Clone, Copy, Debug)]
pub(super) struct HasAll(pub(super) bool);

impl Files {
    const fn of(file: StateFile) -> Self {
        Self {
            file,
            log: None,
            next: None,
        }
    }

    /// To the end of each.
    pub(super) fn append(&mut self, buffer: Vec<u8>) -> Appended {
        let mut problem = None;
        for place in [&mut self.next, &mut self.log] {
            if let Some(growing) = place
                && let Err(error) = growing.append(&buffer)
            {
                *place = None;
                problem = Some(error);
            }
        }
        Appended {
            log: self.log.as_ref().map(Growing::octets),
            has_next: self.next.is_some(),
            problem,
            buffer,
        }
    }

    /// Takes a step; the size of the file with the last one. What cannot be finished goes.
    pub(super) fn step(&mut self, step: &Step) -> Result<Option<u64>, Problem> {
        let mut next = match (step.begins, self.next.take()) {
            (None, Some(next)) => next,
            (None, None) => return Ok(None),
            (Some(HasAll(has_all)), before) => {
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

type Work = Box<dyn FnOnce(&mut Files) + Send>;

/// Where things are handed over.
#[derive(Debug)]
pub(super) struct Desk {
    file: StateFile,
    place: Place,
    pub(super) patience: Duration,
}

/// Where the files are, as they were found at the start.
#[derive(Debug)]
enum Place {
    /// In memory.
    Memory(Files),
    Disk(Disk),
}

/// The thread of a disk.
#[derive(Debug)]
struct Disk {
    /// None before the first.
    works: Option<Sender<Work>>,
    is_busy: Arc<AtomicBool>,
}

impl Desk {
    pub(super) fn new(file: StateFile) -> Self {
        if !file.is_in_memory() {
            return Self::on_a_disk(file);
        }
        Self {
            place: Place::Memory(Files::of(file.clone())),
            file,
            patience: PATIENCE,
        }
    }

    pub(super) fn on_a_disk(file: StateFile) -> Self {
        let place = Place::Disk(Disk {
            works: None,
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
    pub(super) fn have_done<T: Send + 'static>(
        &mut self,
        work: impl FnOnce(&mut Files) -> T + Send + 'static,
    ) -> Result<T, Problem> {
        match &mut self.place {
            Place::Memory(files) => Ok(work(files)),
            Place::Disk(disk) => disk.have_done(&self.file, self.patience, work),
        }
    }
}

impl Disk {
    fn have_done<T: Send + 'static>(
        &mut self,
        file: &StateFile,
        patience: Duration,
        work: impl FnOnce(&mut Files) -> T + Send + 'static,
    ) -> Result<T, Problem> {
        if self.is_busy.load(Ordering::Acquire) {
            return Err(Problem::Stalled);
        }
        let (told, hears) = sync_channel(1);
        let is_busy = Arc::clone(&self.is_busy);
        is_busy.store(true, Ordering::Release);
        let work: Work = Box::new(move |files| {
            let done = work(files);
            is_busy.store(false, Ordering::Release);
            // Nobody may wait for it any more.
            drop(told.send(done));
        });
        if self.works(file)?.send(work).is_err() {
            return Err(Problem::Stalled);
        }
        hears.recv_timeout(patience).map_err(|_too_long| Problem::Stalled)
    }

    fn works(&mut self, file: &StateFile) -> Result<&Sender<Work>, Problem> {
        let works = match self.works.take() {
            Some(works) => works,
            None => begin(file.clone()).inspect_err(|_| self.is_busy.store(false, Ordering::Release))?,
        };
        Ok(self.works.insert(works))
    }
}

impl Drop for Desk {
    /// What was not finished is removed, if that can be done now.
    fn drop(&mut self) {
        if matches!(&self.place, Place::Disk(disk) if disk.works.is_some()) {
            drop(self.have_done(|files| (files.log, files.next) = (None, None)));
        }
    }
}

fn begin(file: StateFile) -> Result<Sender<Work>, Problem> {
    let (works, inbox): (_, Receiver<Work>) = channel();
    let thread = std::thread::Builder::new().name("state".to_owned());
    let mut files = Files::of(file);
    let begun = thread.spawn(move || inbox.iter().for_each(|work| work(&mut files)));
    begun.map(|_ends_with_its_desk| works).map_err(Problem::Unwritten)
}
