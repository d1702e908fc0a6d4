//! Who may say that an address is theirs. A pod that ended keeps its address in its status while another
//! pod uses it, and a pod of the host's network shows the node's: neither may open or close the other.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use egret_shared::pod::PodKey;
use egret_shared::tree::pack_map;

use crate::model::cluster::{Pod, PodLife};

/// Claims on addresses: of live pods with a network of their own, and of nodes.
#[derive(Debug, Default)]
pub(super) struct AddressClaims {
    /// Hardly ever more than one.
    pods: BTreeMap<IpAddr, Vec<PodKey>>,
    nodes: BTreeMap<IpAddr, usize>,
}

impl AddressClaims {
    pub(super) fn pack(&mut self) {
        pack_map(&mut self.pods);
        pack_map(&mut self.nodes);
    }

    /// The pod that has the address: none where a node has it, else the one that started last.
    pub(super) fn owner(&self, address: IpAddr, pods: &BTreeMap<PodKey, Pod>) -> Option<&PodKey> {
        if self.nodes.contains_key(&address) {
            return None;
        }
        match self.pods.get(&address)?.as_slice() {
            // Asked at every answer: nobody has to be looked for in the whole cluster.
            [only] => Some(only),
            several => {
                let started = |key| pods.get(key).and_then(|pod: &Pod| pod.started.as_ref());
                several.iter().max_by_key(|key| (started(*key), *key))
            }
        }
    }

    /// All pods that claim one of these addresses.
    pub(super) fn claimants(&self, addresses: &[IpAddr]) -> BTreeSet<PodKey> {
        addresses
            .iter()
            .filter_map(|address| self.pods.get(&address.to_canonical()))
            .flatten()
            .cloned()
            .collect()
    }

    pub(super) fn claim_pod(&mut self, pod: &Pod) {
        match (pod.life, pod.host_network) {
            (PodLife::Terminal, _) => {}
            (PodLife::Live, true) => self.claim_node(&pod.addresses),
            (PodLife::Live, false) => {
                for address in canonical(&pod.addresses) {
                    let keys = self.pods.entry(address).or_default();
                    if !keys.contains(&pod.key) {
                        keys.reserve_exact(1);
                        keys.push(pod.key.clone());
                    }
                }
            }
        }
    }

    pub(super) fn withdraw_pod(&mut self, pod: &Pod) {
        match (pod.life, pod.host_network) {
            (PodLife::Terminal, _) => {}
            (PodLife::Live, true) => self.withdraw_node(&pod.addresses),
            (PodLife::Live, false) => {
                for address in canonical(&pod.addresses) {
                    self.withdraw_from(address, &pod.key);
                }
            }
        }
    }

    fn withdraw_from(&mut self, address: IpAddr, key: &PodKey) {
        if let Some(keys) = self.pods.get_mut(&address) {
            keys.retain(|one| one != key);
            if keys.is_empty() {
                self.pods.remove(&address);
            }
        }
    }

    pub(super) fn claim_node(&mut self, addresses: &[IpAddr]) {
        for address in canonical(addresses) {
            *self.nodes.entry(address).or_default() += 1;
        }
    }

    pub(super) fn withdraw_node(&mut self, addresses: &[IpAddr]) {
        for address in canonical(addresses) {
            if let Some(count) = self.nodes.get_mut(&address) {
                *count -= 1;
                if *count == 0 {
                    self.nodes.remove(&address);
                }
            }
        }
    }
}

/// Each address once, an IPv4 address inside IPv6 as what it is.
fn canonical(addresses: &[IpAddr]) -> BTreeSet<IpAddr> {
    addresses.iter().map(IpAddr::to_canonical).collect()
}
