//! Where denied packets come from: NFLOG, or the ring buffer of the eBPF programs.

use std::fmt;
use std::os::fd::BorrowedFd;

use super::denied::DeniedPacket;
use crate::backend::netfilter::denials::Denial;

/// Denied packets of a kernel.
pub trait Source: Send + fmt::Debug {
    /// Starts to listen.
    ///
    /// # Errors
    /// Why the kernel does not tell of denied packets.
    fn listen(&self) -> Result<Box<dyn Channel>, String>;
}

/// A kernel that is listened to.
pub trait Channel: fmt::Debug {
    /// One of them is readable when there is something to read.
    fn as_fds(&self) -> Vec<BorrowedFd<'_>>;

    /// Reads what there is.
    ///
    /// # Errors
    /// When it has to be listened to anew.
    fn read(&mut self) -> Result<ReadPackets, String>;

    /// Denied packets of a reason that the kernel did not tell of, since it met the reason; none if it cannot be asked.
    fn suppressed(&self, denial: &Denial) -> Option<u64>;

    /// Whether packets may still be denied for it.
    fn has(&self, denial: &Denial) -> bool;

    /// A second is over.
    fn end_window(&mut self) {}
}

/// What was read at once.
#[derive(Debug, Default)]
pub struct ReadPackets {
    /// Denied packets.
    pub denied: Vec<DeniedPacket>,
    /// Packets that are not ours, or whose reason is gone.
    pub foreign: u64,
    /// Packets that the kernel told of and could not deliver.
    pub lost: u64,
}
