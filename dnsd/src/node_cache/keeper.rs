//! Looks after interface, rules and Corefile from a thread of its own: programs run there, and no query waits for them.

use std::net::SocketAddr;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use egret_kernel::{Family, Transport};
use egret_shared::rt::clock;
use egret_shared::time::Timestamp;
use metrics::{Counter, counter};

use super::fallback::Past;
use super::network::{ErrorType, NetworkError, Rules, ensure_interface, remove_interface};
use super::rules::Situation;
use super::source::{Source, SourceError};

/// How often template and ConfigMap are looked at.
const CONFIG_PERIOD: Duration = Duration::from_secs(10);

/// How often it is looked whether others changed the rules: what the enforcer, or anybody, does to their place is put right
/// within 5 s, whatever the interval.
const NOTICE_PERIOD: Duration = Duration::from_secs(4);

/// Errors of setting up, as node-cache counts them.
#[derive(Clone, Debug)]
pub struct SetupErrors([(ErrorType, Counter); 5]);

impl Default for SetupErrors {
    fn default() -> Self {
        Self(ErrorType::ALL.map(|kind| {
            let counter = counter!("coredns_nodecache_setup_errors_total", "errortype" => kind.label());
            counter.increment(0);
            (kind, counter)
        }))
    }
}

impl SetupErrors {
    fn count(&self, wanted: ErrorType) {
        let counters = self.0.iter().filter(|(kind, _)| *kind == wanted);
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
struct WentPast([(Family, Transport, Counter); 4]);

impl Default for WentPast {
    fn default() -> Self {
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

impl WentPast {
    fn count(&self, family: Family, past: Past) {
        tracing::info!(
            count = past.count,
            transport = past.transport.name(),
            family = family_label(family),
            "while no dnsd was alive, pods' questions were left to the cluster DNS"
        );
        let wanted = (family, past.transport);
        let counters = self
            .0
            .iter()
            .filter(|(family, transport, _)| (*family, *transport) == wanted);
        counters.for_each(|(_, _, counter)| counter.increment(past.count));
    }
}

const fn family_label(family: Family) -> &'static str {
    match family {
        Family::V4 => "IPv4",
        Family::V6 => "IPv6",
    }
}

/// What is set up on the host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Setup {
    /// The interface that holds the local addresses; none where somebody else sees to them.
    pub interface: Option<String>,
    /// Whether there are rules.
    pub rules: bool,
    /// What the rules depend on.
    pub situation: Situation,
    /// How often interface and rules are looked at.
    pub sync_interval: Duration,
    /// Whether everything stays at the end.
    pub skips_teardown: bool,
}

/// Everything before it serves: the Corefile is written, the addresses are there.
#[derive(Debug)]
pub struct Prepared {
    setup: Setup,
    source: Option<Source>,
    errors: SetupErrors,
}

impl Prepared {
    /// Sets up the interface. What fails is counted and tried again later, as node-cache does: whether dnsd can serve
    /// without it will be seen. `source` is what the Corefile is made of, if it is made.
    #[must_use]
    pub fn new(setup: Setup, source: Option<Source>, errors: SetupErrors) -> Self {
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
    pub const fn setup(&self) -> &Setup {
        &self.setup
    }

    /// Sets up the rules, now that somebody answers, and looks after everything until it is told to stop. `reload` is
    /// called when there is another Corefile.
    ///
    /// # Errors
    /// When no thread can be started.
    pub fn keep(self, reload: impl Fn() + Send + 'static) -> std::io::Result<Keeper> {
        let (orders, inbox) = channel();
        let thread = std::thread::Builder::new()
            .name("node-cache".to_owned())
            .spawn(move || {
                Work {
                    prepared: self,
                    rules: None,
                    told: Vec::new(),
                    went_past: WentPast::default(),
                }
                .go(&inbox, reload)
            })?;
        Ok(Keeper { orders, thread })
    }

    fn interface(&self) {
        let Some(name) = &self.setup.interface else {
            return;
        };
        let addresses = &self.setup.situation.local_ips;
        match ensure_interface(name, addresses) {
            Ok(true) => tracing::info!(interface = name, ?addresses, "added"),
            Ok(false) => {}
            Err(error) => self.errors.network(&error),
        }
    }
}

/// Who looks after it.
#[derive(Debug)]
pub struct Keeper {
    orders: Sender<Order>,
    thread: JoinHandle<()>,
}

/// What it is told.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Order {
    /// It does not: the cluster's DNS is there now.
    Ask(Vec<SocketAddr>),
    /// Everything that was set up is removed.
    TearDown,
    /// Everything stays: another dnsd has taken over.
    Leave,
    /// Nothing is done any more until it is said how it ends.
    Rest,
}

impl Keeper {
    /// Ends, and removes what was set up, unless the flags say otherwise; returns when that is done.
    pub fn tear_down(self) {
        let is_heard = self.orders.send(Order::TearDown).is_ok();
        if self.thread.join().is_err() || !is_heard {
            tracing::error!("the thread that looks after the network died");
        }
    }

    /// Tells where the cluster's DNS is now.
    pub fn telling(&self) -> impl Fn(Vec<SocketAddr>) + Send + use<> {
        let orders = self.orders.clone();
        move |servers| {
            if orders.send(Order::Ask(servers)).is_err() {
                tracing::debug!("nobody looks after the network any more");
            }
        }
    }

    /// Another dnsd has taken over: nothing is done any more.
    pub fn rest(&self) {
        if self.orders.send(Order::Rest).is_err() {
            tracing::error!("the thread that looks after the network died");
        }
    }

    /// Ends when it has finished what it does, and leaves everything to the next dnsd.
    pub fn leave(self) {
        if self.orders.send(Order::Leave).is_err() {
            tracing::error!("the thread that looks after the network died");
        }
    }
}

struct Work {
    prepared: Prepared,
    rules: Option<Rules>,
    /// Whom the fallback may ask.
    told: Vec<SocketAddr>,
    went_past: WentPast,
}

/// What is due when.
struct Due {
    sync: Timestamp,
    notice: Timestamp,
    config: Timestamp,
}

impl Work {
    fn go(mut self, inbox: &Receiver<Order>, reload: impl Fn()) {
        let interval = self.prepared.setup.sync_interval;
        let begin = clock::now();
        let mut due = Due {
            sync: begin,
            notice: begin.after(NOTICE_PERIOD),
            config: begin.after(CONFIG_PERIOD),
        };
        loop {
            let next = due.sync.min(due.notice).min(due.config);
            match inbox.recv_timeout(next.since(clock::now())) {
                Ok(Order::TearDown) => return self.tear_down(),
                Ok(Order::Rest) => return self.rest(inbox),
                Ok(Order::Leave) | Err(RecvTimeoutError::Disconnected) => return,
                Ok(Order::Ask(servers)) => {
                    self.told = servers;
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
            due.notice = now.after(NOTICE_PERIOD);
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

    fn rest(self, inbox: &Receiver<Order>) {
        loop {
            match inbox.recv() {
                Ok(Order::TearDown) => return self.tear_down(),
                Ok(Order::Rest | Order::Ask(_)) => {}
                Ok(Order::Leave) | Err(_) => return,
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
        rules.ensure(&self.told, |family, past| self.went_past.count(family, past))
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

fn rules<'a>(made: &'a mut Option<Rules>, setup: &Setup) -> Result<&'a mut Rules, NetworkError> {
    match made {
        Some(rules) => Ok(rules),
        none => Ok(none.insert(Rules::new(setup.situation.clone())?)),
    }
}
