//! The parts, put together and kept running.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use anyhow::Context;
use egret_kernel::iptables::Flavour;
use egret_kernel::memory;
use egret_shared::revision::Instance;
use egret_shared::rt::shutdown::{Request, Signals};
use egret_shared::rt::{admin, task, telemetry};
use egret_shared::switch::{Switch, is_off};
use tokio::sync::mpsc;

use egret_enforcer::address_report::{AddressReporter, NodeAddresses};
use egret_enforcer::admin::AdminHandler;
use egret_enforcer::backend::ebpf::{self, Ebpf};
use egret_enforcer::backend::memory::InMemory;
use egret_enforcer::backend::netfilter::change_monitor::ChangeMonitor;
use egret_enforcer::backend::netfilter::denials::Denials;
use egret_enforcer::backend::netfilter::names::is_own_chain;
use egret_enforcer::backend::netfilter::neighbours::{ForeignMarks, look_for_marks};
use egret_enforcer::backend::netfilter::{Beside, Netfilter, Settings};
use egret_enforcer::backend::none::Unenforced;
use egret_enforcer::backend::{self, Backend};
use egret_enforcer::config::{Args, BackendKind, Config, StartupConfig};
use egret_enforcer::engine::{Engine, Input, PROGRAMMING_BUCKETS, Setup};
use egret_enforcer::events;
use egret_enforcer::events::sink::{Destination, ReopenRequest, Sink};
use egret_enforcer::link;
use egret_enforcer::node::Node;
use egret_enforcer::node::link_monitor::LinkMonitor;
use egret_enforcer::state::{self, ObjectStore, ObjectWriter, State};
use egret_enforcer::watch::Directory;

/// Inputs that wait for the engine; beyond, whoever sends one waits.
const MAX_WAITING: usize = 4096;

/// By how much the engine's memory grows without the kernel: the records of more than 40,000 addresses.
const ROOM: usize = 32 << 20;

/// An enforcer that runs.
#[derive(Debug)]
pub(crate) struct Daemon {
    args: Args,
    config: Config,
    inputs: mpsc::Sender<Input>,
    admin_handler: Arc<AdminHandler>,
    /// Asks for the file of events to be opened anew.
    events: Option<ReopenRequest>,
    engine: std::thread::JoinHandle<Box<dyn Backend>>,
    /// Told to end when nothing more comes from the source.
    objects: Option<(ObjectWriter, std::thread::JoinHandle<()>)>,
}

impl Daemon {
    /// Binds the sockets and starts the parts.
    ///
    /// # Errors
    /// When a socket cannot be bound, or the backend cannot work here.
    pub(crate) fn start(args: Args, config: Config) -> anyhow::Result<Self> {
        let recorder = telemetry::Metrics::install(&PROGRAMMING_BUCKETS, &[])?;
        backend::metrics::register_metrics();
        state::register_metrics();
        link::register_metrics();
        events::register_metrics();
        let listener = link::bind(&config.startup.link)?;
        let denials = Denials::default();
        let backend = open_backend(&config.startup, &denials, config.rule_metrics > 0)?;
        let (inputs, taken) = mpsc::channel(MAX_WAITING);
        let admin_handler = Arc::new(AdminHandler {
            engine: inputs.clone(),
            counters: backend.counters(),
            read: Mutex::default(),
            recorder,
            rule_metrics: RwLock::new(config.rule_metrics),
        });
        serve_operators(
            config.startup.admin,
            Arc::clone(&admin_handler) as Arc<dyn admin::Admin>,
        )?;
        let name = backend.name();
        let compiler = config.startup.compiler.clone();
        let state = open_state(&config.startup);
        let objects = open_objects(&config.startup)?;
        let setup = Setup {
            compiler,
            backend,
            resync: config.resync,
            remembered: state.remembered,
            state_writer: state.writer,
            excluded_namespaces: config.startup.not_intercepted.clone(),
        };
        let instance = Instance::from_random(RandomState::new().build_hasher().finish());
        let link = Link {
            listener: listener.into_std()?,
            path: config.startup.link.clone(),
            instance,
            engine: inputs.clone(),
        };
        // Before the first objects, and the news before the list: no change is missed.
        let news = LinkMonitor::listen().context("changes of links cannot be heard")?;
        let mut held = NodeAddresses::open().context("the node's addresses cannot be listed")?;
        let first = held.changed().context("the node's addresses cannot be listed")?;
        inputs
            .try_send(Input::Cluster(first.into_iter().collect()))
            .map_err(|_full| anyhow::anyhow!("the engine takes nothing in"))?;
        let engine = start_engine(setup, taken, link)?;
        drop(task::spawn(
            "watch",
            Directory::new(config.startup.source.clone())
                .with_store(objects.stored, objects.writer.clone())
                .watch(inputs.clone()),
        ));
        hear(news, held, inputs.clone())?;
        if config.startup.backend == BackendKind::Netfilter {
            hear_others(inputs.clone())?;
        }
        report_addresses(&config.startup)?;
        let events = tell_events(&config.startup, denials, inputs.clone())?;
        tracing::info!(backend = name, link = %config.startup.link.display(), admin = %config.startup.admin, %instance, "listening");
        Ok(Self {
            args,
            config,
            inputs,
            admin_handler,
            events,
            engine,
            objects: objects.writer.zip(objects.thread),
        })
    }

