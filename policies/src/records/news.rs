//! What changed in the records since it was asked last, and a walk over all of them: together they keep a copy elsewhere
//! that costs what changes. A step of the walk and the changes behind it say how things stand then, so a copy that
//! takes them in as they come is right when the walk has ended, though records came and went meanwhile.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::ops::Bound::{Excluded, Included, Unbounded};
use std::sync::Arc;

use egret_shared::name::DnsName;
use egret_shared::pod::PodKey;
use egret_shared::time::Timestamp;

use super::pod::PodRecords;
use super::{Records, RememberedRecord};

/// What may be otherwise than when it was asked last.
#[derive(Debug, Default)]
pub(super) struct News {
    /// Whether anybody asks: else this would grow for ever.
    is_noting: bool,
    pods: BTreeMap<PodKey, Touched>,
}

#[derive(Debug, Default)]
struct Touched {
    /// All that it was told was forgotten.
    is_anew: bool,
    records: Vec<(Arc<DnsName>, IpAddr)>,
}

impl News {
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

/// How the records of a pod are otherwise than before.
#[derive(Debug)]
pub(crate) struct PodNews {
    pub(crate) pod: PodKey,
    pub(crate) is_anew: bool,
    pub(crate) forgotten: Vec<(Arc<DnsName>, IpAddr)>,
    pub(crate) told: Vec<RememberedRecord>,
}

/// How far a walk over all records has come.
#[derive(Clone, Debug, Default)]
pub struct Walk {
    pod: Option<PodKey>,
    at: At,
}

#[derive(Clone, Debug, Default)]
enum At {
    /// No record of the pod was told yet.
    #[default]
    Begin,
    Live(ByAge),
    Lapsed(ByEnd),
    End,
}

/// A live record among all of its pod: its name by its last answer, and among those of the name.
#[derive(Clone, Debug)]
pub(super) struct ByAge {
    pub(super) latest: u64,
    pub(super) name: Arc<DnsName>,
    pub(super) told: (u64, IpAddr),
}

pub(super) type ByEnd = (Timestamp, Arc<DnsName>, IpAddr);

impl Records {
    /// From now on, what changes is noted for `take_news`.
    pub(crate) const fn note_news(&mut self) {
        self.news.is_noting = true;
    }

    /// What is otherwise than when this was called before.
    pub(crate) fn take_news(&mut self) -> Vec<PodNews> {
        let pods = std::mem::take(&mut self.news.pods).into_iter();
        pods.map(|(pod, touched)| self.now_of(pod, touched)).collect()
    }

    fn now_of(&self, pod: PodKey, touched: Touched) -> PodNews {
        let records = self.pods.get(&pod);
        let (mut told, mut forgotten) = (Vec::new(), Vec::new());
        for (name, address) in touched.records {
            match records.and_then(|records| records.end_of(&name, address)) {
                Some(expires) => told.push(RememberedRecord {
                    name,
                    address,
                    expires,
                }),
                None => forgotten.push((name, address)),
            }
        }
        PodNews {
            pod,
            is_anew: touched.is_anew,
            forgotten,
            told,
        }
    }

    /// The next of all records, of one pod and at most so many; none when there are no more. What is told meanwhile may
    /// be left out, or told twice.
    pub(crate) fn walk(&self, walk: &mut Walk, most: usize) -> Option<(PodKey, Vec<RememberedRecord>)> {
        loop {
            let pod = self.pod_at(walk)?;
            if walk.pod.as_ref() != Some(&pod) {
                walk.at = At::Begin;
            }
            if let Some(records) = self.pods.get(&pod) {
                let found = walk.at.step(records, most.max(1));
                if !found.is_empty() {
                    walk.pod = Some(pod.clone());
                    return Some((pod, found));
                }
            }
            *walk = Walk {
                pod: Some(pod),
                at: At::End,
            };
        }
    }

    fn pod_at(&self, walk: &Walk) -> Option<PodKey> {
        let from = match (&walk.pod, &walk.at) {
            (None, _) => Unbounded,
            (Some(pod), At::End) => Excluded(pod),
            (Some(pod), At::Begin | At::Live(_) | At::Lapsed(_)) => Included(pod),
        };
        let next = self.pods.range((from, Unbounded)).next();
        next.map(|(pod, _)| pod.clone())
    }
}

impl At {
    /// The live ones first: what ends while they are told has its place among the others, which come then.
    fn step(&mut self, records: &PodRecords, most: usize) -> Vec<RememberedRecord> {
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
            Self::Begin | Self::Live(_) => records.lapsed.behind(None, most),
            Self::Lapsed(last) => records.lapsed.behind(Some(last), most),
            Self::End => (Vec::new(), None),
        };
        if let (found, Some(last)) = lapsed {
            *self = Self::Lapsed(last);
            return found;
        }
        Vec::new()
    }
}
