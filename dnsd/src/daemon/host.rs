//! What dnsd does on its host besides answering: interface and rules, the sign of life, a place for successors, a pidfile.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use egret_dnsd::config::{Args, Config};
use egret_dnsd::enforcement::gated::Holder;
use egret_dnsd::host::interception::{PodSets, follow_pods};
use egret_dnsd::host::node_cache::kernel::Heartbeat;
use egret_dnsd::host::node_cache::reconciler::{PreparedHost, Reconciler};
use egret_dnsd::listener::threads::Threads;
use egret_dnsd::pipeline::Resolver;
use egret_dnsd::takeover::transfer::{self, ProcessState, TransferSummary};
use egret_dnsd::takeover::{
    InheritedSockets, OldProcess, StoppedOldProcess, TakeoverError, TakeoverEvent, TakeoverSocket, is_served,
    is_served_by_other, take,
};
use egret_shared::link::ClusterDns;
use egret_shared::rt::task;
use egret_shared::switch::{Switch, is_off};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::sync::watch;

/// How long a predecessor may take for each step.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long an enforcer may take to hear and realize what the predecessor told.
const CATCH_UP: Duration = Duration::from_secs(2);
/// How often a sign of life is given; it counts for a second.
const SIGN: Duration = Duration::from_millis(300);
/// How often it is tried while the rules are not there yet.
const SOON: Duration = Duration::from_millis(20);

/// The host of a dnsd that serves.
#[derive(Debug)]
pub(crate) struct Host {
    reconciler: Option<Reconciler>,
    life: watch::Sender<Alive>,
    successors: Option<UnboundedReceiver<TakeoverEvent>>,
    pidfile: Option<PathBuf>,
    /// Where successors ask.
    handover: Option<PathBuf>,
    /// What is there while nobody has succeeded.
    place: Option<(u64, u64)>,
    is_looked_after: bool,
}

/// Whether signs of life are given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Alive {
    /// They are.
    Yes,
    /// No more, and the last one is taken back: nobody answers.
    No,
    /// No more: a successor gives them.
    Elsewhere,
}

/// Takes the sockets of the dnsd that answers now, if there is one.
pub(crate) fn take_over(config: &Config) -> (Option<OldProcess>, InheritedSockets) {
    let Some(path) = config
        .fixed
        .handover
        .as_ref()
        .filter(|_| !is_off(Switch::HandOver))
    else {
        return (None, InheritedSockets::none());
    };
    match take(path, PATIENCE) {
        Ok(Some((taken, inheritance))) => {
            tracing::info!(path = %path.display(), "taking over from the dnsd that answers");
            (Some(taken), inheritance)
        }
        Ok(None) => (None, InheritedSockets::none()),
        Err(error) => {
            tracing::warn!(path = %path.display(), %error, "no takeover");
            (None, InheritedSockets::none())
        }
    }
}

/// Receives the old process's state, while it answers.
pub(crate) fn inherit(
    old_process: Option<&OldProcess>,
    resolver: &Resolver,
    holder: &Holder,
) -> TransferSummary {
    let Some(old_process) = old_process.filter(|_| !is_off(Switch::HandOverMemory)) else {
        return TransferSummary::default();
    };
    match transfer::inherit(old_process, resolver, holder) {
        Ok(summary) => {
            tracing::info!(
                answers = summary.answers,
                observations = summary.observations,
                whole = summary.is_whole,
                "received the old process's state"
            );
            summary
        }
        Err(error) => {
            tracing::warn!(%error, "starts without the old process's state");
            TransferSummary::default()
        }
    }
}

/// Waits until the enforcer has realized the old process's observations, if it was connected; the old process answers
/// meanwhile.
pub(crate) async fn catch_up(summary: TransferSummary, holder: &Holder) {
    if summary.is_connected && tokio::time::timeout(CATCH_UP, holder.caught_up()).await.is_err() {
        tracing::info!(
            "the enforcer has not realized the old process's observations in time; their answers are held"
        );
    }
}

/// Makes the old process stop reading. One that does not confirm hangs, or shares the sockets until it exits.
pub(crate) fn pause(old_process: Option<OldProcess>) -> Option<StoppedOldProcess> {
    let paused = old_process?.pause();
    let warn =
        |error: &TakeoverError| tracing::warn!(%error, "the old process did not confirm that it stopped");
    paused.inspect_err(warn).ok()
}

impl Host {
    /// Begins, now that queries are answered.
    ///
    /// # Errors
    /// When the kernel has no sets, a thread or the place for successors cannot be had, or the pidfile cannot be written.
    pub(crate) fn start(
        prepared: Option<PreparedHost>,
        args: &Args,
        config: &Config,
        memory: ProcessState,
        holder: &Holder,
        threads: Arc<Threads>,
    ) -> anyhow::Result<Self> {
        let (life, alive) = watch::channel(Alive::Yes);
        if let Some(setup) = prepared
            .as_ref()
            .map(PreparedHost::setup)
            .filter(|setup| setup.rules)
            && let Some(sign) = Heartbeat::of(&setup.settings)?
        {
            drop(task::spawn("life", live(sign, threads, alive)));
        }
        if let Some(interception) = config.interception() {
            drop(task::spawn(
                "seats",
                follow_pods(PodSets::open(interception)?, holder.pods(), holder.cluster_dns()),
            ));
        }
        let at_once = args
            .node_cache
            .as_ref()
            .is_some_and(|flags| flags.reloads_at_once);
        let reconciler = prepared
            .map(|prepared| {
                prepared.keep(move || {
                    if at_once {
                        ask_for_reload()
                    }
                })
            })
            .transpose()?;
        if let Some(reconciler) = &reconciler {
            drop(task::spawn(
                "fallback",
                learn(holder.cluster_dns(), reconciler.telling()),
            ));
        }
        let pidfile = args.node_cache.as_ref().and_then(|flags| flags.pidfile.clone());
        if let Some(path) = &pidfile {
            std::fs::write(path, format!("{}\n", std::process::id()))?;
        }
        let (place, successors) = successors(config, memory).unzip();
        Ok(Self {
            reconciler,
            life,
            successors,
            place,
            pidfile,
            handover: config.fixed.handover.clone(),
            is_looked_after: args.node_cache.is_some() || std::process::id() == 1 || is_unit(),
        })
    }

