//! What chains have counted that are about to go or to be made anew. In the flavour `nft` the kernel is asked for these chains
//! alone; the legacy flavour has one blob for all, so there, and where a chain is not what we believe, the table is listed.

use egret_kernel::iptables::{Chain, ChainCounters, CountedRule, Flavour, TableListing};

use super::names;
use super::restore::Change;
use super::table::{self, Table};
use super::totals::{self, Totals};
use crate::backend::BackendError;

/// What is lost by these changes, by table.
pub(super) fn lost_by(tables: &[Table; 2], changes: &[Change; 2]) -> Result<[Totals; 2], BackendError> {
    let going = [0, 1].map(|at| going(&tables[at], &changes[at]));
    if going.iter().all(Vec::is_empty) {
        return Ok(Default::default());
    }
    let asked = match tables[0].programs().flavour() {
        Flavour::Nft => ask_for(tables, &going),
        Flavour::Legacy => None,
    };
    match asked {
        Some(totals) => Ok(totals),
        None => {
            let listings = totals::both(tables.each_ref().map(Table::programs))?;
            Ok([0, 1].map(|at| listed(&listings[at], &going[at])))
        }
    }
}

/// Chains that are there, may have counted, and go or are made anew.
fn going<'a>(table: &Table, change: &'a Change) -> Vec<&'a String> {
    let counts = |name: &&String| {
        let is_there = table.chains.programmed().contains_key(*name);
        is_there && !names::is_shared(name) && !names::is_told(name)
    };
    change
        .rewrite
        .keys()
        .chain(&change.remove)
        .filter(counts)
        .collect()
}

/// None where the kernel holds other rules than we believe, or cannot be asked.
fn ask_for(tables: &[Table; 2], going: &[Vec<&String>; 2]) -> Option<[Totals; 2]> {
    let mut totals = [Totals::default(), Totals::default()];
    let mut counters = ChainCounters::open().ok()?;
    for ((table, names), totals) in tables.iter().zip(going).zip(&mut totals) {
        for name in names {
            let texts = table.chains.programmed().get(*name)?;
            let packets = counters.packets(table.family(), name).ok()?;
            if packets.len() != texts.len() {
                return None;
            }
            totals.add_chain(&chain(name, texts, &packets));
        }
    }
    Some(totals)
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

fn listed(listing: &TableListing, going: &[&String]) -> Totals {
    let mut totals = Totals::default();
    for chain in table::ours(listing).filter(|chain| going.contains(&&chain.name)) {
        totals.add_chain(chain);
    }
    totals
}
