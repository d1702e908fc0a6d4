//! Removes every trace of the enforcer from the node, and nothing else: rules, sets, br_netfilter settings,
//! and what was written into pods.

use std::collections::BTreeSet;
use std::path::Path;

use egret_kernel::Family;
use egret_kernel::ipset::IpSets;
use egret_kernel::iptables::legacy;
use egret_kernel::iptables::{Error, Flavour, Hook, InterfaceName, IpTables, Table, TableListing};

use crate::backend::BackendError;
use crate::backend::netfilter::names;
use crate::backend::netfilter::tables::family_table;
use crate::backend::netfilter::tables::hooks::{self, Jump, jumps};
use crate::backend::netfilter::{bridges, pod_netns};

/// Removes the rules in one flavour, and the sets. Returns what was removed, in words.
///
/// # Errors
/// With what could not be removed.
pub fn remove(flavour: Flavour) -> Result<Vec<String>, BackendError> {
    let mut found = Vec::new();
    for family in Family::ALL {
        found.extend(remove_rules(IpTables::new(flavour, family), Mode::Remove)?);
    }
    found.extend(remove_sets(Mode::Remove)?);
    found.extend(pod_netns::remove_everywhere(true)?);
    Ok(found)
}

/// Removes the rules in one flavour. The sets stay.
pub(super) fn remove_rules_of(flavour: Flavour) -> Result<(), BackendError> {
    Family::ALL
        .into_iter()
        .try_for_each(|family| remove_rules(IpTables::new(flavour, family), Mode::Remove).map(drop))
}

/// Whether to remove or only to list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Removes.
    Remove,
    /// Removes, but leaves bridges as they were turned on: another backend is in force, and turns them off some day.
    Replace,
    /// Lists what would be removed.
    Tell,
}

impl Mode {
    /// Whether rules and sets go.
    #[must_use]
    pub const fn removes(self) -> bool {
        match self {
            Self::Remove | Self::Replace => true,
            Self::Tell => false,
        }
    }
}

/// Goes through both flavours, as far as they are installed and in use.
///
/// # Errors
/// With what could not be listed or removed.
pub fn everywhere(mode: Mode) -> Result<Vec<String>, BackendError> {
    let mut found = Vec::new();
    for tables in tables_in_use() {
        found.extend(remove_rules(tables, mode)?);
    }
    found.extend(remove_sets(mode)?);
    found.extend(pod_netns::remove_everywhere(mode.removes())?);
    Ok(found)
}

/// The bridges for which `br_netfilter` was turned on, as the rules say. What cannot be listed says nothing.
pub(in crate::backend) fn bridges_turned_on() -> BTreeSet<(Family, InterfaceName)> {
    let of_tables = |tables: IpTables| {
        let listing = family_table::list(tables).ok();
        let noted = listing.map(|listing| bridges::noted(&listing));
        let noted = noted.into_iter().flatten();
        noted.map(move |bridge| (tables.family(), bridge))
    };
    tables_in_use().flat_map(of_tables).collect()
}

/// To list tables of legacy iptables would make them.
fn tables_in_use() -> impl Iterator<Item = IpTables> {
    let all = Flavour::BOTH
        .into_iter()
        .flat_map(|flavour| Family::ALL.map(|family| (flavour, family)));
    all.filter(|(flavour, family)| *flavour == Flavour::Nft || legacy::is_there(*family, Table::Filter))
        .map(|(flavour, family)| IpTables::new(flavour, family))
}

fn remove_rules(tables: IpTables, mode: Mode) -> Result<Vec<String>, BackendError> {
    let failed = |error: Error| BackendError::new("cannot remove the rules", error);
    let listing = match family_table::list(tables) {
        Ok(listing) => listing,
        Err(Error::Missing { .. }) => return Ok(Vec::new()),
        Err(error) => return Err(failed(error)),
    };
    let bridges = bridges::noted(&listing);
    for bridge in bridges.iter().filter(|_| mode == Mode::Remove) {
        bridges::set(bridge, tables.family(), false)
            .map_err(|reason| BackendError::new("cannot turn off what was turned on", reason))?;
    }
    let (mut found, text) = removal(&listing);
    found.extend(
        bridges
            .iter()
            .map(|bridge| format!("br_netfilter for the bridge {}", bridge.as_str())),
    );
    if mode.removes() && !text.is_empty() {
        tables.restore(&text).map_err(failed)?;
    }
    let place = format!("{:?} {}", tables.family(), tables.flavour().name());
    Ok(found.into_iter().map(|what| format!("{place}: {what}")).collect())
}

/// Our chains and jumps in a table, and the text that removes them.
fn removal(listing: &TableListing) -> (Vec<String>, String) {
    let mut text = String::new();
    let mut found = Vec::new();
    for table in [Table::Raw, Table::Filter] {
        let chains: Vec<&str> = family_table::ours(listing)
            .map(|chain| chain.name.as_str())
            .filter(|chain| names::table(chain) == table)
            .collect();
        let jumps = jumps_to(listing).into_iter();
        let jumps: Vec<(Hook, String)> = jumps.filter(|(hook, _)| hooks::table(*hook) == table).collect();
        if chains.is_empty() && jumps.is_empty() {
            continue;
        }
        text += &format!("*{table}\n");
        text.extend(chains.iter().map(|chain| format!(":{chain} - [0:0]\n")));
        for (hook, rule) in jumps {
            found.push(format!("rule {} {rule}", hook.name()));
            text += &format!("-D {} {rule}\n", hook.name());
        }
        text.extend(chains.iter().map(|chain| format!("-X {chain}\n")));
        found.extend(chains.iter().map(|chain| format!("chain {chain}")));
        text += "COMMIT\n";
    }
    (found, text)
}

fn jumps_to(listing: &TableListing) -> Vec<(Hook, String)> {
    let copies = |Jump { hook, text, .. }| {
        let copies = hooks::copies(listing, hook, &text).len();
        vec![(hook, text); copies]
    };
    jumps().into_iter().flat_map(copies).collect()
}

fn remove_sets(mode: Mode) -> Result<Vec<String>, BackendError> {
    let failed = |error| BackendError::new("cannot remove the sets", error);
    // To ask would load it.
    if !Path::new("/sys/module/ip_set").exists() {
        return Ok(Vec::new());
    }
    let mut sets = IpSets::open().map_err(failed)?;
    let names: Vec<String> = sets
        .names()
        .map_err(failed)?
        .into_iter()
        .filter(|name| names::is_own_set(name) || names::is_temporary(name))
        .collect();
    for name in names.iter().filter(|_| mode.removes()) {
        sets.remove(name).map_err(failed)?;
    }
    Ok(names.into_iter().map(|name| format!("set {name}")).collect())
}
