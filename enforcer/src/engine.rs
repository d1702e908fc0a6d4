//! The one thread that owns the compiler and the backend. Everything that happens comes here as an [`Input`], in order;
//! everything that follows from it leaves in one pass:
//!
//! ```text
//!  inputs ─▶ compiler ─▶ batches ─▶ backend ─▶ interests ─▶ realized
//! ```
//!
//! The order of the last three is a promise. A dnsd hears of an interest only when the kernel holds what was told
//! before under the new policy, and it hears that something is realized only after the interests that go with it. So what
//! it saw before an interest came needs no waiting, and what it sees later is waited for.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use egret_policies::compiler::{Compiler, Event, InSync, Settings, Syncing};
use egret_policies::records::{PodSnapshot, RecordStats};
use egret_policies::rules::Batch;
use egret_shared::link::{ClusterDns, NodePods, ToEnforcer};
use egret_shared::pod::PodKey;
use egret_shared::rt::clock;
use egret_shared::switch::{Switch, is_off};
use egret_shared::time::Timestamp;
use tokio::sync::mpsc;

use crate::apply::retry::Retry;
use crate::backend::{Backend, Pending, Standing};
use crate::metrics::Metrics;
use crate::state::Keeper;

mod input;
mod peers;
mod alarm;
mod alert;
mod flight;
mod inquiry;
mod pass;
mod keeping;
mod report;
mod meeting;

pub use input::{Deaf, Ear, Input, PeerId, Question};
pub use meeting::{End, Judged, Known, Meeting, Meetings};
pub use report::{Answer, Report, SourceState, What};

use alarm::Alarm;
use alert::Alert;
use flight::Hands;
use inquiry::Inquirer;
use peers::Peers;

/// Inputs that are taken in before their consequences are written: enough to fold a burst, few enough that the first
/// of them does not wait long.
const MOST_AT_ONCE: usize = 512;
/// … and so many addresses in answers, which take some microseconds each: nobody's answer waits for hundreds of large ones that
/// somebody else asked for.
const MOST_ADDRESSES_AT_ONCE: usize = 4_096;

/// How long rules of an earlier life may stay in force while nobody has told again what pods were told. A dnsd connects
/// within 20 ms, waits 100 ms for interests that come only later, and then tells.
///
/// Without this, a rule whose names changed while the enforcer was away would begin with an empty set, and refuse what
/// was realized before until the dnsd had spoken.
const TOLD_AGAIN_WITHIN: Duration = Duration::from_millis(300);

/// What the engine is made with.
#[derive(Debug)]
pub struct Setup {
    /// For the compiler.
    pub compiler: Settings,
    /// The kernel.
    pub backend: Box<dyn Backend>,
    /// How often the kernel is read and compared; never where it is zero.
    pub resync: Duration,
    /// Where it counts.
    pub metrics: Metrics,
    /// What pods were told in an earlier life.
    pub remembered: Vec<PodSnapshot>,
    /// Keeps what they are told for a later one.
    pub keeper: Option<Keeper>,
    /// Namespaces whose pods dnsd does not intercept.
    pub spares: BTreeSet<Arc<str>>,
}

/// The engine.
#[derive(Debug)]
pub struct Engine {
    compiler: Phase,
    hands: Hands,
    inquirer: Inquirer,
    peers: Peers,
    source: SourceState,
    standing: Standing,
    /// Local pods by address.
    owners: BTreeMap<IpAddr, PodKey>,
    local: BTreeMap<PodKey, Vec<IpAddr>>,
    /// Whose questions to other resolvers may be caught; none while it is not known, which is not the same as nobody's.
    pods: Option<Arc<NodePods>>,
    /// Where the cluster's own DNS is; none while it is not known.
    cluster_dns: Option<Arc<ClusterDns>>,
    retry: Retry,
    resync: Duration,
    next_resync: Option<Timestamp>,
    alert: Alert,
    links_changed: bool,
    came: Came,
    metrics: Metrics,
    /// Until the compiler knows the pods.
    remembered: Vec<PodSnapshot>,
    keeper: Option<Keeper>,
    spares: BTreeSet<Arc<str>>,
    /// What was asked since the last pass.
    questions: Vec<Question>,
    /// The same by who tells of denied packets, while the backend is away.
    meetings: Vec<Meetings>,
}

