//! The command line of `node-cache`, node-local-dns' program, in whose place dnsd runs.

pub mod flags;
pub mod usage;

pub use flags::{Flags, InvalidFlag};
