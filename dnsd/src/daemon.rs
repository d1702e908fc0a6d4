//! The parts, put together and kept running.

mod host;

use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::Context;
use egret_kernel::links::Links;
use egret_shared::revision::Instance;
use egret_shared::rt::shutdown::{Request, Signals};
use egret_shared::rt::{clock, task, telemetry};

use egret_dnsd::config::model::Reload;
use egret_dnsd::config::{Args, Config, file_name};
use egret_dnsd::enforcement::client::Attribution;
use egret_dnsd::enforcement::gated::Holder;
use egret_dnsd::enforcement::link;
use egret_dnsd::host::node_cache::reconciler::Prepared;
use egret_dnsd::host::open_files;
use egret_dnsd::listener::threads::Threads;
use egret_dnsd::listener::{Listeners, Listening, Service};
use egret_dnsd::pipeline::Resolver;
use egret_dnsd::takeover::transfer::Remembering;
use egret_dnsd::takeover::{Event, Granted, Inheritance, Name, UNREAD};
use egret_dnsd::telemetry::admin::{Heart, Operators};
use egret_dnsd::telemetry::faults;
use egret_dnsd::telemetry::handlers::Pages;
use egret_dnsd::telemetry::metrics::Metrics;
use egret_dnsd::upstream;
use egret_dnsd::zones::{Means, Outlet, Serving, host_interfaces};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use self::host::Host;

/// How long what is under way may take when dnsd is asked to stop.
const DRAIN: Duration = Duration::from_secs(5);
/// How long the enforcer may take, then, to hear what it was not told yet.
const TELLING: Duration = Duration::from_secs(1);
/// How long, then, a successor may take that was given the sockets.
const SUCCESSION: Duration = Duration::from_secs(5);
/// How long connections may go on after a successor has taken over.
const LINGER: Duration = Duration::from_secs(20);

/// A dnsd that has bound its sockets.
#[derive(Debug)]
pub(crate) struct Daemon {
    args: Args,
    service: Service,
    listeners: Listening,
    means: Means,
    pages: Pages,
    looks: Looks,
    /// What is in force, as it was written.
    written: Config,
    host: Host,
    holder: Arc<Holder>,
    link: JoinHandle<()>,
    /// A successor was given the sockets, and is neither gone nor there.
    is_succession_open: bool,
}

impl Daemon {
    /// Binds the sockets, or takes those of who answers now, and starts the tasks.
    ///
    /// # Errors
    /// When an address cannot be listened on, or the kernel refuses a socket.
    pub(crate) async fn start(
        args: Args,
        config: Config,
        recorder: telemetry::Metrics,
        prepared: Option<Prepared>,
    ) -> anyhow::Result<Self> {
        match open_files::raise_limit() {
            Ok(limit) => {
                tracing::debug!(limit, "open files");
                upstream::limit_sockets(limit);
            }
            Err(error) => tracing::warn!(%error, "the limit of open files stays as it is"),
        }
        let metrics = Arc::new(Metrics::register());
        let means = Means {
            metrics: Arc::clone(&metrics),
            counts: Arc::default(),
            outlet: Outlet::to_stdout()?,
        };
        let (written, config) = (config.clone(), Serving::look_up(config, &metrics).await?);
        let serving = Serving::new(config.clone(), None, &host_interfaces, &means)?;
        let (predecessor, mut inheritance) = host::predecessor(&config);
        let listeners = Listeners::bind(&serving.tables, &mut inheritance)?;
        let encrypted = Listeners::bind_encrypted(&serving.encrypted, &mut inheritance)?;
        let encrypted_tables = serving.encrypted.clone();
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
        let begun = host::inherit(predecessor.as_ref(), &resolver, &holder);
        let memory = Remembering {
            resolver: Arc::clone(&resolver),
            holder: Arc::clone(&holder),
        };
        let threads = Threads::start(config.fixed.threads).context("a thread cannot be started")?;
        let threads = Arc::new(threads);
        let service = Service::new(resolver, Arc::clone(&threads));
        let heart = Arc::new(Heart::new(clock::now()));
        let operators = Arc::new(Operators {
            heart: Arc::clone(&heart),
            service: service.clone(),
            holder: Arc::clone(&holder),
            metrics: Arc::clone(&metrics),
            counts: Arc::clone(&means.counts),
            recorder,
            seen_evictions: Mutex::new(0),
        });
        let addresses = listeners.addresses()?;
        drop(task::spawn("heart", heart.beat(Arc::clone(&threads))));
        drop(task::spawn("deadlines", Arc::clone(&holder).keep_time()));
        let instance = Instance::from_random(rand::random());
        let path = config.fixed.link.as_path().into();
        let link = task::spawn("link", link::keep(path, instance, Arc::clone(&holder), metrics));
        let mut pages = Pages::start(operators)?;
        pages.adopt(&config, &mut inheritance)?;
        let admin = pages.address(config.fixed.admin);
        host::catch_up(begun, &holder).await;
        let granted = host::stop(predecessor);
        let mut listeners = listeners.serve(&service);
        listeners.adopt_encrypted(&encrypted_tables, encrypted);
        let host = Host::start(prepared, &args, &config, memory, &holder, threads)?;
        // Not before the place for successors is ours: a predecessor that ends and finds nobody there removes what is set up.
        granted.into_iter().for_each(Granted::serving);
        faults::follow(&config.plan);
        warn(&config);
        service.resolver.serving().look_for_loops(|address| address);
        tracing::info!(?addresses, %admin, %instance, "ready");
        Ok(Self {
            args,
            service,
            listeners,
            means,
            pages,
            looks: Looks::new(config.plan.reload),
            written,
            host,
            holder,
            link,
            is_succession_open: false,
        })
    }

