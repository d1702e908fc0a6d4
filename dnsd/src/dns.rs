//! The wire format: messages, which are read and patched in place, and upstreams' answers.

pub mod answer;
pub mod message;
