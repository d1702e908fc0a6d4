//! iptables and ipset: the packet filter that every Linux has, in both flavours and both families.
//!
//! Rules are static and data is dynamic: what a name resolves to, which pods have a label, which networks a policy
//! lists, all that is in sets and changes by netlink in microseconds. `iptables-restore` runs when a pod comes or
//! goes, a policy changes its rules, or open connections are re-evaluated.
//!
//! Each room has one job, and uses rooms above it only (`integration/tests/architecture.rs` holds the arrows):
//!
//! | room | job | iptables' own |
//! |---|---|---|
//! | `names` | names of chains and sets | |
//! | `marks` | connection marks and generations | |
//! | `model` | settings, pods, attachments, available sets | |
//! | `denials` | why packets are denied, and the registry that NFLOG readers ask | |
//! | `drift` | counts of what differs | |
//! | `render` | rules to rule text | yes |
//! | `sets` | ipsets: desired, programmed, merged | yes |
//! | `tables` | chains, jumps and counters: desired, programmed, written | yes |
//! | `bridges` | br_netfilter | yes |
//! | `pod_netns` | rules inside pods' network namespaces | yes |
//! | `cleanup` | removes everything | yes |
//! | `compile` | keeps the desired chains up to date | yes |
//! | `connections` | conntrack: re-evaluation and revocation | |
//! | `monitor` | drift poll, ruleset events, bypass detection | |
//! | `driver` | owns one of each, and implements `Backend` | yes |
//!
//! A native nftables backend would share the rooms that are not iptables' own.

pub mod names;
pub mod marks;
pub mod model;
pub mod denials;
pub(in crate::backend) mod drift;
pub mod render;
pub mod sets;
pub mod tables;
pub mod bridges;
pub(in crate::backend) mod pod_netns;
pub mod cleanup;
mod compile;
pub(in crate::backend) mod connections;
pub mod monitor;
mod driver;

pub use driver::Netfilter;
pub use model::settings::{Coexistence, Settings};
pub use sets::MOST_MEMBERS;
pub use tables::wire::NftWriter;
pub use tables::write_stats::WriteStats;
