//! Addresses that no name opens, whoever answers with them: those of nodes, of the API server and of Services, and the
//! asking pod's own. Whoever writes a zone could otherwise lead its readers to a kubelet.
//!
//! They come and go with the cluster's objects, so what is told of them is recorded all the same and asked at every
//! reading: the order of objects and answers makes no difference.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;

use egret_shared::pod::PodKey;

use super::address_forms::forms;
use super::settings::NamesMayOpen;

/// Addresses of the cluster itself, counted by owner.
#[derive(Debug)]
pub(crate) struct ProtectedAddresses {
    opens: NamesMayOpen,
    /// How many nodes have the address, in their status and in their report.
    nodes: BTreeMap<IpAddr, usize>,
    /// How many Services but the API server's have it. Packets are judged behind the Service; what no Service leads on is
    /// nobody's, or with IPVS the node's own.
    services: BTreeMap<IpAddr, usize>,
    api_server: BTreeSet<IpAddr>,
    /// The own addresses of each local pod: closed to that pod alone.
    pods: HashMap<PodKey, BTreeSet<IpAddr>>,
}

/// Who has a protected address.
#[derive(Clone, Copy, Debug)]
pub(crate) enum AddressOwner {
    Node,
    Service,
}

impl ProtectedAddresses {
    pub(super) fn new(opens: NamesMayOpen) -> Self {
        Self {
            opens,
            nodes: BTreeMap::new(),
            services: BTreeMap::new(),
            api_server: BTreeSet::new(),
            pods: HashMap::new(),
        }
    }

    /// What names may open of all that.
    pub(crate) const fn opens(&self) -> NamesMayOpen {
        self.opens
    }

    /// Whether no name opens the address for this pod, in this form or as the IPv4 address that it stands for.
    pub(super) fn is_protected(&self, pod: &PodKey, address: IpAddr) -> bool {
        let own = self.pods.get(pod);
        forms(address)
            .any(|address| self.is_of_the_cluster(&address) || own.is_some_and(|own| own.contains(&address)))
    }

    fn is_of_the_cluster(&self, address: &IpAddr) -> bool {
        (!self.opens.node && self.nodes.contains_key(address))
            || (!self.opens.api_server && self.api_server.contains(address))
            || self.services.contains_key(address)
    }

    /// A local pod has these addresses; returns those that are closed to it now or were.
    pub(super) fn replace_pod(&mut self, pod: &PodKey, after: &BTreeSet<IpAddr>) -> BTreeSet<IpAddr> {
        let before = match after.is_empty() {
            true => self.pods.remove(pod),
            false => self.pods.insert(pod.clone(), after.clone()),
        };
        let before = before.unwrap_or_default();
        before.symmetric_difference(after).copied().collect()
    }

    /// Somebody has other addresses than before; returns those that are closed now or were.
    pub(super) fn replace(
        &mut self,
        owned: AddressOwner,
        before: &[IpAddr],
        after: &[IpAddr],
    ) -> BTreeSet<IpAddr> {
        let counts = match owned {
            AddressOwner::Node => &mut self.nodes,
            AddressOwner::Service => &mut self.services,
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
