//! Addresses that no name opens, whoever answers with them: those of nodes, of the API server and of Services. Whoever
//! writes a zone could otherwise lead its readers to a kubelet.
//!
//! They come and go with the cluster's objects, so what is told of them is recorded all the same and asked at every
//! reading: the order of objects and answers makes no difference.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use egret_shared::switch::{Switch, is_off};

use super::settings::NamesMayOpen;

/// What belongs to the cluster itself.
#[derive(Debug)]
pub(crate) struct Guard {
    opens: NamesMayOpen,
    /// How many nodes have the address, in their status and in their report.
    nodes: BTreeMap<IpAddr, usize>,
    /// How many Services but the API server's have it. Packets are judged behind the Service; what no Service leads on is
    /// nobody's, or with IPVS the node's own.
    services: BTreeMap<IpAddr, usize>,
    api_server: BTreeSet<IpAddr>,
}

/// What is the node's or a Service's.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Owned {
    Node,
    Service,
}

impl Guard {
    pub(super) const fn new(opens: NamesMayOpen) -> Self {
        Self {
            opens,
            nodes: BTreeMap::new(),
            services: BTreeMap::new(),
            api_server: BTreeSet::new(),
        }
    }

    /// What names may open of all that.
    pub(crate) const fn opens(&self) -> NamesMayOpen {
        self.opens
    }

    /// Whether no name opens the address.
    pub(crate) fn is_closed(&self, address: IpAddr) -> bool {
        !is_off(Switch::Guard)
            && ((!self.opens.node && self.nodes.contains_key(&address))
                || (!self.opens.api_server && self.api_server.contains(&address))
                || self.services.contains_key(&address))
    }

    /// Somebody has other addresses than before; returns those that are closed now or were.
    pub(super) fn replace(&mut self, owned: Owned, before: &[IpAddr], after: &[IpAddr]) -> BTreeSet<IpAddr> {
        let counts = match owned {
            Owned::Node => &mut self.nodes,
            Owned::Service => &mut self.services,
        };
        let mut changed = BTreeSet::new();
        for address in after.iter().map(IpAddr::to_canonical) {
            let count = counts.entry(address).or_default();
            *count += 1;
            changed.extend((*count == 1).then_some(address));
        }
        for address in before.iter().map(IpAddr::to_canonical) {
            let count = counts.entry(address).or_default();
            *count = count.saturating_sub(1);
            if *count == 0 {
                counts.remove(&address);
                changed.insert(address);
            }
        }
        changed
    }

    /// The API server is elsewhere; returns the addresses that are its now or were.
    pub(super) fn replace_api_server(&mut self, after: BTreeSet<IpAddr>) -> BTreeSet<IpAddr> {
        let before = std::mem::replace(&mut self.api_server, after);
        before.symmetric_difference(&self.api_server).copied().collect()
    }
}
