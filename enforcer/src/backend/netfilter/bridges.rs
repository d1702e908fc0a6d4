//! br_netfilter for bridges that pods are on. Packets from port to port of a bridge pass iptables only where
//! `br_netfilter` hands them over. Only there is the ingress port known, so only there a pod cannot use its
//! neighbour's address.
//!
//! It is turned on for single bridges, not for the whole node, and only on request: foreign rules then judge these packets
//! too. A chain that nothing jumps to records the bridges before they are turned on, so `enforcer cleanup` finds them after
//! any crash.

use std::collections::BTreeSet;

use egret_kernel::Family;
use egret_kernel::bridges::{BridgeNfCalls, Bridges};
use egret_kernel::iptables::{InterfaceName, Rule as Line, TableListing};
use egret_kernel::links::Links;
use egret_kernel::nftables::{NftListing, TableReader};
use serde::{Deserialize, Serialize};

use crate::backend::bypass::{Bypass, BypassKind};
use crate::backend::netfilter::names;
use crate::backend::netfilter::render::chains::Chains;

/// The treatment of bridges with pods.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum BridgeNetfilter {
    /// br_netfilter is turned on for them.
    Enable,
    /// They stay as they are.
    Off,
}

/// The bridges that were turned on, by family.
#[derive(Debug)]
pub(in crate::backend) struct EnabledBridges {
    mode: BridgeNetfilter,
    bridges: BTreeSet<(Family, InterfaceName)>,
}

impl EnabledBridges {
    pub(in crate::backend) fn new(mode: BridgeNetfilter) -> Self {
        Self {
            mode,
            bridges: BTreeSet::new(),
        }
    }

    pub(in crate::backend) const fn is_enabled(&self) -> bool {
        matches!(self.mode, BridgeNetfilter::Enable)
    }

    /// Turns off what is wished for no more, or records which of these bridges are to be turned on: when that is written down, `turn_on`
    /// does it.
    ///
    /// # Errors
    /// What could not be turned off, in words.
    pub(in crate::backend) fn prepare(
        &mut self,
        bridges: &BTreeSet<InterfaceName>,
    ) -> Result<PreparedBridges, String> {
        if !self.is_enabled() {
            let is_changed = self.turn_off()?;
            return Ok(PreparedBridges::Done { is_changed });
        }
        let off = self.to_turn_on(bridges);
        self.record(&off);
        Ok(match off.is_empty() {
            true => PreparedBridges::Done { is_changed: false },
            false => PreparedBridges::ToTurnOn(off),
        })
    }

    /// The bridges of these that are off, by family.
    fn to_turn_on(&self, bridges: &BTreeSet<InterfaceName>) -> BTreeSet<(Family, InterfaceName)> {
        if !self.is_enabled() || !Bridges::can_call() {
            return BTreeSet::new();
        }
        let off = bridges.iter().flat_map(|bridge| {
            let calls = calls_of(bridge);
            let off = Family::ALL.into_iter().filter(move |family| !calls.of(*family));
            off.map(|family| (family, bridge.clone()))
        });
        off.collect()
    }

    /// Records bridges before they are turned on.
    pub(in crate::backend) fn record(&mut self, bridges: &BTreeSet<(Family, InterfaceName)>) {
        self.bridges.extend(bridges.iter().cloned());
    }

    /// The bridges that were turned on.
    pub(in crate::backend) fn recorded(&self) -> impl Iterator<Item = &(Family, InterfaceName)> {
        self.bridges.iter()
    }

    /// Turns off what was turned on. Returns whether there was any.
    ///
    /// # Errors
    /// What could not be turned off, in words.
    fn turn_off(&mut self) -> Result<bool, String> {
        for (family, bridge) in &self.bridges {
            set(bridge, *family, false)?;
            tracing::info!(
                bridge = bridge.as_str(),
                ?family,
                "br_netfilter hands over no more what goes from port to port"
            );
        }
        Ok(!std::mem::take(&mut self.bridges).is_empty())
    }

    /// Bridges whose ports reach each other without iptables.
    pub(in crate::backend) fn gaps(&self, bridges: &BTreeSet<InterfaceName>) -> Vec<Bypass> {
        let unseen = bridges.iter().filter(|bridge| !calls_of(bridge).both());
        unseen.map(|bridge| self.gap(bridge)).collect()
    }

    fn gap(&self, bridge: &InterfaceName) -> Bypass {
        let why = match self.mode {
            _ if !Bridges::can_call() => "br_netfilter is not loaded",
            BridgeNetfilter::Off => "bridgeNetfilter is off",
            BridgeNetfilter::Enable => "it cannot be turned on",
        };
        Bypass {
            kind: BypassKind::Bridge,
            what: format!(
                "what goes from pod to pod on the bridge {} is not judged, and a pod there may use another's address: {why}",
                bridge.as_str()
            ),
        }
    }

    /// Adopts the bridges that an earlier process recorded.
    pub(super) fn adopt(&mut self, family: Family, listing: &TableListing) {
        let noted = noted(listing).into_iter();
        self.bridges.extend(noted.map(|bridge| (family, bridge)));
    }

