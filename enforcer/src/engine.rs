//! The engine: one thread owns the compiler and the backend. Every event is an [`Input`], handled in order. One pass
//! applies everything that follows from the inputs:
//!
//! ```text
//!  inputs ─▶ compiler ─▶ batches ─▶ backend ─▶ interests ─▶ realized
//! ```
//!
//! The order of the last three is guaranteed. A dnsd receives an interest only when the kernel holds the earlier
//! observations under the new policy. It receives `Realized` only after the interests that belong to it. So an
//! observation from before an interest needs no waiting, and each later one is waited for.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use egret_policies::compiler::{Compiler, Event, InSync, Settings, Syncing};
use egret_policies::records::{PodSnapshot, RecordStats};
use egret_policies::rules::Batch;
use egret_shared::link::{ClusterDns, NodePods, ToEnforcer};
use egret_shared::pod::PodKey;
use egret_shared::rt::clock;
use egret_shared::time::Timestamp;
use tokio::sync::mpsc;

use crate::apply::retry::Retry;
use crate::backend::{Backend, Pending, SyncStatus};
use crate::node::ReportedInterfaces;
use crate::state::StateWriter;

mod input;
mod metrics;
mod peers;
mod timer;
mod drift;
mod worker;
mod connection_search;
mod pass;
mod records;
mod report;
mod endpoints;
mod networks;
mod services;

pub use endpoints::{EndpointLookup, Endpoints, JudgedBy, PacketEnd, PacketEnds};
pub use input::{AdminRequest, Input, PeerId, PeerSender, SendQueueFull};
pub use metrics::PROGRAMMING_BUCKETS;
pub use networks::{NetworkReply, NetworkRequest};
pub use report::{AdminQuery, AdminReply, RejectedObject, Report, SourceState};

use connection_search::SearchTask;
use drift::DriftDetector;
use metrics::Metrics;
use networks::{AppliedPod, Networks};
use peers::Peers;
use services::Services;
use timer::Timer;
use worker::BackendWorker;

/// The most inputs of one pass: enough to fold a burst, few enough that the first one does not wait long.
const MAX_AT_ONCE: usize = 512;
/// The most observed addresses of one pass. One takes some microseconds: a client's answer does not wait for hundreds
/// of large answers of others.
const MAX_ADDRESSES_AT_ONCE: usize = 4_096;

/// How long rules of the previous process stay in force while no dnsd has resynced. A dnsd connects within 20 ms, waits
/// 100 ms for interests, and then resyncs.
///
/// Without this wait, a rule whose names changed while the enforcer was down would start with an empty set and refuse
/// what was realized before.
const RESYNC_PATIENCE: Duration = Duration::from_millis(300);

/// What the engine is made of.
#[derive(Debug)]
pub struct Setup {
    /// Settings of the compiler.
    pub compiler: Settings,
    /// The kernel's side.
    pub backend: Box<dyn Backend>,
    /// How often the kernel is read and compared; zero for never.
    pub resync: Duration,
    /// Records of the previous process.
    pub remembered: Vec<PodSnapshot>,
    /// Writes records for the next process.
    pub state_writer: Option<StateWriter>,
    /// Namespaces whose pods dnsd does not intercept.
    pub excluded_namespaces: BTreeSet<Arc<str>>,
    /// Where the backend looks up the interfaces that the CNI plugin reports.
    pub interfaces: ReportedInterfaces,
}

/// The engine.
#[derive(Debug)]
pub struct Engine {
    compiler: Phase,
    worker: BackendWorker,
    search: SearchTask,
    /// Since when connections are left that are to be ended; none where there are none.
    denied_left_since: Option<Timestamp>,
    peers: Peers,
    source: SourceState,
    status: SyncStatus,
    /// Pods of this node by address.
    owners: BTreeMap<IpAddr, PodKey>,
    local: BTreeMap<PodKey, AppliedPod>,
    /// Pods whose DNS to other resolvers dnsd intercepts, and those excluded. None as long as they are unknown, which
    /// differs from no pods.
    pods: Option<Arc<NodePods>>,
    /// Addresses of the cluster's own DNS; none as long as they are unknown.
    cluster_dns: Option<Arc<ClusterDns>>,
    retry: Retry,
    resync: Duration,
    next_resync: Option<Timestamp>,
    drift: DriftDetector,
    links_changed: bool,
    received: Received,
    metrics: Metrics,
    /// Records of the previous process, until the compiler knows the pods.
    remembered: Vec<PodSnapshot>,
    state_writer: Option<StateWriter>,
    excluded_namespaces: BTreeSet<Arc<str>>,
    /// Admin requests since the last pass.
    admin_requests: Vec<AdminRequest>,
    /// Endpoint lookups that arrived while the backend works.
    lookups: Vec<EndpointLookup>,
    /// Networks of pods that the CNI plugin reported.
    networks: Networks,
    /// Addresses of Services, for a backend that wants them.
    services: Services,
}

