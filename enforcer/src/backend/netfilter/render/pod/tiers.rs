//! Tiers with several lists. Where no list allows anything, but only denies or passes on, the lists are
//! called in a row, each by a jump that returns:
//!
//! ```text
//!  EGRET-E0-x ─ jump EGRET-E0001-x ─ rule that passes ▸ return
//!             │                     └ rule that denies ▸ goto EGRET-DENY
//!             ├ jump EGRET-E0002-x ─ …
//!             └ goto the next tier
//! ```
//!
//! A goto from list to list would limit their number: the flavour `nft` allows a packet 15 chains, gotos included, and refuses
//! the whole table where there may be more (NFT_JUMP_STACK_SIZE of include/net/netfilter/nf_tables.h).

use egret_kernel::iptables::{ChainName, Rule as Line, Target};
use egret_policies::rules::{Action, DefaultAction, TierRules};

use super::PodDirection;

/// Lists that are evaluated together.
pub(super) enum TierGroup<'a> {
    /// A tier, or one of its lists.
    List(&'a TierRules),
    /// All lists of a tier.
    Row(Vec<&'a TierRules>),
}

impl<'a> TierGroup<'a> {
    /// The parts of tiers, in order.
    pub(super) fn of(tiers: &[&'a TierRules]) -> Vec<Self> {
        let groups = tiers.chunk_by(|one, other| one.tier == other.tier);
        let parts = groups.flat_map(|group| match group {
            [_, _, ..] if group.iter().all(|list| leaves_open(list)) => vec![Self::Row(group.to_vec())],
            _ => group.iter().map(|list| Self::List(list)).collect(),
        });
        parts.collect()
    }

    /// Its first list.
    pub(super) fn first(&self) -> &'a TierRules {
        match self {
            Self::List(list) => list,
            Self::Row(lists) => lists[0],
        }
    }
}

/// Whether a list has no Allow: a packet that returns from an Allow would go on to the next list.
fn leaves_open(list: &TierRules) -> bool {
    list.default_action == DefaultAction::NextTier
        && list.rules.iter().all(|rule| rule.action != Action::Allow)
}

impl PodDirection<'_> {
    /// Renders the chains of parts; the first is `name` and starts with `lines`. Returns the chain after the last one, with its
    /// first lines.
    pub(super) fn parts(
        &mut self,
        parts: &[TierGroup<'_>],
        mut name: ChainName,
        mut lines: Vec<Line>,
    ) -> (ChainName, Vec<Line>) {
        for (place, part) in parts.iter().enumerate() {
            let next = match parts.get(place + 1).map(TierGroup::first) {
                Some(next) => {
                    let before = parts[..=place].iter().filter(|one| one.first().tier == next.tier);
                    self.chain(next.tier, before.count())
                }
                None => self.chains.default(self.direction),
            };
            lines.extend(self.part(part, &Target::Goto(next.clone())));
            self.put(&name, std::mem::take(&mut lines));
            name = next;
        }
        (name, lines)
    }

    fn part(&mut self, part: &TierGroup<'_>, next: &Target) -> Vec<Line> {
        match part {
            TierGroup::List(list) => self.tier(list, next),
            TierGroup::Row(lists) => {
                let mut lines = self.row(lists);
                lines.push(Line::to(next.clone()));
                lines
            }
        }
    }

    /// The lines that jump to each list, whose chains are numbered from 1.
    fn row(&mut self, lists: &[&TierRules]) -> Vec<Line> {
        let mut lines = Vec::new();
        for (place, list) in lists.iter().enumerate() {
            let chain = self.chain(list.tier, place + 1);
            let rules = self.rules(list, &Target::Return);
            self.put(&chain, rules);
            lines.push(Line::to(Target::Jump(chain)));
        }
        lines
    }
}
