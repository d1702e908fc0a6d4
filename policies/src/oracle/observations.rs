//! Who was told what.

use std::net::IpAddr;
use std::sync::Arc;

use egret_shared::name::DnsName;
use egret_shared::observation::Observation;
use egret_shared::pod::PodKey;
use egret_shared::time::Timestamp;

use crate::compiler::Settings;
use crate::records::PodSnapshot;

use super::World;
use super::addresses::behind_nat64;

/// One address that a pod was told.
#[derive(Clone, Debug)]
pub(super) struct ObservedRecord {
    pub(super) pod: PodKey,
    pub(super) name: DnsName,
    pub(super) address: IpAddr,
    pub(super) until: Timestamp,
}

/// A local pod as it was after the last change: when it loses an address, or is another run under the
/// same name, it was told nothing.
#[derive(Clone, Debug)]
pub(super) struct PodRun {
    pod: PodKey,
    uid: Option<Arc<str>>,
    addresses: Vec<IpAddr>,
}

impl World {
    /// A run of a pod was told this in an earlier life; nothing comes of it when there is no such run.
    pub fn restore(&mut self, remembered: &PodSnapshot, now: Timestamp) {
        let is_there = self.runs.iter().any(|run| {
            run.pod == remembered.pod
                && run.uid == remembered.uid
                && !remembered.addresses.is_empty()
                && remembered
                    .addresses
                    .iter()
                    .all(|address| run.addresses.contains(address))
        });
        let settings = &self.settings;
        let records = &settings.records;
        let latest = now.after(records.max_ttl).after(records.grace);
        let told = remembered
            .records
            .iter()
            .filter(|record| is_there && !is_protected(settings, record.address))
            .map(|record| ObservedRecord {
                pod: remembered.pod.clone(),
                name: (*record.name).clone(),
                address: record.address,
                until: record.expires.min(latest),
            });
        self.records.extend(told);
    }

    pub(super) fn remember(&mut self, observation: &Observation, now: Timestamp) {
        let asking = self
            .pod_at(observation.client.to_canonical())
            .filter(|pod| self.is_local(pod))
            .map(|pod| pod.key.clone());
        let Some(pod) = asking else {
            return;
        };
        for observed in &observation.addresses {
            let address = observed.address.to_canonical();
            if is_protected(&self.settings, address) {
                continue;
            }
            self.records.push(ObservedRecord {
                pod: pod.clone(),
                name: observation.question.clone(),
                address,
                until: self.until(observed.expires, now),
            });
        }
    }

    /// The rest of the time to live within its bounds, and the grace; at least a second in all.
    fn until(&self, expires: Timestamp, now: Timestamp) -> Timestamp {
        let records = &self.settings.records;
        let [min, max, grace] = [records.min_ttl, records.max_ttl, records.grace]
            .map(|span| u64::try_from(span.as_millis()).unwrap_or(u64::MAX));
        let (expires, now) = (expires.as_millis(), now.as_millis());
        let end = match expires.checked_sub(now) {
            Some(left) if left > 0 => now + left.max(min).min(max),
            Some(_) | None => expires + min.min(max),
        };
        Timestamp::from_millis((end + grace).max(expires.min(now) + 1000))
    }

    pub(super) fn forget_lost_runs(&mut self) {
        let runs: Vec<PodRun> = self
            .pods()
            .filter(|pod| self.is_local(pod))
            .map(|pod| PodRun {
                pod: pod.key.clone(),
                uid: pod.uid.clone(),
                addresses: self.own_addresses(pod),
            })
            .collect();
        for before in std::mem::replace(&mut self.runs, runs) {
            let goes_on = self.runs.iter().any(|after| {
                after.pod == before.pod
                    && after.uid == before.uid
                    && before
                        .addresses
                        .iter()
                        .all(|address| after.addresses.contains(address))
            });
            if !goes_on {
                self.records.retain(|told| told.pod != before.pod);
            }
        }
    }
}

/// Whether it is configured that no name opens the address.
fn is_protected(settings: &Settings, address: IpAddr) -> bool {
    let has = |address| {
        settings
            .records
            .protected
            .iter()
            .any(|net| net.contains(&address))
    };
    has(address) || behind_nat64(address).is_some_and(has)
}
