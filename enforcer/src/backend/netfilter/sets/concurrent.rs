//! Concurrent set updates: the sets are shared by the thread that programs rules and the one that opens DNS
//! answers. Each locks them for one step, never while a program runs.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use egret_kernel::ipset;
use egret_policies::rules::{MembersChanged, SetId};
use egret_shared::net::Transport;
use egret_shared::time::Timestamp;

use super::Sets;
use crate::backend::netfilter::model::set_contents::{Content, SetContents};
use crate::backend::{BackendError, ConcurrentSetUpdate};

/// The sets behind a lock.
#[derive(Clone, Debug)]
pub(in crate::backend::netfilter) struct SharedSets(Arc<Mutex<Sets>>);

impl SharedSets {
    pub(in crate::backend::netfilter) fn open() -> Result<Self, ipset::Error> {
        Ok(Self(Arc::new(Mutex::new(Sets::open()?))))
    }

    /// Locks for one step: a DNS answer may wait for the lock.
    pub(in crate::backend::netfilter) fn lock(&self) -> MutexGuard<'_, Sets> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl SetContents for SharedSets {
    fn holds(&self, id: SetId, address: IpAddr, port: Option<(Transport, u16)>) -> bool {
        self.lock().holds(id, address, port)
    }

    fn has_record(&self, id: SetId, address: IpAddr) -> bool {
        self.lock().has_record(id, address)
    }

    fn has_expired(&self, id: SetId) -> bool {
        self.lock().has_expired(id)
    }

    fn content(&self, id: SetId) -> Option<Content> {
        self.lock().content(id)
    }

    fn take_concurrent(&self) -> BTreeSet<SetId> {
        self.lock().take_concurrent()
    }
}

impl ConcurrentSetUpdate for SharedSets {
    fn add_members(&self, changes: &[MembersChanged], now: Timestamp) -> Result<(), BackendError> {
        let mut sets = self.lock();
        sets.note_members(changes);
        sets.note_concurrent(changes);
        sets.write_noted(changes, now);
        let failed = changes.iter().find_map(|change| sets.failed().get(&change.set));
        failed.map_or(Ok(()), |failure| {
            let reason = &failure.reason;
            Err(BackendError::new("cannot open what a pod was told", reason))
        })
    }
}
