//! Reconciles interface, rules and Corefile in a thread of its own: it runs programs, and no query waits for them.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use egret_kernel::{Family, Transport};
use egret_shared::rt::clock;
use egret_shared::time::Timestamp;
use metrics::{Counter, counter, describe_counter};

use super::fallback::BypassCount;
use super::source::{Source, SourceError};
use crate::config::host_setup::HostSetup;
use crate::host::node_cache::kernel::{
    ErrorType, NetworkError, Rules, ensure_interface, has_interface, remove_interface,
};

/// How often template and ConfigMap are read.
const CONFIG_PERIOD: Duration = Duration::from_secs(10);

/// How often changes by other programs are polled: a rule that the enforcer or another program moves is back in place
/// within 5 s, whatever the interval.
const DRIFT_PERIOD: Duration = Duration::from_secs(4);

/// Counters of setup errors, as in node-cache.
#[derive(Clone, Debug)]
pub struct SetupErrors([(ErrorType, Counter); 5]);

impl Default for SetupErrors {
    fn default() -> Self {
        describe_counter!(
            "coredns_nodecache_setup_errors_total",
            "The number of errors during periodic network setup for node-cache."
        );
        Self(ErrorType::ALL.map(|kind| {
            let counter = counter!("coredns_nodecache_setup_errors_total", "errortype" => kind.label());
            counter.increment(0);
            (kind, counter)
        }))
    }
}

impl SetupErrors {
    fn count(&self, desired: ErrorType) {
        let counters = self.0.iter().filter(|(kind, _)| *kind == desired);
        counters.for_each(|(_, counter)| counter.increment(1));
    }

    /// Counts an error of the interface or the rules.
    pub fn network(&self, error: &NetworkError) {
        tracing::error!(%error, "the network cannot be set up; it is tried again");
        self.count(error.kind());
    }

    /// Counts an error of the template or the ConfigMaps.
    pub fn source(&self, error: &SourceError) {
        tracing::error!(%error, "the Corefile stays as it is");
        self.count(ErrorType::ConfigMap);
    }
}

/// Counters of packets that bypassed dnsd while it was not alive.
#[derive(Clone, Debug)]
struct BypassCounters([(Family, Transport, Counter); 4]);

impl Default for BypassCounters {
    fn default() -> Self {
        describe_counter!(
            "egret_dnsd_went_past_total",
            "Pods' questions that were left to the cluster DNS while no dnsd was alive: datagrams, and connections."
        );
        let of = |family: Family, transport: Transport| {
            let counter = counter!(
                "egret_dnsd_went_past_total",
                "family" => family_label(family),
                "transport" => transport.name()
            );
            counter.increment(0);
            (family, transport, counter)
        };
        let [v4, v6] = Family::ALL;
        let (tcp, udp) = (Transport::Tcp, Transport::Udp);
        Self([of(v4, tcp), of(v4, udp), of(v6, tcp), of(v6, udp)])
    }
}

impl BypassCounters {
    fn count(&self, family: Family, past: BypassCount) {
        tracing::info!(
            count = past.count,
            transport = past.transport.name(),
            family = family_label(family),
            "while no dnsd was alive, pods' questions were left to the cluster DNS"
        );
        let desired = (family, past.transport);
        let counters = self
            .0
            .iter()
            .filter(|(family, transport, _)| (*family, *transport) == desired);
        counters.for_each(|(_, _, counter)| counter.increment(past.count));
    }
}

const fn family_label(family: Family) -> &'static str {
    match family {
        Family::V4 => "IPv4",
        Family::V6 => "IPv6",
    }
}

/// The state before dnsd serves: the Corefile is written, the addresses exist.
#[derive(Debug)]
pub struct PreparedHost {
    setup: HostSetup,
    source: Option<Source>,
    errors: SetupErrors,
    /// Whether the interface is this process's: there was none before.
    has_made_interface: Arc<AtomicBool>,
}

impl PreparedHost {
    /// Sets up the interface. An error is counted, and setup is tried again later, as in node-cache: the listeners may
    /// work without it. `source` makes the Corefile, if there is one to make.
    #[must_use]
    pub fn new(setup: HostSetup, source: Option<Source>, errors: SetupErrors) -> Self {
        let prepared = Self {
            has_made_interface: Arc::default(),
            setup,
            source,
            errors,
        };
        prepared.make_interface();
        prepared
    }

