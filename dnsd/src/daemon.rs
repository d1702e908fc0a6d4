//! The parts of dnsd, put together and kept running.

mod host;
mod reload;
mod takeover;
mod shutdown;

use std::sync::{Arc, Mutex};

use anyhow::Context;
use egret_kernel::links::Links;
use egret_shared::revision::DnsdInstance;
use egret_shared::rt::shutdown::{SignalRequest, Signals};
use egret_shared::rt::{clock, task, telemetry};

use egret_dnsd::config::{Args, Config};
use egret_dnsd::enforcement::client::ClientLookup;
use egret_dnsd::enforcement::gated::ResponseGate;
use egret_dnsd::enforcement::link;
use egret_dnsd::host::node_cache::reconciler::PreparedHost;
use egret_dnsd::kernel_answers::KernelAnswers;
use egret_dnsd::listener::threads::Threads;
use egret_dnsd::listener::{Listeners, Service};
use egret_dnsd::pipeline::{Metrics, Resolver};
use egret_dnsd::takeover::transfer::ProcessState;
use egret_dnsd::takeover::{OpenConnection, StoppedOldProcess};
use egret_dnsd::telemetry::admin::{AdminState, Startup, ThreadWatch};
use egret_dnsd::telemetry::faults;
use egret_dnsd::telemetry::handlers::AdminListeners;
use egret_dnsd::telemetry::metrics::Gauges;
use egret_dnsd::upstream;
use egret_dnsd::zones::{ActiveConfig, LogWriter, Telemetry, host_interfaces};
use egret_shared::rt::open_files;
use metrics::Counter;
use tokio::task::JoinHandle;

use self::host::Host;
use self::reload::{ReloadTimer, reload_failures, warn};
pub(crate) use self::shutdown::End;
use self::takeover::Arrivals;

/// The part of the start that is neither rules nor heartbeat.
const SERVING: &str = "the start";

/// A dnsd that has bound its sockets.
#[derive(Debug)]
pub(crate) struct Daemon {
    args: Args,
    service: Service,
    listeners: Listeners,
    telemetry: Telemetry,
    admin: AdminListeners,
    reload_timer: ReloadTimer,
    /// The configuration in force, as it was loaded: with names in the place of upstreams' addresses.
    loaded: Config,
    host: Host,
    gate: Arc<ResponseGate>,
    link: JoinHandle<()>,
    reload_failures: Counter,
    arrivals: Arrivals,
    /// A new process has the sockets, and has neither taken over nor gone.
    is_takeover_open: bool,
    kernel_answers: Arc<KernelAnswers>,
}

