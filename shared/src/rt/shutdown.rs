//! Signals, as values.

use tokio::signal::unix::{Signal, SignalKind, signal};

/// What a daemon is asked by a signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SignalRequest {
    /// SIGTERM or SIGINT: finish what is under way and exit.
    Stop,
    /// SIGHUP or SIGUSR1: read the configuration again.
    Reload,
}

/// The signals that a daemon listens to, from the moment this is made.
#[derive(Debug)]
pub struct Signals {
    terminate: Signal,
    interrupt: Signal,
    hangup: Signal,
    user: Signal,
}

impl Signals {
    /// Starts to listen.
    ///
    /// # Errors
    /// When the kernel refuses a handler.
    pub fn listen() -> std::io::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            hangup: signal(SignalKind::hangup())?,
            user: signal(SignalKind::user_defined1())?,
        })
    }

    /// Waits until it is asked to stop; any other request is kept for [`Self::next`].
    pub async fn stop(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }

    /// Waits for the next request.
    pub async fn next(&mut self) -> SignalRequest {
        tokio::select! {
            _ = self.terminate.recv() => SignalRequest::Stop,
            _ = self.interrupt.recv() => SignalRequest::Stop,
            _ = self.hangup.recv() => SignalRequest::Reload,
            _ = self.user.recv() => SignalRequest::Reload,
        }
    }
}
