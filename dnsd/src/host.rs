//! What dnsd changes on its host: interface and rules of node-local-dns, interception.

pub mod interception;
pub mod node_cache;
mod rule;