    /// The chain that records them; empty without any.
    pub(super) fn chain(&self, family: Family) -> Chains {
        let own = self.bridges.iter().filter(|(of, _)| *of == family);
        let lines: Vec<String> = own.map(|(_, bridge)| note(bridge)).collect();
        let chain = (!lines.is_empty()).then(|| (names::bridges().as_str().to_owned(), lines));
        chain.into_iter().collect()
    }
}

/// How far bridges are as they should be.
pub(in crate::backend) enum PreparedBridges {
    /// All of them.
    Done {
        /// Whether any was turned off.
        is_changed: bool,
    },
    /// These are recorded, and are turned on when that is written down.
    ToTurnOn(BTreeSet<(Family, InterfaceName)>),
}

/// A bridge whose ports the kernel does not show: a source address is known by the bridge alone.
pub(in crate::backend) fn gap_without_ports(bridge: &InterfaceName) -> Bypass {
    Bypass {
        kind: BypassKind::Bridge,
        what: format!(
            "a pod on the bridge {} may use another's address: the kernel has no tables of the family bridge",
            bridge.as_str()
        ),
    }
}

const REMARK: &str = "br_netfilter was off";

fn note(bridge: &InterfaceName) -> String {
    Line::count().input(bridge.clone()).comment(REMARK).to_string()
}

/// The bridges that a listing says were turned on.
pub(in crate::backend) fn noted(listing: &TableListing) -> Vec<InterfaceName> {
    let lines = listing
        .chain(names::bridges().as_str())
        .into_iter()
        .flat_map(|chain| chain.texts());
    let bridge = |line: &str| {
        let name = line.strip_prefix("-i ")?.split(' ').next()?;
        InterfaceName::new(name.to_owned())
            .ok()
            .filter(|bridge| note(bridge) == line)
    };
    lines.filter_map(bridge).collect()
}

/// What says in a table of nftables that a bridge was turned on.
pub(in crate::backend) fn remark(family: Family, bridge: &InterfaceName) -> String {
    let version = match family {
        Family::V4 => "IPv4",
        Family::V6 => "IPv6",
    };
    format!("{REMARK}: {version} {}", bridge.as_str())
}

/// The bridges that a table of nftables says were turned on.
pub(in crate::backend) fn noted_in(table: &NftListing) -> BTreeSet<(Family, InterfaceName)> {
    let chain = table.chains.get(names::bridges().as_str());
    let remarks = chain.into_iter().flat_map(|chain| &chain.rules);
    let bridge = |text: &String| {
        let (_, name) = text.rsplit_once(' ')?;
        let bridge = InterfaceName::new(name.to_owned()).ok()?;
        let mut families = Family::ALL.into_iter();
        let family = families.find(|family| *text == remark(*family, &bridge))?;
        Some((family, bridge))
    };
    remarks.filter_map(bridge).collect()
}

/// The bridges that the backend `nftables` turned on.
pub(super) fn noted_by_nftables() -> BTreeSet<(Family, InterfaceName)> {
    let table = TableReader::open().and_then(|mut reader| reader.list(names::NFTABLES));
    table
        .ok()
        .flatten()
        .map_or_else(BTreeSet::new, |table| noted_in(&table))
}

/// Turns prepared bridges on, unless the rules in which that is written down are not in force.
///
/// # Errors
/// What could not be turned on, in words.
pub(in crate::backend) fn turn_on(
    bridges: &BTreeSet<(Family, InterfaceName)>,
    broken: Option<&str>,
) -> Result<(), String> {
    if let Some(reason) = broken {
        return Err(format!("what is turned on cannot be written down: {reason}"));
    }
    for (family, bridge) in bridges {
        set(bridge, *family, true)?;
        tracing::warn!(
            bridge = bridge.as_str(),
            ?family,
            "br_netfilter hands over now what goes from port to port"
        );
    }
    Ok(())
}

/// Sets one bridge; one that is gone needs no setting.
pub(in crate::backend) fn set(bridge: &InterfaceName, family: Family, is_on: bool) -> Result<(), String> {
    let said = |error: egret_kernel::netlink::Error| error.to_string();
    let found = Links::open()
        .map_err(said)?
        .interface_by_name(bridge.as_str())
        .map_err(said)?;
    match found.filter(|found| found.kind.as_deref() == Some("bridge")) {
        Some(found) => Bridges::open()
            .map_err(said)?
            .call(found.index, family, is_on)
            .map_err(said),
        None => Ok(()),
    }
}

/// A bridge that cannot be read counts as off.
fn calls_of(bridge: &InterfaceName) -> BridgeNfCalls {
    let nothing = BridgeNfCalls { v4: false, v6: false };
    if !Bridges::can_call() {
        return nothing;
    }
    let index = || {
        Links::open()
            .ok()?
            .interface_by_name(bridge.as_str())
            .ok()?
            .map(|found| found.index)
    };
    let own = index().and_then(|index| Bridges::open().ok()?.calls(index).ok()?);
    let everywhere = Bridges::calls_everywhere();
    own.map_or(nothing, |own| BridgeNfCalls {
        v4: own.v4 || everywhere.v4,
        v6: own.v6 || everywhere.v6,
    })
}
