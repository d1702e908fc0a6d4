//! The command line of `node-cache`, node-local-dns' program, which dnsd replaces.

pub mod flags;
pub mod usage;

pub use flags::{Flags, InvalidFlag};
