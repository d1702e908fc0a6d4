//! The networks that exist, a file for each: what an enforcer that starts later reads. A file is complete or not there, at
//! whatever instant the plugin or the node ends.

use std::fs::{self, DirBuilder, File};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use egret_shared::cni::{Network, network_file, network_folder};

/// The folder.
#[derive(Debug)]
pub(crate) struct Store {
    folder: PathBuf,
}

impl Store {
    /// The folder that belongs to a socket.
    pub(crate) fn beside(socket: &Path) -> Self {
        Self {
            folder: network_folder(socket),
        }
    }

    /// Keeps a network. It ends with the boot, so it has to survive processes alone, and is not flushed.
    pub(crate) fn put(&self, network: &Network) -> io::Result<()> {
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&self.folder)?;
        let path = self
            .folder
            .join(network_file(&network.container, &network.interface));
        // Its ending is not that of a complete file.
        let unfinished = path.with_extension(format!("{}.tmp", std::process::id()));
        let mut file = File::options()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(&unfinished)?;
        file.write_all(&serde_json::to_vec(network)?)?;
        fs::rename(&unfinished, &path)
    }

    /// Forgets a network, if it is there.
    pub(crate) fn remove(&self, container: &str, interface: &str) -> io::Result<()> {
        match fs::remove_file(self.folder.join(network_file(container, interface))) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            Ok(()) | Err(_) => Ok(()),
        }
    }

    /// All networks. What cannot be read is left out.
    pub(crate) fn networks(&self) -> Vec<Network> {
        let entries = fs::read_dir(&self.folder).into_iter().flatten().flatten();
        let paths = entries.map(|entry| entry.path());
        let complete = paths.filter(|path| path.extension().is_some_and(|extension| extension == "json"));
        complete
            .filter_map(|path| serde_json::from_slice(&fs::read(path).ok()?).ok())
            .collect()
    }
}
