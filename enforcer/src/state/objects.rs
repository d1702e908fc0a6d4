//! Stores the last content of the source, for a start at which the source is unreadable. It stores the manifests' texts
//! rather than parsed objects: reading them again gives the same diagnostics.
//!
//! Unlike records, texts stay valid after a boot, so the file is flushed to the disk and read in another boot as well.
//! The pods' *addresses* may have changed by then; the reader is told.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, UNIX_EPOCH};

use egret_kernel::allocator;
use egret_shared::rt::clock;
use egret_shared::time::Timestamp;
use serde::{Deserialize, Serialize};

use super::boot_id::BootId;
use super::file::{read_regular_file, replace};
use super::format::{StateError, decode, encode, is_of_boot, read_body};
use super::metrics;

const MAGIC: [u8; 8] = *b"egret/ob";
/// The largest file. A larger source is not stored, which is logged.
pub const MAX_OCTETS: u64 = 256 * 1024 * 1024;
/// The shortest time between two writes.
const MIN_INTERVAL: Duration = Duration::from_secs(2);

/// The texts of each file: parsing them in order gives what is in force.
pub type ManifestTexts = BTreeMap<PathBuf, Vec<Arc<[u8]>>>;

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

/// Sends the source's content to the writer thread.
#[derive(Clone, Debug)]
pub struct ObjectWriter(Sender<Message>);

enum Message {
    Keep(ManifestTexts),
    End,
}

/// A file of objects with its writer.
#[derive(Debug, Default)]
pub struct ObjectStore {
    /// The stored content, if the file is valid.
    pub stored: Option<StoredManifests>,
    /// Stores new content; none without a file.
    pub writer: Option<ObjectWriter>,
    /// The writer thread. It ends after `ObjectWriter::end`, when everything is written.
    pub thread: Option<JoinHandle<()>>,
}

impl ObjectStore {
    /// Reads the file and starts the writer. Content of another source than `root` is ignored.
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
        let stored = file.read().unwrap_or_else(|error| {
            report_unusable(path, &error);
            None
        });
        let (sender, messages) = channel();
        let thread = std::thread::Builder::new().name("objects".to_owned());
        let thread = thread.spawn(move || {
            Writer {
                file,
                last_error: None,
                is_first: true,
            }
            .work(&messages)
        })?;
        Ok(Self {
            stored,
            writer: Some(ObjectWriter(sender)),
            thread: Some(thread),
        })
    }
}

fn report_unusable(path: &Path, error: &StateError) {
    metrics::count(error);
    tracing::warn!(path = %path.display(), reason = error.reason(), %error, "the file of objects is not used; without the source nothing is known");
}

impl ObjectWriter {
    /// Stores new content of the source.
    pub fn store(&self, texts: ManifestTexts) {
        // A writer that ended has logged why.
        drop(self.0.send(Message::Keep(texts)));
    }

    /// Ends the writer after the last content is written.
    pub fn end(&self) {
        drop(self.0.send(Message::End));
    }
}

/// The file of objects.
#[derive(Clone, Debug)]
pub struct ObjectFile {
    path: PathBuf,
    root: PathBuf,
    boot: BootId,
    most: u64,
}

/// As it is read, and as it is written: without copies of the texts.
#[derive(Serialize, Deserialize)]
struct Body<Octets> {
    root: Octets,
    seconds: u64,
    files: Vec<(Octets, Vec<Octets>)>,
}

impl ObjectFile {
    /// The file at `path`, of the source `root`, in this boot.
    #[must_use]
    pub fn new(path: &Path, root: &Path, boot: BootId) -> Self {
        Self {
            path: path.to_owned(),
            root: root.to_owned(),
            boot,
            most: MAX_OCTETS,
        }
    }

    /// Reads it; none if there is no file.
    ///
    /// # Errors
    ///
    /// Why it is not valid.
    pub fn read(&self) -> Result<Option<StoredManifests>, StateError> {
        let Some(octets) = read_regular_file(&self.path, self.most)? else {
            return Ok(None);
        };
        let body: Body<Vec<u8>> = read_body(decode(MAGIC, &octets)?)?;
        if body.root != self.root.as_os_str().as_bytes() {
            let root = OsStr::from_bytes(&body.root).display();
            return Err(StateError::Foreign(format!("of the source dir:{root}")));
        }
        let texts = |texts: Vec<Vec<u8>>| texts.into_iter().map(Arc::from).collect();
        let of_file = |(path, of_it): (Vec<u8>, _)| (PathBuf::from(OsStr::from_bytes(&path)), texts(of_it));
        Ok(Some(StoredManifests {
            texts: body.files.into_iter().map(of_file).collect(),
            seconds: body.seconds,
            is_of_other_boot: !is_of_boot(&octets, self.boot),
        }))
    }

