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

use egret_enforcer::admin::Operators;
use egret_enforcer::backend::Backend;
use egret_enforcer::backend::ebpf::{self, Ebpf};
use egret_enforcer::backend::memory::InMemory;
use egret_enforcer::backend::netfilter::denials::DenialRegistry;
use egret_enforcer::backend::netfilter::monitor::ruleset_events::RulesetEvents;
use egret_enforcer::backend::netfilter::names::is_own_chain;
use egret_enforcer::backend::netfilter::tables::foreign_rules::{ForeignMarks, look_for_marks};
use egret_enforcer::backend::netfilter::{Coexistence, Netfilter, Settings};
use egret_enforcer::backend::none::Unenforced;
use egret_enforcer::config::{Args, BackendKind, Config, EventsTo, Fixed};
use egret_enforcer::engine::{Engine, Input, Setup};
use egret_enforcer::events;
use egret_enforcer::events::sink::{Renewal, Sink};
use egret_enforcer::link;
use egret_enforcer::metrics::{BUCKETS, Metrics};
use egret_enforcer::node::Node;
use egret_enforcer::node::monitor::LinkNews;
use egret_enforcer::report::{HeldAddresses, Reporter};
use egret_enforcer::state::{ObjectKeeper, Objects, State};
use egret_enforcer::watch::dir::Directory;

/// Inputs that wait for the engine; beyond, whoever sends one waits.
const MOST_WAITING: usize = 4096;

/// By how much the engine's memory grows without the kernel: the records of more than 40,000 addresses.
const ROOM: usize = 32 << 20;

/// An enforcer that runs.
#[derive(Debug)]
pub(crate) struct Daemon {
    args: Args,
    config: Config,
    inputs: mpsc::Sender<Input>,
    operators: Arc<Operators>,
    /// Asks for the file of events to be opened anew.
    events: Option<Renewal>,
    engine: std::thread::JoinHandle<Box<dyn Backend>>,
    /// Told to end when nothing more comes from the source.
    objects: Option<(ObjectKeeper, std::thread::JoinHandle<()>)>,
}

