//! The jumps by which the packet filter's own chains lead to ours.

use egret_kernel::iptables::{ChainName, Hook, Rule as Line, Target};

use super::names;

/// A jump from a hook. It is to be there as long as its chain is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Jump {
    /// Where from.
    pub hook: Hook,
    /// Where to.
    pub chain: ChainName,
    /// What it reads.
    pub text: String,
}

/// All jumps that there may be.
#[must_use]
pub fn jumps() -> [Jump; 3] {
    let chains = [
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