    /// Runs until a signal asks to stop. Rules and sets stay in force.
    ///
    /// # Errors
    /// When the engine died.
    pub(crate) async fn run(mut self, mut signals: Signals) -> anyhow::Result<()> {
        loop {
            tokio::select! {
                request = signals.next() => match request {
                    Request::Stop => break,
                    Request::Reload => self.reload().await,
                },
                () = self.inputs.closed() => anyhow::bail!("the engine ended"),
            }
        }
        // An engine that is gone needs no stopping.
        drop(self.inputs.send(Input::Stop).await);
        let (engine, objects) = tokio::task::spawn_blocking(move || {
            let engine = self.engine.join();
            let objects = self.objects.map_or(Ok(()), |(keeper, writer)| {
                keeper.end();
                writer.join()
            });
            (engine, objects)
        })
        .await?;
        let mut backend = engine.map_err(|_panic| anyhow::anyhow!("the engine died"))?;
        objects.map_err(|_panic| anyhow::anyhow!("what writes the file of objects died"))?;
        if is_off(Switch::KeepOnExit) {
            backend.remove_everything()?;
        } else {
            tracing::info!("stopped; rules and sets stay in force");
        }
        Ok(())
    }

    /// Takes the file again; what cannot be taken changes nothing.
    async fn reload(&mut self) {
        self.events.iter().for_each(ReopenRequest::send);
        let file = self
            .args
            .config
            .as_ref()
            .map_or_else(|| "no file".to_owned(), |path| path.display().to_string());
        match Config::load(&self.args) {
            Err(error) => tracing::error!(file, %error, "the configuration stays as it is"),
            Ok(new) => {
                let fields = self.config.needs_restart(&new);
                if !fields.is_empty() {
                    tracing::warn!(file, ?fields, "these fields need a restart and stay as they are");
                }
                *self
                    .admin_handler
                    .rule_metrics
                    .write()
                    .unwrap_or_else(PoisonError::into_inner) = new.rule_metrics;
                // The engine's end is seen by `run`.
                drop(self.inputs.send(Input::SetResync(new.resync)).await);
                self.config = Config {
                    startup: self.config.startup.clone(),
                    ..new
                };
                tracing::info!(file, "the configuration was read again");
            }
        }
    }
}

fn open_state(startup: &StartupConfig) -> State {
    let records = startup.compiler.records.limits.remembered();
    let path = startup.state.as_ref();
    path.map(|path| State::open(path, records)).unwrap_or_default()
}

