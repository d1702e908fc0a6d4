//! A Kubernetes API server, watched: one watch for each kind that policy depends on.
//!
//! ```text
//!  discovery ──▶ reflector (each kind) ──▶ store ──▶ engine
//! ```
//!
//! What is known stays in force while the API server is away. A kind whose CustomResourceDefinition comes is watched from
//! then on; when the definition goes, so do its objects.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use egret_policies::compiler::Event;
use egret_policies::model::cluster::Entity;
use egret_shared::rt::{clock, task};
use egret_shared::time::Timestamp;
use kube::Client;
use kube::api::ApiResource;
use tokio::sync::{Notify, mpsc, watch};
use tokio_util::task::AbortOnDropHandle;

use super::deny_all;
use crate::engine::{Input, SourceState};
use crate::state::{ObjectWriter, StoredObjects, date_of};

mod address_report;
mod client;
mod contact;
mod resources;
mod discovery;
mod object;
mod changes;
mod reflector;
mod store;
mod counts;
#[cfg(test)]
mod agreement;

pub use changes::{ObjectChange, ObjectId, ObjectState};
pub use client::{ConfigError, reason};

use address_report::{Addresses, Reporter};
use contact::Contact;
use discovery::{Discovery, Served};
use object::ObjectName;
use reflector::{Change, Reflector, ReflectorEvent};
use resources::{KINDS, NODE_ADDRESS_REPORTS, RESOURCE_TYPES};
use store::Store;

/// Changes that wait for the store; beyond, the watches wait.
const MOST_WAITING: usize = 1024;
/// Changes that are taken in before the engine is told: a burst is one pass of the engine.
const MOST_AT_ONCE: usize = 512;
/// How long at start an API server that cannot be read is waited for, before what it said in an earlier life counts.
const PATIENCE: Duration = Duration::from_secs(1);
/// One attempt fails whenever an API server is replaced; the second tells that it is gone.
const ATTEMPTS: u32 = 2;

/// A cluster, by its API server.
#[derive(Debug)]
pub struct Cluster {
    client: ClientOfCluster,
    contact: Arc<Contact>,
    kinds: [Kind; KINDS],
    store: Store,
    /// Why it is not known what is served; none once it is.
    undiscovered: Option<String>,
    is_settled: bool,
    may_stream: bool,
    state: SourceState,
    /// What the API server said in an earlier life, until it counts or the server speaks.
    known: Option<StoredObjects>,
    /// What counts of an earlier life, as long as not everything was listed.
    recalled: Option<Recalled>,
    writer: Option<ObjectWriter>,
    silent_since: Option<Timestamp>,
    report: Option<Report>,
    /// Who is told of each object that changes.
    observer: Option<mpsc::Sender<Vec<ObjectChange>>>,
    /// Notified when the engine was told of a change.
    told: Arc<Notify>,
}

/// The report of this node's addresses, and what its writer learns of the watches.
#[derive(Debug)]
struct Report {
    node: Arc<str>,
    served: watch::Sender<Option<ApiResource>>,
    is_gone: Arc<Notify>,
    /// Ends with this.
    _writer: AbortOnDropHandle<()>,
}

struct ClientOfCluster(Client);

impl std::fmt::Debug for ClientOfCluster {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Client")
    }
}

/// What the API server said in an earlier life, and that it counts.
#[derive(Debug)]
struct Recalled {
    at: String,
    /// It is from before a boot: everything is closed to pods.
    is_closed: bool,
}

/// A kind and its watch.
#[derive(Debug, Default)]
struct Kind {
    resource: Option<ApiResource>,
    /// What other watches of the kind told does not count: they may have been of another version.
    watch_number: u64,
    /// Ends with this.
    _watch: Option<AbortOnDropHandle<()>>,
    is_listed: bool,
    /// What was listed, while it is being listed.
    listing: Option<BTreeSet<ObjectName>>,
    failure: Option<Failure>,
}

/// A watch that broke.
#[derive(Debug)]
struct Failure {
    reason: String,
    /// Of [`Contact`]: it is over when there is another number.
    answered: u64,
    attempts: u32,
}

