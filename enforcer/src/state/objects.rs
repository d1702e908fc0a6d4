//! Stores the last content of the source, for a start at which the source is unreadable. It stores the manifests' texts
//! rather than parsed objects: reading them again gives the same diagnostics.
//!
//! Unlike records, texts stay valid after a boot, so the file is flushed to the disk and read in another boot as well.
//! The pods' *addresses* may have changed by then; the reader is told.
//!
//! ```text
//!  source ──▶ changed texts ──▶ writer (a thread) ──▶ log ──▶ the next process, where its source is unreadable
//! ```
//!
//! No text stays in memory once it is written.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, UNIX_EPOCH};

use super::boot_id::BootId;
use super::format::StateError;
use super::metrics;

mod file;
mod log;
mod writer;

pub use file::{MAX_OCTETS, ObjectFile};
pub use writer::ObjectWriter;

/// The texts of each file: parsing them in order gives what is in force.
pub type ManifestTexts = BTreeMap<PathBuf, Vec<Arc<[u8]>>>;

/// The new texts of files that changed; none of a file that is gone.
pub type TextChanges = BTreeMap<PathBuf, Option<Vec<Arc<[u8]>>>>;

/// The source's content as the previous process stored it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StoredManifests {
    /// The texts of each file.
    pub texts: ManifestTexts,
    /// When it was written, in seconds since 1970.
    pub seconds: u64,
    /// Whether it was written in another boot: addresses of its pods may be others'.
    pub is_of_other_boot: bool,
}

/// A file of the previous process that was valid at the start. It is read when it is needed, and stays as it is until the
/// writer has the whole source.
#[derive(Debug)]
pub struct StoredObjects(ObjectFile);

impl StoredObjects {
    /// Reads it. A file that has become invalid is logged and counted, and none.
    #[must_use]
    pub fn read(&self) -> Option<StoredManifests> {
        self.0.read().unwrap_or_else(|error| {
            report_unusable(self.0.path(), &error);
            None
        })
    }
}

/// A file of objects with its writer.
#[derive(Debug, Default)]
pub struct ObjectStore {
    /// The stored content, if the file is valid.
    pub stored: Option<StoredObjects>,
    /// Stores new content; none without a file.
    pub writer: Option<ObjectWriter>,
    /// The writer thread. It ends after `ObjectWriter::end`, when everything is written.
    pub thread: Option<JoinHandle<()>>,
}

impl ObjectStore {
    /// Checks the file and starts the writer. Content of another source than `root` is ignored.
    ///
    /// # Errors
    ///
    /// When no thread can be started.
    pub fn open(path: &Path, root: &Path) -> io::Result<Self> {
        let file = match BootId::read() {
            Ok(boot) => ObjectFile::new(path, root, boot),
            Err(error) => {
                report_unusable(path, &StateError::NoBoot(error.to_string()));
                return Ok(Self::default());
            }
        };
        let stored = match file.check() {
            Ok(None) => None,
            Ok(Some(torn)) => {
                report_torn(path, torn);
                Some(StoredObjects(file.clone()))
            }
            Err(error) => {
                report_unusable(path, &error);
                None
            }
        };
        let (writer, thread) = writer::start(file)?;
        Ok(Self {
            stored,
            writer: Some(writer),
            thread: Some(thread),
        })
    }
}

fn report_unusable(path: &Path, error: &StateError) {
    metrics::count(error);
    tracing::warn!(path = %path.display(), reason = error.reason(), %error, "the file of objects is not used; without the source nothing is known");
}

fn report_torn(path: &Path, torn: u64) {
    if torn > 0 {
        let error = StateError::Torn(torn);
        metrics::count(&error);
        tracing::warn!(path = %path.display(), reason = error.reason(), %error, "the file of objects is used as far as it goes");
    }
}

/// A moment in seconds since 1970, as RFC 3339 writes it; what is later than the year 9999 is its end.
#[must_use]
pub fn date_of(seconds: u64) -> String {
    const LAST: u64 = 253_402_300_799;
    let time = UNIX_EPOCH + Duration::from_secs(seconds.min(LAST));
    humantime::format_rfc3339_seconds(time).to_string()
}

#[cfg(test)]
mod tests;
