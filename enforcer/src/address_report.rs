//! What the node tells the others of its addresses: its NodeAddressReport, in a folder that they read.
//!
//! A node has more addresses than its status lists, and a firewall against nodes must know them all. The file is
//! written when the addresses change and never else, so a folder that is also read from is not read again and again.
//! What others wrote stays as it is. The file outlives the enforcer, and its removal: the node keeps its addresses, and
//! what other nodes refuse must not open because nobody is there to report.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use egret_kernel::links::Links;

use crate::node::link_monitor::LinkMonitor;

mod addresses;
mod file;
mod node_addresses;

pub use node_addresses::NodeAddresses;

use file::ReportFile;

/// How often is looked though there are no monitor: whether the file is still there.
const PERIOD: Duration = Duration::from_secs(60);
/// How long after something failed.
const PAUSE: Duration = Duration::from_secs(1);

/// Writes the report of a node.
#[derive(Debug)]
pub struct AddressReporter {
    links: Links,
    monitor: LinkMonitor,
    file: ReportFile,
    /// What was last_error last of what prevents it.
    last_error: Option<String>,
}

impl AddressReporter {
    /// The report of this node, in this folder.
    ///
    /// # Errors
    /// When the kernel gives no socket.
    pub fn open(folder: PathBuf, node: &str) -> io::Result<Self> {
        Ok(Self {
            links: Links::open().map_err(io::Error::other)?,
            monitor: LinkMonitor::listen()?,
            file: ReportFile::new(folder, node),
            last_error: None,
        })
    }

    /// Keeps the report right, for ever, from a thread of its own.
    ///
    /// # Errors
    /// When there is no thread.
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

    /// Writes the report, if it is not what is there.
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