/// Inputs since the last pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Received {
    Nothing,
    /// Observations alone.
    Observations,
    Other,
}

/// Phase of the start.
#[derive(Debug)]
enum Phase {
    /// The source is incomplete or the kernel unread: nothing is written.
    Starting {
        compiler: Compiler<Syncing>,
        is_complete: bool,
        /// Why the kernel could not be read; none once it was.
        read_error: Option<String>,
        /// Whether unknown pods are closed because it is unknown whether there is a policy.
        is_closed: bool,
        /// Until when a dnsd may resync; none before everything else is ready.
        resync_deadline: Option<Timestamp>,
    },
    /// Batches are made and applied.
    Running(Compiler<InSync>),
    /// Between two phases.
    Transition,
}

impl Engine {
    /// An engine without any input.
    #[must_use]
    pub fn new(setup: Setup) -> Self {
        Self {
            compiler: Phase::Starting {
                compiler: Compiler::new(setup.compiler),
                is_complete: false,
                read_error: Some("the kernel was not read yet".to_owned()),
                is_closed: false,
                resync_deadline: None,
            },
            services: Services::new(setup.backend.wants_services()),
            worker: BackendWorker::Idle(setup.backend),
            search: SearchTask::default(),
            denied_left_since: None,
            peers: Peers::default(),
            source: SourceState::default(),
            status: SyncStatus::default(),
            owners: BTreeMap::new(),
            local: BTreeMap::new(),
            pods: None,
            cluster_dns: None,
            retry: Retry::Idle,
            resync: setup.resync,
            next_resync: None,
            drift: DriftDetector::default(),
            links_changed: false,
            received: Received::Nothing,
            metrics: Metrics::register(),
            remembered: setup.remembered,
            state_writer: setup.state_writer,
            excluded_namespaces: setup.excluded_namespaces,
            admin_requests: Vec::new(),
            lookups: Vec::new(),
            networks: Networks::new(setup.interfaces),
        }
    }

    /// Runs until `Input::Stop`, or until all senders are gone. Returns the backend.
    pub async fn run(mut self, mut inputs: mpsc::Receiver<Input>) -> Box<dyn Backend> {
        self.read_kernel(clock::now());
        let mut timer = Timer::default();
        loop {
            timer.set(self.deadline(), clock::now());
            let flow = tokio::select! {
                biased;
                completion = self.worker.completion() => {
                    self.complete(completion, clock::now());
                    ControlFlow::Continue(())
                }
                () = self.search.finished() => ControlFlow::Continue(()),
                input = inputs.recv() => match input {
                    Some(first) => self.handle_all(first, &mut inputs, clock::now()),
                    // All senders are gone.
                    None => ControlFlow::Break(()),
                },
                () = timer.expired() => ControlFlow::Continue(()),
            };
            if flow.is_break() {
                self.write_records(clock::now());
                return self.search.finish(self.worker.take().await).await;
            }
            self.pass(clock::now());
        }
    }

    fn handle_all(
        &mut self,
        first: Input,
        inputs: &mut mpsc::Receiver<Input>,
        now: Timestamp,
    ) -> ControlFlow<()> {
        let (mut taken, mut addresses) = (0, 0);
        let mut next = Some(first);
        while let Some(input) = next {
            if matches!(input, Input::Stop) {
                return ControlFlow::Break(());
            }
            (taken, addresses) = (taken + 1, addresses + input.addresses());
            self.handle(input, now);
            let is_enough = taken >= MAX_AT_ONCE || addresses >= MAX_ADDRESSES_AT_ONCE;
            next = if is_enough { None } else { inputs.try_recv().ok() };
        }
        ControlFlow::Continue(())
    }

