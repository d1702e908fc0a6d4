//! Tasks that wait with the pending queries. A task goes on to the next query instead of ending.
//!
//! A pending query takes a few thousand octets. A task for each of them would allocate and free as much among long-lived
//! allocations, which then fragment the heap. A worker's memory is used for one query after the other. The worker that
//! became idle last gets the next query, since its memory is still in the processor's cache.

use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use egret_shared::rt::task;
use tokio::sync::Notify;

/// Idle workers that stay: as many as a common burst needs. Those of a larger burst end with it.
const MAX_IDLE: usize = 256;

/// The workers of a listener. They end with it, when they have finished their queries.
#[derive(Debug)]
pub(super) struct Workers<J>(Arc<Idle<J>>);

/// The idle ones.
#[derive(Debug)]
struct Idle<J> {
    /// Held for one operation on the list.
    state: Mutex<State<J>>,
}

#[derive(Debug)]
struct State<J> {
    free: Vec<Arc<JobSlot<J>>>,
    is_closed: bool,
}

/// Where a worker receives its next job.
#[derive(Debug)]
struct JobSlot<J> {
    /// Held for one operation.
    job: Mutex<Option<J>>,
    /// Notified of a job, or of the end.
    wake: Notify,
}

impl<J: Send + 'static> Workers<J> {
    /// None yet.
    pub(super) fn new() -> Self {
        Self(Arc::new(Idle {
            state: Mutex::new(State {
                free: Vec::new(),
                is_closed: false,
            }),
        }))
    }

    /// Runs `work` with this job. `work` must be the same function at each call.
    pub(super) fn run<F>(&self, job: J, work: impl Fn(J) -> F + Send + 'static)
    where
        F: Future<Output = ()> + Send,
    {
        let free = self.0.lock().free.pop();
        match free {
            Some(slot) => slot.put(job),
            None => {
                let free = Arc::clone(&self.0);
                drop(task::spawn_brief(async move {
                    let slot = Arc::new(JobSlot {
                        job: Mutex::new(Some(job)),
                        wake: Notify::new(),
                    });
                    while let Some(job) = slot.take() {
                        work(job).await;
                        if !free.add(&slot) {
                            break;
                        }
                        slot.wake.notified().await;
                    }
                }));
            }
        }
    }
}

impl<J> Drop for Workers<J> {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.is_closed = true;
        for slot in state.free.drain(..) {
            slot.wake.notify_one();
        }
    }
}

impl<J> Idle<J> {
    /// Adds a worker that has become idle. Returns false when it is to end.
    fn add(&self, slot: &Arc<JobSlot<J>>) -> bool {
        let mut state = self.lock();
        let is_needed = !state.is_closed && state.free.len() < MAX_IDLE;
        if is_needed {
            state.free.push(Arc::clone(slot));
        }
        is_needed
    }

    fn lock(&self) -> MutexGuard<'_, State<J>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<J> JobSlot<J> {
    fn put(&self, job: J) {
        *self.lock() = Some(job);
        self.wake.notify_one();
    }

    /// The next job; none when the listener is gone.
    fn take(&self) -> Option<J> {
        self.lock().take()
    }

    fn lock(&self) -> MutexGuard<'_, Option<J>> {
        self.job.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use tokio::sync::{mpsc, oneshot};
    use tokio::task::{id, yield_now};

    use super::*;

    /// Reports the task's id; the receiver ends the job.
    type Job = (mpsc::UnboundedSender<tokio::task::Id>, oneshot::Receiver<()>);

    async fn work((done, end): Job) {
        drop(end.await);
        done.send(id()).unwrap();
    }

    /// Lets every task run until it waits.
    async fn settle() {
        for _ in 0..16 {
            yield_now().await;
        }
    }

    #[tokio::test]
    async fn an_idle_worker_gets_the_next_job_and_none_waits_for_a_busy_one() {
        let (workers, (done, mut who)) = (Workers::new(), mpsc::unbounded_channel());
        let give = || {
            let (end, ended) = oneshot::channel();
            workers.run((done.clone(), ended), work);
            end
        };
        let (first, second) = (give(), give());
        second.send(()).unwrap();
        let busy_before = who.recv().await.unwrap();
        settle().await;
        give().send(()).unwrap();
        assert_eq!(who.recv().await.unwrap(), busy_before, "it was free");
        first.send(()).unwrap();
        let last = who.recv().await.unwrap();
        assert_ne!(last, busy_before);
        settle().await;
        give().send(()).unwrap();
        assert_eq!(who.recv().await.unwrap(), last, "the last that became free");
    }

    #[tokio::test]
    async fn a_fault_ends_the_worker_and_nothing_else() {
        let (workers, (done, mut who)) = (Workers::new(), mpsc::unbounded_channel());
        for number in 0..3_u8 {
            workers.run((done.clone(), number), |(done, number)| async move {
                assert_ne!(number, 1, "a fault");
                done.send(number).unwrap();
            });
            settle().await;
        }
        assert_eq!((who.recv().await, who.recv().await), (Some(0), Some(2)));
    }

    #[tokio::test]
    async fn workers_of_a_burst_end_with_it_and_all_end_with_the_listener() {
        let alive = Arc::new(AtomicUsize::new(0));
        let (workers, rush) = (Workers::new(), 2 * MAX_IDLE);
        let (end, _) = tokio::sync::broadcast::channel::<()>(1);
        for _ in 0..rush {
            let held = Arc::clone(&alive);
            workers.run(end.subscribe(), move |mut end| {
                let held = Arc::clone(&held);
                async move {
                    held.fetch_add(1, Ordering::Relaxed);
                    drop(end.recv().await);
                }
            });
        }
        settle().await;
        assert_eq!(alive.load(Ordering::Relaxed), rush, "nobody waits for another");
        // Each worker has a handle, besides this one.
        assert_eq!(Arc::strong_count(&alive), 1 + 2 * rush);
        end.send(()).unwrap();
        settle().await;
        assert_eq!(Arc::strong_count(&alive), 1 + MAX_IDLE);
        drop(workers);
        settle().await;
        assert_eq!(Arc::strong_count(&alive), 1);
    }
}
