//! nf_tables notifications of changes that others make to our chains or the hooks that lead to them.

use std::io;
use std::os::fd::AsFd;
use std::time::Duration;

use egret_kernel::iptables::{Hook, Table};
use egret_kernel::nftables::{TableChange, TableChanges, TableMonitor};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use crate::backend::netfilter::names;
use crate::backend::netfilter::tables::hooks::{self, jumps};

/// Waits for changes by others in the nft flavour. The legacy flavour reports none.
#[derive(Debug)]
pub struct ChangeMonitor {
    monitor: TableMonitor,
    hooks: Vec<Hook>,
}

/// A program often makes several changes in a row: one report covers them.
const BURST: Duration = Duration::from_millis(20);

impl ChangeMonitor {
    /// Subscribes to the kernel's notifications.
    ///
    /// # Errors
    /// When the kernel gives no socket.
    pub fn listen() -> io::Result<Self> {
        let hooks = jumps().into_iter().map(|jump| jump.hook).collect();
        let monitor = TableMonitor::open().map_err(io::Error::other)?;
        Ok(Self { monitor, hooks })
    }

    /// Blocks until another program changes our chains or the hooks that lead to them. Returns who did it.
    ///
    /// # Errors
    /// When the socket broke.
    pub fn wait(&mut self) -> io::Result<String> {
        loop {
            let mut waits = [PollFd::new(self.monitor.as_fd(), PollFlags::POLLIN)];
            match poll(&mut waits, PollTimeout::NONE) {
                Ok(_) => {}
                Err(Errno::EINTR) => continue,
                Err(errno) => return Err(errno.into()),
            }
            std::thread::sleep(BURST);
            let hooks = &self.hooks;
            let news = self.monitor.drain(|change| is_about_our_chains(change, hooks));
            let news = news.map_err(io::Error::other)?;
            if !news.is_empty() {
                return Ok(describe_authors(&news));
            }
        }
    }
}

fn is_about_our_chains(change: &TableChange, hooks: &[Hook]) -> bool {
    if change.family.is_none() {
        return change.table == names::NFTABLES.name;
    }
    let is_here = |table: Table| !change.is_of_set && table.name() == change.table;
    [Table::Raw, Table::Filter].into_iter().any(is_here)
        && change.chain.as_deref().is_none_or(|chain| {
            names::is_own_chain(chain)
                || hooks
                    .iter()
                    .any(|hook| hook.name() == chain && is_here(hooks::table(*hook)))
        })
}

fn describe_authors(news: &TableChanges) -> String {
    let mut authors: Vec<String> = news
        .authors
        .iter()
        .map(|author| format!("{} (pid {})", author.name, author.process))
        .collect();
    authors.sort();
    authors.dedup();
    if authors.is_empty() {
        return "unknown; the notification that names the process was lost".to_owned();
    }
    authors.join(", ")
}
