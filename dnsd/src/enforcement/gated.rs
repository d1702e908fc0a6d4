//! The gate as tasks use it: a held response waits here until `Gate` decides how its wait ended.

use std::borrow::Cow;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use egret_shared::link::{ClusterDns, NodePods, ToDnsd, ToEnforcer};
use egret_shared::observation::ObservedAddress;
use egret_shared::rt::allocator::trim;
use egret_shared::rt::clock;
use egret_shared::time::Timestamp;
use tokio::sync::{Notify, oneshot, watch};
use tokio::time::Instant;

use crate::enforcement::Metrics;
use crate::enforcement::client::{ClientId, ClientLookup};
use crate::enforcement::gate::{
    Gate, GateLimits, GateRecord, GateSnapshot, GateStats, Origin, Outcome, Stall, Ticket, Verdict,
};
use crate::enforcement::observation::AnswerObservation;
use crate::enforcement::records::ClientBitmap;
use crate::hash::HashMap;
use crate::kernel_answers::KernelAnswers;
use crate::limits::quota_key::QuotaKey;

/// How often expired records are removed.
const SWEEP: Duration = Duration::from_secs(10);
/// When a sweep removes so many addresses, free pages are returned to the kernel: after a flood of names malloc keeps them.
const TRIM_FROM: usize = 4096;

/// The gate, shared by the pipeline, the link and the timer task.
#[derive(Debug)]
pub struct ResponseGate {
    /// Held for a few map operations at a time, never across an await.
    state: Mutex<State>,
    timer: Notify,
    outgoing: Notify,
    /// An enforcer is connected and has realized all records.
    settled: Notify,
    client_lookup: Arc<ClientLookup>,
    /// Pods whose queries to other resolvers are intercepted, as the enforcer sent them last.
    pods: watch::Sender<Option<NodePods>>,
    /// The addresses of the cluster's DNS, as the enforcer sent them last.
    cluster_dns: watch::Sender<ClusterDns>,
    metrics: Arc<Metrics>,
    kernel_answers: Arc<KernelAnswers>,
}

#[derive(Debug)]
struct State {
    gate: Gate,
    /// Whether the link has taken messages that are not written yet.
    is_writing: bool,
    waiting: HashMap<Ticket, oneshot::Sender<Outcome>>,
}

/// Whether a response is sent now.
#[derive(Debug)]
pub enum Admission {
    /// It is.
    Now,
    /// It is, because the limits of held responses are used up.
    OverLimit,
    /// It is held.
    Held(GatedResponse),
}

/// A held response.
#[derive(Debug)]
pub struct GatedResponse {
    ended: oneshot::Receiver<Outcome>,
    since: Instant,
}

impl GatedResponse {
    /// Waits for the gate's decision.
    pub async fn end(self, metrics: &Metrics) -> Outcome {
        let outcome = self.ended.await.unwrap_or(Outcome::Stalled(Stall::Deadline));
        metrics.held_for(self.since.elapsed());
        outcome
    }
}

impl ResponseGate {
    /// A gate that holds nothing.
    #[must_use]
    pub fn new(
        limits: GateLimits,
        now: Timestamp,
        client_lookup: Arc<ClientLookup>,
        metrics: Arc<Metrics>,
    ) -> Self {
        Self {
            state: Mutex::new(State {
                gate: Gate::new(limits, now),
                is_writing: false,
                waiting: HashMap::default(),
            }),
            timer: Notify::new(),
            outgoing: Notify::new(),
            settled: Notify::new(),
            client_lookup,
            pods: watch::Sender::new(None),
            cluster_dns: watch::Sender::default(),
            metrics,
            kernel_answers: Arc::default(),
        }
    }

    /// With answers of the kernel, which end when a client's records change.
    #[must_use]
    pub fn with_kernel_answers(self, kernel_answers: Arc<KernelAnswers>) -> Self {
        Self {
            kernel_answers,
            ..self
        }
    }

    /// Pods whose queries to other resolvers are intercepted; `None` before an enforcer has sent them.
    #[must_use]
    pub fn pods(&self) -> watch::Receiver<Option<NodePods>> {
        self.pods.subscribe()
    }

    /// The addresses of the cluster's DNS; none before an enforcer has sent them.
    #[must_use]
    pub fn cluster_dns(&self) -> watch::Receiver<ClusterDns> {
        self.cluster_dns.subscribe()
    }

