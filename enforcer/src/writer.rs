//! The one writer of a network namespace. It has what belongs to the namespace itself, not a file of the disk: two enforcers in
//! different containers share the namespace and no folder. The kernel releases it when its holder ends, however it ends.
//!
//! - A group of NFLOG, which has one listener in a namespace and takes CAP_NET_ADMIN.
//! - A lock on the namespace (`flock(2)`), which wakes who waits, and which `/proc/locks` ties to a process. It stands alone where the
//!   kernel has no NFLOG. Any process may hold it, without a privilege.
//! - An abstract socket (unix(7)), at which the writer proves that it is an enforcer. A process that waits for an enforcer is
//!   ready: nothing but its turn is missing. A lock whose holder proves nothing keeps nobody from writing who has the group.

mod status;

use std::fmt;
use std::fs::{File, TryLockError};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use egret_kernel::nflog::{self, BindError};
use egret_shared::rt::admin::AdminHandler;
use egret_shared::rt::clock;
use egret_shared::rt::telemetry;
pub use status::serve as serve_status;
use tokio::sync::oneshot;

use crate::admin::EngineAdmin;

/// The network namespace of the calling thread (`namespaces(7)`).
const NAMESPACE: &str = "/proc/thread-self/ns/net";
const LOCKS: &str = "/proc/locks";

/// The NFLOG group of the writer; no rule logs to it.
const GROUP: u16 = 65_043;
/// How often a process that waits looks whether the group is free.
const GROUP_INTERVAL: Duration = Duration::from_millis(50);
/// How long the holder of the lock may take to prove that it is an enforcer.
const PROOF_TIMEOUT: Duration = Duration::from_secs(2);

/// The right to write rules and sets of a network namespace; it ends with this value.
#[derive(Debug)]
pub struct Writer {
    _group: Option<nflog::Listener>,
    _locked: Option<File>,
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
    holder: Holder,
}

/// The process that has the lock; unknown if it is in another PID namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Holder(Option<i32>);

impl fmt::Display for Holder {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(pid) => write!(formatter, "process {pid}"),
            None => formatter.write_str("a process of another PID namespace"),
        }
    }
}

impl Writer {
    /// Takes the right to write in the network namespace of the calling thread, if it is free.
    ///
    /// # Errors
    /// When the namespace cannot be opened or locked (`flock(2)`).
    pub fn try_acquire() -> io::Result<Attempt> {
        let namespace = File::open(NAMESPACE)?;
        let holder = |namespace: &File| Ok::<_, io::Error>(holder_of(namespace.metadata()?.ino()));
        let group = match Group::bind() {
            Group::Taken => {
                let holder = holder(&namespace)?;
                return Ok(Attempt::Held(Standby { namespace, holder }));
            }
            Group::Bound(listener) => Some(listener),
            Group::Unknown => None,
        };
        match namespace.try_lock() {
            Ok(()) => Ok(Attempt::Acquired(Self {
                _group: group,
                _locked: Some(namespace),
            })),
            Err(TryLockError::WouldBlock) => {
                let holder = holder(&namespace)?;
                Ok(Attempt::Held(Standby { namespace, holder }))
            }
            Err(TryLockError::Error(error)) => Err(error),
        }
    }
}

/// An attempt to bind the writer's group.
enum Group {
    Bound(nflog::Listener),
    Taken,
    /// The kernel has no NFLOG: the lock decides alone.
    Unknown,
}

impl Group {
    fn bind() -> Self {
        match nflog::Listener::bind(GROUP) {
            Ok(listener) => Self::Bound(listener),
            Err(BindError::Taken { .. }) => Self::Taken,
            Err(error @ BindError::Refused { .. }) => {
                tracing::debug!(%error, "the lock alone says who writes");
                Self::Unknown
            }
        }
    }
}

impl Standby {
    /// The process that may write.
    #[must_use]
    pub const fn holder(&self) -> Holder {
        self.holder
    }

