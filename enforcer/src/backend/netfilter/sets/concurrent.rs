//! Concurrent set updates: the sets are shared by the thread that programs rules and the one that opens DNS
//! answers. Each locks them for one step, never while a program runs.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use egret_kernel::ipset;
use egret_policies::rules::MembersChanged;
use egret_shared::time::Timestamp;

use super::Sets;
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