    /// Whether the client's bit is set at a cached answer; then it is sent now, and the caller counts the observation.
    #[must_use]
    pub fn is_marked(&self, client_id: ClientId, bitmap: &ClientBitmap) -> bool {
        self.lock().gate.is_marked(client_id, bitmap)
    }

    /// Whether the answer is settled for the client; then it is sent now, and the client's bit is set.
    pub fn settle(
        &self,
        client_id: ClientId,
        question: &str,
        addresses: impl Iterator<Item = ObservedAddress>,
        bitmap: &ClientBitmap,
    ) -> bool {
        let gate = &mut self.lock().gate;
        let is_settled = gate.is_settled(client_id, question, addresses);
        if is_settled {
            gate.mark(client_id, bitmap);
        }
        self.metrics.observations.increment(is_settled.into());
        is_settled
    }

    /// Records the observation of an answer and decides whether its response is sent now.
    pub fn admit(
        &self,
        client_id: ClientId,
        quota_key: QuotaKey,
        observation: Cow<'_, AnswerObservation>,
        origin: Origin,
        now: Timestamp,
    ) -> Admission {
        self.metrics.observations.increment(1);
        if origin == Origin::Cache && self.is_settled(client_id, &observation) {
            return Admission::Now;
        }
        let observation = observation.into_owned().for_client(client_id.address);
        self.change(|state| {
            let verdict = state
                .gate
                .answer(observation, client_id.attachment, quota_key, now);
            match verdict {
                Verdict::Release => Admission::Now,
                Verdict::OverLimit => Admission::OverLimit,
                Verdict::Hold(ticket) => {
                    let (sender, ended) = oneshot::channel();
                    state.waiting.insert(ticket, sender);
                    Admission::Held(GatedResponse {
                        ended,
                        since: Instant::now(),
                    })
                }
            }
        })
    }

    /// Whether the observation is settled, without recording it. Answers of an upstream hardly ever are.
    fn is_settled(&self, client_id: ClientId, observation: &AnswerObservation) -> bool {
        let (question, addresses) = (
            observation.question().as_str(),
            observation.addresses().iter().copied(),
        );
        self.lock().gate.is_settled(client_id, question, addresses)
    }

    /// An enforcer is connected, and has sent something.
    pub fn connected(&self) {
        self.change(|state| state.gate.connected(clock::now()));
    }

    /// The enforcer has disconnected.
    pub fn disconnected(&self) {
        self.change(|state| {
            state.gate.disconnected();
            state.is_writing = false;
        });
    }

    /// Handles a message of the enforcer.
    pub fn receive(&self, message: ToDnsd) {
        match &message {
            ToDnsd::Pods(pods) => drop(self.pods.send_replace(Some(pods.clone()))),
            ToDnsd::ClusterDns(dns) => drop(self.cluster_dns.send_replace(dns.clone())),
            ToDnsd::Hello(_) | ToDnsd::Interest(_) | ToDnsd::InterestComplete | ToDnsd::Realized { .. } => {}
        }
        self.change(|state| state.gate.receive(message, clock::now()));
    }

    /// Waits until a message for the enforcer is due.
    pub async fn has_outgoing(&self) {
        loop {
            let (due, now) = (self.lock().gate.poll_outgoing(), clock::now());
            match due {
                Some(due) if due <= now => return,
                Some(due) => {
                    tokio::select! { () = tokio::time::sleep(due.since(now)) => { } () = self.outgoing.notified() => { } }
                }
                None => self.outgoing.notified().await,
            }
        }
    }

