//! Concurrent set updates: the sets are shared by the thread that programs rules and the one that opens DNS answers.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use egret_kernel::netlink;
use egret_policies::rules::{MembersChanged, SetId};
use egret_shared::net::Transport;
use egret_shared::time::Timestamp;

use super::Sets;
use crate::backend::netfilter::model::desired_set::DesiredSet;
use crate::backend::netfilter::model::set_contents::{Content, SetContents};
use crate::backend::{BackendError, ConcurrentSetUpdate};

/// The sets behind a lock: of the thread that programs rules, and of the one that opens DNS answers.
#[derive(Clone, Debug)]
pub(in crate::backend::nftables) struct SharedSets(Arc<Mutex<Sets>>);

impl SharedSets {
    pub(in crate::backend::nftables) fn open() -> Result<Self, netlink::Error> {
        Ok(Self(Arc::new(Mutex::new(Sets::open()?))))
    }

    pub(in crate::backend::nftables) fn lock(&self) -> MutexGuard<'_, Sets> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl SetContents for SharedSets {
    fn holds(&self, id: SetId, address: IpAddr, port: Option<(Transport, u16)>) -> bool {
        self.lock()
            .desired
            .get(&id)
            .is_some_and(|wanted| wanted.holds(address, port))
    }

    fn has_record(&self, id: SetId, address: IpAddr) -> bool {
        self.lock()
            .desired
            .get(&id)
            .is_some_and(|wanted| wanted.has_record(address))
    }

    fn has_expired(&self, id: SetId) -> bool {
        self.lock().desired.get(&id).is_some_and(DesiredSet::has_expired)
    }

    fn content(&self, id: SetId) -> Option<Content> {
        self.lock().desired.get(&id)?.content()
    }

    fn take_concurrent(&self) -> BTreeSet<SetId> {
        std::mem::take(&mut self.lock().concurrent)
    }
}

impl ConcurrentSetUpdate for SharedSets {
    fn add_members(&self, changes: &[MembersChanged], now: Timestamp) -> Result<(), BackendError> {
        let mut sets = self.lock();
        let changed = changes.iter().map(|change| change.set);
        sets.concurrent.extend(changed);
        sets.add_now(changes, now)
            .map_err(|error| BackendError::new("cannot open what a pod was told", error))
    }
}
