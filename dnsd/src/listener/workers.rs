//! Who waits with the queries that cannot be answered at once: tasks that go on to the next query instead of ending.
//!
//! What a query is while it waits is a few thousand octets. A task made for each of them is as much memory that is found,
//! filled and given back in the midst of what is kept for long, which then stands in the gaps: the heap grows by more than
//! is kept. A worker is made once, and its memory is used for one query after the other; the last that became free is the
//! next that is given something, since its memory is still near.

use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use egret_shared::rt::task;
use tokio::sync::Notify;

/// Workers that stay though nobody has anything for them: as many as are busy in a common rush. Those of a larger one end
/// with it.
const KEPT: usize = 256;

/// The workers of a listener; they end with it, when they have done what they have.
#[derive(Debug)]
pub(super) struct Workers<J>(Arc<Free<J>>);

/// Those that have nothing to do.
#[derive(Debug)]
struct Free<J> {
    /// Held for one operation on the list.
    state: Mutex<State<J>>,
}

#[derive(Debug)]
struct State<J> {
    free: Vec<Arc<Desk<J>>>,
    is_closed: bool,
}

/// Where a worker is given something.
#[derive(Debug)]
struct Desk<J> {
    /// Held for one operation.
    job: Mutex<Option<J>>,
    /// There is a job, or never will be one.
    news: Notify,
}

impl<J: Send + 'static> Workers<J> {
    /// None yet.
    pub(super) fn new() -> Self {
        Self(Arc::new(Free {
            state: Mutex::new(State {
                free: Vec::new(),
                is_closed: false,
            }),
        }))
    }

    /// Has somebody do this: `work` is what is done with each job, the same whenever this is called.
    pub(super) fn give<F>(&self, job: J, work: impl Fn(J) -> F + Send + 'static)
    where
        F: Future<Output = ()> + Send,
    {
        let free = self.0.lock().free.pop();
        match free {
            Some(desk) => desk.put(job),
            None => {
                let free = Arc::clone(&self.0);
                drop(task::spawn_brief(async move {
                    let desk = Arc::new(Desk {
                        job: Mutex::new(Some(job)),
                        news: Notify::new(),
                    });
                    while let Some(job) = desk.take() {
                        work(job).await;
                        if !free.add(&desk) {
                            break;
                        }
                        desk.news.notified().await;
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
        for desk in state.free.drain(..) {
            desk.news.notify_one();
        }
    }
}

impl<J> Free<J> {
    /// Adds a worker that has nothing to do any more; or it is not needed.
    fn add(&self, desk: &Arc<Desk<J>>) -> bool {
        let mut state = self.lock();
        let is_wanted = !state.is_closed && state.free.len() < KEPT;
        if is_wanted {
            state.free.push(Arc::clone(desk));
        }
        is_wanted
    }

    fn lock(&self) -> MutexGuard<'_, State<J>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<J> Desk<J> {
    fn put(&self, job: J) {
        *self.lock() = Some(job);
        self.news.notify_one();
    }

    /// What is to be done; nothing when the listener is gone.
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

    /// Who did it, and what is waited for before it ends.
    type Job = (mpsc::UnboundedSender<tokio::task::Id>, oneshot::Receiver<()>);

    async fn work((done, end): Job) {
        drop(end.await);
        done.send(id()).unwrap();
    }

    /// Lets every task go as far as it can.
    async fn settle() {
        for _ in 0..16 {
            yield_now().await;
        }
    }

    #[tokio::test]
    async fn who_is_free_is_given_the_next_and_nobody_waits_for_who_is_busy() {
        let (workers, (done, mut who)) = (Workers::new(), mpsc::unbounded_channel());
        let give = || {
            let (end, ended) = oneshot::channel();
            workers.give((done.clone(), ended), work);
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
            workers.give((done.clone(), number), |(done, number)| async move {
                assert_ne!(number, 1, "a fault");
                done.send(number).unwrap();
            });
            settle().await;
        }
        assert_eq!((who.recv().await, who.recv().await), (Some(0), Some(2)));
    }

    #[tokio::test]
    async fn those_of_a_rush_end_with_it_and_all_of_them_with_the_listener() {
        let alive = Arc::new(AtomicUsize::new(0));
        let (workers, rush) = (Workers::new(), 2 * KEPT);
        let (end, _) = tokio::sync::broadcast::channel::<()>(1);
        for _ in 0..rush {
            let held = Arc::clone(&alive);
            workers.give(end.subscribe(), move |mut end| {
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
        assert_eq!(Arc::strong_count(&alive), 1 + KEPT);
        drop(workers);
        settle().await;
        assert_eq!(Arc::strong_count(&alive), 1);
    }
}
