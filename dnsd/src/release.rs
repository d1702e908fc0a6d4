//! The hold at work: answers wait here as values that cannot be sent, until `Hold` says how their wait ended.

use std::borrow::Cow;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use egret_kernel::allocator::trim;
use egret_shared::link::{ClusterDns, NodePods, ToDnsd, ToEnforcer};
use egret_shared::observation::ObservedAddress;
use egret_shared::rt::clock;
use egret_shared::switch::{Switch, is_off};
use egret_shared::time::Timestamp;
use tokio::sync::{Notify, oneshot, watch};
use tokio::time::Instant;

use crate::client::{Asker, Attribution, Payer};
use crate::handover::memory::Piece;
use crate::hold::{Figures, Hold, HoldLimits, Inherited, Origin, Outcome, Stall, Ticket, Verdict};
use crate::ledger::Marks;
use crate::metrics::Metrics;
use crate::observe::Told;
use crate::table::HashMap;

/// How often the dead are forgotten.
const SWEEP: Duration = Duration::from_secs(10);
/// After so many at once the pages between what is left are given back: under a flood of names nobody else would.
const MANY: usize = 4096;

/// The answers that wait, shared by those who bring them, the link and the timer.
#[derive(Debug)]
pub struct Holder {
    /// Held for a few map operations at a time, never across an await.
    state: Mutex<State>,
    timer: Notify,
    outgoing: Notify,
    /// An enforcer is there and has realized all that was told.
    settled: Notify,
    attribution: Arc<Attribution>,
    /// Whose questions to other resolvers are caught, as the enforcer told last.
    pods: watch::Sender<Option<NodePods>>,
    /// Where the cluster's own DNS is, as the enforcer told last.
    cluster_dns: watch::Sender<ClusterDns>,
    metrics: Arc<Metrics>,
}

#[derive(Debug)]
struct State {
    hold: Hold,
    /// Whether the link has taken something that is not written yet.
    is_writing: bool,
    waiting: HashMap<Ticket, oneshot::Sender<Outcome>>,
}

/// Whether an answer may go now.
#[derive(Debug)]
pub enum Admission {
    /// It may.
    Now,
    /// It may, since there is no room to hold it.
    OverLimit,
    /// It waits.
    Held(Held),
}

/// The wait of an answer.
#[derive(Debug)]
pub struct Held {
    ended: oneshot::Receiver<Outcome>,
    since: Instant,
}

impl Held {
    /// Waits until it is known what becomes of the answer.
    pub async fn end(self, metrics: &Metrics) -> Outcome {
        let outcome = self.ended.await.unwrap_or(Outcome::Stalled(Stall::Deadline));
        metrics.held_for(self.since.elapsed());
        outcome
    }
}

impl Holder {
    /// Holds nothing yet.
    #[must_use]
    pub fn new(
        limits: HoldLimits,
        now: Timestamp,
        attribution: Arc<Attribution>,
        metrics: Arc<Metrics>,
    ) -> Self {
        Self {
            state: Mutex::new(State {
                hold: Hold::new(limits, now),
                is_writing: false,
                waiting: HashMap::default(),
            }),
            timer: Notify::new(),
            outgoing: Notify::new(),
            settled: Notify::new(),
            attribution,
            pods: watch::Sender::new(None),
            cluster_dns: watch::Sender::default(),
            metrics,
        }
    }

    /// Whose questions to other resolvers are caught; nothing while no enforcer has told.
    #[must_use]
    pub fn pods(&self) -> watch::Receiver<Option<NodePods>> {
        self.pods.subscribe()
    }

    /// Where the cluster's own DNS is; nowhere while no enforcer has told.
    #[must_use]
    pub fn cluster_dns(&self) -> watch::Receiver<ClusterDns> {
        self.cluster_dns.subscribe()
    }

    /// Whether an answer that is about to go is marked as one that tells its client nothing new; then it may, and who asks
    /// here counts it.
    #[must_use]
    pub fn is_marked(&self, asker: Asker, marks: &Marks) -> bool {
        self.lock().hold.is_marked(asker, marks)
    }

