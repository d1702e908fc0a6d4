//! Records outside of the compiler: snapshots of them, changes of a snapshot, and the snapshot that changes add up to. A
//! restarted enforcer restores its records from it.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use egret_shared::name::DnsName;
use egret_shared::pod::PodKey;
use egret_shared::time::Timestamp;
use serde::{Deserialize, Serialize};

/// The records of one run of a pod, live or expired.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PodSnapshot {
    /// The pod.
    pub pod: PodKey,
    /// The UID of the run. Another run under the same name has no records.
    pub uid: Option<Arc<str>>,
    /// Its addresses. A run that lost one has no records.
    pub addresses: Vec<IpAddr>,
    /// Its records: expired ones first, then by the age of their answer. Empty when none is left.
    pub records: Vec<RecordSnapshot>,
}

/// A record: one address of one name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecordSnapshot {
    /// The name as the pod asked.
    pub name: Arc<DnsName>,
    /// The address in the answer.
    pub address: IpAddr,
    /// Until when new connections may use it, grace included: it is not given again. What is over counts for the
    /// connections that are open.
    pub expires: Timestamp,
}

/// A change of a pod's snapshot, applied in the order of the fields. A record that expires is no change: it stays, with its
/// expiry.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SnapshotChange {
    /// Whether all records under the pod's name are dropped first.
    pub is_reset: bool,
    /// Records that are dropped.
    pub forgotten: Vec<(Arc<DnsName>, IpAddr)>,
    /// The run, and the records that are new or have another expiry.
    pub snapshot: PodSnapshot,
}

impl From<PodSnapshot> for SnapshotChange {
    fn from(told: PodSnapshot) -> Self {
        Self {
            is_reset: false,
            forgotten: Vec::new(),
            snapshot: told,
        }
    }
}

/// Builds snapshots from changes. A change that is applied twice has no further effect.
#[derive(Clone, Debug, Default)]
pub struct SnapshotBuilder {
    pods: BTreeMap<PodKey, PodRun>,
    changes: u64,
}

#[derive(Clone, Debug, Default)]
struct PodRun {
    uid: Option<Arc<str>>,
    addresses: Vec<IpAddr>,
    /// Each with its end, and the number of the change that told it last.
    records: BTreeMap<(Arc<DnsName>, IpAddr), (Timestamp, u64)>,
}

impl SnapshotBuilder {
    /// Applies a change.
    pub fn apply(&mut self, change: SnapshotChange) {
        let told = change.snapshot;
        let run = self.pods.entry(told.pod.clone()).or_default();
        if change.is_reset || run.uid != told.uid {
            run.records.clear();
        }
        for forgotten in &change.forgotten {
            run.records.remove(forgotten);
        }
        (run.uid, run.addresses) = (told.uid, told.addresses);
        for record in told.records {
            self.changes += 1;
            let end = (record.expires, self.changes);
            run.records.insert((record.name, record.address), end);
        }
        if run.records.is_empty() {
            self.pods.remove(&told.pod);
        }
    }

    /// The snapshot of each pod after all changes, records in the order of their last change.
    #[must_use]
    pub fn finish(self) -> Vec<PodSnapshot> {
        let of_pod = |(pod, run): (PodKey, PodRun)| {
            let mut records: Vec<_> = run.records.into_iter().collect();
            records.sort_unstable_by_key(|(_, (_, told))| *told);
            let record = |((name, address), (expires, _))| RecordSnapshot {
                name,
                address,
                expires,
            };
            PodSnapshot {
                pod,
                uid: run.uid,
                addresses: run.addresses,
                records: records.into_iter().map(record).collect(),
            }
        };
        self.pods.into_iter().map(of_pod).collect()
    }
}