    /// Serves until a signal asks to stop, or a successor has taken over; then answers what is under way.
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
                () = self.looks.next() => self.look().await,
                event = self.host.successor() => if self.meet(event).await? {
                    return self.leave(signals, false).await;
                },
                () = self.listeners.ended() => anyhow::bail!("a listener ended"),
            }
        }
        if self.limp(&mut signals).await? {
            return self.leave(signals, true).await;
        }
        self.end().await;
        Ok(())
    }

    /// Does what a successor wants; says whether everything is its own now.
    async fn meet(&mut self, event: Event) -> anyhow::Result<bool> {
        match event {
            Event::Sockets(answer) => self.give(answer),
            Event::Pause(answer) => return self.hand_over(answer).await,
            Event::Resume => self.read_again()?,
            Event::Leave => return Ok(true),
        }
        Ok(false)
    }

    /// Nobody reads until the successor does, or this one again; whatever else is asked for waits until it is known who. The
    /// thread that serves successors says so in time, unless it hangs itself.
    async fn hand_over(&mut self, answer: oneshot::Sender<()>) -> anyhow::Result<bool> {
        self.listeners.pause().await;
        if answer.send(()).is_err() {
            tracing::debug!("the successor is gone meanwhile");
        }
        let decided = tokio::time::timeout(2 * UNREAD, self.host.successor()).await;
        if matches!(decided, Ok(Event::Leave)) {
            return Ok(true);
        }
        self.read_again()?;
        Ok(false)
    }

    fn read_again(&mut self) -> anyhow::Result<()> {
        self.is_succession_open = false;
        Ok(self.listeners.resume()?)
    }

    /// Answers what is under way, and removes what was set up, unless a successor needs it.
    async fn end(mut self) {
        self.host.stop_living();
        close(&self.service, &mut self.listeners).await;
        let (service, holder) = (self.service.clone(), Arc::clone(&self.holder));
        let mut finishing = std::pin::pin!(finish(&service, &holder));
        let mut is_left = tokio::select! {
            () = &mut finishing => false,
            is_left = self.meet_at_end() => {
                finishing.await;
                is_left
            }
        };
        // Who was given the sockets is about to answer what waits in them.
        if self.is_succession_open && !is_left {
            let met = tokio::time::timeout(SUCCESSION, self.meet_at_end()).await;
            is_left = met.unwrap_or(false);
        }
        if is_left || self.host.is_succeeded() {
            self.host.rest();
            self.host.end();
        } else {
            self.host.tear_down();
        }
    }

    /// Does what a successor wants, though nothing is read here any more, until one has everything or is gone; says which.
    async fn meet_at_end(&mut self) -> bool {
        loop {
            match self.host.successor().await {
                Event::Sockets(answer) => self.give(answer),
                // It may be gone meanwhile; then the next word says so.
                Event::Pause(answer) => drop(answer.send(())),
                Event::Resume => {
                    self.is_succession_open = false;
                    return false;
                }
                Event::Leave => return true,
            }
        }
    }

    /// Gives a successor descriptors of all sockets.
    fn give(&mut self, answer: oneshot::Sender<Vec<(Name, OwnedFd)>>) {
        self.is_succession_open = true;
        let sockets = self.listeners.sockets().and_then(|mut sockets| {
            sockets.extend(self.pages.sockets()?);
            Ok(sockets)
        });
        match sockets {
            // A successor that is gone meanwhile wants nothing.
            Ok(sockets) => drop(answer.send(sockets)),
            Err(error) => tracing::error!(%error, "a successor cannot be given the sockets"),
        }
    }

    /// Answers what it has read, and ends. Where somebody looks after it, it waits to be stopped: one that ended by itself would
    /// be started again, and take over from its successor.
    async fn leave(mut self, mut signals: Signals, is_asked: bool) -> anyhow::Result<()> {
        tracing::info!("a successor answers; connections that are open are answered until they are idle");
        self.listeners.pause().await;
        self.host.rest();
        self.listeners.release();
        self.pages.close();
        self.service.under_way.close();
        let idle = tokio::time::timeout(LINGER, self.service.under_way.wait());
        let is_asked = is_asked
            || tokio::select! {
                _waited = idle => false,
                request = signals.next() => request == Request::Stop,
            };
        drain(&self.service, &mut self.listeners, &self.holder).await;
        self.link.abort();
        if !is_asked && self.host.is_looked_after() {
            tracing::info!("waiting to be stopped");
            while signals.next().await != Request::Stop {}
        }
        self.host.end();
        Ok(())
    }

    /// Answers on for as long as `health` says (`lameduck`): who balances load has to hear of the end first. A second
    /// signal ends it; a successor that comes meanwhile takes over: says whether one has.
    async fn limp(&mut self, signals: &mut Signals) -> anyhow::Result<bool> {
        let serving = self.service.resolver.serving();
        let lameduck = serving
            .config
            .plan
            .health
            .iter()
            .map(|health| health.lameduck)
            .max();
        let Some(lameduck) = lameduck.filter(|span| !span.is_zero()) else {
            return Ok(false);
        };
        tracing::info!(?lameduck, "going into lameduck mode");
        let mut ended = std::pin::pin!(tokio::time::sleep(lameduck));
        loop {
            tokio::select! {
                () = &mut ended => return Ok(false),
                _request = signals.next() => return Ok(false),
                event = self.host.successor() => if self.meet(event).await? {
                    return Ok(true);
                },
            }
        }
    }

    /// Looks whether the files say something else now (`reload`). What is wrong is told once.
    async fn look(&mut self) {
        let taken = match Config::load(&self.args) {
            Ok(config) if config == self.written => {
                self.looks.wrong = None;
                return;
            }
            Ok(config) => self.take(config).await,
            Err(error) => Err(error.into()),
        };
        let wrong = taken.as_ref().err().map(|error| format!("{error:#}"));
        if wrong.is_none() || wrong != self.looks.wrong {
            self.tell(&taken);
        }
        self.looks.wrong = wrong;
    }

    /// Takes the files again, as a signal asks.
    async fn reload(&mut self) {
        let taken = match Config::load(&self.args) {
            Ok(config) => self.take(config).await,
            Err(error) => Err(error.into()),
        };
        self.tell(&taken);
    }

    fn tell(&self, taken: &anyhow::Result<()>) {
        let file = file_name(&self.args).display().to_string();
        match taken {
            Ok(()) => tracing::info!(%file, "the configuration was read again"),
            Err(error) => {
                self.means.metrics.reload_failed.increment(1);
                tracing::error!(%file, error = format!("{error:#}"), "the configuration stays as it is");
            }
        }
    }

    /// Puts a configuration in force; what cannot be put changes nothing.
    async fn take(&mut self, written: Config) -> anyhow::Result<()> {
        let resolver = Arc::clone(&self.service.resolver);
        let current = resolver.serving();
        let mut wanted = Serving::look_up(written.clone(), &self.means.metrics).await?;
        let fields = current.config.needs_restart(&wanted);
        if !fields.is_empty() {
            tracing::warn!(?fields, "these fields need a restart and stay as they are");
            wanted.fixed = current.config.fixed.clone();
        }
        let serving = Serving::new(wanted, Some(&current), &host_interfaces, &self.means)?;
        let new = self.listeners.bind(&serving.tables)?;
        let encrypted = self.listeners.bind_encrypted(&serving.encrypted)?;
        self.pages.adopt(&serving.config, &mut Inheritance::none())?;
        self.listeners.adopt(&serving.tables, new);
        self.listeners.adopt_encrypted(&serving.encrypted, encrypted);
        self.looks = Looks::new(serving.config.plan.reload);
        self.written = written;
        faults::follow(&serving.config.plan);
        warn(&serving.config);
        serving.look_for_loops(|address| address);
        resolver.put_in_force(serving);
        Ok(())
    }
}

