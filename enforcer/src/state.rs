//! Records and objects in files, for the next process. The kernel keeps addresses, but not the names that they were

//! resolved from: those would be unknown if dnsd restarted as well.
//!
//! ```text
//!  engine ──▶ writer ──▶ io_thread ──▶ log file ──▶ the next engine, before its first batch
//! ```
//!
//! Everything works without the files, because pods resolve names again. So no fault of a file stops anything; each is
//! logged and counted.

use std::path::Path;

use egret_policies::records::PodSnapshot;

mod boot_id;
mod format;
mod frames;
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
    MAX_OCTETS, ManifestTexts, ObjectFile, ObjectStore, ObjectWriter, StoredManifests, StoredObjects,
    TextChanges, date_of,
};
pub use writer::StateWriter;

/// Records of the previous process, and the writer for the next one.
#[derive(Debug, Default)]
pub struct State {
    /// Records of each pod, as far as the file is valid.
    pub remembered: Vec<PodSnapshot>,
    /// Writes records; none without a file.
    pub writer: Option<StateWriter>,
}

impl State {
    /// Reads the file, and writes it from then on. `records` is the most that there may be.
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
            tracing::warn!(path = % path.display(), reason = error.reason(), %error, "the state file is used as far as it goes");
        }
        Self {
            remembered: kept.remembered,
            writer: Some(StateWriter::new(file)),
        }
    }
}

fn report_unusable(path: &Path, error: &StateError) {
    metrics::count(error);
    tracing::warn!(path = % path.display(), reason = error.reason(), %error, "the state file is not used; what pods were told is learned anew");
}
