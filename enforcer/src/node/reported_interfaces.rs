//! Interfaces of pods as the CNI plugin reports them.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use egret_shared::cni::HostInterface;

/// The node's ends of pods' links, by the pods' addresses. Clones share them: the engine takes reports in, and a backend
/// looks interfaces up.
#[derive(Clone, Debug, Default)]
pub struct ReportedInterfaces {
    by_address: Arc<Mutex<BTreeMap<IpAddr, HostInterface>>>,
}

impl ReportedInterfaces {
    /// A pod with these addresses is behind an interface.
    pub fn add(&self, addresses: &[IpAddr], interface: &HostInterface) {
        let canonical = addresses.iter().map(IpAddr::to_canonical);
        self.lock()
            .extend(canonical.map(|address| (address, interface.clone())));
    }

    /// It is there no more. An address that was reported again since, behind another interface, stays.
    pub fn remove(&self, addresses: &[IpAddr], interface: &HostInterface) {
        let mut by_address = self.lock();
        for address in addresses.iter().map(IpAddr::to_canonical) {
            if by_address.get(&address) == Some(interface) {
                by_address.remove(&address);
            }
        }
    }

    pub(super) fn get(&self, address: IpAddr) -> Option<HostInterface> {
        self.lock().get(&address.to_canonical()).cloned()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<IpAddr, HostInterface>> {
        self.by_address.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
