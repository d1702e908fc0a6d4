//! The file of objects: read as a whole, and written as a log that is begun anew beside it.

use std::fs::File;
use std::io::{Read as _, Seek as _, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::Deserialize;

use super::log::{self, Index};
use super::{ManifestTexts, StoredManifests, TextChanges};
use crate::state::boot_id::BootId;
use crate::state::file::{AppendFile, flush_name, open_regular_file};
use crate::state::format::{self, StateError, decode, is_of_boot, read_body};
use crate::state::frames;

const MAGIC: [u8; 8] = *b"egret/ob";
/// The version that is written. Files that were written as a whole are read, too.
const VERSION: u32 = 2;
/// The largest file. A larger source is not stored, which is logged.
pub const MAX_OCTETS: u64 = 256 * 1024 * 1024;
/// A log is rewritten when it is larger than its first size by this factor and this slack.
const GROWTH_FACTOR: u64 = 2;
const GROWTH_SLACK: u64 = 256 * 1024;
/// Octets of a frame of a rewrite: what it takes in memory.
const FRAME: usize = 256 * 1024;

/// The file of objects.
#[derive(Clone, Debug)]
pub struct ObjectFile {
    path: PathBuf,
    root: PathBuf,
    boot: BootId,
    most: u64,
}

/// What a file that was written as a whole has.
#[derive(Deserialize)]
struct Whole {
    root: Vec<u8>,
    seconds: u64,
    files: Vec<(Vec<u8>, Vec<Vec<u8>>)>,
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

    #[cfg(test)]
    pub(super) fn with_most(self, most: u64) -> Self {
        Self { most, ..self }
    }

    /// Its path.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Reads it; none if there is no file.
    ///
    /// # Errors
    ///
    /// Why it is not valid.
    pub fn read(&self) -> Result<Option<StoredManifests>, StateError> {
        self.open(
            |file, head, index| {
                Ok(StoredManifests {
                    texts: index.texts(file)?,
                    seconds: index.seconds.unwrap_or_default(),
                    is_of_other_boot: !is_of_boot(head, self.boot),
                })
            },
            Ok,
        )
    }

    /// Checks all of it without keeping its texts; none if there is no file, else the octets at its end that do not count.
    pub(super) fn check(&self) -> Result<Option<u64>, StateError> {
        self.open(|_, _, index| Ok(index.torn), |_whole| Ok(0))
    }

    fn open<T>(
        &self,
        of_log: impl FnOnce(&File, &[u8], &Index) -> Result<T, StateError>,
        of_whole: impl FnOnce(StoredManifests) -> Result<T, StateError>,
    ) -> Result<Option<T>, StateError> {
        let Some(mut file) = open_regular_file(&self.path, self.most)? else {
            return Ok(None);
        };
        let head = log::head(&file)?;
        match frames::version(&head, MAGIC)? {
            VERSION => {}
            format::SNAPSHOT_VERSION => return of_whole(self.read_whole(&mut file)?).map(Some),
            found => {
                return Err(StateError::Version {
                    found,
                    newest: VERSION,
                });
            }
        }
        frames::behind_header(&head)?;
        let index = Index::read(&file, file.metadata()?.len(), &self.root)?;
        if index.seconds.is_none() {
            return Err(StateError::damaged("it ends before all objects were listed"));
        }
        of_log(&file, &head, &index).map(Some)
    }

    fn read_whole(&self, file: &mut File) -> Result<StoredManifests, StateError> {
        let mut octets = Vec::new();
        file.seek(SeekFrom::Start(0))?;
        file.read_to_end(&mut octets)?;
        let body: Whole = read_body(decode(MAGIC, &octets)?)?;
        log::check_source(&body.root, &self.root)?;
        let texts = |texts: Vec<Vec<u8>>| texts.into_iter().map(Arc::from).collect();
        let of_file = |(path, of_it): (Vec<u8>, _)| (log::path(&path), texts(of_it));
        Ok(StoredManifests {
            texts: body.files.into_iter().map(of_file).collect(),
            seconds: body.seconds,
            is_of_other_boot: !is_of_boot(&octets, self.boot),
        })
    }

    /// Replaces it atomically.
    ///
    /// # Errors
    ///
    /// When it stays as it was.
    pub fn write(&self, texts: &ManifestTexts, seconds: u64) -> Result<(), StateError> {
        let changes = texts
            .iter()
            .map(|(path, texts)| (path.clone(), Some(texts.clone())));
        ObjectLog::begin(self)?.append(&changes.collect(), seconds, true)
    }
}

/// A log that is written. It takes the place of the file when it is consistent for the first time; until then it is removed when
/// dropped.
#[derive(Debug)]
pub(super) struct ObjectLog {
    target: ObjectFile,
    file: AppendFile,
    /// When it was consistent; none before it takes its place.
    seconds: Option<u64>,
    /// The size from which it is rewritten.
    rewrite_size: u64,
    /// Whether what the disk has of it is unknown.
    is_suspect: bool,
}

impl ObjectLog {
    /// Begins a log without content beside the file, in place of a leftover one.
    pub(super) fn begin(target: &ObjectFile) -> Result<Self, StateError> {
        let header = frames::header(MAGIC, VERSION, target.boot);
        let mut file = AppendFile::begin(&target.path, target.most, &header)?;
        file.append(&log::source_frame(&target.root)?)?;
        Ok(Self {
            target: target.clone(),
            file,
            seconds: None,
            rewrite_size: u64::MAX,
            is_suspect: false,
        })
    }

    /// Appends changes. A consistent log is on the disk, at the path of the file, when this returns.
    ///
    /// # Errors
    ///
    /// When the changes may not be there. They have to be appended again.
    pub(super) fn append(
        &mut self,
        changes: &TextChanges,
        seconds: u64,
        is_consistent: bool,
    ) -> Result<(), StateError> {
        if self.is_suspect {
            self.rewrite()?;
        }
        let frame = log::changes_frame(changes, seconds, is_consistent)?;
        if self.file.octets() + frame.len() as u64 > self.target.most {
            self.rewrite()?;
        }
        self.file.append(&frame)?;
        if is_consistent {
            let is_first = self.seconds.replace(seconds).is_none();
            let flushed = match is_first {
                true => self.take_place(),
                false => self.file.flush(),
            };
            self.is_suspect = flushed.is_err();
            flushed?;
        }
        Ok(())
    }

    /// Whether it was consistent.
    pub(super) const fn is_consistent(&self) -> bool {
        self.seconds.is_some()
    }

    /// Rewrites it if it has grown.
    ///
    /// # Errors
    ///
    /// When it stays as it was. It goes on to grow before the next attempt.
    pub(super) fn rewrite_if_grown(&mut self) -> Result<(), StateError> {
        let octets = self.file.octets();
        if octets <= self.rewrite_size {
            return Ok(());
        }
        self.rewrite_size = octets.saturating_add(GROWTH_SLACK);
        self.rewrite()
    }

    fn take_place(&mut self) -> Result<(), StateError> {
        self.file.flush()?;
        self.file.replace(&self.target.path)?;
        self.rewrite_size = self
            .file
            .octets()
            .saturating_mul(GROWTH_FACTOR)
            .saturating_add(GROWTH_SLACK);
        flush_name(&self.target.path)
    }

    /// Copies what counts, and what may come to count, into a new log, which takes the place of this one.
    fn rewrite(&mut self) -> Result<(), StateError> {
        let mut index = Index::read(self.file.file(), self.file.octets(), &self.target.root)?;
        if self.seconds.is_none() {
            index.count_all();
        }
        let mut new = Self::begin(&self.target)?;
        self.file.keep_name();
        index.copy(self.file.file(), FRAME, self.seconds, |frame| {
            new.file.append(frame)
        })?;
        new.seconds = self.seconds;
        if new.seconds.is_some() {
            new.take_place()?;
        }
        *self = new;
        Ok(())
    }
}
