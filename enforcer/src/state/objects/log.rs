//! The content of a file of objects: frames whose bodies are postcard.
//!
//! ```text
//!  first frame    the source
//!  other frames   seconds since 1970, whether what is in the file up to here is what the source said at one moment,
//!                 then records: a path and its texts, or that it is gone
//! ```
//!
//! The source is listed in many frames, and only the last of them makes them count: half a list may lack a policy that denies.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::File;
use std::io::{BufReader, Read as _, Seek as _, SeekFrom};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::{ManifestTexts, TextChanges};
use crate::state::format::{StateError, read_body};
use crate::state::frames::{self, HEADER, PREFIX};

#[derive(Serialize, Deserialize)]
struct FrameHead {
    seconds: u64,
    is_consistent: bool,
}

#[derive(Serialize, Deserialize)]
struct Record<'a> {
    path: &'a [u8],
    #[serde(borrow)]
    texts: Option<Vec<&'a [u8]>>,
}

/// Octets of a file that are a record.
#[derive(Clone, Copy, Debug)]
struct Span {
    begin: u64,
    length: usize,
}

/// Where a file has which record.
#[derive(Debug, Default)]
pub(super) struct Index {
    /// Of each path, as of the last consistent frame.
    records: BTreeMap<PathBuf, Span>,
    /// What the frames behind that one change.
    behind: Vec<(PathBuf, Option<Span>)>,
    /// When the last consistent frame was written; none without one.
    pub(super) seconds: Option<u64>,
    /// Octets behind the last consistent frame.
    pub(super) torn: u64,
}

/// Encodes the first frame.
pub(super) fn source_frame(root: &Path) -> Result<Vec<u8>, StateError> {
    let mut frame = frames::encode(root.as_os_str().as_bytes(), vec![0; PREFIX])?;
    frames::seal(&mut frame)?;
    Ok(frame)
}

/// Encodes changes as a frame.
pub(super) fn changes_frame(
    changes: &TextChanges,
    seconds: u64,
    is_consistent: bool,
) -> Result<Vec<u8>, StateError> {
    let mut frame = begin_frame(seconds, is_consistent)?;
    for (path, texts) in changes {
        let record = Record {
            path: path.as_os_str().as_bytes(),
            texts: texts
                .as_ref()
                .map(|texts| texts.iter().map(|text| &**text).collect()),
        };
        frame = frames::encode(&record, frame)?;
    }
    frames::seal(&mut frame)?;
    Ok(frame)
}

fn begin_frame(seconds: u64, is_consistent: bool) -> Result<Vec<u8>, StateError> {
    let head = FrameHead {
        seconds,
        is_consistent,
    };
    frames::encode(&head, vec![0; PREFIX])
}

impl Index {
    /// Reads the first `length` octets of a file, a frame at a time.
    ///
    /// # Errors
    ///
    /// Why they are not valid, or that they are of another source than `root`.
    pub(super) fn read(file: &File, length: u64, root: &Path) -> Result<Self, StateError> {
        let mut input = BufReader::new(file);
        input.seek(SeekFrom::Start(HEADER as u64))?;
        let mut left = length.saturating_sub(HEADER as u64);
        let mut body = Vec::new();
        if !frames::read_next(&mut input, left, &mut body)? {
            return Err(StateError::damaged("it ends before its source is named"));
        }
        check_source(read_body(&body)?, root)?;
        let mut index = Self::default();
        loop {
            left -= (PREFIX + body.len()) as u64;
            if index.behind.is_empty() {
                index.torn = left;
            }
            let begin = length - left + PREFIX as u64;
            if !frames::read_next(&mut input, left, &mut body)? {
                return Ok(index);
            }
            index.add(&body, begin)?;
        }
    }

