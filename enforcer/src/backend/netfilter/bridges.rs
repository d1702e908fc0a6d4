//! Bridges that pods are on. What goes from port to port of one is judged only where `br_netfilter` hands it to iptables;
//! and only there is the port known by which a packet came, so only there a pod cannot use its neighbour's address.
//!
//! It is turned on for single bridges, not for the whole node, and only where that is wished for: rules of others are then
//! asked about these packets as well. Which bridges were turned on stands in a chain that nothing jumps to, written before
//! they are, so that `enforcer cleanup` finds them after any crash.

use std::collections::{BTreeMap, BTreeSet};

use egret_kernel::Family;
use egret_kernel::bridges::{Bridges, Calls};
use egret_kernel::iptables::{InterfaceName, Rule as Line, TableListing};
use egret_kernel::links::Links;
use egret_shared::switch::{Switch, is_off};
use serde::{Deserialize, Serialize};

use crate::backend::netfilter::driver::Netfilter;
use crate::backend::netfilter::names;
use crate::backend::netfilter::render::chains::Chains;
use crate::backend::outlook::{Gap, GapKind};

/// What is done about bridges whose ports iptables does not see.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum BridgeNetfilter {
    /// Those that pods are on are turned on.
    Enable,
    /// They stay as they are.
    Off,
}

/// What was turned on, by family.
#[derive(Debug)]
pub(crate) struct TurnedOn {
    wish: BridgeNetfilter,
    bridges: BTreeSet<(Family, InterfaceName)>,
}

impl TurnedOn {
    pub(crate) fn as_wished(wish: BridgeNetfilter) -> Self {
        Self {
            wish,
            bridges: BTreeSet::new(),
        }
    }

    /// Takes what an earlier life wrote down.
    pub(crate) fn adopt(&mut self, family: Family, listing: &TableListing) {
        let noted = noted(listing).into_iter();
        self.bridges.extend(noted.map(|bridge| (family, bridge)));
    }

    /// The chain that keeps them; none where there are none.
    pub(crate) fn chain(&self, family: Family) -> Chains {
        let own = self.bridges.iter().filter(|(of, _)| *of == family);
        let lines: Vec<String> = own.map(|(_, bridge)| note(bridge)).collect();
        let chain = (!lines.is_empty()).then(|| (names::bridges().as_str().to_owned(), lines));
        chain.into_iter().collect()
    }
}

const REMARK: &str = "br_netfilter was off";

fn note(bridge: &InterfaceName) -> String {
    Line::count().input(bridge.clone()).comment(REMARK).to_string()
}

/// The bridges that a listing says were turned on.
pub(crate) fn noted(listing: &TableListing) -> Vec<InterfaceName> {
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

/// Sets one bridge; one that is gone needs no setting.
pub(crate) fn set(bridge: &InterfaceName, family: Family, is_on: bool) -> Result<(), String> {
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

impl Netfilter {
    /// Does this about bridges that pods are on. Without it they stay as they are.
    #[must_use]
    pub fn with_bridges(self, wish: BridgeNetfilter) -> Self {
        Self {
            turned_on: TurnedOn::as_wished(wish),
            ..self
        }
    }

    /// Turns bridges of pods on as wished, and off again what is wished for no more. Returns what stays unseen.
    pub(crate) fn see_to_bridges(&mut self) -> Vec<Gap> {
        let calls = self.calls();
        let off = calls.iter().flat_map(|(bridge, calls)| {
            let off = Family::BOTH.into_iter().filter(|family| !calls.of(*family));
            off.map(|family| (family, bridge.clone()))
        });
        let off: BTreeSet<(Family, InterfaceName)> = off.collect();
        let changes = match self.turned_on.wish {
            BridgeNetfilter::Enable if !Bridges::can_call() || is_off(Switch::JudgeBridges) => Ok(false),
            BridgeNetfilter::Enable => self.turn_on(off),
            BridgeNetfilter::Off => self.turn_off(),
        };
        match changes {
            Ok(true) => {
                self.pods.relocate();
                self.program();
            }
            Ok(false) => {}
            Err(reason) => tracing::error!(reason, "a bridge cannot be set"),
        }
        let unseen = self.calls().into_iter().filter(|(_, calls)| !calls.both());
        unseen.map(|(bridge, _)| self.gap(&bridge)).collect()
    }

    fn turn_on(&mut self, off: BTreeSet<(Family, InterfaceName)>) -> Result<bool, String> {
        if off.is_empty() {
            return Ok(false);
        }
        self.turned_on.bridges.extend(off.iter().cloned());
        self.program();
        if let Some(reason) = &self.broken {
            return Err(format!("what is turned on cannot be written down: {reason}"));
        }
        for (family, bridge) in &off {
            set(bridge, *family, true)?;
            tracing::warn!(
                bridge = bridge.as_str(),
                ?family,
                "iptables is asked now about what goes from port to port"
            );
        }
        Ok(true)
    }

    fn turn_off(&mut self) -> Result<bool, String> {
        for (family, bridge) in &self.turned_on.bridges {
            set(bridge, *family, false)?;
            tracing::info!(
                bridge = bridge.as_str(),
                ?family,
                "iptables is asked no more about what goes from port to port"
            );
        }
        Ok(!std::mem::take(&mut self.turned_on.bridges).is_empty())
    }

    /// Bridges of pods, and for which families iptables sees what goes from port to port.
    fn calls(&self) -> BTreeMap<InterfaceName, Calls> {
        self.pods
            .bridges()
            .into_iter()
            .map(|name| (name.clone(), calls_of(&name)))
            .collect()
    }

    fn gap(&self, bridge: &InterfaceName) -> Gap {
        let why = match self.turned_on.wish {
            _ if !Bridges::can_call() => "br_netfilter is not loaded",
            BridgeNetfilter::Off => "bridgeNetfilter is off",
            BridgeNetfilter::Enable => "it cannot be turned on",
        };
        Gap {
            kind: GapKind::Bridge,
            what: format!(
                "what goes from pod to pod on the bridge {} is not judged, and a pod there may use another's address: {why}",
                bridge.as_str()
            ),
        }
    }
}

/// What cannot be asked counts as unseen.
fn calls_of(bridge: &InterfaceName) -> Calls {
    let nothing = Calls { v4: false, v6: false };
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
    own.map_or(nothing, |own| Calls {
        v4: own.v4 || everywhere.v4,
        v6: own.v6 || everywhere.v6,
    })
}