    /// Replaces it atomically.
    ///
    /// # Errors
    ///
    /// When it stays as it was.
    pub fn write(&self, texts: &ManifestTexts, seconds: u64) -> Result<(), StateError> {
        let files = texts.iter().map(|(path, texts)| {
            let texts = texts.iter().map(|text| &**text).collect();
            (path.as_os_str().as_bytes(), texts)
        });
        let body = Body {
            root: self.root.as_os_str().as_bytes(),
            seconds,
            files: files.collect(),
        };
        replace(&self.path, &encode(MAGIC, self.boot, &body)?, self.most)
    }
}

struct Writer {
    file: ObjectFile,
    /// The error of the last write.
    last_error: Option<String>,
    /// Whether none was written yet.
    is_first: bool,
}

impl Writer {
    /// Writes the latest content, at most once per `MIN_INTERVAL`.
    fn work(mut self, messages: &Receiver<Message>) {
        let mut waiting: Option<ManifestTexts> = None;
        let mut earliest = Timestamp::from_millis(0);
        loop {
            let came = match &waiting {
                Some(_) => messages.recv_timeout(earliest.since(clock::now())),
                None => messages.recv().map_err(|_gone| RecvTimeoutError::Disconnected),
            };
            match came {
                Ok(Message::Keep(texts)) => waiting = Some(texts),
                Err(RecvTimeoutError::Timeout) => {
                    earliest = clock::now().after(MIN_INTERVAL);
                    waiting = waiting.filter(|texts| !self.write(texts));
                }
                Ok(Message::End) | Err(RecvTimeoutError::Disconnected) => {
                    if let Some(texts) = waiting {
                        self.write(&texts);
                    }
                    return;
                }
            }
        }
    }

    /// Returns whether it was written. Each error is counted; the same error is logged once.
    fn write(&mut self, texts: &ManifestTexts) -> bool {
        let written = self.file.write(texts, clock::since_epoch().as_secs());
        let path = self.file.path.display();
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
        // What the start needed is free by now, and between what stays.
        if std::mem::take(&mut self.is_first) {
            allocator::trim();
        }
        self.last_error.is_none()
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
mod tests {
    use super::*;

    struct Folder(tempfile::TempDir);

    impl Folder {
        fn new() -> Self {
            Self(tempfile::tempdir().unwrap())
        }

        fn file(&self) -> ObjectFile {
            let path = self.0.path().join("new/objects");
            ObjectFile::new(&path, Path::new("/m"), BootId::read().unwrap())
        }
    }

    fn texts() -> ManifestTexts {
        let text = |text: &str| Arc::from(text.as_bytes());
        [
            ("/m/a.yaml".into(), vec![text("a: 1"), text("a: [")]),
            ("/m/b".into(), vec![]),
        ]
        .into()
    }

    #[test]
    fn what_is_written_is_read_also_in_another_boot() {
        let folder = Folder::new();
        let file = folder.file();
        assert_eq!(file.read().unwrap(), None);
        file.write(&texts(), 7).unwrap();
        let stored = file.read().unwrap().unwrap();
        assert_eq!(
            (stored.texts, stored.seconds, stored.is_of_other_boot),
            (texts(), 7, false)
        );
        let other = "00000000-0000-4000-8000-000000000000".parse().unwrap();
        let later = ObjectFile {
            boot: other,
            ..file.clone()
        };
        assert!(later.read().unwrap().unwrap().is_of_other_boot);
    }

    #[test]
    fn what_is_damaged_too_large_of_another_source_or_a_file_of_records_is_not_read() {
        let folder = Folder::new();
        let file = folder.file();
        let reason = |file: &ObjectFile| file.read().map(|_| ()).unwrap_err().reason();
        file.write(&texts(), 7).unwrap();
        let elsewhere = ObjectFile {
            root: "/n".into(),
            ..file.clone()
        };
        let small = ObjectFile {
            most: 50,
            ..file.clone()
        };
        assert_eq!((reason(&elsewhere), reason(&small)), ("foreign", "size"));
        assert_eq!(small.write(&texts(), 8).unwrap_err().reason(), "size");
        let mut octets = std::fs::read(&file.path).unwrap();
        *octets.last_mut().unwrap() ^= 1;
        std::fs::write(&file.path, &octets).unwrap();
        assert_eq!(reason(&file), "damaged");
        octets[8] = 2;
        std::fs::write(&file.path, &octets).unwrap();
        assert_eq!(reason(&file), "version");
        std::fs::write(&file.path, super::super::log::header(file.boot)).unwrap();
        assert_eq!(reason(&file), "damaged");
    }

    #[test]
    fn the_last_state_is_in_the_file_when_the_writer_ended() {
        let folder = Folder::new();
        let file = folder.file();
        let objects = ObjectStore::open(&file.path, &file.root).unwrap();
        let writer = objects.writer.unwrap();
        writer.store(texts());
        writer.store(ManifestTexts::new());
        writer.store(texts());
        writer.end();
        objects.thread.unwrap().join().unwrap();
        assert_eq!(file.read().unwrap().unwrap().texts, texts());
    }
}
