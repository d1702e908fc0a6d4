//! Builds the parts of the daemon, runs them, and stops them.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::Context;
use egret_policies::compiler::NodeScope;
use egret_shared::revision::DnsdInstance;
use egret_shared::rt::shutdown::{SignalRequest, Signals};
use egret_shared::rt::{admin, clock, task, telemetry};
use tokio::sync::mpsc;

use egret_enforcer::address_report::watch_addresses;
use egret_enforcer::admin::EngineAdmin;
use egret_enforcer::backend::{self as backends, Backend};
use egret_enforcer::config::{Args, BackendKind, Config, Source, StartupConfig};
use egret_enforcer::engine::{Input, NetworkRequest, PROGRAMMING_BUCKETS, Setup};
use egret_enforcer::events::sink::{ReopenRequest, Sink};
use egret_enforcer::node::ReportedInterfaces;
use egret_enforcer::policy_report::PolicyReporter;
use egret_enforcer::state::{self, ObjectStore, ObjectWriter, State, StoredObjects};
use egret_enforcer::watch::dir::Directory;
use egret_enforcer::watch::kube::Cluster;
use egret_enforcer::writer::{Attempt, StandbyAdmin, Writer, serve_status};
use egret_enforcer::{cni, events, link};

mod backend;
mod backend_choice;
mod engine;
mod monitors;

/// Inputs that wait for the engine; beyond that, senders wait.
const INPUT_QUEUE: usize = 4096;
/// How long an enforcer that ended may take to release its sockets.
const SOCKETS_RELEASED: Duration = Duration::from_secs(2);
const BIND_INTERVAL: Duration = Duration::from_millis(5);

/// An enforcer that runs.
#[derive(Debug)]
pub(crate) struct Daemon {
    args: Args,
    config: Config,
    inputs: mpsc::Sender<Input>,
    admin: Arc<EngineAdmin>,
    /// Has the file of events opened again; none where denied packets are not logged to a file.
    events: Option<ReopenRequest>,
    engine: JoinHandle<Box<dyn Backend>>,
    /// The writer of the source's objects, and its thread.
    objects: Option<(ObjectWriter, JoinHandle<()>)>,
    /// Held until the process ends; none for a backend that writes nothing.
    _writer: Option<Writer>,
}

/// The turn of this process to write.
struct Turn {
    writer: Option<Writer>,
    /// It waited for another process.
    waited: bool,
    /// The endpoints that were served while it waited.
    standby: Option<Arc<StandbyAdmin>>,
}

impl Turn {
    /// Of a process that waited for no other.
    const fn at_once(writer: Option<Writer>) -> Self {
        Self {
            writer,
            waited: false,
            standby: None,
        }
    }

    /// Binds a socket. A process that ends releases the lock first and its sockets a moment later, so after a wait it is
    /// tried again for a while.
    async fn bind<T>(&self, mut bind: impl FnMut() -> anyhow::Result<T>) -> anyhow::Result<T> {
        let begun = clock::now();
        loop {
            match bind() {
                Err(_) if self.waited && clock::now().since(begun) < SOCKETS_RELEASED => {
                    tokio::time::sleep(BIND_INTERVAL).await;
                }
                result => return result,
            }
        }
    }
}

