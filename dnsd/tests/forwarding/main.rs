//! Forwarding on loopback: real sockets, and upstreams that are slow, dead, or lie.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

#[path = "../support/mod.rs"]
mod support;
mod world;
mod datagrams;
mod edns;
mod connections;
mod selection;
mod timeouts;
mod tls;
