//! Tells the records which addresses are the cluster's own, so that no name opens them.

use std::net::IpAddr;

use crate::records::{Owned, Told};

use super::engine::Engine;

impl Engine {
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

    fn refresh_guarded(&mut self, changed: &[Told]) {
        if !self.sets.refresh_guarded(changed).is_empty() {
            self.mark();
        }
    }
}
