//! When more comes to a socket than one thread answers soon, it calls another.
//!
//! Of a datagram the kernel tells the first thread alone. Were all of them told, as several registrations of one socket are
//! (`EPOLLEXCLUSIVE` is not for who waits in a runtime), each datagram would wake every thread that has nothing to do, and
//! all but one for nothing. So who reads many at once calls one more to look what is left, and that one, if it finds as many,
//! the next. While few come at once nobody is called, and several threads cost what one does.

use tokio::sync::Notify;

/// So many at once are a crowd: they came while those before them were answered, so the thread is busy nearly all the time.
const CROWD: usize = 8;

/// The call for another thread.
#[derive(Debug, Default)]
pub(super) struct Burst(Notify);

impl Burst {
    /// So many were read at once.
    pub(super) fn read(&self, received: usize) {
        if received >= CROWD {
            self.0.notify_one();
        }
    }

    /// Waits to be called. A call that nobody waits for is kept for who comes next.
    pub(super) async fn called(&self) {
        self.0.notified().await;
    }
}
