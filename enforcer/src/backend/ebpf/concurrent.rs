//! Adds what pods are told while another thread programs them: straight into the map, and noted for the next call.

use std::io;
use std::path::Path;
use std::sync::{Mutex, OnceLock, PoisonError};

use egret_policies::rules::{Member, MembersChanged, SetId};
use egret_shared::time::Timestamp;

use super::layout::{ElementKey, Table, later};
use super::syscall::{Map, Update};
use crate::backend::{BackendError, ConcurrentSetUpdate};

/// A second handle of the map of members.
#[derive(Debug, Default)]
pub(super) struct ConcurrentMembers {
    map: OnceLock<Map>,
    /// Written, and not known to the tables yet.
    added: Mutex<Vec<Added>>,
}

type Added = (SetId, Member, Option<Timestamp>);

impl ConcurrentMembers {
    /// Opens the pinned map, once.
    pub(super) fn open(&self, pins: &Path) -> io::Result<()> {
        if self.map.get().is_none() {
            let map = Map::open(&pins.join("egret_members"), Table::Members.sizes(), 1)?;
            drop(self.map.set(map));
        }
        Ok(())
    }

    /// What was added since the last call.
    pub(super) fn take(&self) -> Vec<Added> {
        // A panic leaves a valid list.
        std::mem::take(&mut *self.added.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn add(&self, set: SetId, member: &Member, expires: Option<Timestamp>) -> io::Result<()> {
        let map = self
            .map
            .get()
            .ok_or_else(|| io::Error::other("the maps are not open"))?;
        let element = ElementKey::of(set, member);
        if element.table != Table::Members {
            return Err(io::Error::other("it is no record"));
        }
        let value = element.value(expires);
        let value = match map.lookup(&element.key)? {
            Some(held) => later(&held, value),
            None => value,
        };
        map.update(&element.key, &value, Update::Any)
    }
}

impl ConcurrentSetUpdate for ConcurrentMembers {
    fn add_members(&self, changes: &[MembersChanged], _now: Timestamp) -> Result<(), BackendError> {
        let each = changes.iter().flat_map(|changed| {
            let added = changed.added.iter();
            added.map(|(member, expires)| (changed.set, *member, *expires))
        });
        let mut failed = None;
        for (set, member, expires) in each {
            let written = self.add(set, &member, expires);
            failed = failed.or_else(|| written.err());
            let mut added = self.added.lock().unwrap_or_else(PoisonError::into_inner);
            added.push((set, member, expires));
        }
        failed.map_or(Ok(()), |error| {
            Err(BackendError::new("cannot open what a pod was told", error))
        })
    }
}
