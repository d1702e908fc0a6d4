//! `enforcer controller`: writes the status of policies and their Events, and takes the startup taint from nodes. Of several replicas one is the leader.
//!
//! ```text
//!  watch::kube (objects) ──▶ objects ──▶ status (pure) ──▶ writer ──▶ API server
//!  reports (of nodes) ───────┘     lease ─────────────────┘
//! ```
//!
//! Every replica watches; only the leader writes, and only as long as its lease surely is its own. Nodes depend on
//! nothing that is written here.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use egret_shared::rt::shutdown::Signals;
use egret_shared::rt::{admin, clock, task, telemetry};
use egret_shared::time::Timestamp;
use kube::Client;
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;

use crate::engine::{Input, SourceState};
use crate::watch::kube::{Cluster, ObjectChange};

mod metrics;
mod objects;
mod status;
mod lease;
mod reports;
mod taint;
mod events;
mod writer;
mod handler;

use events::EventPublisher;
use handler::{ControllerAdmin, Progress};
use lease::{Elector, Leadership};
use objects::Objects;
use reports::Reports;
use writer::Writer;

/// Batches of changes that wait.
const QUEUE: usize = 64;
/// A change of a policy, a report, or a node that waits for its enforcer, waits so long for others.
const SOON: Duration = Duration::from_millis(200);
/// A change of something that only addresses depend on, such as a pod.
const LATER: Duration = Duration::from_secs(5);
/// How often it is looked at what is due, though nothing changed.
const AT_REST: Duration = Duration::from_secs(5);

/// How the controller is run.
#[derive(Clone, Debug)]
pub struct Setup {
    /// How the API server is reached; none to find out.
    pub kubeconfig: Option<PathBuf>,
    /// Where /healthz, /readyz and /metrics are answered.
    pub admin: SocketAddr,
}

/// Runs until a signal asks to stop.
///
/// # Errors
/// When the API server is unknown, or the admin listener cannot be bound.
pub async fn run(setup: Setup, mut signals: Signals) -> anyhow::Result<()> {
    let recorder = telemetry::Metrics::install(&[1.0], &[])?;
    metrics::register();
    let listener = admin::bind(setup.admin).with_context(|| format!("cannot listen on {}", setup.admin))?;
    let listener = tokio::net::TcpListener::from_std(listener)?;
    let cluster = Cluster::open(setup.kubeconfig).await?;
    let client = cluster.client();

    let (changes, changed) = mpsc::channel(QUEUE);
    let (inputs, source) = mpsc::channel(QUEUE);
    drop(task::spawn("watch", cluster.observed_by(changes).watch(inputs)));
    let (reports, reported) = watch::channel(Reports::default());
    drop(task::spawn("reports", reports::watch(client.clone(), reports)));
    let stop = CancellationToken::new();
    let elector = Elector::new(client.clone());
    let leadership = elector.leadership();
    let elector = task::spawn("lease", elector.run(stop.clone()));

    let progress = Arc::new(Progress::new(leadership.clone()));
    let handler = ControllerAdmin {
        progress: Arc::clone(&progress),
        recorder,
    };
    drop(task::spawn("admin", admin::serve(listener, Arc::new(handler))));
    tracing::info!(admin = %setup.admin, "the controller runs");

    let controller = Controller {
        client: client.clone(),
        objects: Objects::default(),
        writer: Writer::new(client.clone(), leadership.clone()),
        events: EventPublisher::start(client, leadership.clone()),
        leadership,
        reports: reported,
        progress,
        is_complete: false,
        leads: false,
        due: None,
    };
    // A write that is under way is given up: the next leader makes it.
    tokio::select! {
        () = controller.run(changed, source) => anyhow::bail!("the source of objects ended"),
        () = signals.stop() => {}
    }
    stop.cancel();
    elector.await?;
    tracing::info!("stopped; the lease is released");
    Ok(())
}

struct Controller {
    client: Client,
    objects: Objects,
    writer: Writer,
    events: EventPublisher,
    leadership: watch::Receiver<Leadership>,
    reports: watch::Receiver<Reports>,
    progress: Arc<Progress>,
    is_complete: bool,
    leads: bool,
    /// When statuses are computed; none where nothing changed.
    due: Option<Timestamp>,
}

