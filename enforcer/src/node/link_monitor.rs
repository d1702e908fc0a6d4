//! Waits for changes of links, addresses and routes.

use std::io;
use std::os::fd::AsFd;
use std::time::Duration;

use egret_kernel::links::LinkMonitor;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

/// Notifications come in bursts (an interface, its address, its routes): one report covers them.
const BURST: Duration = Duration::from_millis(5);

/// Waits for changes of the node's network.
#[derive(Debug)]
pub struct NetworkMonitor {
    monitor: LinkMonitor,
}

impl NetworkMonitor {
    /// Subscribes to the kernel's notifications.
    ///
    /// # Errors
    ///
    /// When no socket can be opened.
    pub fn listen() -> io::Result<Self> {
        LinkMonitor::open()
            .map(|monitor| Self { monitor })
            .map_err(io::Error::other)
    }

    /// Blocks until something changed and the burst is over.
    ///
    /// # Errors
    ///
    /// When the socket fails.
    pub fn wait(&mut self) -> io::Result<()> {
        self.wait_until(PollTimeout::NONE)
    }

    /// As `wait`, but returns after this time without a change, too.
    ///
    /// # Errors
    ///
    /// When the socket fails.
    pub fn wait_timeout(&mut self, span: Duration) -> io::Result<()> {
        self.wait_until(PollTimeout::try_from(span).unwrap_or(PollTimeout::MAX))
    }

    fn wait_until(&mut self, timeout: PollTimeout) -> io::Result<()> {
        loop {
            let mut waits = [PollFd::new(self.monitor.as_fd(), PollFlags::POLLIN)];
            match poll(&mut waits, timeout) {
                Ok(0) => return Ok(()),
                Ok(_) => {}
                Err(Errno::EINTR) => continue,
                Err(errno) => return Err(errno.into()),
            }
            if self.drain()? {
                std::thread::sleep(BURST);
                self.drain()?;
                return Ok(());
            }
        }
    }

    fn drain(&mut self) -> io::Result<bool> {
        self.monitor
            .drain()
            .map(egret_kernel::links::LinkChanges::any)
            .map_err(io::Error::other)
    }
}
