//! The jumps from the hooks of the packet filter to our chains.

use egret_kernel::iptables::{ChainName, Hook, Rule as Line, Table, TableListing, Target};

use crate::backend::netfilter::names;

/// A jump from a hook. It is to be there as long as its chain is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Jump {
    /// Where from; each is in one table.
    pub hook: Hook,
    /// Where to.
    pub chain: ChainName,
    /// What it reads.
    pub text: String,
}

/// All jumps that there may be.
#[must_use]
pub fn jumps() -> [Jump; 4] {
    let chains = [
        (Hook::Prerouting, names::source()),
        (Hook::Forward, names::forward()),
        (Hook::Input, names::input()),
        (Hook::Output, names::output()),
    ];
    chains.map(|(hook, chain)| Jump {
        hook,
        // Without a remark, which would cost every packet as much as another match.
        text: Line::to(Target::Jump(chain.clone())).to_string(),
        chain,
    })
}

/// The table in whose hook our jump is.
#[must_use]
pub const fn table(hook: Hook) -> Table {
    match hook {
        Hook::Prerouting => Table::Raw,
        Hook::Input | Hook::Forward | Hook::Output | Hook::Postrouting => Table::Filter,
    }
}

/// The positions of a jump in the chain of a hook.
pub(in crate::backend::netfilter) fn copies(listing: &TableListing, hook: Hook, jump: &str) -> Vec<usize> {
    let rules = listing.chain(hook.name()).map(|chain| chain.texts().enumerate());
    rules
        .into_iter()
        .flatten()
        .filter(|(_, text)| *text == jump)
        .map(|(place, _)| place)
        .collect()
}
