//! Permits for the kernel to answer pods' DNS queries in dnsd's place, in front of a packet filter: such a query never reaches the
//! filter, so only a pod whose rules let it ask has a permit, and the query is counted where the filter would have counted it.
//!
//! A permit is taken away before rules of its pod change, and given again when they are in force. It stays when the enforcer ends, as the
//! rules do; the next one takes all permits away before it changes anything.
//!
//! What sets hold is not looked into: where it decides whether a pod may ask, or which count is concerned, the pod has no permit, and dnsd
//! answers it.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use egret_kernel::dns_permits::Permits;
use egret_policies::rules::{
    Action as RuleAction, Batch, DefaultAction, Direction, OWN_NODE, PeerMatch, PodRules, PortMatch, Rule,
    Tier,
};
use egret_shared::net::Transport;
use egret_shared::pod::PodKey;
use egret_shared::time::Timestamp;

use super::bypass::BypassReport;
use super::{
    Action, Backend, BackendError, ConcurrentSetUpdate, ConnectionSearch, Decider, EndedConnections,
    SyncStatus, VerdictCount, VerdictCounters, VerdictKey,
};

const DNS_PORT: u16 = 53;

/// A packet filter with permits.
#[derive(Debug)]
pub struct DnsPermits {
    filter: Box<dyn Backend>,
    directory: PathBuf,
    is_each_alone: bool,
    /// Opened when dnsd has made them.
    permits: Arc<OnceLock<Permits>>,
    /// Pods that may ask, and what counts their queries.
    judged: BTreeMap<PodKey, (Vec<IpAddr>, Decider)>,
    granted: BTreeMap<PodKey, Vec<IpAddr>>,
    /// Pods for which the filter does not hold the rules.
    pending: BTreeSet<PodKey>,
}

/// What counts a query that the filter lets through, by the number that a permit has.
const COUNTED: [Decider; 5] = [
    Decider::Default,
    Decider::Tier(Tier::NetworkPolicy),
    Decider::Tier(Tier::Admin),
    Decider::Tier(Tier::Baseline),
    Decider::Tier(Tier::ClusterEgressFirewall),
];

impl DnsPermits {
    /// In front of this filter, with the permits in a directory. `is_each_alone`: each rule has a series of its own.
    #[must_use]
    pub fn new(filter: Box<dyn Backend>, directory: PathBuf, is_each_alone: bool) -> Self {
        Self {
            filter,
            directory,
            is_each_alone,
            permits: Arc::default(),
            judged: BTreeMap::new(),
            granted: BTreeMap::new(),
            pending: BTreeSet::new(),
        }
    }

    /// Takes all permits of an earlier enforcer away, for a backend that gives none.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn revoke_all(directory: &std::path::Path) -> Result<(), BackendError> {
        let permits = Permits::open(directory).map_err(refused)?;
        permits
            .map_or(Ok(()), |permits| permits.revoke_all())
            .map_err(refused)
    }

    fn open(&self) -> Option<&Permits> {
        if self.permits.get().is_none() {
            match Permits::open(&self.directory) {
                Ok(None) => {}
                Ok(Some(permits)) => drop(self.permits.set(permits)),
                Err(error) => {
                    tracing::warn!(%error, "dnsd's permits cannot be opened: dnsd answers all queries")
                }
            }
        }
        self.permits.get()
    }

    fn revoke<'a>(&mut self, pods: impl IntoIterator<Item = &'a PodKey>) {
        for pod in pods {
            let Some(permits) = self.permits.get() else {
                return;
            };
            let addresses = self.granted.remove(pod).unwrap_or_default();
            for address in addresses {
                // Nothing can be changed before it is gone. The kernel refuses it for a moment only, while an interrupt holds the bucket.
                while let Err(error) = permits.revoke(address) {
                    tracing::error!(%pod, %error, "a permit stays, and is taken away again");
                    std::thread::sleep(Duration::from_millis(1));
                }
            }
        }
    }

    fn note(&mut self, status: &SyncStatus) {
        self.pending = match &status.broken {
            Some(_) => self.judged.keys().cloned().collect(),
            None => status.pending.keys().cloned().collect(),
        };
        self.settle();
    }

    /// Gives the permits that are missing, and takes those of pods away that became pending.
    fn settle(&mut self) {
        let is_lost = |pod: &&PodKey| self.pending.contains(*pod) || !self.judged.contains_key(*pod);
        let lost: Vec<PodKey> = self.granted.keys().filter(is_lost).cloned().collect();
        self.revoke(&lost);
        if self.open().is_none() {
            return;
        }
        let Some(permits) = self.permits.get() else {
            return;
        };
        for (pod, (addresses, decider)) in &self.judged {
            if self.granted.contains_key(pod) || self.pending.contains(pod) {
                continue;
            }
            let Some((number, _)) = (0..).zip(COUNTED).find(|(_, counted)| counted == decider) else {
                continue;
            };
            for address in addresses {
                if let Err(error) = permits.permit(*address, number) {
                    tracing::warn!(%pod, %error, "dnsd answers this pod: there is no room for a permit");
                }
            }
            self.granted.insert(pod.clone(), addresses.clone());
        }
    }
}

/// What counts a DNS query of this pod to its node, where its rules certainly allow it: by a rule about every peer or the own node, behind
/// rules of its tier that allow as well. `is_each_alone`: each rule has a count of its own, so it has to be certain which one it is; of rules
/// about every peer it is not, since the filter may write several as one.
fn judge(rules: &PodRules, is_each_alone: bool) -> Option<Decider> {
    if !rules.audit.egress.tiers.is_empty() {
        return None;
    }
    for tier in &rules.egress.tiers {
        let mut may_match = false;
        for rule in tier.rules.iter().filter(|rule| may_be_dns(rule)) {
            if rule.action != RuleAction::Allow {
                return None;
            }
            if is_certain(rule) {
                let is_known = !is_each_alone || !may_match && rule.origin.policy.as_ref() == OWN_NODE;
                return is_known.then_some(Decider::Tier(tier.tier));
            }
            may_match = true;
        }
        if may_match || tier.default_action == DefaultAction::Deny {
            return None;
        }
    }
    Some(Decider::Default)
}

