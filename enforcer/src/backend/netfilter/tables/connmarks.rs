//! The connection marks in the rules that the kernel holds.

use std::num::NonZeroU32;

use egret_policies::rules::Direction;

use super::restore::ProgrammedChains;
use crate::backend::netfilter::marks::generations::ChainMark;
use crate::backend::netfilter::names::CHAIN_PREFIX;

/// The marks with which entry chains of pods compare.
pub(super) fn of(chains: &ProgrammedChains) -> impl Iterator<Item = ChainMark<'_>> {
    chains.iter().filter_map(|(chain, rules)| {
        let (value, mask) = rules.iter().find_map(|rule| mark_of(rule))?;
        Some(ChainMark {
            chain,
            direction: direction_of(chain)?,
            value,
            mask,
        })
    })
}

fn direction_of(chain: &str) -> Option<Direction> {
    match chain.strip_prefix(CHAIN_PREFIX)?.split_once('-')?.0 {
        "E" => Some(Direction::Egress),
        "I" => Some(Direction::Ingress),
        _ => None,
    }
}

/// Value and mask of `-m connmark --mark 0x1/0x7ff0000 -j RETURN`.
fn mark_of(rule: &str) -> Option<(u32, u32)> {
    let (value, mask) = rule
        .strip_prefix("-m connmark --mark ")?
        .strip_suffix(" -j RETURN")?
        .split_once('/')?;
    let number = |text: &str| u32::from_str_radix(text.strip_prefix("0x")?, 16).ok();
    Some((number(value)?, NonZeroU32::new(number(mask)?)?.get()))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[test]
    fn only_entry_chains_of_pods_have_marks() {
        let rules: Arc<[String]> = Arc::from(["-m connmark --mark 0x1/0x7ff0000 -j RETURN".to_owned()]);
        let names = ["EGRET-E-x", "EGRET-I-x", "EGRET-EA-x", "EGRET-DENY"];
        let chains = ProgrammedChains::from(names.map(|name| (name.to_owned(), Arc::clone(&rules))));
        let found: Vec<_> = of(&chains)
            .map(|mark| (mark.chain, mark.direction, mark.value, mark.mask))
            .collect();
        let expected = [
            ("EGRET-E-x", Direction::Egress, 1, 0x07ff_0000),
            ("EGRET-I-x", Direction::Ingress, 1, 0x07ff_0000),
        ];
        assert_eq!(found, expected);
    }
}
