//! A folder that goes with its owner.

use std::fs;
use std::path::{Path, PathBuf};

/// A folder of this process.
#[derive(Debug)]
pub(crate) struct Folder(PathBuf);

impl Folder {
    /// An empty one.
    pub(crate) fn new(name: &str) -> std::io::Result<Self> {
        let path = std::env::temp_dir().join(format!("egret-{name}-{}", std::process::id()));
        fs::create_dir_all(&path)?;
        Ok(Self(path))
    }

    /// One with a file for each manifest.
    pub(crate) fn of_manifests(name: &str, manifests: impl Iterator<Item = String>) -> std::io::Result<Self> {
        let folder = Self::new(name)?;
        for (number, manifest) in manifests.enumerate() {
            fs::write(folder.path().join(format!("{number:05}.yaml")), manifest)?;
        }
        Ok(folder)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // What cannot be removed is left to whoever cleans the temporary folder.
        drop(fs::remove_dir_all(&self.0));
    }
}
