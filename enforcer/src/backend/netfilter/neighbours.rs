//! Others who write connection marks. Who writes bits that hold our generations makes flows look allowed that are not,
//! or judged anew that were; so it is said at start, with the rule's text.

use egret_kernel::Family;
use egret_kernel::iptables::{Flavour, IpTables, Table};

use super::marks::Marks;
use super::names;

/// Rules of others that write bits of ours.
pub(super) fn foreign_writers(flavour: Flavour, marks: Marks) -> Vec<String> {
    let mut found = Vec::new();
    for family in Family::BOTH {
        for table in Table::ALL
            .into_iter()
            .filter(|table| is_in_use(flavour, family, *table))
        {
            // What cannot be listed here is told when it is needed.
            let Ok(listing) = IpTables::new(flavour, family).save(table) else {
                continue;
            };
            for chain in listing
                .chains
                .iter()
                .filter(|chain| !names::is_own_chain(&chain.name))
            {
                let writers = chain
                    .texts()
                    .filter(|text| written_bits(text) & marks.bits() != 0);
                found.extend(writers.map(|text| format!("{family:?} {table} -A {} {text}", chain.name)));
            }
        }
    }
    found
}

/// Listing a legacy table makes it.
fn is_in_use(flavour: Flavour, family: Family, table: Table) -> bool {
    let path = match (flavour, family) {
        (Flavour::Nft, _) => return true,
        (Flavour::Legacy, Family::V4) => "/proc/thread-self/net/ip_tables_names",
        (Flavour::Legacy, Family::V6) => "/proc/thread-self/net/ip6_tables_names",
    };
    std::fs::read_to_string(path).is_ok_and(|names| names.lines().any(|name| name == table.name()))
}

/// The bits of the connection mark that a rule writes (`xt_connmark`: set, and save from the packet's mark).
fn written_bits(rule: &str) -> u32 {
    let Some((_, target)) = rule.split_once("-j CONNMARK ") else {
        return 0;
    };
    let words: Vec<&str> = target.split(' ').collect();
    let after = |option: &str| words.iter().skip_while(|word| **word != option).nth(1).copied();
    let number = |text: &str| u32::from_str_radix(text.trim_start_matches("0x"), 16).ok();
    if let Some(set) = after("--set-xmark") {
        return set
            .split_once('/')
            .map_or(Some(u32::MAX), |(_, mask)| number(mask))
            .unwrap_or(u32::MAX);
    }
    if words.contains(&"--save-mark") {
        return after("--ctmask")
            .map_or(Some(u32::MAX), number)
            .unwrap_or(u32::MAX);
    }
    0
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
        ] {
            assert_eq!(written_bits(rule), bits, "{rule}");
        }
    }
}
