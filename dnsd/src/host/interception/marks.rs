//! Detects other programs that write or route by the bits of the interception mark.

use std::fmt;

use egret_kernel::iptables::{Flavour, IpTables, Table};
use egret_kernel::netlink::Error as RoutingError;
use egret_kernel::routing::Routing;
use egret_kernel::{Family, Mark};

use super::REMARK;
use crate::config::host_setup::Interception;

/// A foreign rule that uses bits of the mark.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ForeignMark(String);

impl fmt::Display for ForeignMark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The first foreign rule that writes bits of the mark, in either flavour of iptables, or routes by them.
///
/// # Errors
/// When the routing rules cannot be listed. An iptables table that cannot be listed counts as empty.
pub fn foreign(interception: &Interception) -> Result<Option<ForeignMark>, RoutingError> {
    let mut routing = Routing::open()?;
    for family in interception.families() {
        let (ours, bits) = (interception.delivery(family), interception.mark.mask().get());
        for rule in routing.mark_rules(family)? {
            let is_ours = rule.mark == ours.mark && rule.table == ours.table;
            if !is_ours && asks_for(rule.mark, ours.mark) {
                return Ok(Some(ForeignMark(format!(
                    "{family:?} ip rule: fwmark {:#x}/{:#x} lookup {}",
                    rule.mark.value(),
                    rule.mark.mask(),
                    rule.table
                ))));
            }
        }
        if let Some(found) = Flavour::BOTH
            .into_iter()
            .find_map(|flavour| writer(flavour, family, bits))
        {
            return Ok(Some(found));
        }
    }
    Ok(None)
}

/// Whether a routing rule for one mark applies to packets with the other.
fn asks_for(asked: Mark, ours: Mark) -> bool {
    let shared = asked.mask().get() & ours.mask().get();
    shared != 0 && asked.value() & shared == ours.value() & shared
}

fn writer(flavour: Flavour, family: Family, bits: u32) -> Option<ForeignMark> {
    // A mark written after routing has no effect on ours.
    const BEHIND: &str = "POSTROUTING";
    [Table::Raw, Table::Mangle, Table::Nat]
        .into_iter()
        .find_map(|table| {
            let listing = IpTables::new(flavour, family).save(table).ok()?;
            let rules = listing
                .chains
                .iter()
                .filter(|chain| chain.name != BEHIND)
                .flat_map(|chain| chain.texts().map(move |text| (chain, text)));
            let mut others = rules.filter(|(_, text)| !text.contains(REMARK));
            let (chain, text) = others.find(|(_, text)| written_bits(text) & bits != 0)?;
            Some(ForeignMark(format!(
                "{} {family:?} {} -A {} {text}",
                flavour.name(),
                listing.name,
                chain.name
            )))
        })
}

/// The bits of the packet mark that a rule writes (`mark_tg` of net/netfilter/xt_mark.c, `connmark_tg_shift` of
/// xt_connmark.c: a restore writes the bits of `nfmask`).
fn written_bits(rule: &str) -> u32 {
    let words: Vec<&str> = rule.split(' ').collect();
    let after = |option: &str| words.iter().skip_while(|word| **word != option).nth(1).copied();
    // An unreadable value counts as all bits.
    let number = |text: &str| u32::from_str_radix(text.trim_start_matches("0x"), 16).unwrap_or(u32::MAX);
    let value_and_mask = |text: &str| {
        let (value, mask) = text.split_once('/').unwrap_or((text, "0xffffffff"));
        number(value) | number(mask)
    };
    match after("-j") {
        Some("MARK") => after("--set-xmark").map_or(u32::MAX, value_and_mask),
        Some("TPROXY") => after("--tproxy-mark").map_or(0, value_and_mask),
        Some("CONNMARK") if words.contains(&"--restore-mark") => after("--nfmask").map_or(u32::MAX, number),
        Some(_) | None => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_foreign_rule_matches_our_mark_by_a_common_bit() {
        let mark = |value, mask| Mark::new(value, std::num::NonZeroU32::new(mask).unwrap());
        for (asked, takes) in [
            (mark(0x20, 0x20), true),
            (mark(0x20, u32::MAX), true),
            (mark(0x5, u32::MAX), false),
            (mark(0x80, 0x80), false),
            (mark(0, 0xff), false),
        ] {
            assert_eq!(asks_for(asked, mark(0x20, 0x20)), takes, "{asked:?}");
        }
    }

    #[test]
    fn the_bits_that_a_rule_writes_on_packets_are_those_of_its_mask() {
        for (rule, bits) in [
            ("-j MARK --set-xmark 0x4000/0x4000", 0x4000),
            ("-i eth0 -j MARK --set-xmark 0x1/0xffffffff", u32::MAX),
            (
                "-p tcp -j TPROXY --on-port 1 --on-ip 127.0.0.1 --tproxy-mark 0x200/0xf00",
                0xf00,
            ),
            ("-j CONNMARK --restore-mark --nfmask 0x80 --ctmask 0x80", 0x80),
            ("-j CONNMARK --restore-mark", u32::MAX),
            ("-j CONNMARK --set-xmark 0x80/0x80", 0),
            ("-m mark --mark 0x20/0x20 -j ACCEPT", 0),
            ("-j KUBE-MARK-MASQ", 0),
        ] {
            assert_eq!(written_bits(rule), bits, "{rule}");
        }
    }
}
