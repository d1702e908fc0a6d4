//! The queue of replies to pending queries: replies that are ready together are sent in one call. None waits for
//! another: the first reply wakes the listener, which runs after all tasks that were woken before.

use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

use crate::net::batch::DatagramMeta;

/// A reply and its destination.
pub(super) type Reply = (Vec<u8>, DatagramMeta);

/// The replies that wait for their listener.
#[derive(Debug, Default)]
pub(super) struct Replies {
    /// Held for one operation on the list.
    state: Mutex<State>,
    ready: Notify,
}

#[derive(Debug, Default)]
struct State {
    waiting: Vec<Reply>,
    is_closed: bool,
}

impl Replies {
    /// Queues a reply. Returns it if the listener is gone: the caller sends it.
    pub(super) fn put(&self, octets: Vec<u8>, meta: DatagramMeta) -> Result<(), Reply> {
        let mut state = self.lock();
        if state.is_closed {
            return Err((octets, meta));
        }
        state.waiting.push((octets, meta));
        if state.waiting.len() == 1 {
            self.ready.notify_one();
        }
        Ok(())
    }

    /// Waits until the queue is not empty.
    pub(super) async fn ready(&self) {
        self.ready.notified().await;
    }

    /// Takes all replies; `emptied` becomes the next list.
    pub(super) fn take(&self, emptied: Vec<Reply>) -> Vec<Reply> {
        std::mem::replace(&mut self.lock().waiting, emptied)
    }

    /// Closes the queue.
    pub(super) fn close(&self) {
        self.lock().is_closed = true;
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
