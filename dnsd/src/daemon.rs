//! The parts of dnsd, put together and kept running.

mod host;
mod reload;
mod takeover;
mod shutdown;

use std::sync::{Arc, Mutex};

use anyhow::Context;
use egret_kernel::links::Links;
use egret_shared::revision::Instance;
use egret_shared::rt::shutdown::{Request, Signals};
use egret_shared::rt::{clock, task, telemetry};

use egret_dnsd::config::{Args, Config};
use egret_dnsd::enforcement::client::Attribution;
use egret_dnsd::enforcement::gated::Holder;
use egret_dnsd::enforcement::link;
use egret_dnsd::host::node_cache::reconciler::PreparedHost;
use egret_dnsd::host::open_files;
use egret_dnsd::listener::threads::Threads;
use egret_dnsd::listener::{BoundListeners, Listeners, Service};
use egret_dnsd::pipeline::{Metrics, Resolver};
use egret_dnsd::takeover::StoppedOldProcess;
use egret_dnsd::takeover::transfer::ProcessState;
use egret_dnsd::telemetry::admin::{AdminState, ThreadWatch};
use egret_dnsd::telemetry::faults;
use egret_dnsd::telemetry::handlers::AdminListeners;
use egret_dnsd::telemetry::metrics::Gauges;
use egret_dnsd::upstream;
use egret_dnsd::zones::{ActiveConfig, LogWriter, Telemetry, host_interfaces};
use metrics::Counter;
use tokio::task::JoinHandle;

use self::host::Host;
use self::reload::{ReloadTimer, reload_failures, warn};

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
    holder: Arc<Holder>,
    link: JoinHandle<()>,
    reload_failures: Counter,
    /// A new process has the sockets, and has neither taken over nor gone.
    is_takeover_open: bool,
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
        let telemetry = Telemetry {
            metrics: Arc::clone(&metrics.zones),
            upstream: Arc::clone(&metrics.upstream),
            counts: Arc::default(),
            log_writer: LogWriter::to_stdout()?,
        };
        let (loaded, config) = (
            config.clone(),
            ActiveConfig::look_up(config, &metrics.upstream).await?,
        );
        let serving = ActiveConfig::new(config.clone(), None, &host_interfaces, &telemetry)?;
        let (old_process, mut inheritance) = host::take_over(&config);
        let listeners = BoundListeners::bind(&serving.tables, &mut inheritance)?;
        let links = Links::open().context("the kernel's routing table cannot be asked")?;
        let attribution = Arc::new(Attribution::new(Box::new(links)));
        let holder = Arc::new(Holder::new(
            config.hold,
            clock::now(),
            Arc::clone(&attribution),
            Arc::clone(&metrics.gate),
        ));
        let gate = Arc::clone(&metrics.gate);
        let resolver = Arc::new(Resolver::new(serving, attribution, Arc::clone(&holder), metrics));
        let summary = host::inherit(old_process.as_ref(), &resolver, &holder);
        let memory = ProcessState {
            resolver: Arc::clone(&resolver),
            holder: Arc::clone(&holder),
        };
        let threads = Threads::start(config.fixed.threads).context("a thread cannot be started")?;
        let threads = Arc::new(threads);
        let service = Service::new(resolver, Arc::clone(&threads));
        let heart = Arc::new(ThreadWatch::new(clock::now()));
        let operators = Arc::new(AdminState {
            heart: Arc::clone(&heart),
            service: service.clone(),
            holder: Arc::clone(&holder),
            gauges: Gauges::register(),
            counts: Arc::clone(&telemetry.counts),
            recorder,
            seen_evictions: Mutex::new(0),
        });
        let addresses = listeners.addresses()?;
        drop(task::spawn("heart", heart.beat(Arc::clone(&threads))));
        drop(task::spawn("deadlines", Arc::clone(&holder).keep_time()));
        let instance = Instance::from_random(rand::random());
        let path = config.fixed.link.as_path().into();
        let link = task::spawn("link", link::keep(path, instance, Arc::clone(&holder), gate));
        let mut admin = AdminListeners::start(operators)?;
        admin.adopt(&config, &mut inheritance)?;
        let admin_address = admin.address(config.fixed.admin);
        host::catch_up(summary, &holder).await;
        let paused = host::pause(old_process);
        let listeners = listeners.serve(&service);
        let host = Host::start(prepared_host, &args, &config, memory, &holder, threads)?;
        // Only after the takeover socket is bound: otherwise the old process removes the rules.
        paused.into_iter().for_each(StoppedOldProcess::serving);
        faults::follow(&config.plan);
        warn(&config);
        service.resolver.serving().look_for_loops(|address| address);
        tracing::info!(?addresses, admin = %admin_address, %instance, "ready");
        Ok(Self {
            args,
            service,
            listeners,
            telemetry,
            admin,
            reload_timer: ReloadTimer::new(config.plan.reload),
            loaded,
            host,
            holder,
            link,
            reload_failures: reload_failures(),
            is_takeover_open: false,
        })
    }

    /// Serves until a signal asks to stop, or a new process has taken over; then answers the pending queries.
    ///
    /// # Errors
    /// When a listener dies.
    pub(crate) async fn run(mut self, mut signals: Signals) -> anyhow::Result<()> {
        loop {
            tokio::select! {
                request = signals.next() => match request {
                    Request::Stop => break,
                    Request::Reload => self.reload().await,
                },
                () = self.reload_timer.next() => self.reload_if_changed().await,
                event = self.host.takeover_event() => if self.handle_takeover(event).await? {
                    return self.end_after_takeover(signals, false).await;
                },
                () = self.listeners.ended() => anyhow::bail!("a listener ended"),
            }
        }
        if self.lameduck(&mut signals).await? {
            return self.end_after_takeover(signals, true).await;
        }
        self.end().await;
        Ok(())
    }
}
