//! Where objects come from. A source tells the engine what is there, then what changes.

pub mod dir;
pub mod kube;
