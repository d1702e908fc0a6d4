//! The node's addresses for who reports them, whenever they change.

use std::collections::BTreeMap;
use std::io;
use std::net::IpAddr;

use egret_kernel::links::Links;
use tokio::sync::watch;

use super::{PAUSE, addresses};
use crate::node::link_monitor::NetworkMonitor;

/// Starts a thread that lists the addresses now and after each event of the kernel. What it sends is other than before.
///
/// # Errors
/// When no socket can be opened or no thread be started.
pub fn watch_addresses() -> io::Result<watch::Receiver<BTreeMap<IpAddr, String>>> {
    // The subscription is older than the first list: no change is missed.
    let mut monitor = NetworkMonitor::listen()?;
    let mut links = Links::open().map_err(io::Error::other)?;
    let (told, addresses) = watch::channel(BTreeMap::new());
    let watch = move || {
        while !told.is_closed() {
            let listed = addresses::list(&mut links)
                .map_err(io::Error::other)
                .map(|listed| {
                    told.send_if_modified(|before| {
                        let is_other = *before != listed;
                        *before = listed;
                        is_other
                    });
                });
            let waited = match listed {
                Ok(()) => monitor.wait(),
                // It is listed again although nothing is reported.
                Err(_) => monitor.wait_timeout(PAUSE),
            };
            if let Some(error) = listed.err().or_else(|| waited.err()) {
                tracing::warn!(%error, "the node's addresses are not known for a second");
                std::thread::sleep(PAUSE);
            }
        }
    };
    std::thread::Builder::new()
        .name("addresses".to_owned())
        .spawn(watch)?;
    Ok(addresses)
}