    /// Whether it tells its client nothing new; then it may, was admitted, and is marked.
    pub fn has_told(
        &self,
        asker: Asker,
        question: &str,
        addresses: impl Iterator<Item = ObservedAddress>,
        marks: &Marks,
    ) -> bool {
        let hold = &mut self.lock().hold;
        let is_settled = hold.is_settled(asker, question, addresses);
        if is_settled {
            hold.mark(asker, marks);
        }
        self.metrics.observations.increment(is_settled.into());
        is_settled
    }

    /// An answer is about to go to its client.
    pub fn admit(
        &self,
        asker: Asker,
        payer: Payer,
        told: Cow<'_, Told>,
        origin: Origin,
        now: Timestamp,
    ) -> Admission {
        self.metrics.observations.increment(1);
        if origin == Origin::Cache && self.is_settled(asker, &told) {
            return Admission::Now;
        }
        let observation = told.into_owned().to(asker.address);
        self.change(|state| {
            let verdict = state
                .hold
                .answer(observation, asker.attachment, payer, origin, now);
            match verdict {
                Verdict::Release => Admission::Now,
                Verdict::OverLimit => Admission::OverLimit,
                Verdict::Hold(ticket) => {
                    let (sender, ended) = oneshot::channel();
                    state.waiting.insert(ticket, sender);
                    Admission::Held(Held {
                        ended,
                        since: Instant::now(),
                    })
                }
            }
        })
    }

    /// Whether it tells nothing new, by a look alone. What an upstream says just now nearly always does.
    fn is_settled(&self, asker: Asker, told: &Told) -> bool {
        let (question, addresses) = (told.question().as_str(), told.addresses().iter().copied());
        self.lock().hold.is_settled(asker, question, addresses)
    }

    /// The link is up.
    pub fn connected(&self) {
        self.change(|state| state.hold.connected(clock::now()));
    }

    /// The link is down.
    pub fn disconnected(&self) {
        self.change(|state| {
            state.hold.disconnected();
            state.is_writing = false;
        });
    }

    /// The enforcer says something.
    pub fn receive(&self, message: ToDnsd) {
        match &message {
            ToDnsd::Pods(pods) => drop(self.pods.send_replace(Some(pods.clone()))),
            ToDnsd::ClusterDns(dns) => drop(self.cluster_dns.send_replace(dns.clone())),
            ToDnsd::Hello(_) | ToDnsd::Interest(_) | ToDnsd::InterestComplete | ToDnsd::Realized { .. } => {}
        }
        self.change(|state| state.hold.receive(message, clock::now()));
    }

    /// Waits until something is to go to the enforcer.
    pub async fn has_outgoing(&self) {
        loop {
            let (due, now) = (self.lock().hold.poll_outgoing(), clock::now());
            match due {
                Some(due) if due <= now => return,
                Some(due) => tokio::select! {
                    () = tokio::time::sleep(due.since(now)) => {}
                    () = self.outgoing.notified() => {}
                },
                None => self.outgoing.notified().await,
            }
        }
    }

