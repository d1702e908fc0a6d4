//! A thread that reads a burst from a socket wakes another thread to read the rest.
//!
//! Only the first thread is registered for the socket (epoll(7)). If all were, each datagram would wake every idle thread,
//! and all but one for nothing (`EPOLLEXCLUSIVE` needs an epoll instance of its own). So a thread that reads many datagrams
//! at once wakes one more, and that one, if it reads as many, the next. Without bursts, several threads cost what one does.

use tokio::sync::Notify;

/// Datagrams read at once that count as a burst: they arrived while those before them were answered.
const BURST: usize = 8;

/// Wakes further threads.
#[derive(Debug, Default)]
pub(super) struct Burst(Notify);

impl Burst {
    /// Notes how many datagrams were read at once.
    pub(super) fn read(&self, received: usize) {
        if received >= BURST {
            self.0.notify_one();
        }
    }

    /// Waits for a burst. One that no thread waits for is kept for the next that does.
    pub(super) async fn next(&self) {
        self.0.notified().await;
    }
}
