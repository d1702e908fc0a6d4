//! Rules of others that concern us. A rule that writes our bits of the connection mark makes flows look
//! allowed that are not, or re-evaluated that were; and what others accept in front of our jump is never
//! judged. Both are reported with the rule's text.

use std::collections::{BTreeMap, BTreeSet};

use egret_kernel::Family;
use egret_kernel::iptables::{Flavour, Hook, IpTables, TableListing};

use super::hooks;
use crate::backend::netfilter::marks::Marks;
use crate::backend::netfilter::names;

/// Rules of others that write bits of ours.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "rules of others write bits of the connection mark that are ours ({:#010x}): {}. {}; or accept it with --allow-foreign-marks",
    marks.bits(), rules.join("; "), advice(*free)
)]
pub struct ForeignMarks {
    marks: Marks,
    rules: Vec<String>,
    /// Bits that no rule of others writes.
    free: u32,
}

impl ForeignMarks {
    /// The rules, in words.
    #[must_use]
    pub fn into_rules(self) -> Vec<String> {
        self.rules
    }
}

/// Looks through all tables of both flavours and families, as far as they can be listed; makes none.
///
/// # Errors
/// With the rules that write bits of ours.
pub fn look_for_marks(marks: Marks) -> Result<(), ForeignMarks> {
    let (mut rules, mut taken) = (Vec::new(), 0);
    for (flavour, family) in everywhere() {
        // Where its programs are not there, what writes our rules will say so.
        for table in IpTables::new(flavour, family).save_all().unwrap_or_default() {
            let foreign = table
                .chains
                .iter()
                .filter(|chain| !names::is_own_chain(&chain.name));
            for (chain, text) in foreign.flat_map(|chain| chain.texts().map(|text| (&chain.name, text))) {
                taken |= written_bits(text);
                if written_bits(text) & marks.bits() != 0 {
                    let place = format!("{} {family:?} {}", flavour.name(), table.name);
                    rules.push(format!("{place} -A {chain} {text}"));
                }
            }
        }
    }
    let free = !taken;
    if rules.is_empty() {
        Ok(())
    } else {
        Err(ForeignMarks { marks, rules, free })
    }
}

/// Rules of others in front of our jumps by which a packet may pass us: those that accept, and those that lead to a chain
/// where something is accepted.
pub(in crate::backend::netfilter) fn bypassing(
    listing: &TableListing,
    family: Family,
    places: &BTreeMap<Hook, Vec<usize>>,
) -> Vec<String> {
    let mut found = Vec::new();
    for (hook, places) in places {
        let front = places.first().copied().unwrap_or(0);
        let rules = listing.chain(hook.name()).map(|chain| chain.texts().take(front));
        let accepting = rules
            .into_iter()
            .flatten()
            .filter(|text| accepts(listing, text, &mut BTreeSet::new()));
        let table = hooks::table(*hook);
        found.extend(accepting.map(|text| format!("{family:?} {table} -A {} {text}", hook.name())));
    }
    found
}

fn everywhere() -> impl Iterator<Item = (Flavour, Family)> {
    Flavour::BOTH
        .into_iter()
        .flat_map(|flavour| Family::ALL.map(|family| (flavour, family)))
}

fn accepts<'a>(listing: &'a TableListing, rule: &'a str, seen: &mut BTreeSet<&'a str>) -> bool {
    let Some(target) = target(rule).filter(|target| seen.insert(target)) else {
        return false;
    };
    target == "ACCEPT" || {
        let rules = listing.chain(target).map(|chain| chain.texts());
        rules
            .into_iter()
            .flatten()
            .any(|rule| accepts(listing, rule, seen))
    }
}

/// Where a rule leads. Remarks are quoted where they hold a space, and stand in front of the target.
fn target(rule: &str) -> Option<&str> {
    let mut words = rule
        .rsplit_once("\" ")
        .map_or(rule, |(_, behind)| behind)
        .split(' ');
    words.find(|word| ["-j", "-g"].contains(word))?;
    words.next()
}

