//! Leases of servers, as they were seen. The time in a Lease is of another machine's clock: what counts is when it was last seen to change,
//! by this program's own.

use std::collections::BTreeMap;
use std::time::Duration;

use egret_shared::time::Timestamp;

/// What of a Lease (coordination.k8s.io/v1) counts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lease {
    /// When it was renewed, else acquired; only whether it changes counts.
    pub renewed: String,
    pub duration: Duration,
    /// Of the object, so that nothing newer is deleted.
    pub resource_version: String,
}

/// Those that are there.
#[derive(Clone, Debug, Default)]
pub struct Leases {
    seen: BTreeMap<String, Seen>,
}

#[derive(Clone, Debug)]
struct Seen {
    lease: Lease,
    until: Timestamp,
}

impl Leases {
    /// One that is renewed lives as long as it says from now on.
    pub fn apply(&mut self, name: String, lease: Lease, now: Timestamp) {
        let known = self.seen.get(&name);
        let until = known.filter(|known| known.lease.renewed == lease.renewed);
        let until = until.map_or_else(|| now.after(lease.duration), |known| known.until);
        self.seen.insert(name, Seen { lease, until });
    }

    pub fn delete(&mut self, name: &str) {
        self.seen.remove(name);
    }

    /// Forgets all that were not listed.
    pub fn retain(&mut self, is_listed: impl Fn(&str) -> bool) {
        self.seen.retain(|name, _| is_listed(name));
    }

    /// How many count.
    #[must_use]
    pub fn live(&self, now: Timestamp) -> usize {
        self.seen.values().filter(|seen| now < seen.until).count()
    }

    /// Those that nobody renewed in time, with their resource versions.
    #[must_use]
    pub fn expired(&self, now: Timestamp) -> Vec<(String, String)> {
        let expired = self.seen.iter().filter(|(_, seen)| seen.until <= now);
        expired
            .map(|(name, seen)| (name.clone(), seen.lease.resource_version.clone()))
            .collect()
    }

    /// When the next one counts no more, unless it is renewed.
    #[must_use]
    pub fn next_end(&self, now: Timestamp) -> Option<Timestamp> {
        self.seen
            .values()
            .map(|seen| seen.until)
            .filter(|until| *until > now)
            .min()
    }
}