    /// As at first: another dnsd that ended meanwhile has removed it.
    pub fn make_interface(&self) {
        // Where that cannot be seen, somebody else's interface must not be removed.
        let was_there = |name: &String| has_interface(name).unwrap_or(true);
        if self.setup.interface.as_ref().is_some_and(|name| !was_there(name)) {
            self.has_made_interface.store(true, Ordering::Relaxed);
        }
        self.interface();
    }

    /// The setup.
    #[must_use]
    pub const fn setup(&self) -> &HostSetup {
        &self.setup
    }

    /// What a start that does not succeed removes.
    #[must_use]
    pub fn undo(&self) -> Undo {
        Undo {
            has_made_interface: Arc::clone(&self.has_made_interface),
            setup: self.setup.clone(),
        }
    }

    /// Sets up the rules, once dnsd serves, and reconciles until it is stopped. `reload` is called when the Corefile
    /// has changed, `synced` with the outcome of each attempt at the rules.
    ///
    /// # Errors
    /// When no thread can be started.
    pub fn keep(
        self,
        reload: impl Fn() + Send + 'static,
        synced: impl Fn(Result<(), &NetworkError>) + Send + 'static,
    ) -> std::io::Result<Reconciler> {
        let (orders, inbox) = channel();
        let thread = std::thread::Builder::new()
            .name("node-cache".to_owned())
            .spawn(move || {
                ReconcilerThread {
                    prepared: self,
                    rules: None,
                    endpoints: Vec::new(),
                    bypassed: BypassCounters::default(),
                }
                .go(&inbox, reload, synced)
            })?;
        Ok(Reconciler { orders, thread })
    }

    fn interface(&self) {
        let Some(name) = &self.setup.interface else {
            return;
        };
        let addresses = &self.setup.settings.local_ips;
        match ensure_interface(name, addresses) {
            Ok(true) => tracing::info!(interface = name, ?addresses, "added"),
            Ok(false) => {}
            Err(error) => self.errors.network(&error),
        }
    }
}

/// What a start that does not succeed removes.
#[derive(Debug)]
pub struct Undo {
    has_made_interface: Arc<AtomicBool>,
    setup: HostSetup,
}

impl Undo {
    /// Removes what this process made.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn made(&self) -> Result<(), NetworkError> {
        match &self.setup.interface {
            Some(name) if !self.setup.skips_teardown && self.has_made_interface.load(Ordering::Relaxed) => {
                remove_interface(name).map(drop)
            }
            Some(_) | None => Ok(()),
        }
    }

    /// Removes everything, of earlier processes as well: no dnsd answers any more.
    ///
    /// # Errors
    /// The first error; the rest is removed nevertheless.
    pub fn everything(&self) -> Result<(), NetworkError> {
        tear_down(&self.setup, &mut None)
    }
}

/// Removes rules, sets and interface, unless they are to stay.
fn tear_down(setup: &HostSetup, made: &mut Option<Rules>) -> Result<(), NetworkError> {
    if setup.skips_teardown {
        return Ok(());
    }
    tracing::info!("tearing down");
    // Also the rules of a process that was killed: this one may end before its first check.
    let unruled = if setup.rules {
        rules(made, setup).and_then(|rules| rules.remove())
    } else {
        Ok(())
    };
    let removed = setup
        .interface
        .as_ref()
        .map_or(Ok(false), |name| remove_interface(name));
    removed?;
    unruled
}

/// The handle of the thread.
#[derive(Debug)]
pub struct Reconciler {
    orders: Sender<Command>,
    thread: JoinHandle<()>,
}

/// A command to the thread.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Command {
    /// The servers of the cluster DNS have changed.
    SetFallback(Vec<SocketAddr>),
    /// End, and remove everything that was set up.
    TearDown,
    /// End, and leave everything: another dnsd has taken over.
    Leave,
    /// Do nothing until the next command.
    Pause,
}

impl Reconciler {
    /// Ends the thread and removes what was set up, unless the flags forbid it; returns when that is done.
    pub fn tear_down(self) {
        let is_heard = self.orders.send(Command::TearDown).is_ok();
        if self.thread.join().is_err() || !is_heard {
            tracing::error!("the thread that looks after the network died");
        }
    }

    /// A function that sets the servers of the cluster DNS.
    pub fn fallback_setter(&self) -> impl Fn(Vec<SocketAddr>) + Send + use<> {
        let orders = self.orders.clone();
        move |servers| {
            if orders.send(Command::SetFallback(servers)).is_err() {
                tracing::debug!("nobody looks after the network any more");
            }
        }
    }