/// The bits of the connection mark that a rule writes (`connmark_tg_shift` of net/netfilter/xt_connmark.c): `set` replaces
/// those of its mask and flips those of its value, `save` those of both its masks.
fn written_bits(rule: &str) -> u32 {
    let Some((_, target)) = rule.split_once("-j CONNMARK ") else {
        return 0;
    };
    let words: Vec<&str> = target.split(' ').collect();
    let after = |option: &str| words.iter().skip_while(|word| **word != option).nth(1).copied();
    // What cannot be read may be anything.
    let number = |text: &str| u32::from_str_radix(text.trim_start_matches("0x"), 16).unwrap_or(u32::MAX);
    if let Some(set) = after("--set-xmark") {
        let (value, mask) = set.split_once('/').unwrap_or((set, "0xffffffff"));
        return number(value) | number(mask);
    }
    if words.contains(&"--save-mark") {
        let mask = |option| after(option).map_or(u32::MAX, number);
        return mask("--nfmask") | mask("--ctmask");
    }
    0
}

/// What to choose instead.
fn advice(free: u32) -> String {
    /// Of the AWS VPC CNI and kube-proxy, who may come later.
    const BETTER_LEFT: u32 = 0xc080;
    let bits: Vec<u32> = (0..32)
        .map(|place| 1 << place)
        .filter(|bit| free & !BETTER_LEFT & bit != 0)
        .collect();
    let mask = |bits: &[u32]| bits.iter().fold(0, |mask, bit| mask | bit);
    let (ingress, egress) = bits.split_at(bits.len() / 2);
    if ingress.len() < 4 {
        return format!("Of the bits that nobody writes ({free:#010x}) there are too few for two masks of 4");
    }
    format!(
        "Nobody writes {free:#010x}; choose for example --egress-mark-mask {:#010x} --ingress-mark-mask {:#010x}",
        mask(egress),
        mask(ingress)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bits_that_a_rule_writes_are_those_of_its_mask() {
        for (rule, bits) in [
            ("-j CONNMARK --set-xmark 0x80/0x80", 0x80),
            (
                "-m comment --comment \"a b\" -j CONNMARK --save-mark --nfmask 0xff0000 --ctmask 0xff0000",
                0x00ff_0000,
            ),
            ("-j CONNMARK --save-mark", u32::MAX),
            ("-j CONNMARK --restore-mark --nfmask 0x80 --ctmask 0x80", 0),
            ("-j DROP", 0),
            ("-j CONNMARK --set-xmark 0x10000/0x0", 0x1_0000),
            (
                "-j CONNMARK --save-mark --nfmask 0xff --ctmask 0xff0000",
                0x00ff_00ff,
            ),
            ("-j CONNMARK --set-xmark what", u32::MAX),
        ] {
            assert_eq!(written_bits(rule), bits, "{rule}");
        }
    }

    #[test]
    fn masks_that_are_free_are_named_as_they_can_be_written() {
        assert_eq!(
            advice(0x00ff_ff80),
            "Nobody writes 0x00ffff80; choose for example --egress-mark-mask 0x00fe0000 --ingress-mark-mask 0x00013f00"
        );
        assert!(advice(0xc0ff).contains("too few"));
    }

    #[test]
    fn foreign_rules_before_our_jump_count_if_they_may_accept() {
        let listing = egret_kernel::iptables::parse(
            "*filter\n:FORWARD ACCEPT [0:0]\n:A - [0:0]\n:B - [0:0]\n:C - [0:0]\n\
             -A FORWARD -m comment --comment \"to -j ACCEPT\" -j DROP\n\
             -A FORWARD -i lo -j ACCEPT\n-A FORWARD -g A\n-A FORWARD -j B\n-A FORWARD -j C\n\
             -A FORWARD -j OURS\n-A FORWARD -j ACCEPT\n\
             -A A -m comment --comment \"a b\" -j B\n-A B -j A\n-A B -p tcp -j ACCEPT\n-A C -j C\n-A C -j RETURN\nCOMMIT\n",
        );
        let found = bypassing(
            &listing[0],
            Family::V4,
            &BTreeMap::from([(Hook::Forward, vec![5])]),
        );
        let of = |rule: &str| format!("V4 filter -A FORWARD {rule}");
        assert_eq!(found, ["-i lo -j ACCEPT", "-g A", "-j B"].map(of));
    }
}