impl Daemon {
    /// Waits until no other enforcer writes here, binds the sockets and starts the parts. None if it was asked to stop
    /// while it waited.
    ///
    /// # Errors
    /// When a socket cannot be bound, or the backend cannot work here.
    pub(crate) async fn start(
        args: Args,
        config: Config,
        signals: &mut Signals,
    ) -> anyhow::Result<Option<Self>> {
        let recorder = register_metrics()?;
        let startup = &config.startup;
        // Before anything is bound or written.
        let Some(turn) = wait_for_turn(startup, &recorder, signals).await? else {
            return Ok(None);
        };
        let listener = turn.bind(|| Ok(link::bind(&startup.link)?)).await?;
        let interfaces = ReportedInterfaces::default();
        let choice = backend_choice::BackendInUse::of(startup)?;
        let (backend, denied) = backend::open(choice.kind, &config, &interfaces)?;
        backends::metrics::publish_backend(backend.name());
        let (inputs, received) = mpsc::channel(INPUT_QUEUE);
        let admin = Arc::new(EngineAdmin {
            engine: inputs.clone(),
            counters: backend.counters(),
            counters_read: Mutex::default(),
            recorder,
            rule_metrics: AtomicUsize::new(config.rule_metrics),
            backend: format!("{}, {}", backend.name(), choice.reason),
        });
        if turn.writer.is_some() {
            let served = turn.bind(|| Ok(serve_status(Arc::clone(&admin) as Arc<dyn admin::AdminHandler>)?));
            // It enforces all the same.
            if let Err(error) = served.await {
                tracing::warn!("an enforcer that waits for this one cannot be ready: {error:#}");
            }
        }
        match &turn.standby {
            Some(standby) => standby.take_over(Arc::clone(&admin)),
            None => {
                let handler = || Arc::clone(&admin) as Arc<dyn admin::AdminHandler>;
                turn.bind(|| serve_admin(startup.admin, handler())).await?;
            }
        }
        let name = backend.name();
        let state = open_state(startup);
        let objects = open_objects(startup)?;
        let setup = Setup {
            compiler: startup.compiler.clone(),
            backend,
            resync: config.resync,
            remembered: state.remembered,
            state_writer: state.writer,
            excluded_namespaces: startup.not_intercepted.clone(),
            interfaces,
        };
        let instance = DnsdInstance::from_random(RandomState::new().build_hasher().finish());
        let link = engine::Link {
            listener: listener.into_std()?,
            path: startup.link.clone(),
            instance,
            engine: inputs.clone(),
        };
        // The node's addresses are the first input, before any object.
        monitors::watch_links(inputs.clone())?;
        serve_cni(startup, &inputs)?;
        let engine = engine::start(setup, received, link)?;
        watch_source(startup, objects.stored, objects.writer.clone(), inputs.clone()).await?;
        if choice.kind.is_packet_filter() {
            monitors::watch_other_programs(inputs.clone(), Arc::clone(&admin))?;
        }
        monitors::report_addresses(startup)?;
        let events = start_events(startup, denied, inputs.clone())?;
        tracing::info!(backend = name, reason = choice.reason, link = % startup.link.display(), admin = % startup.admin, %instance, "listening");
        Ok(Some(Self {
            args,
            config,
            inputs,
            admin,
            events,
            engine,
            objects: objects.writer.zip(objects.thread),
            _writer: turn.writer,
        }))
    }

    /// Runs until a signal asks to stop. Rules and sets stay in force.
    ///
    /// # Errors
    /// When the engine died.
    pub(crate) async fn run(mut self, mut signals: Signals) -> anyhow::Result<()> {
        loop {
            tokio::select! {
                request = signals.next() => match request {
                    SignalRequest::Stop => break,
                    SignalRequest::Reload => self.reload().await,
                },
                () = self.inputs.closed() => anyhow::bail!("the engine ended"),
            }
        }
        // It fails when the engine has ended already.
        drop(self.inputs.send(Input::Stop).await);
        let (engine, objects) = tokio::task::spawn_blocking(move || {
            let engine = self.engine.join();
            let objects = self.objects.map_or(Ok(()), |(writer, thread)| {
                writer.end();
                thread.join()
            });
            (engine, objects)
        })
        .await?;
        engine.map_err(|_panic| anyhow::anyhow!("the engine died"))?;
        objects.map_err(|_panic| anyhow::anyhow!("what writes the file of objects died"))?;
        tracing::info!("stopped; rules and sets stay in force");
        Ok(())
    }

    /// Reads the configuration again; an invalid one changes nothing.
    async fn reload(&mut self) {
        self.events.iter().for_each(ReopenRequest::send);
        let file = self
            .args
            .config
            .as_ref()
            .map_or_else(|| "no file".to_owned(), |path| path.display().to_string());
        let new = match Config::load(&self.args) {
            Ok(new) => new,
            Err(error) => {
                return tracing::error!(file, %error, "the configuration stays as it is");
            }
        };
        let fields = self.config.needs_restart(&new);
        if !fields.is_empty() {
            tracing::warn!(file, ?fields, "these fields need a restart and stay as they are");
        }
        self.admin.rule_metrics.store(new.rule_metrics, Ordering::Relaxed);
        // It fails when the engine has ended, which `run` notices.
        drop(self.inputs.send(Input::SetResync(new.resync)).await);
        self.config = Config {
            startup: self.config.startup.clone(),
            ..new
        };
        tracing::info!(file, "the configuration was read again");
    }
}

/// Waits until this process is the only writer of its network namespace; none if it was asked to stop.
async fn wait_for_turn(
    startup: &StartupConfig,
    recorder: &telemetry::Metrics,
    signals: &mut Signals,
) -> anyhow::Result<Option<Turn>> {
    match startup.backend {
        // The programs of the cgroups have one writer as well, which is in the node's network namespace.
        None
        | Some(BackendKind::Netfilter | BackendKind::Nftables | BackendKind::Ebpf | BackendKind::Both) => {}
        Some(BackendKind::Memory | BackendKind::None) => return Ok(Some(Turn::at_once(None))),
    }
    let waiting = match Writer::try_acquire().context("the network namespace cannot be locked")? {
        Attempt::Acquired(writer) => return Ok(Some(Turn::at_once(Some(writer)))),
        Attempt::Held(waiting) => waiting,
    };
    tracing::warn!(
        holder = %waiting.holder(),
        "another enforcer writes the rules of this network namespace; waiting until it ends"
    );
    let handler = Arc::new(StandbyAdmin::new(&waiting, recorder.clone()));
    // The holder may have the same address; then it answers there until it ends.
    let standby = match serve_admin(
        startup.admin,
        Arc::clone(&handler) as Arc<dyn admin::AdminHandler>,
    ) {
        Ok(()) => Some(handler),
        Err(error) => {
            tracing::warn!("while this enforcer waits, it answers no operator: {error:#}");
            None
        }
    };
    tokio::select! {
        writer = waiting.wait() => {
            let writer = writer.context("the network namespace cannot be locked")?;
            tracing::info!("the other enforcer ended; this one writes now");
            Ok(Some(Turn { writer: Some(writer), waited: true, standby }))
        }
        () = signals.stop() => Ok(None),
    }
}

