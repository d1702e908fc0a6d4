//! Replies that come later than their queries, as those do that an upstream was asked for: what is ready at once goes out
//! in one call. Nothing waits for others: who has the first one wakes the listener, whose turn comes after all those that
//! were woken before.

use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

use crate::net::batch::DatagramMeta;

/// A reply and its way.
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
    /// Has the listener send it. Where there is none any more it comes back: who has it sends it.
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

    /// Waits until there are some.
    pub(super) async fn ready(&self) {
        self.ready.notified().await;
    }

    /// Takes what there is; `emptied` is the list for what comes.
    pub(super) fn take(&self, emptied: Vec<Reply>) -> Vec<Reply> {
        std::mem::replace(&mut self.lock().waiting, emptied)
    }

    /// Takes no more.
    pub(super) fn close(&self) {
        self.lock().is_closed = true;
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
