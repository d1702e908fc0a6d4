//! What dnsd does on its host besides answering: interface and rules, the heartbeat, the takeover socket, a pidfile.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use egret_dnsd::config::{Args, Config};
use egret_dnsd::enforcement::gated::ResponseGate;
use egret_dnsd::host::interception::{PodSets, follow_pods};
use egret_dnsd::host::node_cache::kernel::{Heartbeat, NetworkError};
use egret_dnsd::host::node_cache::reconciler::{PreparedHost, Reconciler};
use egret_dnsd::kernel_answers::{KernelAnswers, SWEEP_INTERVAL};
use egret_dnsd::listener::threads::Threads;
use egret_dnsd::pipeline::Resolver;
use egret_dnsd::takeover::transfer::{self, ProcessState, TransferSummary};
use egret_dnsd::takeover::{
    InheritedSockets, OldProcess, StoppedOldProcess, TakeoverError, TakeoverEvent, TakeoverSocket,
    end_stopped, is_served, is_served_by_other, remove_socket, take,
};
use egret_dnsd::telemetry::admin::Startup;
use egret_shared::link::ClusterDns;
use egret_shared::rt::{clock, task};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::sync::{oneshot, watch};

/// How long the old process may take for each step.
const STEP_TIMEOUT: Duration = Duration::from_secs(5);
/// How long the old process may be silent in all: it may hand over to other new processes before this one.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);
/// How long an enforcer may take to realize the old process's observations.
const CATCH_UP: Duration = Duration::from_secs(2);
/// The interval of the heartbeat, which is valid for a second.
const HEARTBEAT_INTERVAL: Duration = Duration::from_millis(300);
/// The interval while the rules and their sets are not there yet.
const HEARTBEAT_RETRY: Duration = Duration::from_millis(20);

/// Parts that must be there before dnsd is ready.
pub(crate) const RULES: &str = "the rules of this host";
pub(crate) const HEARTBEAT: &str = "the heartbeat";

/// The host of a dnsd that serves.
#[derive(Debug)]
pub(crate) struct Host {
    reconciler: Option<Reconciler>,
    heartbeat: watch::Sender<HeartbeatState>,
    takeover_events: Option<UnboundedReceiver<TakeoverEvent>>,
    pidfile: Option<PathBuf>,
    /// The path of the takeover socket.
    takeover_path: Option<PathBuf>,
    /// Device and inode of the takeover socket: another process's socket replaces it.
    takeover_file: Option<(u64, u64)>,
    is_supervised: bool,
}

/// Whether the heartbeat is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum HeartbeatState {
    /// It is.
    Running,
    /// No more, and the last one is removed: this dnsd stops answering.
    Stopped,
    /// No more: a new process writes it.
    HandedOver,
}

/// Takes the sockets of the dnsd that answers now, if there is one. In a thread of its own: a signal ends the wait.
///
/// # Errors
/// When no thread can be started.
pub(crate) async fn take_over(config: &Config) -> anyhow::Result<(Option<OldProcess>, InheritedSockets)> {
    let Some(path) = config.fixed.handover.clone() else {
        return Ok((None, InheritedSockets::none()));
    };
    let (sender, taken) = oneshot::channel();
    std::thread::Builder::new()
        .name("takeover".to_owned())
        .spawn(move || {
            // A daemon that was told to stop has dropped the receiver.
            drop(sender.send(take_or_end(&path)));
        })?;
    let taken = taken.await.context("the takeover failed")?;
    Ok(
        taken.map_or((None, InheritedSockets::none()), |(old_process, sockets)| {
            (Some(old_process), sockets)
        }),
    )
}

/// Asks the old process until it answers or is gone, for at most [`ANSWER_TIMEOUT`]. One that is stopped is ended.
fn take_or_end(path: &Path) -> Option<(OldProcess, InheritedSockets)> {
    let begun = clock::now();
    loop {
        let error = match take(path, STEP_TIMEOUT) {
            Ok(taken) => {
                if taken.is_some() {
                    tracing::info!(path = %path.display(), "taking over from the dnsd that answers");
                }
                return taken;
            }
            Err(error) => error,
        };
        if !is_ended(&error) {
            let is_silent = matches!(error, TakeoverError::Silent(_));
            if !is_silent || clock::now().since(begun) >= ANSWER_TIMEOUT {
                tracing::warn!(path = %path.display(), %error, "no takeover");
                return None;
            }
            tracing::warn!(path = %path.display(), %error, "it may be slow, and is asked again");
        }
    }
}

/// Ends an old process that does not answer because it is stopped.
fn is_ended(error: &TakeoverError) -> bool {
    let TakeoverError::Silent(Some(pid)) = error else {
        return false;
    };
    match end_stopped(*pid) {
        Ok(is_ended) => {
            if is_ended {
                tracing::warn!(%pid, "the dnsd that answered was stopped; it was killed, and this one answers in its place");
            }
            is_ended
        }
        Err(error) => {
            tracing::warn!(%pid, %error, "the dnsd that answered cannot be ended");
            false
        }
    }
}

