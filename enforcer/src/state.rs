//! What pods were told, kept in a file for the enforcer that comes after this one. The kernel keeps addresses; which
//! names they stand for, nobody would know any more if dnsd began anew as well.
//!
//! ```text
//!  engine ──▶ writer ──▶ io ──▶ file, appended to ──▶ the next engine, before its first batch
//! ```
//!
//! Without the file everything jobs, and pods are told anew in time; so no fault of it stops anything. Each is told
//! and counted.

use std::path::Path;

use egret_policies::records::PodSnapshot;

mod boot_id;
mod format;
mod log;
mod file;
mod io_thread;
mod writer;
mod objects;
mod metrics;

pub use boot_id::BootId;
pub use file::{StateFile, existing_files, remove};
pub use format::StateError;
pub use log::LoadedRecords;
pub use metrics::register_metrics;
pub use objects::{
    MAX_OCTETS, ManifestTexts, ObjectFile, ObjectStore, ObjectWriter, StoredManifests, date_of,
};
pub use writer::StateWriter;

/// What an earlier enforcer left, and what keeps it for a later one.
#[derive(Debug, Default)]
pub struct State {
    /// What pods were told, as far as the file can be taken.
    pub remembered: Vec<PodSnapshot>,
    /// Takes what is to be kept; none where nothing is.
    pub writer: Option<StateWriter>,
}

impl State {
    /// Reads the file, to keep it from then on; `records` is how many there may be.
    #[must_use]
    pub fn open(path: &Path, records: usize) -> Self {
        let boot = match BootId::read() {
            Ok(boot) => boot,
            Err(error) => {
                report_unusable(path, &StateError::NoBoot(error.to_string()));
                return Self::default();
            }
        };
        let file = StateFile::new(path, boot, records);
        let kept = file.read().unwrap_or_else(|error| {
            report_unusable(path, &error);
            LoadedRecords::default()
        });
        if kept.torn > 0 {
            let error = StateError::Torn(kept.torn);
            metrics::count(&error);
            tracing::warn!(path = %path.display(), reason = error.reason(), %error, "the state file is used as far as it goes");
        }
        Self {
            remembered: kept.remembered,
            writer: Some(StateWriter::new(file)),
        }
    }
}

fn report_unusable(path: &Path, error: &StateError) {
    metrics::count(error);
    tracing::warn!(path = %path.display(), reason = error.reason(), %error, "the state file is not used; what pods were told is learned anew");
}