/// What was taken in since the last pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Came {
    Nothing,
    /// Pods were told something, and nothing else happened.
    Answers,
    Anything,
}

/// How far the start has come.
#[derive(Debug)]
enum Phase {
    /// The source has not told everything, or the kernel could not be read: nothing is written.
    Starting {
        compiler: Compiler<Syncing>,
        is_complete: bool,
        /// Why the kernel could not be read; none once it was.
        unread: Option<String>,
        /// Whether pods are closed until then, nobody knowing whether there is a policy.
        is_closed: bool,
        /// Until when a dnsd is waited for; none before everything else is there.
        patience: Option<Timestamp>,
    },
    /// Batches are made and applied.
    Running(Compiler<InSync>),
    /// Between two phases.
    Moving,
}

impl Engine {
    /// An engine that knows nothing yet.
    #[must_use]
    pub fn new(setup: Setup) -> Self {
        Self {
            compiler: Phase::Starting {
                compiler: Compiler::new(setup.compiler),
                is_complete: false,
                unread: Some("the kernel was not read yet".to_owned()),
                is_closed: false,
                patience: None,
            },
            hands: Hands::Here(setup.backend),
            inquirer: Inquirer::default(),
            peers: Peers::default(),
            source: SourceState::default(),
            standing: Standing::default(),
            owners: BTreeMap::new(),
            local: BTreeMap::new(),
            pods: None,
            cluster_dns: None,
            retry: Retry::Idle,
            resync: setup.resync,
            next_resync: None,
            alert: Alert::default(),
            links_changed: false,
            came: Came::Nothing,
            metrics: setup.metrics,
            remembered: setup.remembered,
            keeper: setup.keeper,
            spares: setup.spares,
            questions: Vec::new(),
            meetings: Vec::new(),
        }
    }

    /// Works until it is told to stop, or nobody is left who could tell it anything. Returns the backend.
    pub async fn run(mut self, mut inputs: mpsc::Receiver<Input>) -> Box<dyn Backend> {
        self.read_kernel(clock::now());
        let mut alarm = Alarm::default();
        loop {
            alarm.set(self.deadline(), clock::now());
            let flow = tokio::select! {
                biased;
                landed = self.hands.landing() => {
                    self.land(landed, clock::now());
                    Flow::Go
                }
                () = self.inquirer.back() => Flow::Go,
                input = inputs.recv() => match input {
                    Some(first) => self.take_all(first, &mut inputs, clock::now()),
                    // Nobody is left who could tell it anything.
                    None => Flow::Stop,
                },
                () = alarm.rings() => Flow::Go,
            };
            if flow == Flow::Stop {
                self.keep_records(clock::now());
                return self.inquirer.end(self.hands.take().await).await;
            }
            self.pass(clock::now());
        }
    }

    fn take_all(&mut self, first: Input, inputs: &mut mpsc::Receiver<Input>, now: Timestamp) -> Flow {
        let (mut taken, mut addresses) = (0, 0);
        let mut next = Some(first);
        while let Some(input) = next {
            if matches!(input, Input::Stop) {
                return Flow::Stop;
            }
            (taken, addresses) = (taken + 1, addresses + input.addresses());
            self.take(input, now);
            let is_enough = taken >= MOST_AT_ONCE || addresses >= MOST_ADDRESSES_AT_ONCE;
            next = if is_enough { None } else { inputs.try_recv().ok() };
        }
        Flow::Go
    }

