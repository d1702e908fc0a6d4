//! The daemon's part of a takeover: it takes the sockets of an old process, gives them to a new one, and pauses while that one
//! starts to read.

use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

use egret_dnsd::host::node_cache::reconciler::PreparedHost;
use egret_dnsd::listener::{BoundListeners, EncryptedListeners, Service};
use egret_dnsd::takeover::{
    InheritedSockets, OldProcess, OpenConnection, PAUSE_TIMEOUT, SocketName, TakeoverEvent, send_connections,
};
use egret_dnsd::telemetry::handlers::BoundAdmin;
use egret_dnsd::zones::ActiveConfig;
use egret_shared::rt::clock;
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::sync::oneshot;

use super::{Daemon, host};

/// How long another process may hold an address at the start of this one: a node-local-dns that ends, or a dnsd that another one took
/// over from, and that reads again because that one was killed.
const IN_USE_TIMEOUT: Duration = Duration::from_secs(10);
const IN_USE_INTERVAL: Duration = Duration::from_millis(20);

/// The sockets of this process. Nobody reads them yet.
pub(super) struct BoundSockets {
    pub(super) admin: BoundAdmin,
    pub(super) listeners: BoundListeners,
    pub(super) encrypted: EncryptedListeners,
}

impl BoundSockets {
    /// Those of DNS come last: others may share their addresses, so queries come to them at once.
    fn bind(serving: &ActiveConfig, inheritance: &mut InheritedSockets) -> anyhow::Result<Self> {
        let admin = BoundAdmin::bind(&serving.config, inheritance)?;
        Ok(Self {
            admin,
            encrypted: BoundListeners::bind_encrypted(&serving.encrypted, inheritance)?,
            listeners: BoundListeners::bind(&serving.tables, inheritance)?,
        })
    }
}

/// Takes over the sockets of the dnsd that answers now, or binds them where there is none.
///
/// # Errors
/// When an address cannot be listened on; one that another process holds, after [`IN_USE_TIMEOUT`].
pub(super) async fn take_over_or_bind(
    serving: &ActiveConfig,
    prepared_host: Option<&PreparedHost>,
) -> anyhow::Result<(Option<OldProcess>, BoundSockets)> {
    let begun = clock::now();
    let mut is_waiting = false;
    loop {
        let (old_process, mut inheritance) = host::take_over(&serving.config).await?;
        if let (None, Some(host)) = (&old_process, prepared_host) {
            // The one that was there may have ended since, and its interface with it.
            host.make_interface();
        }
        match BoundSockets::bind(serving, &mut inheritance) {
            Err(error)
                if is_in_use(&error)
                    && old_process.is_none()
                    && clock::now().since(begun) < IN_USE_TIMEOUT =>
            {
                if !std::mem::replace(&mut is_waiting, true) {
                    tracing::warn!(%error, seconds = IN_USE_TIMEOUT.as_secs(), "another process, which may be ending, holds an address: waiting");
                }
                tokio::time::sleep(IN_USE_INTERVAL).await;
            }
            bound => return Ok((old_process, bound?)),
        }
    }
}

fn is_in_use(error: &anyhow::Error) -> bool {
    let mut causes = error
        .chain()
        .filter_map(|cause| cause.downcast_ref::<io::Error>());
    causes.any(|cause| cause.kind() == io::ErrorKind::AddrInUse)
}

impl Daemon {
    /// Handles a request of a new process. Returns whether the new process has taken over.
    pub(super) async fn handle_takeover(&mut self, event: TakeoverEvent) -> anyhow::Result<bool> {
        match event {
            TakeoverEvent::Sockets(answer) => self.give_sockets(answer),
            TakeoverEvent::Pause(answer) => return self.pause(answer).await,
            TakeoverEvent::Resume => return self.resume(),
            TakeoverEvent::Leave(connections) => {
                hand_over_connections(&self.service, connections);
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Leaves the sockets unread until the new process reads, or this one again. Signals wait meanwhile. The takeover thread
    /// decides within [`PAUSE_TIMEOUT`], unless it hangs itself.
    async fn pause(&mut self, answer: oneshot::Sender<()>) -> anyhow::Result<bool> {
        self.kernel_answers.suspend();
        self.listeners.pause().await;
        if answer.send(()).is_err() {
            tracing::debug!("the new process is gone meanwhile");
        }
        let decided = tokio::time::timeout(2 * PAUSE_TIMEOUT, self.host.takeover_event()).await;
        if let Ok(TakeoverEvent::Leave(connections)) = decided {
            hand_over_connections(&self.service, connections);
            return Ok(true);
        }
        self.resume()
    }

    /// Reads again, unless the new process reads and could not say so. Returns whether it does.
    fn resume(&mut self) -> anyhow::Result<bool> {
        self.is_takeover_open = false;
        if self.host.is_taken_over() {
            return Ok(true);
        }
        self.listeners.resume()?;
        self.kernel_answers.resume(clock::now());
        Ok(false)
    }

    /// Handles requests of a new process after this one has stopped reading. Returns whether the new process has taken over,
    /// rather than gone.
    pub(super) async fn finish_takeover(&mut self) -> bool {
        loop {
            match self.host.takeover_event().await {
                TakeoverEvent::Sockets(answer) => self.give_sockets(answer),
                // When it is gone, `Resume` follows.
                TakeoverEvent::Pause(answer) => drop(answer.send(())),
                TakeoverEvent::Resume => {
                    self.is_takeover_open = false;
                    return false;
                }
                TakeoverEvent::Leave(connections) => {
                    hand_over_connections(&self.service, connections);
                    return true;
                }
            }
        }
    }

    /// Gives the new process duplicates of all sockets.
    fn give_sockets(&mut self, answer: oneshot::Sender<Vec<(SocketName, OwnedFd)>>) {
        self.is_takeover_open = true;
        let sockets = self.listeners.sockets().and_then(|mut sockets| {
            sockets.extend(self.admin.sockets()?);
            Ok(sockets)
        });
        match sockets {
            // When it is gone, `Resume` follows.
            Ok(sockets) => drop(answer.send(sockets)),
            Err(error) => tracing::error!(%error, "the sockets cannot be given to a new process"),
        }
    }
}

/// Gives open connections to the new process. Without a socket for them, they are served here until they are idle.
pub(super) fn hand_over_connections(service: &Service, to: Option<OwnedFd>) {
    let Some(to) = to else {
        return;
    };
    match send_connections(to) {
        Ok(departures) => service.handover.begin(departures),
        Err(error) => tracing::warn!(%error, "open connections are not handed over"),
    }
}

/// Connections of the old process that arrive.
#[derive(Debug)]
pub(super) struct Arrivals(Option<UnboundedReceiver<OpenConnection>>);

impl Arrivals {
    pub(super) const fn new(arriving: Option<UnboundedReceiver<OpenConnection>>) -> Self {
        Self(arriving)
    }

    /// The next one. When the old process has handed over its last one, this waits for ever.
    pub(super) async fn next(&mut self) -> OpenConnection {
        match self.next_or_end().await {
            Some(connection) => connection,
            None => std::future::pending().await,
        }
    }

    /// The next one; none when the old process has handed over its last one.
    pub(super) async fn next_or_end(&mut self) -> Option<OpenConnection> {
        let next = self.0.as_mut()?.recv().await;
        if next.is_none() {
            self.0 = None;
        }
        next
    }
}
