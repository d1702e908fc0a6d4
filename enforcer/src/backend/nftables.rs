//! Native nftables: one table `inet egret` of native expressions, written by netlink. Nothing of iptables or ipset is needed.
//!
//! ```text
//!  pods' rules ─ render ▸ chains, counters ┐
//!  pods' places ─ dispatch ▸ chains, maps  ├▸ table ▸ one transaction of both families
//!  members ─ sets ▸ elements               ┘
//! ```
//!
//! A batch is one transaction: a packet is judged by the rules, maps and sets before it, or by those behind it. So no order of steps
//! has to be safe, and a process that ends anywhere leaves a whole state. A start, and whatever others changed, is answered by
//! writing everything in one transaction, in which the chains that the kernel calls stay.
//!
//! What is not about nftables is shared with the backend `netfilter`: marks and generations, pods and their places, connections,
//! reasons of denials, bypass detection.

mod rules;
pub(super) mod denial;
mod pod;
mod dispatch;
mod bridge_table;
mod elements;
mod sets;
mod counters;
mod refusals;
mod table;
mod compile;
pub mod cleanup;
mod driver;
pub(super) mod pod_netns;

pub use super::netfilter::names::NFTABLES as TABLE;
pub use driver::{Nftables, Settings};
