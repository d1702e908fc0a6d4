//! What pods were told, kept in a file for the enforcer that comes after this one. The kernel keeps addresses; which
//! names they stand for, nobody would know any more if dnsd began anew as well.
//!
//! ```text
//!  engine ──▶ keeper ──▶ desk ──▶ file, appended to ──▶ the next engine, before its first batch
//! ```
//!
//! Without the file everything works, and pods are told anew in time; so no fault of it stops anything. Each is told
//! and counted.

use std::path::Path;

use egret_policies::records::PodSnapshot;

mod boot;
mod format;
mod log;
mod file;
mod desk;
mod keeper;
mod objects;

pub use boot::{BootId, InvalidBootId};
pub use file::{StateFile, remove, traces};
pub use format::Problem;
pub use keeper::Keeper;
pub use log::Kept;
pub use objects::{Known, MOST_OCTETS, ObjectFile, ObjectKeeper, Objects, Texts, date_of};

use crate::metrics;

/// What an earlier enforcer left, and what keeps it for a later one.
#[derive(Debug, Default)]
pub struct State {
    /// What pods were told, as far as the file can be taken.
    pub remembered: Vec<PodSnapshot>,
    /// Takes what is to be kept; none where nothing is.
    pub keeper: Option<Keeper>,
}

impl State {
    /// Reads the file, to keep it from then on; `records` is how many there may be.
    #[must_use]
    pub fn open(path: &Path, records: usize) -> Self {
        let boot = match BootId::read() {
            Ok(boot) => boot,
            Err(error) => {
                tell(path, &Problem::NoBoot(error.to_string()));
                return Self::default();
            }
        };
        let file = StateFile::new(path, boot, records);
        let kept = file.read().unwrap_or_else(|problem| {
            tell(path, &problem);
            Kept::default()
        });
        if kept.torn > 0 {
            let problem = Problem::Torn(kept.torn);
            metrics::state_problem(problem.reason());
            tracing::warn!(path = %path.display(), reason = problem.reason(), %problem, "the state file is used as far as it goes");
        }
        Self {
            remembered: kept.remembered,
            keeper: Some(Keeper::new(file)),
        }
    }
}

fn tell(path: &Path, problem: &Problem) {
    metrics::state_problem(problem.reason());
    tracing::warn!(path = %path.display(), reason = problem.reason(), %problem, "the state file is not used; what pods were told is learned anew");
}
