//! Records as they are kept outside of the compiler, for a compiler that comes after it: what changes, and all of it put
//! together again.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use egret_shared::name::DnsName;
use egret_shared::pod::PodKey;
use egret_shared::time::Timestamp;
use serde::{Deserialize, Serialize};

/// All that one run of a pod was told and may still use, new connections or open ones.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PodSnapshot {
    /// The pod.
    pub pod: PodKey,
    /// Which run of it; another run under the same name was told nothing.
    pub uid: Option<Arc<str>>,
    /// Its addresses; a run that has lost one was told nothing.
    pub addresses: Vec<IpAddr>,
    /// What it was told, first what is over, then the oldest answer first; empty where nothing is left.
    pub records: Vec<RecordSnapshot>,
}

/// One address of a name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecordSnapshot {
    /// The name as the pod asked.
    pub name: Arc<DnsName>,
    /// An address that it was told.
    pub address: IpAddr,
    /// Until when new connections may use it, grace included: it is not given again. What is over counts for the
    /// connections that are open.
    pub expires: Timestamp,
}

/// How what a pod was told has changed, in the order of the fields. A record that ends with its time changes nothing: it
/// is remembered, and says itself that it is over.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SnapshotChange {
    /// Nothing holds that was remembered under the pod's name.
    pub is_reset: bool,
    /// What is not remembered any more.
    pub forgotten: Vec<(Arc<DnsName>, IpAddr)>,
    /// The run that it is now, and the records that came or end otherwise than before.
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

/// Changes, put together. One that is put in twice, or that says what was known, changes nothing.
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
    /// Takes in a change.
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

    /// What is remembered after all changes, of each pod in the order in which it was told.
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
