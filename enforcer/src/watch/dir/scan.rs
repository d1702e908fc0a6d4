//! Lists manifest files and how they look from outside.

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::is_manifest;
use super::watcher::FolderWatcher;

/// The deepest folder level: a link to its own folder ends there.
const MAX_DEPTH: usize = 16;

/// Differs when a file is written or replaced, or a link to it changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Fingerprint {
    device: u64,
    inode: u64,
    size: u64,
    modified: (i64, i64),
    changed: (i64, i64),
    is_link: bool,
}

/// Lists all manifest files below a folder. Names that begin with a dot are skipped: a ConfigMap keeps there the
/// folders that its visible names link to. Each folder is watched before it is listed.
pub(super) fn scan(
    root: &Path,
    watcher: &mut FolderWatcher,
) -> Result<BTreeMap<PathBuf, Fingerprint>, String> {
    let mut found = BTreeMap::new();
    watcher.begin_scan(root);
    let looked = scan_folder(root, MAX_DEPTH, watcher, &mut found);
    watcher.end_scan();
    looked.map_err(|(path, error)| format!("{}: {error}", path.display()))?;
    Ok(found)
}

type Failure = (PathBuf, std::io::Error);

fn scan_folder(
    folder: &Path,
    depth: usize,
    watcher: &mut FolderWatcher,
    found: &mut BTreeMap<PathBuf, Fingerprint>,
) -> Result<(), Failure> {
    let failed = |error| (folder.to_owned(), error);
    watcher.watch(folder);
    for entry in std::fs::read_dir(folder).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let path = entry.path();
        let is_hidden = path
            .file_name()
            .is_none_or(|name| name.as_encoded_bytes().starts_with(b"."));
        if is_hidden {
            continue;
        }
        match std::fs::metadata(&path) {
            // It was deleted since the listing, or it is a dangling link.
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => return Err((path, error)),
            Ok(there) if there.is_dir() && depth > 0 => {
                let below = scan_folder(&path, depth - 1, watcher, found);
                below.or_else(|failure| ignore_if_gone(failure, &path))?;
            }
            Ok(there) if there.is_file() && is_manifest(&path) => {
                let is_link = entry.file_type().is_ok_and(|kind| kind.is_symlink());
                found.insert(path, Fingerprint::of(&there, is_link));
            }
            Ok(_) => {}
        }
    }
    Ok(())
}

/// Ignores a folder that was deleted during the scan.
fn ignore_if_gone(failure: Failure, folder: &Path) -> Result<(), Failure> {
    let (path, error) = &failure;
    let is_gone = error.kind() == std::io::ErrorKind::NotFound && path == folder;
    if is_gone { Ok(()) } else { Err(failure) }
}

impl Fingerprint {
    /// Whether a link leads to another file than before: such a file is complete.
    pub(super) fn is_other_target(self, before: Option<Self>) -> bool {
        let is_same = |before: Self| (before.device, before.inode) == (self.device, self.inode);
        self.is_link && !before.is_some_and(is_same)
    }

    fn of(there: &std::fs::Metadata, is_link: bool) -> Self {
        Self {
            device: there.dev(),
            inode: there.ino(),
            size: there.size(),
            modified: (there.mtime(), there.mtime_nsec()),
            changed: (there.ctime(), there.ctime_nsec()),
            is_link,
        }
    }
}
