//! The daemon's part of a takeover: it gives its sockets to a new process, and pauses while that one starts to read.

use std::os::fd::OwnedFd;

use egret_dnsd::takeover::{PAUSE_TIMEOUT, SocketName, TakeoverEvent};
use tokio::sync::oneshot;

use super::Daemon;

impl Daemon {
    /// Handles a request of a new process. Returns whether the new process has taken over.
    pub(super) async fn handle_takeover(&mut self, event: TakeoverEvent) -> anyhow::Result<bool> {
        match event {
            TakeoverEvent::Sockets(answer) => self.give_sockets(answer),
            TakeoverEvent::Pause(answer) => return self.pause(answer).await,
            TakeoverEvent::Resume => self.resume()?,
            TakeoverEvent::Leave => return Ok(true),
        }
        Ok(false)
    }

    /// Leaves the sockets unread until the new process reads, or this one again. Signals wait meanwhile. The takeover thread
    /// decides within [`PAUSE_TIMEOUT`], unless it hangs itself.
    async fn pause(&mut self, answer: oneshot::Sender<()>) -> anyhow::Result<bool> {
        self.listeners.pause().await;
        if answer.send(()).is_err() {
            tracing::debug!("the new process is gone meanwhile");
        }
        let decided = tokio::time::timeout(2 * PAUSE_TIMEOUT, self.host.takeover_event()).await;
        if matches!(decided, Ok(TakeoverEvent::Leave)) {
            return Ok(true);
        }
        self.resume()?;
        Ok(false)
    }

    fn resume(&mut self) -> anyhow::Result<()> {
        self.is_takeover_open = false;
        Ok(self.listeners.resume()?)
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
                TakeoverEvent::Leave => return true,
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
