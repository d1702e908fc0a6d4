//! Reports the node's addresses to other nodes: its NodeAddressReport, a file in a folder that they read. With an API server
//! `watch::kube` writes the object.
//!
//! A node has more addresses than its status lists, and a firewall against nodes must know them all. The file is
//! written only when the addresses change, because the folder may be watched. Files of others are not touched. The file
//! stays when the enforcer ends or is removed: the node keeps its addresses, and what other nodes deny must not open.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use egret_kernel::links::Links;

use crate::node::link_monitor::NetworkMonitor;

mod addresses;
mod file;
mod node_addresses;
mod watcher;

pub use node_addresses::NodeAddresses;
pub use watcher::watch_addresses;

use file::ReportFile;

/// How often it is checked whether the file still exists.
const PERIOD: Duration = Duration::from_secs(60);
/// The pause after a failure.
const PAUSE: Duration = Duration::from_secs(1);

/// Writes the report of this node.
#[derive(Debug)]
pub struct AddressReporter {
    links: Links,
    monitor: NetworkMonitor,
    file: ReportFile,
    /// The last reason why it was not written.
    last_error: Option<String>,
}

impl AddressReporter {
    /// The report of this node in this folder.
    ///
    /// # Errors
    ///
    /// When no socket can be opened.
    pub fn open(folder: PathBuf, node: &str) -> io::Result<Self> {
        Ok(Self {
            links: Links::open().map_err(io::Error::other)?,
            monitor: NetworkMonitor::listen()?,
            file: ReportFile::new(folder, node),
            last_error: None,
        })
    }

    /// Starts a thread that keeps the report up to date.
    ///
    /// # Errors
    ///
    /// When no thread can be started.
    pub fn start(mut self) -> io::Result<()> {
        let keep = move || {
            loop {
                self.report();
                if let Err(error) = self.monitor.wait_timeout(PERIOD) {
                    tracing::warn!(%error, "changes of addresses are not heard for a second");
                    std::thread::sleep(PAUSE);
                }
            }
        };
        std::thread::Builder::new()
            .name("report".to_owned())
            .spawn(keep)?;
        Ok(())
    }

    /// Writes the report if it changed.
    fn report(&mut self) {
        let path = self.file.path().display().to_string();
        match self.write_if_changed() {
            Ok(Some(addresses)) => tracing::info!(path, addresses, "reported the addresses of this node"),
            Ok(None) => {}
            Err(reason) if self.last_error.as_ref() == Some(&reason) => return,
            Err(reason) => {
                tracing::warn!(path, reason, "the addresses of this node are not reported");
                self.last_error = Some(reason);
                return;
            }
        }
        self.last_error = None;
    }

    fn write_if_changed(&mut self) -> Result<Option<usize>, String> {
        let addresses = addresses::list(&mut self.links).map_err(|error| error.to_string())?;
        if addresses.is_empty() {
            return Err("the node has no address that others could reach".to_owned());
        }
        let is_new = self
            .file
            .write(&addresses)
            .map_err(|problem| problem.to_string())?;
        Ok(is_new.then_some(addresses.len()))
    }
}