    /// Sends all queued observations and waits until they are written: the enforcer reads them though dnsd has exited.
    pub async fn tell_rest(&self) {
        self.change(|state| state.gate.flush());
        while self.lock().has_unsent() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    /// At most `limit` messages for the enforcer; [`written`](Self::written) is to be called behind them.
    #[must_use]
    pub fn outgoing(&self, limit: usize) -> Vec<ToEnforcer> {
        let now = clock::now();
        // Records come client by client: each client is looked up once per batch.
        let mut last: Option<ClientId> = None;
        let mut identify = |address| {
            let known = last.filter(|last| last.address == address);
            *last.insert(known.unwrap_or_else(|| ClientId {
                address,
                attachment: self.client_lookup.attachment(address),
            }))
        };
        self.change(|state| {
            let mut messages = Vec::with_capacity(state.gate.queued().min(limit));
            messages.extend(std::iter::from_fn(|| state.gate.poll_transmit(now, &mut identify)).take(limit));
            state.is_writing = true;
            messages
        })
    }

    /// The messages taken by [`outgoing`](Self::outgoing) are written.
    pub fn written(&self) {
        self.lock().is_writing = false;
    }

    /// Changes the limits.
    pub fn set_limits(&self, limits: GateLimits) {
        self.change(|state| state.gate.set_limits(limits));
    }

    /// Whether any response is held.
    #[must_use]
    pub fn is_holding(&self) -> bool {
        self.lock().gate.is_holding()
    }

    /// The state in figures.
    #[must_use]
    pub fn stats(&self) -> GateStats {
        self.lock().gate.stats()
    }

    /// Whether every response is held until the first interests arrive.
    #[must_use]
    pub fn waits_for_interest(&self) -> bool {
        self.lock().gate.waits_for_interest(clock::now())
    }

    /// Emits the state for a new process, record by record: the lock is held for one client at a time.
    ///
    /// # Errors
    /// Those of `emit`.
    pub fn export(&self, mut emit: impl FnMut(GateRecord) -> io::Result<()>) -> io::Result<()> {
        let (since, is_connected, interests, clients) = {
            let gate = &self.lock().gate;
            let stats = gate.stats();
            (gate.since(), stats.is_connected, gate.interests(), gate.clients())
        };
        emit(GateRecord::Enforcer { since, is_connected })?;
        if let Some(interests) = interests {
            for interest in interests {
                emit(GateRecord::Interest(interest))?;
            }
            emit(GateRecord::InterestComplete)?;
        }
        for client in clients {
            let told = self.lock().gate.records_of(client, clock::now());
            for record in told {
                emit(GateRecord::Observation(record))?;
            }
        }
        Ok(())
    }

    /// Takes over another process' state.
    pub fn restore(&self, snapshot: GateSnapshot) {
        self.change(|state| state.gate.restore(snapshot, clock::now()));
    }

    /// Waits until an enforcer is connected and has realized all records.
    pub async fn caught_up(&self) {
        while !self.lock().gate.is_caught_up() {
            self.settled.notified().await;
        }
    }

    /// Ends waits by their deadlines, until the runtime ends.
    pub async fn keep_time(self: Arc<Self>) {
        let mut sweep = clock::now().after(SWEEP);
        loop {
            let now = clock::now();
            if sweep <= now {
                let forgotten = self.change(|state| state.gate.sweep(now));
                if forgotten >= TRIM_FROM {
                    trim();
                }
                sweep = now.after(SWEEP);
            }
            let next = self.lock().gate.poll_timeout().unwrap_or(sweep).min(sweep);
            tokio::select! {
                () = tokio::time::sleep(next.since(now)) => {
                    self.change(|state| state.gate.handle_timeout(clock::now()));
                }
                () = self.timer.notified() => {}
            }
        }
    }

    /// Changes the state; wakes the responses whose wait ended, the timer if its deadline changed, and the link if a message
    /// is due sooner.
    fn change<T>(&self, act: impl FnOnce(&mut State) -> T) -> T {
        let mut state = self.lock();
        let (before, outgoing_before) = (state.gate.poll_timeout(), state.gate.poll_outgoing());
        let voids_before = state.gate.voids();
        let result = act(&mut state);
        if state.gate.voids() != voids_before {
            self.kernel_answers.void();
        }
        while let Some((ticket, outcome)) = state.gate.poll_ended() {
            let waiting = state.waiting.remove(&ticket);
            if waiting.is_some_and(|sender| sender.send(outcome).is_err()) {
                tracing::trace!(?outcome, "the client of a held response has gone");
            }
        }
        if state.gate.poll_timeout() != before {
            self.timer.notify_one();
        }
        if state.gate.is_caught_up() {
            self.settled.notify_one();
        }
        let outgoing = state.gate.poll_outgoing();
        if outgoing.is_some() && outgoing != outgoing_before {
            self.outgoing.notify_one();
        }
        result
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn has_unsent(&self) -> bool {
        self.is_writing || self.gate.poll_outgoing().is_some()
    }
}

/// Why the wait of a response was given up; `None` where the response is sent as it is.
#[must_use]
pub const fn stalled(outcome: Outcome) -> Option<Stall> {
    match outcome {
        Outcome::Realized | Outcome::NotInteresting => None,
        Outcome::Stalled(reason) => Some(reason),
    }
}
