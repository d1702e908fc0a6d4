//! Looks after interface, rules and Corefile from a thread of its own: programs run there, and no query waits for them.

use std::net::SocketAddr;
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
use crate::host::node_cache::kernel::{ErrorType, NetworkError, Rules, ensure_interface, remove_interface};

/// How often template and ConfigMap are looked at.
const CONFIG_PERIOD: Duration = Duration::from_secs(10);

/// How often it is looked whether others changed the rules: what the enforcer, or anybody, does to their place is put right
/// within 5 s, whatever the interval.
const DRIFT_PERIOD: Duration = Duration::from_secs(4);

/// Errors of setting up, as node-cache counts them.
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

    /// Of interface and rules.
    pub fn network(&self, error: &NetworkError) {
        tracing::error!(%error, "the network cannot be set up; it is tried again");
        self.count(error.kind());
    }

    /// Of the template and the ConfigMaps.
    pub fn source(&self, error: &SourceError) {
        tracing::error!(%error, "the Corefile stays as it is");
        self.count(ErrorType::ConfigMap);
    }
}

/// What went past dnsd while it was not alive.
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

/// Everything before it serves: the Corefile is written, the addresses are there.
#[derive(Debug)]
pub struct PreparedHost {
    setup: HostSetup,
    source: Option<Source>,
    errors: SetupErrors,
}

impl PreparedHost {
    /// Sets up the interface. What fails is counted and tried again later, as node-cache does: whether dnsd can serve
    /// without it will be seen. `source` is what the Corefile is made of, if it is made.
    #[must_use]
    pub fn new(setup: HostSetup, source: Option<Source>, errors: SetupErrors) -> Self {
        let prepared = Self {
            setup,
            source,
            errors,
        };
        prepared.interface();
        prepared
    }

    /// What is set up.
    #[must_use]
    pub const fn setup(&self) -> &HostSetup {
        &self.setup
    }

    /// Sets up the rules, now that somebody answers, and looks after everything until it is told to stop. `reload` is
    /// called when there is another Corefile.
    ///
    /// # Errors
    /// When no thread can be started.
    pub fn keep(self, reload: impl Fn() + Send + 'static) -> std::io::Result<Reconciler> {
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
                .go(&inbox, reload)
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

/// Who looks after it.
#[derive(Debug)]
pub struct Reconciler {
    orders: Sender<Command>,
    thread: JoinHandle<()>,
}

/// What it is told.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Command {
    /// It does not: the cluster's DNS is there now.
    SetFallback(Vec<SocketAddr>),
    /// Everything that was set up is removed.
    TearDown,
    /// Everything stays: another dnsd has taken over.
    Leave,
    /// Nothing is done any more until it is said how it ends.
    Pause,
}

impl Reconciler {
    /// Ends, and removes what was set up, unless the flags say otherwise; returns when that is done.
    pub fn tear_down(self) {
        let is_heard = self.orders.send(Command::TearDown).is_ok();
        if self.thread.join().is_err() || !is_heard {
            tracing::error!("the thread that looks after the network died");
        }
    }

    /// Tells where the cluster's DNS is now.
    pub fn fallback_setter(&self) -> impl Fn(Vec<SocketAddr>) + Send + use<> {
        let orders = self.orders.clone();
        move |servers| {
            if orders.send(Command::SetFallback(servers)).is_err() {
                tracing::debug!("nobody looks after the network any more");
            }
        }
    }

    /// Another dnsd has taken over: nothing is done any more.
    pub fn pause(&self) {
        if self.orders.send(Command::Pause).is_err() {
            tracing::error!("the thread that looks after the network died");
        }
    }

    /// Ends when it has finished what it does, and leaves everything to the next dnsd.
    pub fn leave(self) {
        if self.orders.send(Command::Leave).is_err() {
            tracing::error!("the thread that looks after the network died");
        }
    }
}

struct ReconcilerThread {
    prepared: PreparedHost,
    rules: Option<Rules>,
    /// Whom the fallback may ask.
    endpoints: Vec<SocketAddr>,
    bypassed: BypassCounters,
}

/// What is due when.
struct Due {
    sync: Timestamp,
    notice: Timestamp,
    config: Timestamp,
}

impl ReconcilerThread {
    fn go(mut self, inbox: &Receiver<Command>, reload: impl Fn()) {
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
            self.catch_up(&mut due, interval, &reload);
        }
    }

    /// Does what is due.
    fn catch_up(&mut self, due: &mut Due, interval: Duration, reload: impl Fn()) {
        let now = clock::now();
        if due.notice <= now {
            if self.is_changed_by_others() {
                due.sync = now;
            }
            due.notice = now.after(DRIFT_PERIOD);
        }
        if due.sync <= now {
            self.sync();
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

    fn sync(&mut self) {
        self.prepared.interface();
        if !self.prepared.setup.rules {
            return;
        }
        match self.ensure_rules() {
            Ok(0) => {}
            Ok(tables) => tracing::info!(tables, "rules were added"),
            Err(error) => self.prepared.errors.network(&error),
        }
    }

    fn ensure_rules(&mut self) -> Result<usize, NetworkError> {
        let rules = rules(&mut self.rules, &self.prepared.setup)?;
        rules.ensure(&self.endpoints, |family, past| self.bypassed.count(family, past))
    }

    /// Those of a life before, too, which was killed: it may be told to end before it has looked at them.
    fn remove_rules(&mut self) -> Result<(), NetworkError> {
        if self.prepared.setup.rules {
            rules(&mut self.rules, &self.prepared.setup)?.remove()?;
        }
        Ok(())
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
        if self.prepared.setup.skips_teardown {
            return;
        }
        tracing::info!("tearing down");
        let removed = self.remove_rules();
        removed.unwrap_or_else(|error| self.prepared.errors.network(&error));
        if let Some(name) = &self.prepared.setup.interface {
            match remove_interface(name) {
                Ok(_was_there) => {}
                Err(error) => self.prepared.errors.network(&error),
            }
        }
    }
}

fn rules<'a>(made: &'a mut Option<Rules>, setup: &HostSetup) -> Result<&'a mut Rules, NetworkError> {
    match made {
        Some(rules) => Ok(rules),
        none => Ok(none.insert(Rules::new(setup.settings.clone())?)),
    }
}
