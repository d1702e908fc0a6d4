//! iptables tables: desired and programmed chains, jumps, counters, and how the difference is written.

pub mod hooks;
pub mod jump_position;
pub mod restore;
pub(super) mod family_table;
pub mod foreign_rules;
mod denial_chains;
mod connmarks;
pub(super) mod ruleset;
pub(super) mod program;
pub mod wire;
pub mod write_stats;
pub(super) mod counters;
mod lost_counters;
pub(super) mod flavour;
