//! Which files are manifests: those that were named, and those in the folders that were named.

use std::collections::BTreeSet;
use std::fs::{self, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// A path that could not be read.
#[derive(Debug, thiserror::Error)]
#[error("{}: {cause}", path.display())]
pub struct UnreadablePath {
    path: PathBuf,
    cause: io::Error,
}

/// The files to read, and those whose name says that they are something else.
#[derive(Debug, Default)]
pub struct ManifestFiles {
    /// To read, in order: as named, folders by name.
    pub read: Vec<PathBuf>,
    /// Named on the command line, but neither YAML nor JSON by name.
    pub ignored: Vec<PathBuf>,
}

/// Whether a path stands for standard input.
#[must_use]
pub fn is_stdin(path: &Path) -> bool {
    path == Path::new("-")
}

/// Finds the manifests of the paths, folders with all below them. Entries of folders that start with a dot
/// are left out: they are editors', git's, and the copies that a mounted ConfigMap keeps. So are pipes and
/// devices in folders, which might never end; one that is named itself is read, as `<(kustomize build)` is.
///
/// # Errors
/// A path that is not there or cannot be read.
pub fn find_manifests(paths: &[PathBuf]) -> Result<ManifestFiles, UnreadablePath> {
    let mut found = ManifestFiles::default();
    let mut seen = BTreeSet::new();
    for path in paths {
        if is_stdin(path) {
            found.read.push(path.clone());
            continue;
        }
        let metadata = fs::metadata(path).map_err(|cause| unreadable(path, cause))?;
        if metadata.is_dir() {
            find_in_folder(path, &metadata, &mut seen, &mut found.read)?;
        } else if is_manifest(path) || !metadata.is_file() {
            push_once(path, &metadata, &mut seen, &mut found.read);
        } else {
            found.ignored.push(path.clone());
        }
    }
    Ok(found)
}

fn unreadable(path: &Path, cause: io::Error) -> UnreadablePath {
    UnreadablePath {
        path: path.to_owned(),
        cause,
    }
}

/// Device and number of what was found: the same whatever links lead there.
type FileIdentity = BTreeSet<(u64, u64)>;

fn is_new(metadata: &Metadata, seen: &mut FileIdentity) -> bool {
    seen.insert((metadata.dev(), metadata.ino()))
}

/// A folder that was seen is not entered again: a link may lead back up.
fn find_in_folder(
    folder: &Path,
    metadata: &Metadata,
    seen: &mut FileIdentity,
    files: &mut Vec<PathBuf>,
) -> Result<(), UnreadablePath> {
    if !is_new(metadata, seen) {
        return Ok(());
    }
    for path in entries(folder).map_err(|cause| unreadable(folder, cause))? {
        let metadata = fs::metadata(&path).map_err(|cause| unreadable(&path, cause))?;
        if metadata.is_dir() {
            find_in_folder(&path, &metadata, seen, files)?;
        } else if metadata.is_file() && is_manifest(&path) {
            push_once(&path, &metadata, seen, files);
        }
    }
    Ok(())
}

/// A file that is reached in two ways is read once.
fn push_once(path: &Path, metadata: &Metadata, seen: &mut FileIdentity, files: &mut Vec<PathBuf>) {
    if is_new(metadata, seen) {
        files.push(path.to_owned());
    }
}

fn entries(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let mut paths = Vec::new();
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        if !entry.file_name().as_encoded_bytes().starts_with(b".") {
            paths.push(entry.path());
        }
    }
    paths.sort();
    Ok(paths)
}

fn is_manifest(path: &Path) -> bool {
    path.extension()
        .and_then(|extension| extension.to_str())
        .is_some_and(|extension| ["yaml", "yml", "json"].contains(&extension.to_ascii_lowercase().as_str()))
}