/// Receives the old process's state, while it answers.
pub(crate) fn inherit(
    old_process: Option<&OldProcess>,
    resolver: &Resolver,
    gate: &ResponseGate,
) -> TransferSummary {
    let Some(old_process) = old_process else {
        return TransferSummary::default();
    };
    match transfer::inherit(old_process, resolver, gate) {
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
pub(crate) async fn catch_up(summary: TransferSummary, gate: &ResponseGate) {
    if summary.is_connected && tokio::time::timeout(CATCH_UP, gate.caught_up()).await.is_err() {
        tracing::info!(
            "the enforcer has not realized the old process's observations in time; their answers are held"
        );
    }
}

/// Makes the old process stop reading. One that is stopped meanwhile is ended; another one that does not confirm shares the
/// sockets until it exits.
pub(crate) fn pause(old_process: Option<OldProcess>) -> Option<StoppedOldProcess> {
    match old_process?.pause() {
        Ok(paused) => Some(paused),
        Err(error) => {
            tracing::warn!(%error, "the old process did not confirm that it stopped");
            let _is_ended = is_ended(&error);
            None
        }
    }
}

impl Host {
    /// Starts, now that queries are answered.
    ///
    /// # Errors
    /// When the kernel has no sets, no thread can be started, or the pidfile cannot be written.
    pub(crate) fn start(
        prepared: Option<PreparedHost>,
        args: &Args,
        config: &Config,
        state: ProcessState,
        gate: &ResponseGate,
        threads: Arc<Threads>,
        startup: &Arc<Startup>,
    ) -> anyhow::Result<Self> {
        let (heartbeat, heartbeat_state) = watch::channel(HeartbeatState::Running);
        let pidfile = args.node_cache.as_ref().and_then(|flags| flags.pidfile.clone());
        // Before the rules, which stay if a later step fails.
        if let Some(path) = &pidfile {
            std::fs::write(path, format!("{}\n", std::process::id()))?;
        }
        if let Some(setup) = prepared
            .as_ref()
            .map(PreparedHost::setup)
            .filter(|setup| setup.rules)
            && let Some(beats) = Heartbeat::new(&setup.settings)?
        {
            let startup = Arc::clone(startup);
            drop(task::spawn(
                "heartbeat",
                beat(beats, threads, heartbeat_state, startup),
            ));
        } else {
            startup.done(HEARTBEAT);
        }
        if let Some(interception) = config.interception() {
            drop(task::spawn(
                "seats",
                follow_pods(PodSets::open(interception)?, gate.pods(), gate.cluster_dns()),
            ));
        }
        let at_once = args
            .node_cache
            .as_ref()
            .is_some_and(|flags| flags.reloads_at_once);
        let reload = move || {
            if at_once {
                ask_for_reload()
            }
        };
        let reconciler = match prepared {
            Some(prepared) if prepared.setup().rules => {
                let startup = Arc::clone(startup);
                Some(prepared.keep(reload, move |ensured| match ensured {
                    Ok(()) => startup.done(RULES),
                    // What would intercept, its heartbeat among it, comes with another configuration; the rest is there.
                    Err(NetworkError::Mark(_)) => {
                        startup.done(RULES);
                        startup.done(HEARTBEAT);
                    }
                    Err(error) => startup.failed(RULES, error),
                })?)
            }
            Some(prepared) => {
                startup.done(RULES);
                Some(prepared.keep(reload, |_no_rules| {})?)
            }
            None => {
                startup.done(RULES);
                None
            }
        };
        if let Some(reconciler) = &reconciler {
            drop(task::spawn(
                "fallback",
                follow_cluster_dns(gate.cluster_dns(), reconciler.fallback_setter()),
            ));
        }
        let (takeover_file, takeover_events) = listen_for_takeover(config, state).unzip();
        Ok(Self {
            reconciler,
            heartbeat,
            takeover_events,
            takeover_file,
            pidfile,
            takeover_path: config.fixed.handover.clone(),
            is_supervised: args.node_cache.is_some() || std::process::id() == 1 || is_unit(),
        })
    }

    /// Waits for the next request of a new process.
    pub(crate) async fn takeover_event(&mut self) -> TakeoverEvent {
        if let Some(events) = &mut self.takeover_events
            && let Some(event) = events.recv().await
        {
            return event;
        }
        std::future::pending().await
    }

    /// Stops the heartbeat: from now on the fallback answers.
    pub(crate) fn stop_heartbeat(&self) {
        self.heartbeat.send_replace(HeartbeatState::Stopped);
    }

    /// Whether a new process has taken over without confirming it in time.
    pub(crate) fn is_taken_over(&self) -> bool {
        let socket = self.takeover_path.as_deref().zip(self.takeover_file);
        socket.is_some_and(|(path, own)| is_served_by_other(path, own))
    }

    /// Removes interface and rules, unless they are configured to stay, and the socket for new processes.
    pub(crate) fn tear_down(mut self) {
        self.remove_pidfile();
        if let Some(reconciler) = self.reconciler.take() {
            reconciler.tear_down();
        }
        if let Some((path, own)) = self.takeover_path.as_deref().zip(self.takeover_file)
            && let Err(error) = remove_socket(path, own)
        {
            tracing::debug!(path = %path.display(), %error, "the socket for new processes stays");
        }
    }

    /// Leaves heartbeat, interface and rules to the new process.
    pub(crate) fn hand_over(&self) {
        self.heartbeat.send_replace(HeartbeatState::HandedOver);
        if let Some(reconciler) = &self.reconciler {
            reconciler.pause();
        }
    }

    /// Whether a dnsd listens for new processes.
    pub(crate) fn is_served(&self) -> bool {
        self.takeover_path.as_deref().is_some_and(is_served)
    }

    /// Leaves interface and rules as they are.
    pub(crate) fn leave(mut self) {
        if let Some(reconciler) = self.reconciler.take() {
            reconciler.leave();
        }
    }

    /// Ends after [`hand_over`](Self::hand_over). Interface and rules stay if the new process is alive.
    pub(crate) fn end(self) {
        if !self.is_served() {
            tracing::info!("the new process is gone");
            return self.tear_down();
        }
        self.leave();
    }

    /// Whether a supervisor restarts dnsd when it exits: in node-local-dns' DaemonSet, as process 1 of a container, and as a
    /// unit of systemd (`INVOCATION_ID`, systemd.exec(5)).
    pub(crate) const fn is_supervised(&self) -> bool {
        self.is_supervised
    }

    /// A pidfile that names a dead process misleads.
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

/// Listens for new processes. Without the socket dnsd answers all the same, but a replacement leaves a gap.
fn listen_for_takeover(
    config: &Config,
    state: ProcessState,
) -> Option<((u64, u64), UnboundedReceiver<TakeoverEvent>)> {
    let path = config.fixed.handover.as_ref()?;
    let (sender, events) = unbounded_channel();
    let offered = TakeoverSocket::at(path).and_then(|offer| {
        let file = offer.file();
        offer.serve(sender, Arc::new(state)).map(|()| file)
    });
    match offered {
        Ok(file) => Some((file, events)),
        Err(error) => {
            tracing::warn!(path = %path.display(), %error, "no new process will be able to take over");
            None
        }
    }
}

/// Passes the cluster DNS that the enforcer names on to the fallback. The last one counts while the enforcer is away, or
/// names none.
async fn follow_cluster_dns(mut cluster_dns: watch::Receiver<ClusterDns>, set: impl Fn(Vec<SocketAddr>)) {
    loop {
        let endpoints = cluster_dns.borrow_and_update().endpoints.clone();
        if !endpoints.is_empty() {
            set(endpoints);
        }
        if cluster_dns.changed().await.is_err() {
            return;
        }
    }
}

/// Lets the kernel answer. Without its consent dnsd answers alone.
pub(crate) fn begin_kernel_answers(permits: &Path, answers: &Arc<KernelAnswers>) {
    match answers.open(permits, clock::now()) {
        Ok(()) => {
            let answers = Arc::clone(answers);
            drop(task::spawn("kernel answers", async move {
                loop {
                    tokio::time::sleep(SWEEP_INTERVAL).await;
                    answers.sweep(clock::now());
                }
            }));
        }
        Err(error) => tracing::warn!(%error, "the kernel answers no query: dnsd answers all"),
    }
}

/// Writes the heartbeat from the first serving thread: no heartbeat is written while it, or another serving thread, hangs.
async fn beat(
    mut heartbeat: Heartbeat,
    threads: Arc<Threads>,
    mut state: watch::Receiver<HeartbeatState>,
    startup: Arc<Startup>,
) {
    let mut is_logged = false;
    loop {
        let pause = match heartbeat.sign() {
            Ok(()) => {
                startup.done(HEARTBEAT);
                HEARTBEAT_INTERVAL
            }
            // The rules and their sets are created right after the first answers.
            Err(error) => {
                if !is_logged {
                    tracing::debug!(%error, "no heartbeat yet");
                }
                is_logged = true;
                HEARTBEAT_RETRY
            }
        };
        let next = async {
            tokio::time::sleep(pause).await;
            threads.respond().await;
        };
        tokio::select! {
            () = next => {}
            ended = state.changed() => match (*state.borrow(), ended) {
                (HeartbeatState::Running, Ok(())) => {}
                (HeartbeatState::Stopped, _) => return remove(&mut heartbeat),
                (HeartbeatState::HandedOver, _) | (HeartbeatState::Running, Err(_)) => return,
            },
        }
    }
}

fn remove(heartbeat: &mut Heartbeat) {
    if let Err(error) = heartbeat.end() {
        tracing::debug!(%error, "the heartbeat expires by itself");
    }
}

/// Signals itself, as node-cache does, so that the Corefile is read again.
fn ask_for_reload() {
    if let Err(error) = kill(Pid::this(), Signal::SIGUSR1) {
        tracing::error!(%error, "the Corefile is not read again");
    }
}
