//! iptables and ipset: the packet filter that every Linux has, in both flavours and both families.
//!
//! Rules are static and data is dynamic: what a name resolves to, which pods have a label, which networks a policy
//! lists, all that is in sets and changes by netlink in microseconds. `iptables-restore` runs when a pod comes or
//! goes, a policy changes its rules, or open connections are to be asked again.

pub mod names;
pub mod marks;
pub mod model;
pub mod denials;
mod drift;
pub mod render;
pub mod sets;
pub mod tables;
pub mod bridges;
mod pod_netns;
pub mod cleanup;
mod compile;
mod connections;
pub mod monitor;
mod driver;

pub use driver::Netfilter;
pub use model::settings::{Coexistence, Settings};
pub use sets::MOST_MEMBERS;
pub use tables::program::WriteStats;
pub use tables::wire::NftWriter;