    /// Waits until the holder ends, or does not prove that it is an enforcer. In a thread of its own; dropping the future leaves
    /// it, and it ends with the process.
    ///
    /// # Errors
    /// When there is no thread, or the lock fails.
    pub async fn wait(self) -> io::Result<Writer> {
        let (acquired, waiting) = oneshot::channel();
        std::thread::Builder::new()
            .name("writer".to_owned())
            .spawn(move || {
                // Nobody waits any more when this fails.
                drop(acquired.send(self.acquire()));
            })?;
        waiting
            .await
            .map_err(|_ended| io::Error::other("the thread that waits for the lock ended"))?
    }
}

impl Standby {
    fn acquire(self) -> io::Result<Writer> {
        let mut unproven_since = None;
        loop {
            let group = match Group::bind() {
                Group::Taken => {
                    unproven_since = None;
                    std::thread::sleep(GROUP_INTERVAL);
                    continue;
                }
                Group::Unknown => return self.lock(),
                Group::Bound(listener) => Some(listener),
            };
            match self.namespace.try_lock() {
                Ok(()) => {
                    return Ok(Writer {
                        _group: group,
                        _locked: Some(self.namespace),
                    });
                }
                Err(TryLockError::WouldBlock) => {}
                Err(TryLockError::Error(error)) => return Err(error),
            }
            let holder = holder_of(self.namespace.metadata()?.ino());
            match status::ask() {
                // One that had no group when it started.
                Ok(_state) => unproven_since = None,
                Err(error) => {
                    let since = *unproven_since.get_or_insert_with(clock::now);
                    if clock::now().since(since) >= PROOF_TIMEOUT {
                        tracing::warn!(%holder, %error, "the lock of this network namespace is not an enforcer's, and does not count");
                        return Ok(Writer {
                            _group: group,
                            _locked: None,
                        });
                    }
                }
            }
            // Others may have the group meanwhile: an enforcer that starts proves itself within a moment.
            drop(group);
            std::thread::sleep(GROUP_INTERVAL);
        }
    }

    /// The kernel wakes a thread that sleeps in `flock(2)`.
    fn lock(self) -> io::Result<Writer> {
        loop {
            match self.namespace.lock() {
                Ok(()) => {
                    return Ok(Writer {
                        _group: None,
                        _locked: Some(self.namespace),
                    });
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }
}

/// Who holds the lock. The kernel shows holders of this PID namespace alone.
fn holder_of(inode: u64) -> Holder {
    let locks = std::fs::read_to_string(LOCKS).unwrap_or_default();
    Holder(locks.lines().find_map(|line| holder_in(line, inode)))
}

/// Reads `1: FLOCK  ADVISORY  WRITE 123 00:04:4026531840 0 EOF` (`proc_locks(5)`).
fn holder_in(line: &str, inode: u64) -> Option<i32> {
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
    holder: Holder,
    recorder: telemetry::Metrics,
    engine: OnceLock<Arc<EngineAdmin>>,
}

impl StandbyAdmin {
    /// The endpoints of a process that waits for `standby`'s holder.
    #[must_use]
    pub fn new(standby: &Standby, recorder: telemetry::Metrics) -> Self {
        Self {
            holder: standby.holder,
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

    /// A process that waits is ready if the holder is an enforcer that is ready.
    fn readiness(&self) -> Result<String, String> {
        if let Some(engine) = self.engine.get() {
            return engine.readiness();
        }
        let holder = self.holder;
        match status::ask() {
            // Nothing but its turn is missing here, whatever the writer lacks.
            Ok((writer, state)) => Ok(format!(
                "standby: {writer} enforces here and says \"{state}\"; this one takes over when it ends"
            )),
            Err(error) => Err(format!(
                "standby: {holder} keeps this one from writing and does not prove that it is an enforcer: {error} \
                 (/proc/locks, /proc/net/netfilter/nfnetlink_log group {GROUP})"
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