impl Controller {
    async fn run(
        mut self,
        mut changed: mpsc::Receiver<Vec<ObjectChange>>,
        mut source: mpsc::Receiver<Input>,
    ) {
        loop {
            self.progress.turned(clock::now());
            let pause = self.due.map_or(AT_REST, |at| at.since(clock::now())).min(AT_REST);
            tokio::select! {
                Some(changes) = changed.recv() => self.take(changes, clock::now()),
                input = source.recv() => match input {
                    Some(Input::Source(state)) => self.follow(&state, clock::now()),
                    // Objects come by `changed`, with what they mean.
                    Some(_) => {}
                    None => return,
                },
                Ok(()) = self.reports.changed() => self.be_due(SOON, clock::now()),
                Ok(()) = self.leadership.changed() => self.lead(clock::now()),
                () = tokio::time::sleep(pause) => {}
            }
            let now = clock::now();
            if self.due.is_some_and(|due| due <= now) {
                self.due = None;
                self.pass(now).await;
            }
        }
    }

    fn be_due(&mut self, within: Duration, now: Timestamp) {
        let at = now.after(within);
        self.due = Some(self.due.map_or(at, |due| due.min(at)));
    }

    fn take(&mut self, changes: Vec<ObjectChange>, now: Timestamp) {
        let mut is_soon = false;
        for change in changes {
            is_soon |= self.objects.take(change);
        }
        self.be_due(if is_soon { SOON } else { LATER }, now);
    }

    fn follow(&mut self, state: &SourceState, now: Timestamp) {
        if state.is_complete && !self.is_complete {
            self.be_due(Duration::ZERO, now);
        }
        self.is_complete = state.is_complete;
        self.progress.source(state.clone());
    }

    fn lead(&mut self, now: Timestamp) {
        let leads = self.leadership.borrow_and_update().may_write(now);
        metrics::leads(leads);
        if leads && !self.leads {
            self.be_due(Duration::ZERO, now);
        }
        self.leads = leads;
    }

    /// Computes what every status should be, and writes those that differ.
    async fn pass(&mut self, now: Timestamp) {
        if !self.is_complete || !self.leadership.borrow().may_write(now) {
            return;
        }
        let (ready, desired) = {
            let reports = self.reports.borrow_and_update();
            metrics::reports(reports.len());
            self.events.publish_of_nodes(&reports);
            metrics::tainted(self.objects.tainted.len());
            (
                self.objects.tainted.ready(&reports, now),
                self.objects.desired(&reports),
            )
        };
        if let Some(next) = taint::remove(&self.client, &self.leadership, ready).await {
            self.be_due(next.since(now), now);
        }
        self.events.publish(&self.objects, &desired);
        if let Some(next) = self.writer.write(&mut self.objects, desired, now).await {
            let now = clock::now();
            self.be_due(next.since(now), now);
        }
    }
}

/// Who writes, in `managedFields`, and who reports Events.
const FIELD_MANAGER: &str = "egret-controller";
/// A request that takes longer failed.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(3);

/// What became of a request, with a limit in time.
async fn within_limit<T>(request: impl Future<Output = kube::Result<T>>) -> Result<T, RequestError> {
    match tokio::time::timeout(REQUEST_TIMEOUT, request).await {
        Ok(Ok(answer)) => Ok(answer),
        Ok(Err(error)) => Err(RequestError::Api(error)),
        Err(_elapsed) => Err(RequestError::TimedOut),
    }
}

/// Why a request failed.
#[derive(Debug)]
enum RequestError {
    Api(kube::Error),
    TimedOut,
}

impl RequestError {
    /// The object is another than it was known as (HTTP 409).
    fn is_conflict(&self) -> bool {
        matches!(self, Self::Api(kube::Error::Api(status)) if status.code == 409)
    }

    fn reason(&self) -> String {
        match self {
            Self::Api(error) => crate::watch::kube::reason(error),
            Self::TimedOut => format!("no answer within {} s", REQUEST_TIMEOUT.as_secs()),
        }
    }
}

/// The client's namespace: that of the pod, else that of the kubeconfig's context.
fn namespace(client: &Client) -> String {
    client.default_namespace().to_owned()
}
