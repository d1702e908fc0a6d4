//! What sets are to hold, as far as connections and the bypass detector ask, whatever the kernel keeps them in.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use egret_policies::rules::{Member, SetId, SetKind};
use egret_shared::net::Transport;

use super::set_members::SetMembers;

/// What sets hold; those of names are left out, so that their rules allow nothing in pods' namespaces.
pub(in crate::backend) type Contents = BTreeMap<SetId, Content>;

/// What a set holds; shared, not copied.
pub(in crate::backend) type Content = (SetKind, Arc<SetMembers<Member>>);

/// The sets of a backend.
pub(in crate::backend) trait SetContents: fmt::Debug {
    /// Whether a set holds an address; a set of records also while the record is over.
    fn holds(&self, id: SetId, address: IpAddr, port: Option<(Transport, u16)>) -> bool;

    /// Whether a set of records holds an address, or did.
    fn has_record(&self, id: SetId, address: IpAddr) -> bool;

    /// Whether a set remembers records that are over.
    fn has_expired(&self, id: SetId) -> bool;

    /// What a set is to hold; none for records, which are not used in pods' namespaces.
    fn content(&self, id: SetId) -> Option<Content>;

    /// Sets that got members concurrently since the last call.
    fn take_concurrent(&self) -> BTreeSet<SetId>;
}
