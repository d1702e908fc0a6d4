//! The change log of the records, and a cursor over all of them: together they keep a copy elsewhere at the cost of what
//! changes. A copy that applies the steps of the cursor and the changes in the order in which they come is right at the
//! end, whatever changed meanwhile.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::ops::Bound::{Excluded, Included, Unbounded};
use std::sync::Arc;

use egret_shared::name::DnsName;
use egret_shared::pod::PodKey;

use super::expired::ExpiredPosition;
use super::pod::{LivePosition, PodRecords};
use super::{RecordSnapshot, Records};

/// The records that changed since the log was read last.
#[derive(Debug, Default)]
pub(super) struct ChangeLog {
    /// Whether changes are logged: without a reader the log would grow without limit.
    is_noting: bool,
    pods: BTreeMap<PodKey, ChangedPod>,
}

#[derive(Debug, Default)]
struct ChangedPod {
    /// All that it was told was forgotten.
    is_anew: bool,
    records: Vec<(Arc<DnsName>, IpAddr)>,
}

impl ChangeLog {
    pub(super) fn note(&mut self, pod: &PodKey, name: &Arc<DnsName>, address: IpAddr) {
        if !self.is_noting {
            return;
        }
        let touched = self.pods.entry(pod.clone()).or_default();
        touched.records.push((Arc::clone(name), address));
    }

    pub(super) fn note_anew(&mut self, pod: &PodKey) {
        if self.is_noting {
            let touched = self.pods.entry(pod.clone()).or_default();
            touched.is_anew = true;
            touched.records.clear();
        }
    }
}

/// The changes of one pod's records.
#[derive(Debug)]
pub(crate) struct PodChanges {
    pub(crate) pod: PodKey,
    pub(crate) is_anew: bool,
    pub(crate) forgotten: Vec<(Arc<DnsName>, IpAddr)>,
    pub(crate) records: Vec<RecordSnapshot>,
}

/// A position in a walk over all records.
#[derive(Clone, Debug, Default)]
pub struct RecordCursor {
    pod: Option<PodKey>,
    at: CursorPosition,
}

#[derive(Clone, Debug, Default)]
enum CursorPosition {
    /// No record of the pod was told yet.
    #[default]
    Begin,
    Live(LivePosition),
    Lapsed(ExpiredPosition),
    End,
}

impl Records {
    /// From now on, what changes is noted for `take_news`.
    pub(crate) const fn track_changes(&mut self) {
        self.changes.is_noting = true;
    }

    /// What is otherwise than when this was called before.
    pub(crate) fn take_changes(&mut self) -> Vec<PodChanges> {
        let pods = std::mem::take(&mut self.changes.pods).into_iter();
        pods.map(|(pod, touched)| self.changes_of(pod, touched)).collect()
    }

    fn changes_of(&self, pod: PodKey, touched: ChangedPod) -> PodChanges {
        let records = self.pods.get(&pod);
        let (mut told, mut forgotten) = (Vec::new(), Vec::new());
        for (name, address) in touched.records {
            match records.and_then(|records| records.end_of(&name, address)) {
                Some(expires) => told.push(RecordSnapshot {
                    name,
                    address,
                    expires,
                }),
                None => forgotten.push((name, address)),
            }
        }
        PodChanges {
            pod,
            is_anew: touched.is_anew,
            forgotten,
            records: told,
        }
    }

    /// The next of all records, of one pod and at most so many; none when there are no more. What is told meanwhile may
    /// be left out, or told twice.
    pub(crate) fn next_records(
        &self,
        walk: &mut RecordCursor,
        most: usize,
    ) -> Option<(PodKey, Vec<RecordSnapshot>)> {
        loop {
            let pod = self.pod_at(walk)?;
            if walk.pod.as_ref() != Some(&pod) {
                walk.at = CursorPosition::Begin;
            }
            if let Some(records) = self.pods.get(&pod) {
                let found = walk.at.step(records, most.max(1));
                if !found.is_empty() {
                    walk.pod = Some(pod.clone());
                    return Some((pod, found));
                }
            }
            *walk = RecordCursor {
                pod: Some(pod),
                at: CursorPosition::End,
            };
        }
    }

    fn pod_at(&self, walk: &RecordCursor) -> Option<PodKey> {
        let from = match (&walk.pod, &walk.at) {
            (None, _) => Unbounded,
            (Some(pod), CursorPosition::End) => Excluded(pod),
            (Some(pod), CursorPosition::Begin | CursorPosition::Live(_) | CursorPosition::Lapsed(_)) => {
                Included(pod)
            }
        };
        let next = self.pods.range((from, Unbounded)).next();
        next.map(|(pod, _)| pod.clone())
    }
}

impl CursorPosition {
    /// The live ones first: what ends while they are told has its place among the others, which come then.
    fn step(&mut self, records: &PodRecords, most: usize) -> Vec<RecordSnapshot> {
        let live = match self {
            Self::Begin => records.live_behind(None, most),
            Self::Live(last) => records.live_behind(Some(last), most),
            Self::Lapsed(_) | Self::End => (Vec::new(), None),
        };
        if let (found, Some(last)) = live {
            *self = Self::Live(last);
            return found;
        }
        let lapsed = match self {
            Self::Begin | Self::Live(_) => records.expired.behind(None, most),
            Self::Lapsed(last) => records.expired.behind(Some(last), most),
            Self::End => (Vec::new(), None),
        };
        if let (found, Some(last)) = lapsed {
            *self = Self::Lapsed(last);
            return found;
        }
        Vec::new()
    }
}