/// Every metric is there from the start, at 0.
fn register_metrics() -> anyhow::Result<telemetry::Metrics> {
    let recorder = telemetry::Metrics::install(&PROGRAMMING_BUCKETS, &[])?;
    backends::metrics::register_metrics();
    state::register_metrics();
    link::register_metrics();
    events::register_metrics();
    Ok(recorder)
}

fn open_state(startup: &StartupConfig) -> State {
    let records = startup.compiler.records.limits.remembered();
    let path = startup.state.as_ref();
    path.map(|path| State::open(path, records)).unwrap_or_default()
}

fn open_objects(startup: &StartupConfig) -> anyhow::Result<ObjectStore> {
    match &startup.state_objects {
        Some(path) => {
            ObjectStore::open(path, startup.source.root()).context("the file of objects cannot be kept")
        }
        None => Ok(ObjectStore::default()),
    }
}

/// Listens for the CNI plugin. What it reported to earlier enforcers comes before any object.
fn serve_cni(startup: &StartupConfig, engine: &mpsc::Sender<Input>) -> anyhow::Result<()> {
    let Some(path) = &startup.cni else {
        return Ok(());
    };
    let known = NetworkRequest::Known(cni::read_networks(path));
    engine
        .try_send(Input::Network(known))
        .map_err(|_full| anyhow::anyhow!("the engine takes nothing in"))?;
    drop(task::spawn("cni", cni::serve(path.clone(), engine.clone())));
    Ok(())
}

/// Starts to watch where objects come from.
async fn watch_source(
    startup: &StartupConfig,
    stored: Option<StoredObjects>,
    writer: Option<ObjectWriter>,
    engine: mpsc::Sender<Input>,
) -> anyhow::Result<()> {
    drop(match &startup.source {
        Source::Dir(folder) => task::spawn(
            "watch",
            Directory::new(folder.clone())
                .with_store(stored, writer)
                .watch(engine),
        ),
        Source::Kube => {
            let mut cluster = Cluster::open(startup.kubeconfig.clone()).await?;
            if let NodeScope::One(node) = &startup.compiler.node {
                let addresses = watch_addresses().context("changes of addresses cannot be heard")?;
                cluster = cluster.with_report(Arc::clone(node), addresses);
            }
            let reporter = PolicyReporter {
                client: cluster.client(),
                node: startup.node_name().to_owned(),
                engine: engine.clone(),
                told: cluster.told(),
            };
            drop(task::spawn("policy-report", reporter.run()));
            task::spawn("watch", cluster.with_store(stored, writer).watch(engine))
        }
    });
    Ok(())
}

/// Starts the log of denied packets, if it is configured.
fn start_events(
    startup: &StartupConfig,
    source: Option<Box<dyn events::Source>>,
    engine: mpsc::Sender<Input>,
) -> anyhow::Result<Option<ReopenRequest>> {
    let sink = Sink::open(&startup.events.to).with_context(|| format!("events: {}", startup.events.to))?;
    let Some(sink) = sink else { return Ok(None) };
    let Some(source) = source else {
        tracing::warn!("this backend denies nothing, so it tells of nothing");
        return Ok(None);
    };
    let reopen = sink.reopen_request();
    events::start(events::Setup {
        node: startup.node_name().to_owned(),
        per_second: startup.events.telling.per_second,
        source,
        engine,
        sink,
    })?;
    Ok(Some(reopen))
}

/// Serves the admin endpoints on a thread of its own, because reading counters blocks.
fn serve_admin(address: SocketAddr, handler: Arc<dyn admin::AdminHandler>) -> anyhow::Result<()> {
    // First, because a runtime must not be dropped inside another one.
    let listener = admin::bind(address).with_context(|| format!("cannot listen on {address}"))?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let listener = {
        let _inside = runtime.enter();
        tokio::net::TcpListener::from_std(listener)?
    };
    std::thread::Builder::new()
        .name("admin".to_owned())
        .spawn(move || {
            runtime.block_on(admin::serve(listener, handler));
        })?;
    Ok(())
}