    /// Takes in what happened, without following it up.
    pub fn take(&mut self, input: Input, now: Timestamp) {
        self.came = match (&input, self.came) {
            (Input::PeerSaid(_, ToEnforcer::Observed { .. }), Came::Nothing | Came::Answers) => Came::Answers,
            _ => Came::Anything,
        };
        match input {
            Input::Cluster(events) => {
                for event in events {
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
            Input::PeerSaid(peer, message) => {
                let compiler = &mut self.compiler;
                let metrics = &self.metrics;
                self.peers.said(peer, message, |observation| {
                    metrics.observed();
                    compiler.handle(Event::Observed(observation), now)
                });
            }
            Input::PeerLeft(peer) => self.peers.leave(peer),
            Input::LinksChanged => self.links_changed = true,
            Input::ChangedByOthers(by) => self.alert.raise(by, now),
            Input::SetResync(every) => self.set_resync(every, now),
            Input::Ask(question) => self.questions.push(question),
            Input::Meet(meetings) if self.hands.backend().is_none() => self.meetings.push(meetings),
            Input::Meet(meetings) => self.meet(meetings),
            Input::Stop => {}
        }
    }

    /// Interests first, then what is realized.
    fn tell(&mut self) {
        let Phase::Running(compiler) = &mut self.compiler else {
            return;
        };
        let changed = compiler.poll_interests();
        self.peers.tell_interests(&changed, || compiler.interests());
        if let Some(dns) = compiler.poll_cluster_dns() {
            self.cluster_dns = Some(Arc::new(dns));
        }
        // Before pods: nothing is caught on its way to a Service.
        if let Some(dns) = &self.cluster_dns {
            self.peers.tell_cluster_dns(dns);
        }
        if let Some(pods) = &self.pods {
            self.peers.tell_pods(pods);
        }
        self.tell_realized();
    }

    fn tell_realized(&mut self) {
        let Phase::Running(compiler) = &self.compiler else {
            return;
        };
        let revision = compiler.revision();
        let (owners, standing) = (&self.owners, &self.standing);
        let was_refused = self.hands.was_refused();
        let is_failed = |client: IpAddr| {
            was_refused
                || standing.broken.is_some()
                || owners
                    .get(&client.to_canonical())
                    .and_then(|pod| standing.pending.get(pod))
                    .is_some_and(|pending| matches!(pending, Pending::Refused(_)))
        };
        self.peers.tell_realized(revision, is_failed);
        self.metrics
            .peers(self.peers.count(), self.peers.dropped(), self.peers.held());
    }

    fn begin_when_ready(&mut self, now: Timestamp) {
        if matches!(&self.compiler, Phase::Starting { unread: Some(_), .. }) {
            if self.retry.deadline().is_some_and(|at| at > now) {
                return;
            }
            self.read_kernel(now);
        }
        if !self.is_ready(now) {
            return;
        }
        self.restore(now);
        if let Phase::Starting { compiler, .. } = std::mem::replace(&mut self.compiler, Phase::Moving) {
            self.compiler = Phase::Running(compiler.in_sync());
            self.begin_keeping(now);
            self.set_resync(self.resync, now);
            tracing::info!("the source is in sync; the kernel is made to agree");
        }
    }

    /// All pods are known now, and no set is made yet: each is made with what was told before.
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

    /// Whether the first batch can be made: everything is known, or what is in force can wait no longer.
    fn is_ready(&mut self, now: Timestamp) -> bool {
        let is_in_force = self.hands.backend().is_some_and(Backend::is_in_force);
        let may_wait = is_in_force && !self.peers.have_told_again();
        // What the kernel holds is never older than what was kept, so that counts where the kernel holds nothing.
        let is_known = self.source.known_at.is_some() && !is_in_force;
        match &mut self.compiler {
            Phase::Starting {
                is_complete,
                unread: None,
                patience,
                ..
            } if *is_complete || is_known => {
                !may_wait || *patience.get_or_insert(now.after(TOLD_AGAIN_WITHIN)) <= now
            }
            Phase::Starting { .. } | Phase::Running(_) | Phase::Moving => false,
        }
    }

    fn read_kernel(&mut self, now: Timestamp) {
        let Phase::Starting {
            unread, is_closed, ..
        } = &mut self.compiler
        else {
            return;
        };
        let Some(backend) = self.hands.backend_mut() else {
            return;
        };
        match backend.adopt(now).and_then(|()| backend.close_unknown()) {
            Ok(closed) => (*unread, *is_closed) = (None, closed),
            Err(error) => *unread = Some(error.to_string()),
        }
        if let Some(reason) = unread {
            tracing::error!(reason, "the kernel cannot be read; it is left as it is");
        }
        self.retry = self.retry.after(unread.is_some(), now);
    }

    fn set_resync(&mut self, every: Duration, now: Timestamp) {
        self.resync = every;
        self.next_resync = (!every.is_zero()).then(|| now.after(every));
        if self.next_resync.is_none() || self.alert.deadline().is_none() {
            self.alert.watch(!every.is_zero(), now);
        }
    }

    /// When to go on, if nothing happens before. What needs the backend goes on when that is back.
    fn deadline(&self) -> Option<Timestamp> {
        let compiler = match &self.compiler {
            Phase::Running(compiler) => compiler.poll_timeout(),
            Phase::Starting { patience, .. } => *patience,
            Phase::Moving => None,
        };
        let alert = match &self.compiler {
            Phase::Running(_) => self.alert.deadline(),
            Phase::Starting { .. } | Phase::Moving => None,
        };
        let keeping = self.keeper.as_ref().and_then(Keeper::deadline);
        let of_backend = [self.retry.deadline(), self.next_resync, alert];
        let of_backend = of_backend.into_iter().filter(|_| self.hands.backend().is_some());
        of_backend.chain([compiler, keeping]).flatten().min()
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Flow {
    Go,
    Stop,
}

impl Phase {
    fn record_stats(&self) -> RecordStats {
        match self {
            Self::Starting { compiler, .. } => compiler.record_stats(),
            Self::Running(compiler) => compiler.record_stats(),
            Self::Moving => RecordStats::default(),
        }
    }

    fn handle(&mut self, event: Event, now: Timestamp) -> egret_shared::revision::Revision {
        match self {
            Self::Starting { compiler, .. } => compiler.handle(event, now),
            Self::Running(compiler) => compiler.handle(event, now),
            Self::Moving => {
                unreachable!("the engine is moved between phases by one function, which hands in no event")
            }
        }
    }
}

/// By the order of addresses, so that what is the same reads the same.
fn pods_of_node(owners: &BTreeMap<IpAddr, PodKey>, spares: &BTreeSet<Arc<str>>) -> NodePods {
    let is_spared = |pod: &PodKey| !is_off(Switch::SpareNamespaces) && spares.contains(pod.namespace());
    let (spared, caught): (Vec<_>, Vec<_>) = owners.iter().partition(|(_, pod)| is_spared(pod));
    let addresses = |pods: Vec<(&IpAddr, &PodKey)>| pods.into_iter().map(|(address, _)| *address).collect();
    NodePods {
        caught: addresses(caught),
        spared: addresses(spared),
    }
}

/// Says whether addresses may have come, gone or changed hands.
fn note_owners(
    owners: &mut BTreeMap<IpAddr, PodKey>,
    local: &mut BTreeMap<PodKey, Vec<IpAddr>>,
    batch: &Batch,
) -> bool {
    let gone = batch
        .pods_removed
        .iter()
        .chain(batch.rules_replaced.iter().map(|rules| &rules.pod));
    for pod in gone {
        for address in local.remove(pod).unwrap_or_default() {
            if owners.get(&address) == Some(pod) {
                owners.remove(&address);
            }
        }
    }
    for rules in &batch.rules_replaced {
        local.insert(rules.pod.clone(), rules.addresses.clone());
        owners.extend(
            rules
                .addresses
                .iter()
                .map(|address| (*address, rules.pod.clone())),
        );
    }
    !batch.pods_removed.is_empty() || !batch.rules_replaced.is_empty()
}