impl Cluster {
    /// The API server of `kubeconfig`, else of $KUBECONFIG, else of the pod that this runs in. It is not asked yet.
    ///
    /// # Errors
    /// When none is known, or what is written of it cannot be used.
    pub async fn open(kubeconfig: Option<PathBuf>) -> Result<Self, ConfigError> {
        let config = client::config(kubeconfig).await?;
        tracing::info!(url = %config.cluster_url, "the source is an API server");
        let contact = Arc::new(Contact::default());
        let client = client::client(config, &contact)?;
        counts::register();
        Ok(Self::new(client, contact))
    }

    fn new(client: Client, contact: Arc<Contact>) -> Self {
        Self {
            client: ClientOfCluster(client),
            contact,
            kinds: Default::default(),
            store: Store::new(false),
            undiscovered: Some("it is not known which kinds are served".to_owned()),
            is_settled: false,
            may_stream: false,
            state: SourceState::default(),
            known: None,
            recalled: None,
            writer: None,
            silent_since: None,
            report: None,
            observer: None,
            told: Arc::default(),
        }
    }

    /// This node's addresses are reported to the API server, and whenever they change.
    #[must_use]
    pub fn with_report(self, node: Arc<str>, addresses: watch::Receiver<Addresses>) -> Self {
        let (served, served_now) = watch::channel(None);
        let is_gone = Arc::new(Notify::new());
        let reporter = Reporter {
            client: self.client.0.clone(),
            contact: Arc::clone(&self.contact),
            node: Arc::clone(&node),
            addresses,
            served: served_now,
            is_gone: Arc::clone(&is_gone),
        };
        let report = Report {
            node,
            served,
            is_gone,
            _writer: AbortOnDropHandle::new(task::spawn("report-addresses", reporter.run())),
        };
        Self {
            report: Some(report),
            ..self
        }
    }

    /// What the API server said in an earlier life counts until it can be read, and what it says is kept for a later one.
    #[must_use]
    pub fn with_store(self, known: Option<StoredObjects>, writer: Option<ObjectWriter>) -> Self {
        Self {
            known,
            store: Store::new(writer.is_some()),
            writer,
            ..self
        }
    }

    /// Tells `observer` of each object that changes, before the engine.
    #[must_use]
    pub fn observed_by(mut self, observer: mpsc::Sender<Vec<ObjectChange>>) -> Self {
        self.store.changes = Some(Vec::new());
        self.observer = Some(observer);
        self
    }

    /// The client of the API server.
    #[must_use]
    pub fn client(&self) -> Client {
        self.client.0.clone()
    }

    /// Notified when the engine was told of a change.
    #[must_use]
    pub fn told(&self) -> Arc<Notify> {
        Arc::clone(&self.told)
    }

    /// Tells the engine what is there and what changes, until the engine ends.
    pub async fn watch(mut self, engine: mpsc::Sender<Input>) {
        let nudge = Arc::new(Notify::new());
        let (served, mut served_now) = mpsc::channel(1);
        let discovery = Discovery {
            client: self.client.0.clone(),
            nudge: Arc::clone(&nudge),
        };
        let _discovery = AbortOnDropHandle::new(task::spawn("discovery", discovery.run(served)));
        let (changes, mut changed) = mpsc::channel(MOST_WAITING);
        let contact = Arc::clone(&self.contact);
        loop {
            let pause = self.deadline().map_or(Duration::MAX, |at| at.since(clock::now()));
            tokio::select! {
                Some(served) = served_now.recv() => self.follow(served, &changes),
                Some(told) = changed.recv() => {
                    self.take(told, &nudge);
                    for _ in 1..MOST_AT_ONCE {
                        let Ok(told) = changed.try_recv() else { break };
                        self.take(told, &nudge);
                    }
                }
                () = contact.changed.notified() => {}
                () = tokio::time::sleep(pause.min(Duration::from_secs(3600))) => {}
                () = engine.closed() => return,
            }
            if self.tell(&engine, clock::now()).await.is_err() {
                return;
            }
        }
    }

