//! Desired against programmed state, and when to try again.

pub mod tracker;
pub mod retry;
