//! The backend `both`: eBPF programs refuse at the socket what a pod may not open, and netfilter judges every packet.
//!
//! The programs see what a program asks for, before the node translates the addresses of Services; netfilter sees where a packet goes.
//! So the programs refuse only what they can tell, with EPERM and the name of the process, and leave the rest to netfilter: addresses of
//! Services and of the node, raw packets, what arrives, and open connections. netfilter alone would be as strict: where
//! the programs cannot run, nothing is open.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};

use egret_policies::rules::{Batch, MembersChanged};
use egret_shared::pod::PodKey;
use egret_shared::time::Timestamp;

use super::bypass::BypassReport;
use super::ebpf::Ebpf;
use super::series::Series;
use super::{
    Action, Backend, BackendError, ConcurrentSetUpdate, ConnectionSearch, EndedConnections, SyncStatus,
    VerdictCount, VerdictCounters,
};

/// The backend.
#[derive(Debug)]
pub struct Both {
    filter: Box<dyn Backend>,
    sockets: Sockets,
}

/// The programs.
#[derive(Debug)]
struct Sockets {
    programs: Ebpf,
    /// Why they do not run, if so.
    refusal: Option<String>,
    /// What they could not do last.
    fault: Option<String>,
}

impl Both {
    /// A packet filter that judges everything, and programs in front of it.
    #[must_use]
    pub fn new(filter: Box<dyn Backend>, programs: Ebpf) -> Self {
        Self {
            filter,
            sockets: Sockets {
                programs,
                refusal: Some("the kernel was not read".to_owned()),
                fault: None,
            },
        }
    }
}

impl Sockets {
    /// Has the programs follow, if they run. Their faults open nothing, so they are no pod's and no reason to wait.
    fn follow(&mut self, step: impl FnOnce(&mut Ebpf) -> SyncStatus) {
        if self.refusal.is_some() {
            return;
        }
        let status = step(&mut self.programs);
        let of_pods = || {
            let (pod, why) = status.pending.first_key_value()?;
            Some(format!("{pod}: {why}"))
        };
        let fault = status.broken.clone().or_else(of_pods);
        if let Some(why) = fault.as_ref().filter(|_| fault != self.fault) {
            tracing::warn!(
                why,
                "some calls are not refused at the socket: netfilter drops their packets"
            );
        }
        self.fault = fault;
    }
}

