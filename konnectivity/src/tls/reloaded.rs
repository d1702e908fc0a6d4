//! What is made of files and made again when they change: whoever renews a certificate writes it, and starts nothing anew.

use std::fmt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use egret_shared::rt::clock;
use egret_shared::time::Timestamp;

use super::TlsError;

/// How often the files are looked at, at most.
const INTERVAL: Duration = Duration::from_secs(1);

/// Something that is made of files.
pub struct Reloaded<T> {
    files: Vec<PathBuf>,
    build: Box<dyn Fn() -> Result<T, TlsError> + Send + Sync>,
    state: Mutex<State<T>>,
}

struct State<T> {
    current: Arc<T>,
    /// How often it was made anew.
    version: u64,
    /// Of which it was made, or could not be.
    contents: Vec<Option<Vec<u8>>>,
    looked: Timestamp,
}

impl<T> Reloaded<T> {
    /// # Errors
    /// When it cannot be made of the files as they are.
    pub fn new(
        files: Vec<PathBuf>,
        build: impl Fn() -> Result<T, TlsError> + Send + Sync + 'static,
    ) -> Result<Self, TlsError> {
        let contents = read(&files);
        let state = State {
            current: Arc::new(build()?),
            version: 0,
            contents,
            looked: clock::now(),
        };
        Ok(Self {
            files,
            build: Box::new(build),
            state: Mutex::new(state),
        })
    }

    /// As the files are; as they were where they cannot be used.
    pub fn current(&self) -> Arc<T> {
        self.with_version().0
    }

    /// With a number that is another one when the files were others.
    pub fn with_version(&self) -> (Arc<T>, u64) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let now = clock::now();
        if now.since(state.looked) >= INTERVAL {
            state.looked = now;
            let contents = read(&self.files);
            if contents != state.contents {
                state.contents = contents;
                match (self.build)() {
                    Ok(made) => {
                        tracing::info!(files = ?self.files, "certificates are read again");
                        state.current = Arc::new(made);
                        state.version += 1;
                    }
                    // Of two files that are written one after the other the first does not fit alone: the next change is read as well.
                    Err(error) => tracing::warn!(%error, "certificates cannot be used: the ones before stay"),
                }
            }
        }
        (Arc::clone(&state.current), state.version)
    }
}

fn read(files: &[PathBuf]) -> Vec<Option<Vec<u8>>> {
    let content = |file: &PathBuf| match std::fs::read(file) {
        Ok(content) => Some(content),
        Err(error) => {
            tracing::debug!(file = %file.display(), %error, "a file cannot be read");
            None
        }
    };
    files.iter().map(content).collect()
}

impl<T> fmt::Debug for Reloaded<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reloaded")
            .field("files", &self.files)
            .finish_non_exhaustive()
    }
}