fn warn(config: &Config) {
    for warning in &config.warnings {
        tracing::warn!("{warning}");
    }
}

/// Takes nothing new, answers what is under way, and tells the enforcer of it.
async fn drain(service: &Service, listeners: &mut Listening, holder: &Holder) {
    close(service, listeners).await;
    finish(service, holder).await;
}

async fn close(service: &Service, listeners: &mut Listening) {
    tracing::info!("stopping; what is under way is answered");
    service.stop.cancel();
    service.under_way.close();
    listeners.all_ended().await;
}

/// What was told to pods the enforcer hears of, whatever could not be answered.
async fn finish(service: &Service, holder: &Holder) {
    let answered = tokio::time::timeout(DRAIN, service.under_way.wait()).await;
    let told = tokio::time::timeout(TELLING, holder.tell_rest()).await;
    if answered.is_err() {
        tracing::warn!(left = service.under_way.len(), "stopped before all was answered");
    } else if told.is_err() {
        tracing::warn!("stopped before the enforcer was told all");
    } else {
        tracing::info!("stopped");
    }
}

/// When the files are looked at again.
#[derive(Debug)]
struct Looks {
    every: Option<Duration>,
    /// What was wrong the last time.
    wrong: Option<String>,
}

impl Looks {
    /// The jitter is drawn once, so that the nodes of a cluster do not all look at once.
    fn new(reload: Option<Reload>) -> Self {
        let every = reload.map(|reload| reload.interval + reload.jitter.mul_f64(rand::random::<f64>()));
        Self { every, wrong: None }
    }

    async fn next(&self) {
        match self.every {
            Some(every) => tokio::time::sleep(every).await,
            None => std::future::pending().await,
        }
    }
}