impl Backend for Both {
    fn name(&self) -> &'static str {
        "both"
    }

    fn adopt(&mut self, now: Timestamp) -> Result<(), BackendError> {
        self.filter.adopt(now)?;
        self.sockets.refusal = self
            .sockets
            .programs
            .adopt(now)
            .err()
            .map(|error| error.to_string());
        if let Some(why) = &self.sockets.refusal {
            tracing::warn!(
                why,
                "no call is refused at the socket: the eBPF programs do not run, netfilter judges alone"
            );
        }
        Ok(())
    }

    fn is_in_force(&self) -> bool {
        self.filter.is_in_force()
    }

    fn close_unknown_pods(&mut self) -> Result<bool, BackendError> {
        self.filter.close_unknown_pods()
    }

    fn wants_services(&self) -> bool {
        true
    }

    fn set_services(&mut self, addresses: &BTreeSet<IpAddr>) {
        if self.sockets.refusal.is_none() {
            self.sockets.programs.set_services(addresses);
        }
    }

    fn apply(&mut self, batch: &Batch, now: Timestamp) -> SyncStatus {
        // What a program is refused, netfilter drops by then, also of open connections.
        let status = self.filter.apply(batch, now);
        self.sockets.follow(|programs| programs.apply(batch, now));
        status
    }

    fn add_records(&mut self, batch: &Batch, now: Timestamp) -> Option<SyncStatus> {
        self.sockets.follow(|programs| programs.apply(batch, now));
        self.filter.add_records(batch, now)
    }

    fn links_changed(&mut self, now: Timestamp) -> SyncStatus {
        self.sockets.follow(|programs| programs.links_changed(now));
        self.filter.links_changed(now)
    }

    fn poll_drift(&mut self, now: Timestamp) -> Option<String> {
        self.filter.poll_drift(now)
    }

    fn reconcile(&mut self, now: Timestamp) -> SyncStatus {
        self.sockets.follow(|programs| programs.reconcile(now));
        self.filter.reconcile(now)
    }

    fn connection_search(&mut self) -> Option<ConnectionSearch> {
        self.filter.connection_search()
    }

    fn end_denied_connections(&mut self) -> EndedConnections {
        self.filter.end_denied_connections()
    }

    fn pod_at_interface(&self, interface: &str, address: IpAddr) -> Option<PodKey> {
        self.filter.pod_at_interface(interface, address)
    }

    fn pod_in_cgroup(&self, id: u64) -> Option<PodKey> {
        self.sockets.programs.pod_in_cgroup(id)
    }

    fn concurrent_set_update(&self) -> Option<Arc<dyn ConcurrentSetUpdate>> {
        let filter = self.filter.concurrent_set_update()?;
        if self.sockets.refusal.is_some() {
            return Some(filter);
        }
        Some(Arc::new(BothSets {
            filter,
            sockets: self.sockets.programs.concurrent_members(),
        }))
    }

    fn bypass_report(&self) -> BypassReport {
        self.filter.bypass_report()
    }

    fn counters(&self) -> Arc<dyn VerdictCounters> {
        Arc::new(BothCounters {
            filter: self.filter.counters(),
            sockets: self.sockets.programs.counters(),
            series: Mutex::default(),
        })
    }

    fn dump(&self) -> String {
        let sockets = match &self.sockets.refusal {
            Some(why) => format!("the eBPF programs do not run: {why}\n"),
            None => self.sockets.programs.dump(),
        };
        format!(
            "netfilter, which judges everything:\n{}\nebpf, which refuses what it can tell:\n{sockets}",
            self.filter.dump()
        )
    }

    fn remove_everything(&mut self) -> Result<(), BackendError> {
        self.sockets.programs.remove_everything()?;
        self.filter.remove_everything()
    }
}

/// Both sides' sets.
#[derive(Debug)]
struct BothSets {
    filter: Arc<dyn ConcurrentSetUpdate>,
    sockets: Arc<dyn ConcurrentSetUpdate>,
}

impl ConcurrentSetUpdate for BothSets {
    fn add_members(&self, changes: &[MembersChanged], now: Timestamp) -> Result<(), BackendError> {
        let refused = self.sockets.add_members(changes, now);
        self.filter.add_members(changes, now).and(refused)
    }
}

/// Counts of both. What is refused at the socket never reaches netfilter, so each side counts what it denies, and netfilter
/// what passes.
#[derive(Debug)]
struct BothCounters {
    filter: Arc<dyn VerdictCounters>,
    sockets: Arc<dyn VerdictCounters>,
    series: Mutex<Series>,
}

impl VerdictCounters for BothCounters {
    fn read(&self) -> Result<Vec<VerdictCount>, BackendError> {
        let mut sums = BTreeMap::new();
        let refused = self.sockets.read()?;
        let refused = refused
            .into_iter()
            .filter(|count| count.key.action == Action::Deny);
        for count in self.filter.read()?.into_iter().chain(refused) {
            *sums.entry((count.key, count.origin)).or_default() += count.packets;
        }
        let sums = sums.into_iter();
        Ok(sums
            .map(|((key, origin), packets)| VerdictCount { key, origin, packets })
            .collect())
    }

    fn by_series(&self, most: usize) -> Result<Vec<VerdictCount>, BackendError> {
        let counts = self.read()?;
        // A panic leaves valid numbers.
        let mut series = self.series.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(series.add_up(&counts, most))
    }
}
