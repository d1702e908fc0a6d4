//! The texts of manifests, each read once: what comes through standard input or another pipe cannot be read a
//! second time, although some commands look at it twice.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use egret_policies::api::manifest::{MAX_BYTES, text_of};

use super::paths::{find_manifests, is_stdin};
use super::unreadable::UnreadableManifests;

/// What standard input is called in messages.
const STDIN: &str = "<stdin>";

/// A file that was read.
#[derive(Debug)]
pub struct ManifestText {
    /// Its name, for messages.
    pub file: Arc<str>,
    /// All of it.
    pub text: String,
}

/// All manifests of some paths.
#[derive(Debug, Default)]
pub struct ManifestTexts {
    /// What was read, in order.
    pub read: Vec<ManifestText>,
    /// Named on the command line, but neither YAML nor JSON by name.
    pub ignored: Vec<PathBuf>,
}

impl ManifestTexts {
    /// Reads all manifests of the paths; `-` is standard input.
    ///
    /// # Errors
    /// Something could not be read. Nobody can say what is missing.
    pub fn read(paths: &[PathBuf]) -> Result<Self, UnreadableManifests> {
        read_stdin_once(paths.iter().map(PathBuf::as_path))?;
        let files = find_manifests(paths)?;
        let read = files.read.iter().map(|path| read_text(path));
        Ok(Self {
            read: read.collect::<Result<_, _>>()?,
            ignored: files.ignored,
        })
    }
}

/// Refuses paths of which more than one is standard input.
///
/// # Errors
/// They are.
pub fn read_stdin_once<'a>(paths: impl IntoIterator<Item = &'a Path>) -> Result<(), UnreadableManifests> {
    match paths.into_iter().filter(|path| is_stdin(path)).count() {
        0 | 1 => Ok(()),
        _ => Err(UnreadableManifests::StdinTwice),
    }
}

fn read_text(path: &Path) -> Result<ManifestText, UnreadableManifests> {
    let (file, octets) = if is_stdin(path) {
        (STDIN.to_owned(), read_octets(io::stdin().lock()))
    } else {
        let octets = File::open(path).and_then(read_octets);
        (path.display().to_string(), octets)
    };
    let octets = octets.map_err(|cause| UnreadableManifests::File {
        path: PathBuf::from(&file),
        cause,
    })?;
    let text = text_of(octets, &file).map_err(|problem| UnreadableManifests::Problems(vec![*problem]))?;
    Ok(ManifestText {
        file: file.into(),
        text,
    })
}

/// Reads as much as is looked at, and one octet by which it is seen that there is more: a device never ends.
fn read_octets(source: impl Read) -> io::Result<Vec<u8>> {
    let mut octets = Vec::new();
    let most = u64::try_from(MAX_BYTES + 1).map_err(io::Error::other)?;
    source.take(most).read_to_end(&mut octets)?;
    Ok(octets)
}