    /// Handles an input, without applying what follows from it.
    pub fn handle(&mut self, input: Input, now: Timestamp) {
        self.received = match (&input, self.received) {
            (
                Input::PeerMessage(_, ToEnforcer::Observed { .. }),
                Received::Nothing | Received::Observations,
            ) => Received::Observations,
            _ => Received::Other,
        };
        match input {
            Input::Cluster(events) => {
                for event in events {
                    self.services.note(&event);
                    self.compiler.handle(event, now);
                }
            }
            Input::Source(state) => {
                if let Phase::Starting { is_complete, .. } = &mut self.compiler {
                    *is_complete |= state.is_complete;
                }
                self.source = state;
            }
            Input::PeerJoined { peer, program, out } => self.peers.join(peer, program, out),
            Input::PeerMessage(peer, message) => {
                let compiler = &mut self.compiler;
                let metrics = &self.metrics;
                self.peers.receive(peer, message, |observation| {
                    metrics.observed();
                    compiler.handle(Event::Observed(observation), now)
                });
            }
            Input::PeerLeft(peer) => self.peers.leave(peer),
            Input::Network(request) => self.handle_network(request, now),
            Input::LinksChanged => self.links_changed = true,
            Input::ChangedByOthers(by) => self.drift.suspect(by, now),
            Input::SetResync(every) => self.set_resync(every, now),
            Input::Admin(question) => self.admin_requests.push(question),
            Input::LookUpEndpoints(lookups) if self.worker.backend().is_none() => self.lookups.push(lookups),
            Input::LookUpEndpoints(lookups) => self.look_up_endpoints(lookups),
            Input::Stop => {}
        }
    }

    /// Sends interests first, then what is realized.
    fn notify_peers(&mut self) {
        let Phase::Running(compiler) = &mut self.compiler else {
            return;
        };
        let changed = compiler.poll_interests();
        self.peers.send_interests(&changed, || compiler.interests());
        if let Some(dns) = compiler.poll_cluster_dns() {
            self.cluster_dns = Some(Arc::new(dns));
        }
        // Before the pods: dnsd must not intercept queries to the DNS Service.
        if let Some(dns) = &self.cluster_dns {
            self.peers.send_cluster_dns(dns);
        }
        if let Some(pods) = &self.pods {
            self.peers.send_pods(pods);
        }
        self.send_realized();
    }

    fn send_realized(&mut self) {
        let Phase::Running(compiler) = &self.compiler else {
            return;
        };
        let revision = compiler.revision();
        let (owners, status) = (&self.owners, &self.status);
        let was_refused = self.worker.in_flight().is_some_and(|batch| batch.was_refused);
        let is_failed = |client: IpAddr| {
            was_refused
                || status.broken.is_some()
                || owners
                    .get(&client.to_canonical())
                    .and_then(|pod| status.pending.get(pod))
                    .is_some_and(|pending| matches!(pending, Pending::Refused(_)))
        };
        self.peers.send_realized(revision, is_failed);
        self.metrics
            .peers(self.peers.count(), self.peers.dropped(), self.peers.held());
        self.release_networks();
    }

    fn start_when_ready(&mut self, now: Timestamp) {
        if matches!(
            &self.compiler,
            Phase::Starting {
                read_error: Some(_),
                ..
            }
        ) {
            if self.retry.deadline().is_some_and(|at| at > now) {
                return;
            }
            self.read_kernel(now);
        }
        if !self.is_ready(now) {
            return;
        }
        self.restore(now);
        if let Phase::Starting { compiler, .. } = std::mem::replace(&mut self.compiler, Phase::Transition) {
            self.compiler = Phase::Running(compiler.in_sync());
            self.start_state_writer(now);
            self.set_resync(self.resync, now);
            tracing::info!("the source is in sync; the kernel is made to agree");
        }
    }

    /// Restores records before any set is made, so that each set starts with them.
    fn restore(&mut self, now: Timestamp) {
        let remembered = std::mem::take(&mut self.remembered);
        if remembered.is_empty() {
            return;
        }
        let kept: usize = remembered.iter().map(|pod| pod.records.len()).sum();
        for pod in remembered {
            self.compiler.handle(Event::Restored(pod), now);
        }
        let live = self.compiler.record_stats().records;
        tracing::info!(
            kept,
            live,
            "pods are known to have been told what an earlier enforcer kept"
        );
    }

    /// Whether the first batch can be made: everything is known, or the wait is over.
    fn is_ready(&mut self, now: Timestamp) -> bool {
        let is_in_force = self.worker.backend().is_some_and(Backend::is_in_force);
        let may_wait = is_in_force && !self.peers.have_resynced();
        // The kernel holds nothing older than the stored objects: they count only if the kernel holds nothing.
        let is_known = self.source.known_at.is_some() && !is_in_force;
        match &mut self.compiler {
            Phase::Starting {
                is_complete,
                read_error: None,
                resync_deadline,
                ..
            } if *is_complete || is_known => {
                !may_wait || *resync_deadline.get_or_insert(now.after(RESYNC_PATIENCE)) <= now
            }
            Phase::Starting { .. } | Phase::Running(_) | Phase::Transition => false,
        }
    }