fn open_objects(startup: &StartupConfig) -> anyhow::Result<ObjectStore> {
    match &startup.state_objects {
        Some(path) => ObjectStore::open(path, &startup.source).context("the file of objects cannot be kept"),
        None => Ok(ObjectStore::default()),
    }
}

fn open_backend(
    startup: &StartupConfig,
    denials: &Denials,
    is_each_counted: bool,
) -> anyhow::Result<Box<dyn Backend>> {
    Ok(match startup.backend {
        BackendKind::Netfilter => {
            let flavour = choose_flavour(startup.flavour)?;
            let node = Node::open().context("the routing table cannot be asked")?;
            let settings = Settings {
                flavour,
                marks: startup.marks,
                deny: startup.deny,
                telling: (startup.events.to != Destination::Off && !is_off(Switch::TellDenied))
                    .then_some(startup.events.telling),
            };
            let unknown = startup.unknown.clone();
            let beside = live_beside(startup)?;
            let netfilter = Netfilter::open(settings, Box::new(node))?;
            let netfilter = netfilter
                .with_unknown_pods(unknown)
                .beside(beside)
                .with_bridges(startup.bridges)
                .making_room()
                .telling(denials.clone());
            Box::new(match is_each_counted {
                true => netfilter.with_each_rule_alone(),
                false => netfilter,
            })
        }
        BackendKind::Ebpf => {
            tracing::info!(
                "this backend does not count what policies in audit would deny; they are not in force all the same"
            );
            let (cgroup_root, pin_path) = (startup.cgroup_root.clone(), startup.bpf_pins.clone());
            Box::new(Ebpf::new(ebpf::Options {
                cgroup_root,
                pin_path,
            }))
        }
        BackendKind::Memory => Box::new(InMemory::default()),
        BackendKind::None => Box::new(Unenforced),
    })
}

/// Refuses to start where others write marks that are ours, unless that is allowed.
fn live_beside(startup: &StartupConfig) -> anyhow::Result<Beside> {
    let foreign = look_for_marks(startup.marks).err();
    if let Some(foreign) = &foreign {
        if !startup.allow_foreign_marks {
            return Err(foreign.clone().into());
        }
        tracing::warn!("{foreign}");
    }
    Ok(Beside {
        jump: startup.jump,
        follows_flavour: startup.flavour.is_none(),
        accepted_marks: foreign.map(ForeignMarks::into_rules).unwrap_or_default(),
    })
}

fn choose_flavour(chosen: Option<Flavour>) -> anyhow::Result<Flavour> {
    if let Some(flavour) = chosen {
        return Ok(flavour);
    }
    let detected = Flavour::detect(is_own_chain).context("no iptables can be used")?;
    tracing::info!(flavour = detected.flavour.name(), evidence = ?detected.evidence, "iptables found");
    Ok(detected.flavour)
}

/// Where dnsds connect, and whom they speak to.
struct Link {
    listener: std::os::unix::net::UnixListener,
    path: PathBuf,
    instance: Instance,
    engine: mpsc::Sender<Input>,
}

/// The engine has a thread of its own: what it does to the kernel blocks nobody else. The link is read and written there
/// as well: what a dnsd tells would wait for the engine all the same, and handing it from thread to thread and its
/// answer back costs about as much as all that the engine does for it. It is a task like the link: what a runtime itself
/// waits for it looks for in the kernel once more each time that a task wakes it.
fn start_engine(
    setup: Setup,
    inputs: mpsc::Receiver<Input>,
    link: Link,
) -> anyhow::Result<std::thread::JoinHandle<Box<dyn Backend>>> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let listener = {
        let _inside = runtime.enter();
        tokio::net::UnixListener::from_std(link.listener)?
    };
    let engine = Engine::new(setup);
    let run = async move {
        drop(task::spawn(
            "link",
            link::serve(listener, link.path, link.instance, link.engine),
        ));
        task::spawn("engine", engine.run(inputs)).await
    };
    let thread = std::thread::Builder::new().name("engine".to_owned());
    let end = move || {
        memory::keep_room(ROOM);
        match runtime.block_on(run) {
            Ok(backend) => backend,
            Err(died) => std::panic::resume_unwind(died.into_panic()),
        }
    };
    Ok(thread.spawn(end)?)
}