    /// Watches what is served now; forgets what is gone.
    fn follow(&mut self, served: Result<Served, String>, changes: &mpsc::Sender<ReflectorEvent>) {
        let served = match served {
            Ok(served) => served,
            Err(reason) => {
                // What is watched goes on being watched, and tells by itself when that fails.
                self.undiscovered = self.undiscovered.is_some().then_some(reason);
                return;
            }
        };
        self.undiscovered = None;
        self.is_settled = served.is_settled;
        self.may_stream = served.may_stream;
        for (kind, (resource, is_gone)) in served.resources.into_iter().zip(served.is_gone).enumerate() {
            let is_watched = self.kinds[kind].resource.is_some();
            if served.is_unknown[kind] && is_watched {
                continue;
            }
            if resource.is_some() && resource != self.kinds[kind].resource {
                self.start(kind, resource, changes);
            } else if is_gone && is_watched {
                tracing::info!(
                    kind = RESOURCE_TYPES[kind].kind,
                    "no definition declares the kind any more"
                );
                self.kinds[kind] = Kind {
                    watch_number: self.kinds[kind].watch_number,
                    ..Kind::default()
                };
                self.store.retain(kind, &BTreeSet::new());
            }
        }
        if let Some(report) = &self.report {
            let served = self.kinds[NODE_ADDRESS_REPORTS].resource.clone();
            report.served.send_if_modified(|before| {
                let is_other = *before != served;
                *before = served;
                is_other
            });
        }
    }

    /// Has the report of this node written anew where the API server has it no more.
    fn restore_report(&self) {
        if let Some(report) = &self.report
            && !self.store.has(NODE_ADDRESS_REPORTS, &report.node)
        {
            report.is_gone.notify_one();
        }
    }

    fn start(&mut self, kind: usize, resource: Option<ApiResource>, changes: &mpsc::Sender<ReflectorEvent>) {
        let Some(served) = &resource else { return };
        tracing::info!(kind = served.kind, version = served.api_version, "watching");
        let reflector = Reflector {
            client: self.client.0.clone(),
            contact: Arc::clone(&self.contact),
            kind,
            resource: served.clone(),
            may_stream: self.may_stream,
            watch: self.kinds[kind].watch_number + 1,
            expired_at: None,
        };
        let watch_number = reflector.watch;
        let watch = AbortOnDropHandle::new(task::spawn("watch-kind", reflector.run(changes.clone())));
        self.kinds[kind] = Kind {
            resource,
            watch_number,
            _watch: Some(watch),
            is_listed: self.kinds[kind].is_listed,
            ..Kind::default()
        };
    }

    fn take(&mut self, told: ReflectorEvent, nudge: &Notify) {
        let ReflectorEvent { kind, watch, change } = told;
        let of_kind = &mut self.kinds[kind];
        let current = of_kind.resource.clone().filter(|_| of_kind.watch_number == watch);
        let Some(resource) = current else { return };
        match change {
            Change::Listing => of_kind.listing = Some(BTreeSet::new()),
            Change::Applied(name, json) => {
                if let Some(listing) = &mut of_kind.listing {
                    listing.insert(name.clone());
                }
                self.store.apply(kind, name, &resource, json);
            }
            Change::Deleted(name) => {
                self.store.delete(kind, name);
                if kind == NODE_ADDRESS_REPORTS {
                    self.restore_report();
                }
            }
            Change::Listed => {
                if let Some(listed) = of_kind.listing.take() {
                    of_kind.is_listed = true;
                    self.store.retain(kind, &listed);
                    if kind == NODE_ADDRESS_REPORTS {
                        self.restore_report();
                    }
                }
            }
            Change::Expired => counts::expired(kind),
            Change::Broke {
                reason,
                answered,
                is_unknown,
            } => {
                counts::failed(kind);
                let before = of_kind
                    .failure
                    .take()
                    .filter(|before| before.answered == answered);
                let attempts = before.map_or(0, |before| before.attempts) + 1;
                tracing::debug!(kind = resource.kind, reason, attempts, "a watch broke");
                of_kind.failure = Some(Failure {
                    reason,
                    answered,
                    attempts,
                });
                if is_unknown {
                    nudge.notify_one();
                }
            }
        }
    }

    /// Sends what changed, and how the source stands where that is other than before.
    async fn tell(
        &mut self,
        engine: &mpsc::Sender<Input>,
        now: Timestamp,
    ) -> Result<(), mpsc::error::SendError<Input>> {
        self.fall_back(now);
        let state = self.stand();
        if let (Some(observer), Some(changes)) = (&self.observer, &mut self.store.changes)
            && !changes.is_empty()
        {
            // It ends with the engine.
            drop(observer.send(std::mem::take(changes)).await);
        }
        let mut events = std::mem::take(&mut self.store.events);
        if state.is_complete && self.state.is_closed {
            events.extend(deny_all::deny_all_policy().map(|(key, _)| Event::Delete(key)));
        }
        if !events.is_empty() {
            tracing::debug!(events = events.len(), "the source changed");
            for kind in 0..KINDS {
                counts::objects(kind, self.store.count(kind));
            }
            engine.send(Input::Cluster(events)).await?;
        }
        self.keep(state.is_complete);
        if state != self.state {
            self.log(&state);
            self.state = state.clone();
            engine.send(Input::Source(state)).await?;
            self.told.notify_one();
        }
        Ok(())
    }

