//! iptables tables: desired and programmed chains, jumps, counters, and how the difference is written.

pub mod hooks;
pub mod jump_position;
pub mod restore;
pub(crate) mod family_table;
pub mod foreign_rules;
pub(crate) mod denial_chains;
mod connmarks;
pub(crate) mod ruleset;
pub mod program;
pub mod wire;
pub(crate) mod counters;
pub(crate) mod lost_counters;
pub(crate) mod flavour;
