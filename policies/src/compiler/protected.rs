//! Tells the records which addresses are the cluster's own, so that no name opens them.

use std::collections::BTreeSet;
use std::net::IpAddr;

use egret_shared::pod::PodKey;

use crate::records::{AddressOwner, RecordKey};

use super::Compiler;

impl<State> Compiler<State> {
    /// A node, or a Service, has other addresses than before.
    pub(super) fn protect(&mut self, owned: AddressOwner, before: &[IpAddr], after: &[IpAddr]) {
        if before != after {
            let changed = self.records.protect(owned, before, after);
            self.refresh_protected(&changed);
        }
    }

    /// The API server may be elsewhere. The other addresses of its nodes are closed as those of nodes, unless names may
    /// open these.
    pub(super) fn protect_api_server(&mut self) {
        let opens = self.records.opens();
        if opens.api_server {
            return;
        }
        let addresses = self.index.addresses_of_api_server(opens.node);
        let changed = self.records.protect_api_server(addresses);
        self.refresh_protected(&changed);
    }

    /// The node on which the compiler runs holds these addresses.
    pub(super) fn set_node_addresses(&mut self, addresses: Vec<IpAddr>) {
        let before = std::mem::replace(&mut self.node_addresses, addresses.clone());
        self.protect(AddressOwner::Node, &before, &addresses);
    }

    /// A local pod has these addresses, none where it is gone: no name opens them for the pod itself.
    pub(super) fn protect_pod(&mut self, pod: &PodKey, addresses: &BTreeSet<IpAddr>) {
        let changed = self.records.protect_pod(pod, addresses);
        self.refresh_protected(&changed);
    }

    fn refresh_protected(&mut self, changed: &[RecordKey]) {
        if !self.sets.refresh_protected(changed).is_empty() {
            self.set_due();
        }
    }
}