/// Tells what is denied, if that is new. What asks for its file to be opened anew.
fn tell_events(
    startup: &StartupConfig,
    denials: Denials,
    engine: mpsc::Sender<Input>,
) -> anyhow::Result<Option<ReopenRequest>> {
    let sink = Sink::open(&startup.events.to).with_context(|| format!("events: {}", startup.events.to))?;
    let Some(sink) = sink else { return Ok(None) };
    if startup.backend != BackendKind::Netfilter {
        tracing::warn!("only the backend netfilter tells of denied packets");
        return Ok(None);
    }
    let reopen = sink.reopen_request();
    events::start(events::Setup {
        node: startup.node_name().to_owned(),
        telling: startup.events.telling,
        denials,
        engine,
        sink,
    })?;
    Ok(Some(reopen))
}

/// Tells the engine of changes of links and of the node's addresses, until it ends.
fn hear(mut news: LinkMonitor, mut held: NodeAddresses, engine: mpsc::Sender<Input>) -> anyhow::Result<()> {
    let second = std::time::Duration::from_secs(1);
    let listen = move || {
        // After a failure the list is asked for again though there are no news.
        let mut is_listed = true;
        loop {
            let waited = if is_listed {
                news.wait()
            } else {
                news.wait_timeout(second)
            };
            if let Err(error) = waited {
                tracing::warn!(%error, "changes of links are not heard for a second");
                std::thread::sleep(second);
                continue;
            }
            let changed = held.changed();
            is_listed = changed.is_ok();
            let event = changed.unwrap_or_else(|error| {
                tracing::warn!(%error, "the node's addresses cannot be listed; those known before stay protected");
                None
            });
            let events = event.map(|event| Input::Cluster(vec![event]));
            let inputs = events.into_iter().chain([Input::LinksChanged]);
            if inputs
                .map(|input| engine.blocking_send(input))
                .any(|sent| sent.is_err())
            {
                return;
            }
        }
    };
    std::thread::Builder::new()
        .name("links".to_owned())
        .spawn(listen)?;
    Ok(())
}

/// Tells other nodes the addresses of this one, where that is new.
fn report_addresses(startup: &StartupConfig) -> anyhow::Result<()> {
    match &startup.report_dir {
        Some(folder) if !is_off(Switch::ReportAddresses) => {
            AddressReporter::open(folder.clone(), startup.node_name())
                .and_then(AddressReporter::start)
                .context("the node's addresses cannot be reported")
        }
        Some(_) | None => Ok(()),
    }
}

/// Tells the engine when others change what is ours in the nft flavour, until it ends.
fn hear_others(engine: mpsc::Sender<Input>) -> anyhow::Result<()> {
    let mut news = ChangeMonitor::listen().context("changes of the packet filter cannot be heard")?;
    let listen = move || loop {
        match news.wait() {
            Ok(by) => {
                if engine.blocking_send(Input::ChangedByOthers(by)).is_err() {
                    return;
                }
            }
            Err(error) => {
                tracing::warn!(%error, "changes of the packet filter are not heard for a second");
                std::thread::sleep(std::time::Duration::from_secs(1));
            }
        }
    };
    std::thread::Builder::new()
        .name("others".to_owned())
        .spawn(listen)?;
    Ok(())
}

/// Answers admin_handler from a thread of its own: reading counters blocks.
fn serve_operators(address: SocketAddr, admin_handler: Arc<dyn admin::Admin>) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let listener = admin::bind(address).with_context(|| format!("cannot listen on {address}"))?;
    let listener = {
        let _inside = runtime.enter();
        tokio::net::TcpListener::from_std(listener)?
    };
    std::thread::Builder::new()
        .name("admin".to_owned())
        .spawn(move || {
            runtime.block_on(admin::serve(listener, admin_handler));
        })?;
    Ok(())
}
