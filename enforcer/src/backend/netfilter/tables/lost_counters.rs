//! Counters of chains that are about to be removed or rewritten. The flavour `nft` is read chain by chain,
//! the legacy one as one blob; the tables are listed by a program only where a chain differs from what we
//! believe.

use std::collections::{BTreeMap, BTreeSet};

use egret_kernel::iptables::legacy::TableEntries;
use egret_kernel::iptables::{Chain, ChainCounters, CountedRule, Flavour, Table as Which, TableListing};

use super::counters::{self, Totals};
use super::family_table::{self, FamilyTable};
use super::restore::Change;
use super::write_stats::WriteStats;
use crate::backend::BackendError;
use crate::backend::netfilter::denials::label::comment_of;
use crate::backend::netfilter::names;

/// What is lost by these changes, by table.
pub(super) fn lost_by(
    tables: &[FamilyTable; 2],
    changes: &[Change; 2],
    written: &mut WriteStats,
) -> Result<[Totals; 2], BackendError> {
    let going = [0, 1].map(|at| going(&tables[at], &changes[at]));
    if let [Some(one), Some(other)] = [0, 1].map(|at| ask_for(&tables[at], &going[at])) {
        return Ok([one, other]);
    }
    written.listings += 1;
    let listings = counters::list_both(tables.each_ref().map(FamilyTable::programs))?;
    Ok([0, 1].map(|at| listed(&listings[at], &going[at])))
}

/// Chains that are there, may have counted, and go or are made anew.
fn going<'a>(table: &FamilyTable, change: &'a Change) -> BTreeSet<&'a str> {
    let counts = |name: &&String| {
        let rules = table.programmed().get(*name);
        let is_told = |rules: &[String]| rules.iter().any(|rule| comment_of(rule).is_some());
        rules.is_some_and(|rules| is_told(rules)) && !names::is_shared(name) && !names::is_denial(name)
    };
    let going = change.rewrite.keys().chain(&change.remove).filter(counts);
    going.map(String::as_str).collect()
}

/// None where the kernel holds other rules than we believe, or cannot be asked.
fn ask_for(table: &FamilyTable, going: &BTreeSet<&str>) -> Option<Totals> {
    let mut totals = Totals::default();
    if going.is_empty() {
        return Some(totals);
    }
    let counted = match table.programs().flavour() {
        Flavour::Nft => chain_by_chain(table, going)?,
        Flavour::Legacy => entries_of(table, going)?,
    };
    for name in going {
        let (texts, packets) = (table.programmed().get(*name)?, counted.get(name)?);
        if packets.len() != texts.len() {
            return None;
        }
        totals.add_chain(&chain(name, texts, packets));
    }
    Some(totals)
}

fn entries_of<'a>(table: &FamilyTable, going: &BTreeSet<&'a str>) -> Option<BTreeMap<&'a str, Vec<u64>>> {
    let mut counted = BTreeMap::new();
    for which in [Which::Raw, Which::Filter] {
        let here = going.iter().copied().filter(|chain| names::table(chain) == which);
        let here: BTreeSet<&str> = here.collect();
        if !here.is_empty() {
            counted.extend(TableEntries::read(table.family(), which).ok()??.packets(&here));
        }
    }
    Some(counted)
}

fn chain_by_chain<'a>(table: &FamilyTable, going: &BTreeSet<&'a str>) -> Option<BTreeMap<&'a str, Vec<u64>>> {
    let mut counters = ChainCounters::open().ok()?;
    let each = going.iter().map(|name| {
        let packets = counters.packets(table.family(), names::table(name), name).ok()?;
        Some((*name, packets))
    });
    each.collect()
}

fn chain(name: &str, texts: &[String], packets: &[u64]) -> Chain {
    let rule = |(text, packets): (&String, &u64)| CountedRule {
        text: text.clone(),
        packets: *packets,
        bytes: 0,
    };
    Chain {
        name: name.to_owned(),
        policy: None,
        packets: 0,
        bytes: 0,
        rules: texts
            .iter()
            .zip(packets)
            .filter(|(_, packets)| **packets > 0)
            .map(rule)
            .collect(),
    }
}

fn listed(listing: &TableListing, going: &BTreeSet<&str>) -> Totals {
    let mut totals = Totals::default();
    for chain in family_table::ours(listing).filter(|chain| going.contains(chain.name.as_str())) {
        totals.add_chain(chain);
    }
    totals
}
