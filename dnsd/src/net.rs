//! Sockets below DNS: datagrams in batches, their packet info, reused buffers.

pub(crate) mod batch;
pub(crate) mod buffers;
pub(crate) mod packet_info;
pub(crate) mod registered;
mod transport;

pub use transport::Transport;
