//! Addresses of Services, for a backend that judges before the node translates them.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use egret_policies::compiler::Event;
use egret_policies::model::cluster::{Entity, EntityKey};
use egret_shared::pod::PodKey;

/// The addresses of each Service.
#[derive(Debug)]
pub(super) struct Services {
    is_wanted: bool,
    addresses: BTreeMap<PodKey, Vec<IpAddr>>,
    is_changed: bool,
}

impl Services {
    pub(super) const fn new(is_wanted: bool) -> Self {
        Self {
            is_wanted,
            addresses: BTreeMap::new(),
            is_changed: false,
        }
    }

    /// Notes what an event says of a Service.
    pub(super) fn note(&mut self, event: &Event) {
        if !self.is_wanted {
            return;
        }
        match event {
            Event::Apply(Entity::Service(service)) => {
                let own = service.addresses.iter().chain(&service.external_addresses);
                let own: Vec<IpAddr> = own.map(IpAddr::to_canonical).collect();
                let before = self.addresses.insert(service.key.clone(), own.clone());
                self.is_changed |= before.as_ref() != Some(&own);
            }
            Event::Delete(EntityKey::Service(key)) => {
                self.is_changed |= self.addresses.remove(key).is_some();
            }
            Event::Apply(_)
            | Event::Delete(_)
            | Event::Observed(_)
            | Event::Restored(_)
            | Event::NodeHolds(_)
            | Event::NetworkAdded(_)
            | Event::NetworkRemoved(_) => {}
        }
    }

    /// All addresses, if they changed since the last call.
    pub(super) fn take_changed(&mut self) -> Option<BTreeSet<IpAddr>> {
        let is_changed = std::mem::take(&mut self.is_changed);
        is_changed.then(|| self.addresses.values().flatten().copied().collect())
    }
}
