//! The parts, put together and kept running.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use anyhow::Context;
use egret_kernel::links::Links;
use egret_shared::revision::Instance;
use egret_shared::rt::shutdown::{Request, Signals};
use egret_shared::rt::{admin, clock, task, telemetry};

use egret_dnsd::admin::{Heart, Operators};
use egret_dnsd::client::Attribution;
use egret_dnsd::config::{Args, Config, file_name};
use egret_dnsd::files;
use egret_dnsd::handover::Inheritance;
use egret_dnsd::link;
use egret_dnsd::listen::{Listeners, Listening, Service};
use egret_dnsd::metrics::{BUCKETS, Metrics};
use egret_dnsd::release::Holder;
use egret_dnsd::resolve::Resolver;
use egret_dnsd::server::{Means, Outlet, Serving, host_interfaces};

/// How long what is under way may take when dnsd is asked to stop.
const DRAIN: Duration = Duration::from_secs(5);

/// A dnsd that has bound its sockets.
#[derive(Debug)]
pub(crate) struct Daemon {
    args: Args,
    service: Service,
    listeners: Listening,
    means: Means,
}

impl Daemon {
    /// Binds the sockets and starts the tasks.
    ///
    /// # Errors
    /// When an address cannot be listened on, or the kernel refuses a socket.
    pub(crate) fn start(args: Args, config: Config) -> anyhow::Result<Self> {
        match files::raise_limit() {
            Ok(limit) => tracing::debug!(limit, "open files"),
            Err(error) => tracing::warn!(%error, "the limit of open files stays as it is"),
        }
        let recorder = telemetry::Metrics::install(&BUCKETS)?;
        let metrics = Arc::new(Metrics::register());
        let means = Means {
            metrics: Arc::clone(&metrics),
            counts: Arc::default(),
            outlet: Outlet::to_stdout()?,
        };
        let serving = Serving::new(config.clone(), None, &host_interfaces, &means)?;
        let listeners = Listeners::bind(&serving.tables, &mut Inheritance::none())?;
        let links = Links::open().context("the kernel's routing table cannot be asked")?;
        let attribution = Arc::new(Attribution::new(Box::new(links)));
        let holder = Arc::new(Holder::new(
            config.hold,
            clock::now(),
            Arc::clone(&attribution),
            Arc::clone(&metrics),
        ));
        let resolver = Arc::new(Resolver::new(
            serving,
            attribution,
            Arc::clone(&holder),
            Arc::clone(&metrics),
        ));
        let service = Service::new(resolver);
        let heart = Arc::new(Heart::new(clock::now()));
        let operators = Arc::new(Operators {
            heart: Arc::clone(&heart),
            service: service.clone(),
            holder: Arc::clone(&holder),
            metrics: Arc::clone(&metrics),
            recorder: recorder.clone(),
            seen_evictions: Mutex::new(0),
        });
        let addresses = listeners.addresses()?;
        drop(task::spawn("heart", heart.beat()));
        drop(task::spawn("deadlines", Arc::clone(&holder).keep_time()));
        let instance = Instance::from_random(rand::random());
        let path = config.fixed.link.as_path().into();
        drop(task::spawn("link", link::keep(path, instance, holder, metrics)));
        let admin = serve_operators(config.fixed.admin, operators, recorder)?;
        let listeners = listeners.serve(&service);
        tracing::info!(?addresses, %admin, %instance, "ready");
        Ok(Self {
            args,
            service,
            listeners,
            means,
        })
    }

    /// Serves until a signal asks to stop; then answers what is under way.
    ///
    /// # Errors
    /// When a listener dies.
    pub(crate) async fn run(mut self, mut signals: Signals) -> anyhow::Result<()> {
        loop {
            tokio::select! {
                request = signals.next() => match request {
                    Request::Stop => break,
                    Request::Reload => self.reload(),
                },
                () = self.listeners.ended() => anyhow::bail!("a listener ended"),
            }
        }
        self.drain().await;
        Ok(())
    }

    /// Takes the file again; what cannot be taken changes nothing.
    fn reload(&mut self) {
        let file = file_name(&self.args).display().to_string();
        match self.take_again(&file) {
            Ok(()) => tracing::info!(%file, "the configuration was read again"),
            Err(error) => tracing::error!(%file, %error, "the configuration stays as it is"),
        }
    }

    fn take_again(&mut self, file: &str) -> anyhow::Result<()> {
        let resolver = &self.service.resolver;
        let current = resolver.serving();
        let mut wanted = Config::load(&self.args)?;
        let fields = current.config.needs_restart(&wanted);
        if !fields.is_empty() {
            tracing::warn!(%file, ?fields, "these fields need a restart and stay as they are");
            wanted.fixed = current.config.fixed.clone();
        }
        let serving = Serving::new(wanted, Some(&current), &host_interfaces, &self.means)?;
        self.listeners.adopt(&serving.tables)?;
        resolver.put_in_force(serving);
        Ok(())
    }

    async fn drain(mut self) {
        tracing::info!("stopping; what is under way is answered");
        self.service.stop.cancel();
        self.service.under_way.close();
        let drained = tokio::time::timeout(DRAIN, async {
            self.listeners.all_ended().await;
            self.service.under_way.wait().await;
        });
        match drained.await {
            Ok(()) => tracing::info!("stopped"),
            Err(_elapsed) => tracing::warn!(
                left = self.service.under_way.len(),
                "stopped before all was answered"
            ),
        }
    }
}

/// Answers operators from a thread of its own, so that a serving thread that hangs is told of.
fn serve_operators(
    address: SocketAddr,
    operators: Arc<Operators>,
    recorder: telemetry::Metrics,
) -> anyhow::Result<SocketAddr> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let (sender, bound) = mpsc::channel();
    std::thread::Builder::new()
        .name("admin".to_owned())
        .spawn(move || {
            runtime.block_on(async move {
                match admin::bind(address).await {
                    Err(error) => drop(sender.send(Err(error))),
                    Ok(listener) => {
                        drop(sender.send(listener.local_addr()));
                        drop(task::spawn("upkeep", recorder.keep_up()));
                        admin::serve(listener, operators).await;
                    }
                }
            });
        })?;
    Ok(bound.recv().context("the admin thread died")??)
}