impl Daemon {
    /// Binds the sockets and starts the parts.
    ///
    /// # Errors
    /// When a socket cannot be bound, or the backend cannot work here.
    pub(crate) fn start(args: Args, config: Config) -> anyhow::Result<Self> {
        let recorder = telemetry::Metrics::install(&BUCKETS, &[])?;
        let metrics = Metrics::register();
        let listener = link::bind(&config.fixed.link)?;
        let denials = DenialRegistry::default();
        let backend = open_backend(&config.fixed, &denials, config.rule_metrics > 0)?;
        let (inputs, taken) = mpsc::channel(MOST_WAITING);
        let operators = Arc::new(Operators {
            engine: inputs.clone(),
            counters: backend.counters(),
            read: Mutex::default(),
            recorder,
            rule_metrics: RwLock::new(config.rule_metrics),
        });
        serve_operators(
            config.fixed.admin,
            Arc::clone(&operators) as Arc<dyn admin::Admin>,
        )?;
        let name = backend.name();
        let compiler = config.fixed.compiler.clone();
        let state = open_state(&config.fixed);
        let objects = open_objects(&config.fixed)?;
        let setup = Setup {
            compiler,
            backend,
            resync: config.resync,
            metrics,
            remembered: state.remembered,
            keeper: state.keeper,
            spares: config.fixed.not_intercepted.clone(),
        };
        let instance = Instance::from_random(RandomState::new().build_hasher().finish());
        let link = Link {
            listener: listener.into_std()?,
            path: config.fixed.link.clone(),
            instance,
            engine: inputs.clone(),
        };
        // Before the first objects, and the news before the list: no change is missed.
        let news = LinkNews::listen().context("changes of links cannot be heard")?;
        let mut held = HeldAddresses::open().context("the node's addresses cannot be listed")?;
        let first = held.changed().context("the node's addresses cannot be listed")?;
        inputs
            .try_send(Input::Cluster(first.into_iter().collect()))
            .map_err(|_full| anyhow::anyhow!("the engine takes nothing in"))?;
        let engine = start_engine(setup, taken, link)?;
        drop(task::spawn(
            "watch",
            Directory::new(config.fixed.source.clone())
                .keeping(objects.known, objects.keeper.clone())
                .watch(inputs.clone()),
        ));
        hear(news, held, inputs.clone())?;
        if config.fixed.backend == BackendKind::Netfilter {
            hear_others(inputs.clone())?;
        }
        report_addresses(&config.fixed)?;
        let events = tell_events(&config.fixed, denials, inputs.clone())?;
        tracing::info!(backend = name, link = %config.fixed.link.display(), admin = %config.fixed.admin, %instance, "listening");
        Ok(Self {
            args,
            config,
            inputs,
            operators,
            events,
            engine,
            objects: objects.keeper.zip(objects.writer),
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
        self.events.iter().for_each(Renewal::ask);
        let file = self
            .args
            .config
            .as_ref()
            .map_or_else(|| "no file".to_owned(), |path| path.display().to_string());
        match Config::load(&self.args) {
            Err(error) => tracing::error!(file, %error, "the configuration stays as it is"),
            Ok(wanted) => {
                let fields = self.config.needs_restart(&wanted);
                if !fields.is_empty() {
                    tracing::warn!(file, ?fields, "these fields need a restart and stay as they are");
                }
                *self
                    .operators
                    .rule_metrics
                    .write()
                    .unwrap_or_else(PoisonError::into_inner) = wanted.rule_metrics;
                // The engine's end is seen by `run`.
                drop(self.inputs.send(Input::SetResync(wanted.resync)).await);
                self.config = Config {
                    fixed: self.config.fixed.clone(),
                    ..wanted
                };
                tracing::info!(file, "the configuration was read again");
            }
        }
    }
}

fn open_state(fixed: &Fixed) -> State {
    let records = fixed.compiler.records.limits.remembered();
    let path = fixed.state.as_ref();
    path.map(|path| State::open(path, records)).unwrap_or_default()
}

fn open_objects(fixed: &Fixed) -> anyhow::Result<Objects> {
    match &fixed.state_objects {
        Some(path) => Objects::open(path, &fixed.source).context("the file of objects cannot be kept"),
        None => Ok(Objects::default()),
    }
}

fn open_backend(
    fixed: &Fixed,
    denials: &DenialRegistry,
    is_each_counted: bool,
) -> anyhow::Result<Box<dyn Backend>> {
    Ok(match fixed.backend {
        BackendKind::Netfilter => {
            let flavour = choose_flavour(fixed.flavour)?;
            let node = Node::open().context("the routing table cannot be asked")?;
            let settings = Settings {
                flavour,
                marks: fixed.marks,
                deny: fixed.deny,
                telling: (fixed.events.to != EventsTo::Off && !is_off(Switch::TellDenied))
                    .then_some(fixed.events.telling),
            };
            let unknown = fixed.unknown.clone();
            let beside = live_beside(fixed)?;
            let netfilter = Netfilter::open(settings, Box::new(node))?;
            let netfilter = netfilter
                .with_unknown_pods(unknown)
                .with_coexistence(beside)
                .with_bridges(fixed.bridges)
                .with_nft_writer(fixed.nft_writer)
                .with_members_per_set(fixed.members_per_set)
                .with_preallocation()
                .telling(denials.clone());
            Box::new(match is_each_counted {
                true => netfilter.without_merged_sets(),
                false => netfilter,
            })
        }
        BackendKind::Ebpf => {
            tracing::info!(
                "this backend does not count what policies in audit would deny; they are not in force all the same"
            );
            let (cgroup_root, pin_path) = (fixed.cgroup_root.clone(), fixed.bpf_pins.clone());
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
fn live_beside(fixed: &Fixed) -> anyhow::Result<Coexistence> {
    let foreign = look_for_marks(fixed.marks).err();
    if let Some(foreign) = &foreign {
        if !fixed.allow_foreign_marks {
            return Err(foreign.clone().into());
        }
        tracing::warn!("{foreign}");
    }
    Ok(Coexistence {
        jump: fixed.jump,
        follows_flavour: fixed.flavour.is_none(),
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

/// Tells what is denied, if that is wanted. What asks for its file to be opened anew.
fn tell_events(
    fixed: &Fixed,
    denials: DenialRegistry,
    engine: mpsc::Sender<Input>,
) -> anyhow::Result<Option<Renewal>> {
    let sink = Sink::open(&fixed.events.to).with_context(|| format!("events: {}", fixed.events.to))?;
    let Some(sink) = sink else { return Ok(None) };
    if fixed.backend != BackendKind::Netfilter {
        tracing::warn!("only the backend netfilter tells of denied packets");
        return Ok(None);
    }
    let renewal = sink.renewal();
    events::start(events::Setup {
        node: fixed.node_name().to_owned(),
        telling: fixed.events.telling,
        denials,
        engine,
        sink,
    })?;
    Ok(Some(renewal))
}

/// Tells the engine of changes of links and of the node's addresses, until it ends.
fn hear(mut news: LinkNews, mut held: HeldAddresses, engine: mpsc::Sender<Input>) -> anyhow::Result<()> {
    let second = std::time::Duration::from_secs(1);
    let listen = move || {
        // After a failure the list is asked for again though there are no news.
        let mut is_listed = true;
        loop {
            let waited = if is_listed {
                news.wait()
            } else {
                news.wait_at_most(second)
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

/// Tells other nodes the addresses of this one, where that is wanted.
fn report_addresses(fixed: &Fixed) -> anyhow::Result<()> {
    match &fixed.report_dir {
        Some(folder) if !is_off(Switch::ReportAddresses) => Reporter::open(folder.clone(), fixed.node_name())
            .and_then(Reporter::start)
            .context("the node's addresses cannot be reported"),
        Some(_) | None => Ok(()),
    }
}

/// Tells the engine when others change what is ours in the nft flavour, until it ends.
fn hear_others(engine: mpsc::Sender<Input>) -> anyhow::Result<()> {
    let mut news = RulesetEvents::listen().context("changes of the packet filter cannot be heard")?;
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

/// Answers operators from a thread of its own: reading counters blocks.
fn serve_operators(address: SocketAddr, operators: Arc<dyn admin::Admin>) -> anyhow::Result<()> {
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
            runtime.block_on(admin::serve(listener, operators));
        })?;
    Ok(())
}
