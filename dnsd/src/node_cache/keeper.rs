//! Looks after interface, rules and Corefile from a thread of its own: programs run there, and no query waits for them.

use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use metrics::{Counter, counter};

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

/// How it ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Order {
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
}

impl Work {
    fn go(mut self, inbox: &Receiver<Order>, reload: impl Fn()) {
        let interval = self.prepared.setup.sync_interval;
        let (mut until_sync, mut until_config) = (Duration::ZERO, CONFIG_PERIOD);
        let mut until_notice = NOTICE_PERIOD;
        loop {
            let wait = until_sync.min(until_config).min(until_notice);
            match inbox.recv_timeout(wait) {
                Ok(Order::TearDown) => return self.tear_down(),
                Ok(Order::Rest) => return self.rest(inbox),
                Ok(Order::Leave) | Err(RecvTimeoutError::Disconnected) => return,
                Err(RecvTimeoutError::Timeout) => {}
            }
            for until in [&mut until_sync, &mut until_config, &mut until_notice] {
                *until -= wait;
            }
            if until_notice.is_zero() {
                if self.is_changed_by_others() {
                    until_sync = Duration::ZERO;
                }
                until_notice = NOTICE_PERIOD;
            }
            if until_sync.is_zero() {
                self.sync();
                until_sync = interval;
            }
            if until_config.is_zero() {
                self.config(&reload);
                until_config = CONFIG_PERIOD;
            }
        }
    }

    fn rest(self, inbox: &Receiver<Order>) {
        loop {
            match inbox.recv() {
                Ok(Order::TearDown) => return self.tear_down(),
                Ok(Order::Rest) => {}
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
        match &mut self.rules {
            Some(rules) => rules.ensure(),
            none => none
                .insert(Rules::new(self.prepared.setup.situation.clone())?)
                .ensure(),
        }
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

    fn tear_down(self) {
        let setup = &self.prepared.setup;
        if setup.skips_teardown {
            return;
        }
        tracing::info!("tearing down");
        let removed = self.rules.as_ref().map_or(Ok(()), Rules::remove);
        removed.unwrap_or_else(|error| self.prepared.errors.network(&error));
        if let Some(name) = &setup.interface {
            match remove_interface(name) {
                Ok(_was_there) => {}
                Err(error) => self.prepared.errors.network(&error),
            }
        }
    }
}
