//! What pods were told, kept in a file for the enforcer that comes after this one. The kernel keeps addresses; which
//! names they stand for, nobody would know any more if dnsd began anew as well.
//!
//! ```text
//!  engine ──▶ keeper (mailbox) ──▶ thread "state" ──▶ file ──▶ the next engine, before its first batch
//! ```
//!
//! Without the file everything works, and pods are told anew in time; so no fault of it stops anything. Each is told
//! and counted.

use std::io;
use std::path::Path;
use std::thread::JoinHandle;

use egret_policies::records::Remembered;

mod boot;
mod format;
mod file;
mod keeper;
mod objects;

pub use boot::{BootId, InvalidBootId};
pub use file::{StateFile, remove, traces};
pub use format::{Problem, decode, encode};
pub use keeper::Keeper;
pub use objects::{Known, MOST_OCTETS, ObjectFile, ObjectKeeper, Objects, Texts, date_of};

use crate::metrics;

/// What an earlier enforcer left, and what keeps it for a later one.
#[derive(Debug, Default)]
pub struct State {
    /// What pods were told, as far as the file can be taken.
    pub remembered: Vec<Remembered>,
    /// Takes what is to be kept; none where nothing is.
    pub keeper: Option<Keeper>,
    /// Ends when the keeper was dropped and everything is written.
    pub writer: Option<JoinHandle<()>>,
}

impl State {
    /// Reads the file and starts to keep it; `records` is how many there may be.
    ///
    /// # Errors
    /// When there can be no thread.
    pub fn open(path: &Path, records: usize) -> io::Result<Self> {
        let boot = match BootId::read() {
            Ok(boot) => boot,
            Err(error) => {
                tell(path, &Problem::NoBoot(error.to_string()));
                return Ok(Self::default());
            }
        };
        let file = StateFile::new(path, boot, records);
        let remembered = match file.read() {
            Ok(remembered) => remembered,
            Err(problem) => {
                tell(path, &problem);
                Vec::new()
            }
        };
        let (keeper, writer) = keeper::start(file)?;
        Ok(Self {
            remembered,
            keeper: Some(keeper),
            writer: Some(writer),
        })
    }
}

fn tell(path: &Path, problem: &Problem) {
    metrics::state_problem(problem.reason());
    tracing::warn!(path = %path.display(), reason = problem.reason(), %problem, "the state file is not used; what pods were told is learned anew");
}
