//! Open TCP connections after a takeover: each goes to the new process as soon as all queries that were read from it are
//! answered. Encrypted connections stay: their keys are in the library that has read their handshake.

use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;

use crate::takeover::{Departure, OpenConnection};

/// Whether a new process takes connections over, and how they get there.
#[derive(Debug, Default)]
pub struct Handover {
    begun: CancellationToken,
    overdue: CancellationToken,
    /// Held for one operation.
    departures: Mutex<Option<mpsc::UnboundedSender<Departure>>>,
}

impl Handover {
    /// Hands over every connection that has no query under way.
    pub fn begin(&self, departures: mpsc::UnboundedSender<Departure>) {
        *self.lock() = Some(departures);
        self.begun.cancel();
    }

    /// No more is read from connections that still have queries under way, so that they can be handed over. Without a
    /// handover they are read on.
    pub fn hurry(&self) {
        if self.has_begun() {
            self.overdue.cancel();
        }
    }

    /// Hands no more connections over: the receiver of departures ends.
    pub fn end(&self) {
        self.lock().take();
    }

    /// Whether a new process takes connections over.
    pub(super) fn has_begun(&self) -> bool {
        self.begun.is_cancelled()
    }

    /// Waits until a new process takes connections over.
    pub(super) async fn begun(&self) {
        self.begun.cancelled().await;
    }

    /// Waits until nothing more is to be read.
    pub(super) async fn overdue(&self) {
        self.overdue.cancelled().await;
    }

    /// Hands a connection over; returns when it was sent.
    pub async fn depart(&self, connection: OpenConnection) {
        let (sent, waiting) = oneshot::channel();
        let departs = self
            .lock()
            .as_ref()
            .is_some_and(|departures| departures.send((connection, sent)).is_ok());
        if departs {
            // An error is the sender that was dropped.
            let _sent: Result<(), _> = waiting.await;
        }
    }

    fn lock(&self) -> MutexGuard<'_, Option<mpsc::UnboundedSender<Departure>>> {
        self.departures.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