    fn read_kernel(&mut self, now: Timestamp) {
        let Phase::Starting {
            read_error,
            is_closed,
            ..
        } = &mut self.compiler
        else {
            return;
        };
        let Some(backend) = self.worker.backend_mut() else {
            return;
        };
        match backend.adopt(now).and_then(|()| backend.close_unknown_pods()) {
            Ok(closed) => (*read_error, *is_closed) = (None, closed),
            Err(error) => *read_error = Some(error.to_string()),
        }
        if let Some(reason) = read_error {
            tracing::error!(reason, "the kernel cannot be read; it is left as it is");
        }
        self.retry = self.retry.after(read_error.is_some(), now);
    }

    fn set_resync(&mut self, every: Duration, now: Timestamp) {
        self.resync = every;
        self.next_resync = (!every.is_zero()).then(|| now.after(every));
        if self.next_resync.is_none() || self.drift.deadline().is_none() {
            self.drift.set_polling(!every.is_zero(), now);
        }
    }

    /// When the next pass is due without an input. What needs the backend is due when the backend is back.
    fn deadline(&self) -> Option<Timestamp> {
        let compiler = match &self.compiler {
            Phase::Running(compiler) => compiler.poll_timeout(),
            Phase::Starting { resync_deadline, .. } => *resync_deadline,
            Phase::Transition => None,
        };
        let drift = match &self.compiler {
            Phase::Running(_) => self.drift.deadline(),
            Phase::Starting { .. } | Phase::Transition => None,
        };
        let records = self.state_writer.as_ref().and_then(StateWriter::deadline);
        let of_backend = [
            self.retry.deadline(),
            self.next_resync,
            drift,
            self.denied_left_since,
        ];
        let of_backend = of_backend.into_iter().filter(|_| self.worker.backend().is_some());
        let networks = self.networks.deadline();
        of_backend.chain([compiler, records, networks]).flatten().min()
    }
}

impl Phase {
    fn record_stats(&self) -> RecordStats {
        match self {
            Self::Starting { compiler, .. } => compiler.record_stats(),
            Self::Running(compiler) => compiler.record_stats(),
            Self::Transition => RecordStats::default(),
        }
    }

    fn handle(&mut self, event: Event, now: Timestamp) -> egret_shared::revision::Revision {
        match self {
            Self::Starting { compiler, .. } => compiler.handle(event, now),
            Self::Running(compiler) => compiler.handle(event, now),
            Self::Transition => {
                unreachable!("the engine is moved between phases by one function, which handles no event")
            }
        }
    }
}

/// In the order of addresses, so that equal sets compare equal.
fn interception_of(owners: &BTreeMap<IpAddr, PodKey>, excluded_namespaces: &BTreeSet<Arc<str>>) -> NodePods {
    let is_spared = |pod: &PodKey| excluded_namespaces.contains(pod.namespace());
    let (spared, caught): (Vec<_>, Vec<_>) = owners.iter().partition(|(_, pod)| is_spared(pod));
    let addresses = |pods: Vec<(&IpAddr, &PodKey)>| pods.into_iter().map(|(address, _)| *address).collect();
    NodePods {
        caught: addresses(caught),
        spared: addresses(spared),
    }
}

/// Updates the local pods. Returns whether an address was added, removed, or moved to another pod.
fn update_owners(
    owners: &mut BTreeMap<IpAddr, PodKey>,
    local: &mut BTreeMap<PodKey, AppliedPod>,
    batch: &Batch,
) -> bool {
    let gone = batch
        .pods_removed
        .iter()
        .chain(batch.rules_replaced.iter().map(|rules| &rules.pod));
    for pod in gone {
        for address in local.remove(pod).map(|pod| pod.addresses).unwrap_or_default() {
            if owners.get(&address) == Some(pod) {
                owners.remove(&address);
            }
        }
    }
    for rules in &batch.rules_replaced {
        let applied = AppliedPod {
            uid: rules.uid.clone(),
            addresses: rules.addresses.clone(),
        };
        local.insert(rules.pod.clone(), applied);
        owners.extend(
            rules
                .addresses
                .iter()
                .map(|address| (*address, rules.pod.clone())),
        );
    }
    !batch.pods_removed.is_empty() || !batch.rules_replaced.is_empty()
}