    /// Adds a frame whose body begins at this octet of the file.
    fn add(&mut self, body: &[u8], begin: u64) -> Result<(), StateError> {
        let (head, mut rest): (FrameHead, _) = take(body)?;
        while !rest.is_empty() {
            let (record, behind): (Record<'_>, _) = take(rest)?;
            let span = Span {
                begin: begin + (body.len() - rest.len()) as u64,
                length: rest.len() - behind.len(),
            };
            self.behind
                .push((path(record.path), record.texts.map(|_texts| span)));
            rest = behind;
        }
        if head.is_consistent {
            self.count_all();
            self.seconds = Some(head.seconds);
        }
        Ok(())
    }

    /// Has what no consistent frame follows count as well.
    pub(super) fn count_all(&mut self) {
        for (path, span) in self.behind.drain(..) {
            match span {
                Some(span) => drop(self.records.insert(path, span)),
                None => drop(self.records.remove(&path)),
            }
        }
    }

    /// The texts of the last consistent frame.
    pub(super) fn texts(&self, file: &File) -> Result<ManifestTexts, StateError> {
        let mut texts = ManifestTexts::new();
        for (path, span) in &self.records {
            let octets = span.read(file)?;
            let record: Record<'_> = read_body(&octets)?;
            let of_path = record.texts.unwrap_or_default().into_iter().map(Arc::from);
            texts.insert(path.clone(), of_path.collect());
        }
        Ok(texts)
    }

    /// Copies what counts into frames of about `octets`, each of which is given to `append`. None of them is consistent but the last
    /// one, where `seconds` says when it was. What no consistent frame follows is behind it, and goes on not to count.
    pub(super) fn copy(
        &self,
        file: &File,
        octets: usize,
        seconds: Option<u64>,
        mut append: impl FnMut(&[u8]) -> Result<(), StateError>,
    ) -> Result<(), StateError> {
        let counted = self.records.iter().map(|(path, span)| (path, Some(*span)));
        copy_records(file, octets, counted, &mut append)?;
        if let Some(seconds) = seconds {
            let mut last = begin_frame(seconds, true)?;
            frames::seal(&mut last)?;
            append(&last)?;
        }
        let behind = self.behind.iter().map(|(path, span)| (path, *span));
        copy_records(file, octets, behind, &mut append)
    }
}

fn copy_records<'a>(
    file: &File,
    octets: usize,
    records: impl Iterator<Item = (&'a PathBuf, Option<Span>)>,
    append: &mut impl FnMut(&[u8]) -> Result<(), StateError>,
) -> Result<(), StateError> {
    let mut frame = begin_frame(0, false)?;
    let empty = frame.len();
    for (path, span) in records {
        match span {
            Some(span) => frame.extend(span.read(file)?),
            None => {
                let path = path.as_os_str().as_bytes();
                frame = frames::encode(&Record { path, texts: None }, frame)?;
            }
        }
        if frame.len() >= octets {
            frames::seal(&mut frame)?;
            append(&frame)?;
            frame = begin_frame(0, false)?;
        }
    }
    if frame.len() > empty {
        frames::seal(&mut frame)?;
        append(&frame)?;
    }
    Ok(())
}

impl Span {
    fn read(self, file: &File) -> Result<Vec<u8>, StateError> {
        let mut octets = vec![0; self.length];
        file.read_exact_at(&mut octets, self.begin)?;
        Ok(octets)
    }
}

fn take<'a, T: Deserialize<'a>>(body: &'a [u8]) -> Result<(T, &'a [u8]), StateError> {
    postcard::take_from_bytes(body).map_err(|error| StateError::Damaged(error.to_string()))
}

/// A path as it is written.
pub(super) fn path(octets: &[u8]) -> PathBuf {
    PathBuf::from(OsStr::from_bytes(octets))
}

/// Whether a file is of this source.
pub(super) fn check_source(found: &[u8], root: &Path) -> Result<(), StateError> {
    if found != root.as_os_str().as_bytes() {
        let found = OsStr::from_bytes(found).display();
        return Err(StateError::Foreign(format!("of the source dir:{found}")));
    }
    Ok(())
}

/// The first octets of a file, up to those of a header.
pub(super) fn head(file: &File) -> Result<Vec<u8>, StateError> {
    let mut head = Vec::new();
    file.take(HEADER as u64).read_to_end(&mut head)?;
    Ok(head)
}
