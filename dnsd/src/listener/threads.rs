//! Threads beside the first. Each has a runtime of its own: in a burst it reads the sockets of the first one, and
//! answers what it has read.
//!
//! They end with the program. If one ends earlier, its tasks end, and so do their listeners.

use std::future::pending;
use std::io;

use egret_shared::rt::allocator::reserve_heap;
use egret_shared::rt::task;
use tokio::runtime::{Builder, Handle};
use tokio_util::sync::CancellationToken;

/// Octets that a thread's heap keeps from the kernel: pending queries, and some stored answers.
const HEAP_RESERVE: usize = 4 << 20;

/// The further threads.
#[derive(Debug, Default)]
pub struct Threads {
    further: Vec<Handle>,
    end: CancellationToken,
}

impl Threads {
    /// Starts threads; `count` includes the calling one.
    ///
    /// # Errors
    /// When the kernel has no thread or no file left.
    pub fn start(count: usize) -> io::Result<Self> {
        let mut threads = Self::default();
        for number in 2..=count {
            let further = start(number, threads.end.clone())?;
            threads.further.push(further);
        }
        Ok(threads)
    }

    /// The runtimes of the further threads.
    pub(crate) fn further(&self) -> &[Handle] {
        &self.further
    }

    /// Waits until each further thread has run a task: for ever, if one hangs or is gone.
    pub async fn respond(&self) {
        let responses: Vec<_> = self
            .further
            .iter()
            .map(|thread| task::spawn_on(thread, async {}))
            .collect();
        for response in responses {
            if response.await.is_err() {
                pending::<()>().await;
            }
        }
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        self.end.cancel();
    }
}

fn start(number: usize, end: CancellationToken) -> io::Result<Handle> {
    let runtime = Builder::new_current_thread().enable_all().build()?;
    let handle = runtime.handle().clone();
    std::thread::Builder::new()
        .name(format!("dnsd-{number}"))
        .spawn(move || {
            reserve_heap(HEAP_RESERVE);
            runtime.block_on(end.cancelled());
        })?;
    Ok(handle)
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::time::Duration;

    use tokio::time::timeout;

    use super::*;

    const SOON: Duration = Duration::from_millis(100);
    const PATIENCE: Duration = Duration::from_secs(20);

    #[tokio::test]
    async fn responding_waits_for_a_hanging_thread() {
        let threads = Threads::start(3).unwrap();
        timeout(PATIENCE, threads.respond()).await.expect("nobody hangs");
        let (go_on, hangs) = mpsc::channel::<()>();
        let hanging = task::spawn_on(&threads.further()[1], async move { hangs.recv() });
        assert!(
            timeout(SOON, threads.respond()).await.is_err(),
            "the last one hangs"
        );
        drop(go_on);
        assert!(hanging.await.unwrap().is_err());
        timeout(PATIENCE, threads.respond()).await.expect("it goes on");
    }

    #[tokio::test]
    async fn an_ended_thread_does_not_respond() {
        let threads = Threads::start(2).unwrap();
        let task = task::spawn_on(&threads.further()[0], pending::<()>());
        threads.end.cancel();
        assert!(
            timeout(PATIENCE, task).await.unwrap().is_err(),
            "its tasks go with it"
        );
        assert!(timeout(SOON, threads.respond()).await.is_err());
    }
}
