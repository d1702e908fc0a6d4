//! Sockets below DNS: many datagrams in one system call, what the kernel says beside them, buffers that are used again.

pub(crate) mod batch;
pub(crate) mod buffers;
pub(crate) mod packet_info;
pub(crate) mod registered;
mod transport;

pub use transport::Transport;
