//! Tells the records which addresses are the cluster's own, so that no name opens them.

use std::collections::BTreeSet;
use std::net::IpAddr;

use egret_shared::pod::PodKey;

use crate::records::{Owned, Told};

use super::Compiler;

impl<State> Compiler<State> {
    /// A node, or a Service, has other addresses than before.
    pub(super) fn guard(&mut self, owned: Owned, before: &[IpAddr], after: &[IpAddr]) {
        if before != after {
            let changed = self.records.guard(owned, before, after);
            self.refresh_guarded(&changed);
        }
    }

    /// The API server may be elsewhere. The other addresses of its nodes are closed as those of nodes, unless names may
    /// open these.
    pub(super) fn guard_api_server(&mut self) {
        let opens = self.records.opens();
        if opens.api_server {
            return;
        }
        let addresses = self.index.addresses_of_api_server(opens.node);
        let changed = self.records.guard_api_server(addresses);
        self.refresh_guarded(&changed);
    }

    /// The node on which the compiler runs holds these addresses.
    pub(super) fn hold(&mut self, addresses: Vec<IpAddr>) {
        let before = std::mem::replace(&mut self.held, addresses.clone());
        self.guard(Owned::Node, &before, &addresses);
    }

    /// A local pod has these addresses, none where it is gone: no name opens them for the pod itself.
    pub(super) fn guard_pod(&mut self, pod: &PodKey, addresses: &BTreeSet<IpAddr>) {
        let changed = self.records.guard_pod(pod, addresses);
        self.refresh_guarded(&changed);
    }

    fn refresh_guarded(&mut self, changed: &[Told]) {
        if !self.sets.refresh_guarded(changed).is_empty() {
            self.mark();
        }
    }
}
