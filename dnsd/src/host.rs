//! What dnsd changes on its host: the interface and the rules of node-local-dns, interception, limits of the process.

pub mod interception;
pub mod node_cache;
pub mod open_files;
mod rule;