/// Whether a rule may match a query. The pod itself is no server of the node.
fn may_be_dns(rule: &Rule) -> bool {
    let is_port = match rule.port {
        PortMatch::Any => true,
        PortMatch::Range(transport, range) => transport == Transport::Udp && range.contains(DNS_PORT),
        PortMatch::Icmp => false,
    };
    is_port && rule.peer != PeerMatch::Itself
}

/// Whether a rule that may match does.
fn is_certain(rule: &Rule) -> bool {
    matches!(rule.peer, PeerMatch::Any | PeerMatch::OwnNode) && rule.except.is_none()
}

fn refused(error: std::io::Error) -> BackendError {
    BackendError::new("permits for answers of the kernel", error)
}

impl Backend for DnsPermits {
    fn name(&self) -> &'static str {
        self.filter.name()
    }

    fn adopt(&mut self, now: Timestamp) -> Result<(), BackendError> {
        if let Some(permits) = self.open() {
            permits.revoke_all().map_err(refused)?;
        }
        self.filter.adopt(now)
    }

    fn is_in_force(&self) -> bool {
        self.filter.is_in_force()
    }

    fn close_unknown_pods(&mut self) -> Result<bool, BackendError> {
        self.filter.close_unknown_pods()
    }

    fn wants_services(&self) -> bool {
        self.filter.wants_services()
    }

    fn set_services(&mut self, addresses: &BTreeSet<IpAddr>) {
        self.filter.set_services(addresses);
    }

    fn apply(&mut self, batch: &Batch, now: Timestamp) -> SyncStatus {
        let replaced = batch.rules_replaced.iter().map(|rules| &rules.pod);
        let changed: Vec<&PodKey> = replaced.chain(&batch.pods_removed).collect();
        self.revoke(changed.iter().copied());
        for pod in changed {
            self.judged.remove(pod);
        }
        let status = self.filter.apply(batch, now);
        for rules in &batch.rules_replaced {
            if let Some(counted) = judge(rules, self.is_each_alone) {
                self.judged
                    .insert(rules.pod.clone(), (rules.addresses.clone(), counted));
            }
        }
        self.note(&status);
        status
    }

    fn add_records(&mut self, batch: &Batch, now: Timestamp) -> Option<SyncStatus> {
        let status = self.filter.add_records(batch, now)?;
        self.note(&status);
        Some(status)
    }

    fn links_changed(&mut self, now: Timestamp) -> SyncStatus {
        let status = self.filter.links_changed(now);
        self.note(&status);
        status
    }

    fn poll_drift(&mut self, now: Timestamp) -> Option<String> {
        self.settle();
        self.filter.poll_drift(now)
    }

    fn reconcile(&mut self, now: Timestamp) -> SyncStatus {
        let status = self.filter.reconcile(now);
        self.note(&status);
        status
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
        self.filter.pod_in_cgroup(id)
    }

    fn concurrent_set_update(&self) -> Option<Arc<dyn ConcurrentSetUpdate>> {
        self.filter.concurrent_set_update()
    }

    fn bypass_report(&self) -> BypassReport {
        self.filter.bypass_report()
    }

    fn counters(&self) -> Arc<dyn VerdictCounters> {
        Arc::new(PermitCounters {
            filter: self.filter.counters(),
            permits: Arc::clone(&self.permits),
        })
    }

    fn dump(&self) -> String {
        self.filter.dump()
    }

    fn remove_everything(&mut self) -> Result<(), BackendError> {
        Permits::remove(&self.directory).map_err(refused)?;
        self.filter.remove_everything()
    }
}

/// The counts of the filter, with the queries that never reached it.
#[derive(Debug)]
struct PermitCounters {
    filter: Arc<dyn VerdictCounters>,
    permits: Arc<OnceLock<Permits>>,
}

impl PermitCounters {
    fn add_to(&self, mut counts: Vec<VerdictCount>) -> Result<Vec<VerdictCount>, BackendError> {
        let Some(permits) = self.permits.get() else {
            return Ok(counts);
        };
        for (number, decider) in (0..).zip(COUNTED) {
            let packets = permits.answered(number).map_err(refused)?;
            let key = VerdictKey {
                decider,
                action: Action::Allow,
                direction: Direction::Egress,
            };
            let of_key = |count: &VerdictCount| count.key == key;
            let is_own = |count: &VerdictCount| {
                let origin = count.origin.as_ref();
                of_key(count) && origin.is_some_and(|(name, rule)| name.as_ref() == OWN_NODE && *rule == 0)
            };
            let is_other = |count: &VerdictCount| of_key(count) && count.origin.is_none();
            let place = counts
                .iter()
                .position(is_own)
                .or_else(|| counts.iter().position(is_other));
            match place {
                Some(place) => counts[place].packets += packets,
                None if packets == 0 => {}
                None => counts.push(VerdictCount {
                    key,
                    origin: None,
                    packets,
                }),
            }
        }
        Ok(counts)
    }
}

impl VerdictCounters for PermitCounters {
    fn read(&self) -> Result<Vec<VerdictCount>, BackendError> {
        self.add_to(self.filter.read()?)
    }

    fn by_series(&self, most: usize) -> Result<Vec<VerdictCount>, BackendError> {
        self.add_to(self.filter.by_series(most)?)
    }
}
