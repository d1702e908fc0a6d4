//! Keeping what is there as it should be: what differs, and when to try again.

pub mod tracker;
pub mod retry;