    /// Has all that is to be told go at once, and waits until it is written: then the enforcer can read it, though dnsd is gone.
    pub async fn tell_rest(&self) {
        if is_off(Switch::TellRest) {
            return;
        }
        self.change(|state| state.hold.hurry());
        while self.lock().is_telling() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    /// At most `limit` messages for the enforcer; [`written`](Self::written) is to be called behind them.
    #[must_use]
    pub fn outgoing(&self, limit: usize) -> Vec<ToEnforcer> {
        let now = clock::now();
        // Names come client by client, and each client is looked up once for all of them that go at once.
        let mut last: Option<Asker> = None;
        let mut who_has = |address| {
            let known = last.filter(|last| last.address == address);
            *last.insert(known.unwrap_or_else(|| Asker {
                address,
                attachment: self.attribution.attachment(address),
            }))
        };
        self.change(|state| {
            let mut messages = Vec::with_capacity(state.hold.queued().min(limit));
            messages.extend(std::iter::from_fn(|| state.hold.poll_transmit(now, &mut who_has)).take(limit));
            state.is_writing = true;
            messages
        })
    }

    /// What was taken for the enforcer is written.
    pub fn written(&self) {
        self.lock().is_writing = false;
    }

    /// Changes the limits for what comes.
    pub fn set_limits(&self, limits: HoldLimits) {
        self.change(|state| state.hold.set_limits(limits));
    }

    /// Whether any answer waits.
    #[must_use]
    pub fn is_holding(&self) -> bool {
        self.lock().hold.is_holding()
    }

    /// The state in figures.
    #[must_use]
    pub fn figures(&self) -> Figures {
        self.lock().hold.figures()
    }

    /// Whether every answer waits for the first interest.
    #[must_use]
    pub fn waits_for_interest(&self) -> bool {
        self.lock().hold.waits_for_interest(clock::now())
    }

    /// What it knows, to be told in pieces: this much at once, so that who answers does not wait for the whole.
    ///
    /// # Errors
    /// When nobody hears it any more.
    pub fn tell(&self, hear: &mut dyn FnMut(&[Piece]) -> io::Result<()>) -> io::Result<()> {
        let (since, is_connected, interests, clients) = {
            let hold = &self.lock().hold;
            let figures = hold.figures();
            (
                hold.since(),
                figures.is_connected,
                hold.interests(),
                hold.clients(),
            )
        };
        hear(&[Piece::Enforcer { since, is_connected }])?;
        if let Some(interests) = interests {
            for interest in interests {
                hear(&[Piece::Interest(interest)])?;
            }
            hear(&[Piece::InterestComplete])?;
        }
        for client in clients {
            let told = self.lock().hold.told_to(client, clock::now());
            for told in told {
                hear(&[Piece::Told(told)])?;
            }
        }
        Ok(())
    }

    /// Begins with what another one knew.
    pub fn inherit(&self, inherited: Inherited) {
        self.change(|state| state.hold.inherit(inherited, clock::now()));
    }

    /// Waits until an enforcer is there and has realized all that was told.
    pub async fn caught_up(&self) {
        while !self.lock().hold.is_caught_up() {
            self.settled.notified().await;
        }
    }

    /// Ends waits by their deadlines, until the runtime ends.
    pub async fn keep_time(self: Arc<Self>) {
        let mut sweep = clock::now().after(SWEEP);
        loop {
            let now = clock::now();
            if sweep <= now {
                let forgotten = self.change(|state| state.hold.sweep(now));
                if forgotten >= MANY {
                    trim();
                }
                sweep = now.after(SWEEP);
            }
            let next = self.lock().hold.poll_timeout().unwrap_or(sweep).min(sweep);
            tokio::select! {
                () = tokio::time::sleep(next.since(now)) => {
                    self.change(|state| state.hold.handle_timeout(clock::now()));
                }
                () = self.timer.notified() => {}
            }
        }
    }

    /// Does something to the state; wakes those whose wait it ended, the timer if its next moment changed, and the
    /// link if something is to be said sooner.
    fn change<T>(&self, act: impl FnOnce(&mut State) -> T) -> T {
        let mut state = self.lock();
        let (before, outgoing_before) = (state.hold.poll_timeout(), state.hold.poll_outgoing());
        let result = act(&mut state);
        while let Some((ticket, outcome)) = state.hold.poll_ended() {
            let waiting = state.waiting.remove(&ticket);
            if waiting.is_some_and(|sender| sender.send(outcome).is_err()) {
                tracing::trace!(?outcome, "the client of a held answer has gone");
            }
        }
        if state.hold.poll_timeout() != before {
            self.timer.notify_one();
        }
        if state.hold.is_caught_up() {
            self.settled.notify_one();
        }
        let outgoing = state.hold.poll_outgoing();
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
    fn is_telling(&self) -> bool {
        self.is_writing || self.hold.poll_outgoing().is_some()
    }
}

/// What becomes of an answer whose wait ended so; nothing where it goes out as it is.
#[must_use]
pub const fn stalled(outcome: Outcome) -> Option<Stall> {
    match outcome {
        Outcome::Realized | Outcome::NotInteresting => None,
        Outcome::Stalled(reason) => Some(reason),
    }
}