    /// Pauses the thread: another dnsd takes over.
    pub fn pause(&self) {
        if self.orders.send(Command::Pause).is_err() {
            tracing::error!("the thread that looks after the network died");
        }
    }

    /// Ends the thread after its current work, and leaves everything to the next dnsd.
    pub fn leave(self) {
        if self.orders.send(Command::Leave).is_err() {
            tracing::error!("the thread that looks after the network died");
        }
    }
}

struct ReconcilerThread {
    prepared: PreparedHost,
    rules: Option<Rules>,
    /// The possible servers of the fallback.
    endpoints: Vec<SocketAddr>,
    bypassed: BypassCounters,
}

/// The times of the next checks.
struct Due {
    sync: Timestamp,
    notice: Timestamp,
    config: Timestamp,
}

impl ReconcilerThread {
    fn go(
        mut self,
        inbox: &Receiver<Command>,
        reload: impl Fn(),
        synced: impl Fn(Result<(), &NetworkError>),
    ) {
        let interval = self.prepared.setup.sync_interval;
        let begin = clock::now();
        let mut due = Due {
            sync: begin,
            notice: begin.after(DRIFT_PERIOD),
            config: begin.after(CONFIG_PERIOD),
        };
        loop {
            let next = due.sync.min(due.notice).min(due.config);
            match inbox.recv_timeout(next.since(clock::now())) {
                Ok(Command::TearDown) => return self.tear_down(),
                Ok(Command::Pause) => return self.paused(inbox),
                Ok(Command::Leave) | Err(RecvTimeoutError::Disconnected) => return,
                Ok(Command::SetFallback(servers)) => {
                    self.endpoints = servers;
                    due.sync = clock::now();
                }
                Err(RecvTimeoutError::Timeout) => {}
            }
            self.catch_up(&mut due, interval, &reload, &synced);
        }
    }

    /// Does the checks that are due.
    fn catch_up(
        &mut self,
        due: &mut Due,
        interval: Duration,
        reload: impl Fn(),
        synced: impl Fn(Result<(), &NetworkError>),
    ) {
        let now = clock::now();
        if due.notice <= now {
            if self.is_changed_by_others() {
                due.sync = now;
            }
            due.notice = now.after(DRIFT_PERIOD);
        }
        if due.sync <= now {
            self.sync(synced);
            due.sync = clock::now().after(interval);
        }
        if due.config <= now {
            self.config(reload);
            due.config = now.after(CONFIG_PERIOD);
        }
    }

    fn paused(self, inbox: &Receiver<Command>) {
        loop {
            match inbox.recv() {
                Ok(Command::TearDown) => return self.tear_down(),
                Ok(Command::Pause | Command::SetFallback(_)) => {}
                Ok(Command::Leave) | Err(_) => return,
            }
        }
    }

    fn is_changed_by_others(&mut self) -> bool {
        self.rules.as_mut().is_some_and(Rules::may_have_changed)
    }

    fn sync(&mut self, synced: impl Fn(Result<(), &NetworkError>)) {
        self.prepared.interface();
        if !self.prepared.setup.rules {
            return;
        }
        let ensured = self.ensure_rules();
        match &ensured {
            Ok(0) => {}
            Ok(tables) => tracing::info!(tables, "rules were added"),
            Err(error) => self.prepared.errors.network(error),
        }
        synced(ensured.as_ref().map(drop));
    }

    fn ensure_rules(&mut self) -> Result<usize, NetworkError> {
        let rules = rules(&mut self.rules, &self.prepared.setup)?;
        rules.ensure(&self.endpoints, |family, past| self.bypassed.count(family, past))
    }

    fn config(&mut self, reload: impl Fn()) {
        let Some(source) = &mut self.prepared.source else {
            return;
        };
        if source.refresh(|error| self.prepared.errors.source(&error)) {
            tracing::info!(corefile = %source.path().display(), "the Corefile was written anew");
            reload();
        }
    }

    fn tear_down(mut self) {
        if let Err(error) = tear_down(&self.prepared.setup, &mut self.rules) {
            self.prepared.errors.network(&error);
        }
    }
}

fn rules<'a>(made: &'a mut Option<Rules>, setup: &HostSetup) -> Result<&'a mut Rules, NetworkError> {
    match made {
        Some(rules) => Ok(rules),
        none => Ok(none.insert(Rules::new(setup.settings.clone())?)),
    }
}