    /// Waits for the next thing that a successor wants.
    pub(crate) async fn successor(&mut self) -> TakeoverEvent {
        if let Some(events) = &mut self.successors
            && let Some(event) = events.recv().await
        {
            return event;
        }
        std::future::pending().await
    }

    /// Gives no more signs of life: what comes in is the fallback's.
    pub(crate) fn stop_living(&self) {
        self.life.send_replace(Alive::No);
    }

    /// Whether somebody took over, though it did not say so in time.
    pub(crate) fn is_succeeded(&self) -> bool {
        let place = self.handover.as_deref().zip(self.place);
        place.is_some_and(|(path, own)| is_served_by_other(path, own))
    }

    /// Removes what was set up, unless it is to stay.
    pub(crate) fn tear_down(mut self) {
        self.remove_pidfile();
        if let Some(reconciler) = self.reconciler.take() {
            reconciler.tear_down();
        }
    }

    /// Leaves everything to the successor, which has set it up as its own and gives the signs of life.
    pub(crate) fn rest(&self) {
        self.life.send_replace(Alive::Elsewhere);
        if let Some(reconciler) = &self.reconciler {
            reconciler.rest();
        }
    }

    /// Ends after a rest. What was set up stays for whoever has taken over, if somebody has who lives.
    pub(crate) fn end(mut self) {
        if self.handover.as_deref().is_none_or(|path| !is_served(path)) {
            tracing::info!("who took over is gone");
            return self.tear_down();
        }
        if let Some(reconciler) = self.reconciler.take() {
            reconciler.leave();
        }
    }

    /// Whether somebody would start it again if it ended by itself; it would take over from its successor then. So it is with
    /// node-local-dns' DaemonSet, with the first process of a container, and with a unit of systemd (`INVOCATION_ID`,
    /// systemd.exec(5)).
    pub(crate) const fn is_looked_after(&self) -> bool {
        self.is_looked_after
    }

    /// A file that names a dead process is worse than none.
    fn remove_pidfile(&self) {
        if let Some(path) = &self.pidfile
            && let Err(error) = std::fs::remove_file(path)
        {
            tracing::debug!(path = %path.display(), %error, "the pidfile is gone already");
        }
    }
}

fn is_unit() -> bool {
    std::env::var_os("INVOCATION_ID").is_some_and(|id| !id.is_empty())
}

/// The place where successors ask. Without it dnsd answers as well; it can only not be replaced without a gap.
fn successors(
    config: &Config,
    memory: ProcessState,
) -> Option<((u64, u64), UnboundedReceiver<TakeoverEvent>)> {
    let path = config.fixed.handover.as_ref()?;
    let (sender, events) = unbounded_channel();
    let offered = TakeoverSocket::at(path).and_then(|offer| {
        let file = offer.file();
        offer.serve(sender, Arc::new(memory)).map(|()| file)
    });
    match offered {
        Ok(file) => Some((file, events)),
        Err(error) => {
            tracing::warn!(path = %path.display(), %error, "a successor will not be able to take over");
            None
        }
    }
}

/// Whom the fallback asks, as the enforcer tells it. What it told last counts while it is away, or knows of nobody.
async fn learn(mut told: watch::Receiver<ClusterDns>, tell: impl Fn(Vec<SocketAddr>)) {
    while !is_off(Switch::LearnFallback) {
        let endpoints = told.borrow_and_update().endpoints.clone();
        if !endpoints.is_empty() {
            tell(endpoints);
        }
        if told.changed().await.is_err() {
            return;
        }
    }
}

/// In the first of the threads that serve: one that hangs gives no sign, nor does one that waits for another which hangs.
async fn live(mut life: Heartbeat, threads: Arc<Threads>, mut alive: watch::Receiver<Alive>) {
    let mut is_told = false;
    loop {
        let pause = match life.sign() {
            Ok(()) => SIGN,
            // The rules and their sets come right after the first answers can be given.
            Err(error) => {
                if !is_told {
                    tracing::debug!(%error, "no sign of life yet");
                }
                is_told = true;
                SOON
            }
        };
        let next = async {
            tokio::time::sleep(pause).await;
            threads.turn().await;
        };
        tokio::select! {
            () = next => {}
            ended = alive.changed() => match (*alive.borrow(), ended) {
                (Alive::Yes, Ok(())) => {}
                (Alive::No, _) => return take_back(&mut life),
                (Alive::Elsewhere, _) | (Alive::Yes, Err(_)) => return,
            },
        }
    }
}

fn take_back(life: &mut Heartbeat) {
    if let Err(error) = life.end() {
        tracing::debug!(%error, "the sign of life ends by itself");
    }
}

/// As node-cache does: a signal to itself, after which the Corefile is read again.
fn ask_for_reload() {
    if let Err(error) = kill(Pid::this(), Signal::SIGUSR1) {
        tracing::error!(%error, "the Corefile is not read again");
    }
}
