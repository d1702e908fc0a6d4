//! What was written so far: changes, transactions, chains and octets.

use super::restore::Change;
use crate::backend::metrics;

/// What was written so far, by netlink or by `iptables-restore` and `ip6tables-restore`, and listed for that.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WriteStats {
    /// Changes of a family's table.
    pub restores: u64,
    /// Transactions by netlink, of one family or both.
    pub transactions: u64,
    /// Chains that were written or removed.
    pub chains: u64,
    /// Octets of their text.
    pub bytes: u64,
    /// Listings of both tables, to know what had been counted before a change.
    pub listings: u64,
    /// Pods whose rules were turned into text.
    pub rendered: u64,
}

impl WriteStats {
    pub(super) fn note(&mut self, change: &Change, text: Option<&str>) {
        let Some(text) = text else { return };
        let number = |count: usize| u64::try_from(count).unwrap_or(u64::MAX);
        let (chains, bytes) = (
            number(change.rewrite.len() + change.remove.len()),
            number(text.len()),
        );
        self.restores += 1;
        self.chains += chains;
        self.bytes += bytes;
        metrics::restored(chains, bytes);
    }
}
