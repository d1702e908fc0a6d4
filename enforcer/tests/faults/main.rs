//! Every instant is safe: a life of the enforcer ends after each single step of each change, packets are sent in the gap, the
//! next life begins, and the node holds what a fresh start would have put there; what is others' stays as it was.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on says where")]
#![allow(
    clippy::disallowed_methods,
    reason = "how long a packet takes through the kernel is real time"
)]

#[path = "../node_world/mod.rs"]
mod node_world;
mod tun;
mod node;
mod cluster;
mod stories;
mod steps;
mod leftovers;
mod refused;
mod netlink;
mod concurrent_rendering;
mod preallocation;
mod resize;
mod nftables;
