//! The one writer of a network namespace. A lock on the namespace itself, not on a file of the disk: two enforcers in
//! different containers share the namespace and no folder. The kernel releases it when its holder ends, however it ends.

use std::fs::{File, TryLockError};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::sync::{Arc, OnceLock};

use egret_shared::rt::admin::AdminHandler;
use egret_shared::rt::telemetry;
use tokio::sync::oneshot;

use crate::admin::EngineAdmin;

/// The network namespace of the calling thread (`namespaces(7)`).
const NAMESPACE: &str = "/proc/thread-self/ns/net";
const LOCKS: &str = "/proc/locks";

/// The right to write rules and sets of a network namespace; it ends with this value.
#[derive(Debug)]
pub struct Writer {
    _locked: File,
}

/// Whether this process may write.
#[derive(Debug)]
pub enum Attempt {
    /// It may.
    Acquired(Writer),
    /// Another process may.
    Held(Standby),
}

/// A process that waits for the right to write.
#[derive(Debug)]
pub struct Standby {
    namespace: File,
    holder: String,
}

impl Writer {
    /// Takes the right to write in the network namespace of the calling thread, if it is free.
    ///
    /// # Errors
    /// When the namespace cannot be opened or locked (`flock(2)`).
    pub fn try_acquire() -> io::Result<Attempt> {
        let namespace = File::open(NAMESPACE)?;
        match namespace.try_lock() {
            Ok(()) => Ok(Attempt::Acquired(Self { _locked: namespace })),
            Err(TryLockError::WouldBlock) => {
                let holder = holder_of(namespace.metadata()?.ino());
                Ok(Attempt::Held(Standby { namespace, holder }))
            }
            Err(TryLockError::Error(error)) => Err(error),
        }
    }
}

impl Standby {
    /// The process that may write: `process 123`.
    #[must_use]
    pub fn holder(&self) -> &str {
        &self.holder
    }

    /// Waits until the holder ends. The kernel wakes a thread that sleeps in `flock(2)`; dropping the future leaves that
    /// thread, which ends with the process.
    ///
    /// # Errors
    /// When there is no thread, or the lock fails.
    pub async fn wait(self) -> io::Result<Writer> {
        let (acquired, waiting) = oneshot::channel();
        std::thread::Builder::new()
            .name("writer".to_owned())
            .spawn(move || {
                // Nobody waits any more when this fails.
                drop(acquired.send(lock(self.namespace)));
            })?;
        waiting
            .await
            .map_err(|_ended| io::Error::other("the thread that waits for the lock ended"))?
    }
}

fn lock(namespace: File) -> io::Result<Writer> {
    loop {
        match namespace.lock() {
            Ok(()) => return Ok(Writer { _locked: namespace }),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

/// Who holds the lock, for people. The kernel shows holders of this PID namespace alone.
fn holder_of(inode: u64) -> String {
    let locks = std::fs::read_to_string(LOCKS).unwrap_or_default();
    locks.lines().find_map(|line| holder_in(line, inode)).map_or_else(
        || "a process of another PID namespace".to_owned(),
        |pid| format!("process {pid}"),
    )
}

/// Reads `1: FLOCK  ADVISORY  WRITE 123 00:04:4026531840 0 EOF` (`proc_locks(5)`).
fn holder_in(line: &str, inode: u64) -> Option<u32> {
    let fields: Vec<&str> = line.split_ascii_whitespace().collect();
    let [_, "FLOCK", _, "WRITE", pid, file, ..] = fields[..] else {
        return None;
    };
    let (_, found) = file.rsplit_once(':')?;
    (found == inode.to_string()).then(|| pid.parse().ok())?
}

/// The endpoints of a process that first waits and then writes.
#[derive(Debug)]
pub struct StandbyAdmin {
    holder: String,
    recorder: telemetry::Metrics,
    engine: OnceLock<Arc<EngineAdmin>>,
}

impl StandbyAdmin {
    /// The endpoints of a process that waits for `standby`'s holder.
    #[must_use]
    pub fn new(standby: &Standby, recorder: telemetry::Metrics) -> Self {
        Self {
            holder: standby.holder.clone(),
            recorder,
            engine: OnceLock::new(),
        }
    }

    /// From here on the engine answers.
    pub fn take_over(&self, engine: Arc<EngineAdmin>) {
        // A process takes over once.
        drop(self.engine.set(engine));
    }
}

impl AdminHandler for StandbyAdmin {
    fn health(&self) -> Result<(), String> {
        self.engine.get().map_or(Ok(()), |engine| engine.health())
    }

    /// A process that waits is not ready, whoever holds the lock: nobody else says whether this node's rules are written.
    fn readiness(&self) -> Result<String, String> {
        match self.engine.get() {
            Some(engine) => engine.readiness(),
            None => Err(format!(
                "standby: {} writes the rules of this network namespace; this one takes over when it ends",
                self.holder
            )),
        }
    }

    fn metrics(&self) -> String {
        self.engine
            .get()
            .map_or_else(|| self.recorder.render(), |engine| engine.metrics())
    }

    fn page(&self, path: &str) -> Option<String> {
        self.engine.get()?.page(path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_holder_is_the_process_that_the_kernel_lists() {
        let line = "14: FLOCK  ADVISORY  WRITE 32048 00:04:4026532184 0 EOF";
        assert_eq!(holder_in(line, 4_026_532_184), Some(32048));
        assert_eq!(holder_in(line, 4_026_532_185), None);
        // A process that waits is listed below the holder, with an arrow.
        let waiting = "14: -> FLOCK  ADVISORY  WRITE 7 00:04:4026532184 0 EOF";
        assert_eq!(holder_in(waiting, 4_026_532_184), None);
    }
}
