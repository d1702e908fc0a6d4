//! The words both daemons use. Pure, but for the feature `rt`.
//!
//! Something belongs here when two crates use it, it does no IO, and it is named by a noun of the field.

#![warn(missing_docs)]

pub mod time;
pub mod go_duration;
pub mod name;
pub mod net;
pub mod pod;
pub mod revision;
pub mod observation;
pub mod link;
pub mod cni;
pub mod escape;
pub mod tree;
#[cfg(feature = "rt")]
pub mod rt;
