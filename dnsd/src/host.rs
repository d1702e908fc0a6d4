//! What dnsd changes on its host: interface and rules of node-local-dns, interception, resource limits.

pub mod interception;
pub mod node_cache;
pub mod open_files;
mod rule;