impl Daemon {
    /// Binds the sockets, or takes over those of the dnsd that answers now, and starts the tasks.
    ///
    /// # Errors
    /// When an address cannot be listened on, or the kernel refuses a socket.
    pub(crate) async fn start(
        args: Args,
        config: Config,
        recorder: telemetry::Metrics,
        prepared_host: Option<PreparedHost>,
    ) -> anyhow::Result<Self> {
        match open_files::raise_limit() {
            Ok(limit) => {
                tracing::debug!(limit, "open files");
                upstream::limit_sockets(limit);
            }
            Err(error) => tracing::warn!(%error, "the limit of open files stays as it is"),
        }
        let metrics = Arc::new(Metrics::register());
        let kernel_answers = Arc::<KernelAnswers>::default();
        let telemetry = Telemetry {
            metrics: Arc::clone(&metrics.zones),
            upstream: Arc::clone(&metrics.upstream),
            counts: Arc::default(),
            log_writer: LogWriter::to_stdout()?,
            kernel_answers: Arc::clone(&kernel_answers),
        };
        let (loaded, config) = (
            config.clone(),
            ActiveConfig::look_up(config, &metrics.upstream).await?,
        );
        let serving = ActiveConfig::new(config.clone(), None, &host_interfaces, &telemetry)?;
        let (old_process, sockets) = takeover::take_over_or_bind(&serving, prepared_host.as_ref()).await?;
        let encrypted_tables = serving.encrypted.clone();
        let links = Links::open().context("the kernel's routing table cannot be asked")?;
        let client_lookup = Arc::new(ClientLookup::new(Box::new(links)));
        let gate = ResponseGate::new(
            config.hold,
            clock::now(),
            Arc::clone(&client_lookup),
            Arc::clone(&metrics.gate),
        );
        let gate = Arc::new(gate.with_kernel_answers(Arc::clone(&kernel_answers)));
        let gate_metrics = Arc::clone(&metrics.gate);
        let resolver = Resolver::new(serving, client_lookup, Arc::clone(&gate), metrics);
        let resolver = Arc::new(resolver.with_kernel_answers(Arc::clone(&kernel_answers)));
        let summary = host::inherit(old_process.as_ref(), &resolver, &gate);
        let memory = ProcessState {
            resolver: Arc::clone(&resolver),
            gate: Arc::clone(&gate),
        };
        let threads = Threads::start(config.fixed.threads).context("a thread cannot be started")?;
        let threads = Arc::new(threads);
        let service = Service::new(resolver, Arc::clone(&threads));
        let startup = Arc::new(Startup::of([SERVING, host::RULES, host::HEARTBEAT]));
        let heart = Arc::new(ThreadWatch::new(clock::now()));
        let operators = Arc::new(AdminState {
            startup: Arc::clone(&startup),
            heart: Arc::clone(&heart),
            service: service.clone(),
            gate: Arc::clone(&gate),
            gauges: Gauges::register(),
            counts: Arc::clone(&telemetry.counts),
            recorder,
            seen_evictions: Mutex::new(0),
        });
        let addresses = sockets.listeners.addresses()?;
        drop(task::spawn("heart", heart.beat(Arc::clone(&threads))));
        drop(task::spawn("deadlines", Arc::clone(&gate).keep_time()));
        let instance = DnsdInstance::from_random(rand::random());
        let path = config.fixed.link.as_path().into();
        let link = task::spawn(
            "link",
            link::keep(path, instance, Arc::clone(&gate), gate_metrics),
        );
        let admin = AdminListeners::start(operators, &config, sockets.admin)?;
        let admin_address = admin.address(config.fixed.admin);
        host::catch_up(summary, &gate).await;
        let paused = host::pause(old_process);
        let mut listeners = sockets.listeners.serve(&service);
        listeners.adopt_encrypted(&encrypted_tables, sockets.encrypted);
        if let Some(permits) = &config.fixed.kernel_answers {
            host::begin_kernel_answers(permits, &kernel_answers);
        }
        let host = Host::start(prepared_host, &args, &config, memory, &gate, threads, &startup)?;
        // Only after the takeover socket is bound: otherwise the old process removes the rules.
        let arrivals = Arrivals::new(paused.map(StoppedOldProcess::serving));
        faults::follow(&config.plan);
        warn(&config);
        service.resolver.serving().look_for_loops(|address| address);
        tracing::info!(?addresses, admin = % admin_address, %instance, "listening");
        startup.done(SERVING);
        Ok(Self {
            args,
            service,
            listeners,
            telemetry,
            admin,
            reload_timer: ReloadTimer::new(config.plan.reload),
            loaded,
            host,
            gate,
            link,
            reload_failures: reload_failures(),
            arrivals,
            is_takeover_open: false,
            kernel_answers,
        })
    }

    /// Serves until a signal asks to stop, or a new process has taken over; then answers the pending queries.
    ///
    /// # Errors
    /// When a listener dies.
    pub(crate) async fn run(mut self, mut signals: Signals) -> anyhow::Result<End> {
        loop {
            tokio::select! {
                request = signals.next() => match request {
                    SignalRequest::Stop => break,
                    SignalRequest::Reload => self.reload().await,
                },
                () = self.reload_timer.next() => self.reload_if_changed().await,
                event = self.host.takeover_event() => if self.handle_takeover(event).await? {
                    return self.end_after_takeover(signals, false).await;
                },
                connection = self.arrivals.next() => self.adopt(connection),
                () = self.listeners.ended() => anyhow::bail!("a listener ended"),
            }
        }
        if self.lameduck(&mut signals).await? {
            return self.end_after_takeover(signals, true).await;
        }
        self.end().await;
        Ok(End::Stopped)
    }

    fn adopt(&self, connection: OpenConnection) {
        if let Err(error) = self.listeners.adopt_connection(connection) {
            tracing::debug!(%error, "an open connection of the old process ends");
        }
    }
}
