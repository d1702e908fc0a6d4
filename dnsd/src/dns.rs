//! The wire format: messages that are read and patched in place, and answers as upstreams sent them.

pub mod answer;
pub mod message;
