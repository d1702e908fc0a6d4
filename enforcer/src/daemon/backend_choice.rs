//! The backend that is in use, and why. Where none is configured, what the last start chose stays: its rules are there.

use anyhow::Context as _;
use egret_enforcer::backend::netfilter::bridges::BridgeNetfilter;
use egret_enforcer::backend::netfilter::names::{self, is_own_chain};
use egret_enforcer::config::{BackendKind, StartupConfig};
use egret_kernel::Family;
use egret_kernel::iptables::{self, Flavour, Table};
use egret_kernel::nftables::{TableReader, TableWriter};

#[derive(Clone, Copy, Debug)]
pub(super) struct BackendInUse {
    pub(super) kind: BackendKind,
    pub(super) reason: &'static str,
}

impl BackendInUse {
    /// The configured one, or one that suits the node. Called by the only writer: what an earlier one left does not change.
    ///
    /// # Errors
    /// When the rules that are there cannot be looked for.
    pub(super) fn of(startup: &StartupConfig) -> anyhow::Result<Self> {
        if let Some(kind) = startup.backend {
            return Ok(Self {
                kind,
                reason: "as configured",
            });
        }
        let (kind, reason) = if has_table() {
            (BackendKind::Nftables, "whose table is there")
        } else if has_chains().context("it is not known which backend wrote last")? {
            (BackendKind::Netfilter, "whose chains are there")
        } else if let Some(reason) = why_not_nftables(startup) {
            (BackendKind::Netfilter, reason)
        } else {
            (BackendKind::Nftables, "since the kernel has all that it needs")
        };
        Ok(Self { kind, reason })
    }
}

/// A kernel without nf_tables has none.
fn has_table() -> bool {
    TableReader::open().is_ok_and(|mut reader| reader.has(names::NFTABLES).unwrap_or(false))
}

fn has_chains() -> std::io::Result<bool> {
    let forward = names::forward();
    for flavour in Flavour::BOTH {
        for family in Family::ALL {
            if flavour.has_any_chain(family, Table::Filter, &[forward.as_str()])? {
                return Ok(true);
            }
        }
    }
    Ok(false)
}

/// Why a node without rules of ours gets those of iptables; none where it does not.
fn why_not_nftables(startup: &StartupConfig) -> Option<&'static str> {
    if startup.flavour.is_some() {
        return Some("since a flavour of iptables is configured");
    }
    let Ok(mut writer) = TableWriter::open() else {
        return Some("since the kernel has no nf_tables");
    };
    if !writer.can_destroy_elements().unwrap_or(false) {
        return Some("since nftables needs Linux 6.3");
    }
    if startup.bridges == BridgeNetfilter::Enable && !writer.knows_bridges().unwrap_or(false) {
        return Some("since the kernel has no tables of bridges");
    }
    match Flavour::detect(is_own_chain) {
        Ok(found) if found.flavour == Flavour::Legacy => Some("since legacy iptables is in use"),
        Ok(_) | Err(iptables::Error::NoPrograms) => None,
        Err(_) => Some("since it is not known which iptables is in use"),
    }
}
