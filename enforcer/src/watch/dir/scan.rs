//! Which files there are, and how they look from outside.

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::is_manifest;

/// How deep folders are looked into: a link that leads to its own folder ends there.
const DEEPEST: usize = 16;

/// What changes when a file is written, replaced, or a link to it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Fingerprint {
    device: u64,
    inode: u64,
    size: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

/// All manifest files below a folder. Names that begin with a dot are skipped: that is where a ConfigMap keeps
/// the folders that its visible names link to.
pub(super) fn scan(root: &Path) -> Result<BTreeMap<PathBuf, Fingerprint>, String> {
    let mut found = BTreeMap::new();
    look_into(root, DEEPEST, &mut found).map_err(|(path, error)| format!("{}: {error}", path.display()))?;
    Ok(found)
}

type Failure = (PathBuf, std::io::Error);

fn look_into(folder: &Path, depth: usize, found: &mut BTreeMap<PathBuf, Fingerprint>) -> Result<(), Failure> {
    let failed = |error| (folder.to_owned(), error);
    for entry in std::fs::read_dir(folder).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        let is_hidden = path
            .file_name()
            .is_none_or(|name| name.as_encoded_bytes().starts_with(b"."));
        if is_hidden {
            continue;
        }
        match std::fs::metadata(&path) {
            // Gone since it was listed, or a link to nothing: it says nothing.
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => return Err((path, error)),
            Ok(there) if there.is_dir() && depth > 0 => look_into(&path, depth - 1, found)?,
            Ok(there) if there.is_file() && is_manifest(&path) => {
                found.insert(path, Fingerprint::of(&there));
            }
            Ok(_) => {}
        }
    }
    Ok(())
}

impl Fingerprint {
    fn of(there: &std::fs::Metadata) -> Self {
        Self {
            device: there.dev(),
            inode: there.ino(),
            size: there.size(),
            modified: (there.mtime(), there.mtime_nsec()),
            changed: (there.ctime(), there.ctime_nsec()),
        }
    }
}