    fn stand(&self) -> SourceState {
        let watched = || {
            self.kinds
                .iter()
                .enumerate()
                .filter(|(_, kind)| kind.resource.is_some())
        };
        let is_complete = self.state.is_complete
            || self.undiscovered.is_none() && self.is_settled && watched().all(|(_, kind)| kind.is_listed);
        let failure = watched().find_map(|(index, kind)| {
            let failure = kind.failure.as_ref()?;
            let is_over = failure.answered != self.contact.answered(index);
            let is_gone = failure.attempts >= ATTEMPTS || !is_complete;
            (is_gone && !is_over).then(|| format!("{}: {}", RESOURCE_TYPES[index].plural, failure.reason))
        });
        let failure = self.undiscovered.clone().or(failure);
        let (outdated, unreadable) = if is_complete {
            (failure, None)
        } else {
            (None, failure)
        };
        let recalled = self.recalled.as_ref().filter(|_| !is_complete);
        let (rejected, rejected_number) = self.store.rejected();
        SourceState {
            is_complete,
            unreadable,
            outdated,
            is_closed: recalled.is_some_and(|recalled| recalled.is_closed),
            known_at: recalled.map(|recalled| recalled.at.clone()),
            files: 0,
            bad: Vec::new(),
            diagnostics: self.store.diagnostics.clone(),
            versions: self.store.versions(),
            rejected,
            rejected_number,
        }
    }

    fn log(&self, state: &SourceState) {
        let why = |state: &SourceState| state.unreadable.clone().or_else(|| state.outdated.clone());
        match (why(&self.state), why(state)) {
            // Once for an outage: the next watch that breaks gives the same reason in other words.
            (None, Some(reason)) => {
                tracing::error!(
                    reason,
                    "the API server cannot be read; what it said before stays in force"
                );
            }
            (Some(_), None) => tracing::info!("the API server is read again"),
            _ => {}
        }
        if state.is_complete && !self.state.is_complete {
            let objects: usize = (0..KINDS).map(|kind| self.store.count(kind)).sum();
            tracing::info!(objects, "all kinds that are served were listed");
        }
    }

    /// What was known in an earlier life comes to count, once, when the API server was waited for.
    fn fall_back(&mut self, now: Timestamp) {
        if self.state.is_complete {
            self.known = None;
            return;
        }
        let since = *self.silent_since.get_or_insert(now);
        let is_readable = self.state.unreadable.is_none();
        if is_readable || now.since(since) < PATIENCE {
            return;
        }
        let known = self.known.take().and_then(|known| known.read());
        let Some(known) = known else { return };
        self.store.recall(&known.texts);
        if known.is_of_other_boot {
            let closing = deny_all::deny_all_policy().map(|(_, entity): (_, Entity)| Event::Apply(entity));
            self.store.events.extend(closing);
        }
        let at = date_of(known.seconds);
        tracing::warn!(
            at,
            other_boot = known.is_of_other_boot,
            "what the API server said last counts until it can be read"
        );
        self.recalled = Some(Recalled {
            at,
            is_closed: known.is_of_other_boot,
        });
    }

    /// Hands over the texts that changed. What was not all listed is no whole.
    fn keep(&mut self, is_complete: bool) {
        let (Some(writer), Some(texts)) = (&self.writer, &mut self.store.texts) else {
            return;
        };
        if !texts.is_empty() || is_complete && !self.state.is_complete {
            writer.store(std::mem::take(texts), is_complete);
        }
    }

    /// When to go on, if nothing happens before.
    fn deadline(&self) -> Option<Timestamp> {
        let is_waited_for = self.known.is_some() && self.state.unreadable.is_some();
        let since = self.silent_since.filter(|_| is_waited_for);
        since.map(|since| since.after(PATIENCE))
    }
}
