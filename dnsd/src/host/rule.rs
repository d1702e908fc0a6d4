//! A desired rule and its chain.

use egret_kernel::iptables::{Hook, Rule, Table};

/// A rule and its chain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DesiredRule {
    /// The table.
    pub table: Table,
    /// The chain.
    pub hook: Hook,
    /// The rule.
    pub rule: Rule,
}
