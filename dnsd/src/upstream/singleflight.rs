//! Singleflight: equal queries that are outstanding at once are sent once; each client still gets a response, a record and a
//! gate decision of its own.
//!
//! Nearly every query is alone. The first one is therefore sent in its own task, and a channel is made only when a second
//! one joins.

use std::collections::hash_map::Entry;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Poll;

use egret_shared::rt::task;
use tokio::sync::watch;

use crate::cache::Key;
use crate::hash::HashMap;

/// The result of a query for all that joined it; `Some(None)` where the work panicked. Dropped without a result where the
/// first one was cancelled: then one that joined takes over.
type ResultSender<T> = watch::Sender<Option<Option<T>>>;

/// The questions under way; with result where somebody waits besides who asked.
#[derive(Debug)]
pub struct Singleflight<T> {
    /// Held for one map operation.
    outstanding: Mutex<HashMap<Key, Option<ResultSender<T>>>>,
    completions: AtomicU64,
}

/// The number of completed queries at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CompletionCount(u64);

impl<T> Default for Singleflight<T> {
    fn default() -> Self {
        Self {
            outstanding: Mutex::default(),
            completions: AtomicU64::new(0),
        }
    }
}

impl<T> Singleflight<T> {
    /// The number of outstanding queries.
    #[must_use]
    pub fn len(&self) -> usize {
        self.lock().len()
    }

    /// Whether none is outstanding.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The number of completed queries. If it is unchanged since a cache miss, no equal query has completed since: an answer
    /// is cached before its query completes.
    #[must_use]
    pub fn completions(&self) -> CompletionCount {
        CompletionCount(self.completions.load(Ordering::Acquire))
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Key, Option<ResultSender<T>>>> {
        self.outstanding.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T: Clone + Send + Sync + 'static> Singleflight<T> {
    /// The end of `other`, for a question that is not under way itself while that one is.
    #[must_use]
    pub fn meanwhile(&self, own: &Key, other: &Key) -> Option<impl Future<Output = ()> + use<T>> {
        let mut outstanding = self.lock();
        if outstanding.contains_key(own) {
            return None;
        }
        let mut end = subscribe(outstanding.get_mut(other)?);
        Some(async move {
            // An error means that asking panicked: that is an end too.
            drop(end.wait_for(Option::is_some).await);
        })
    }

    /// Joins an equal outstanding query, or sends it in this task, which is mostly not cancelled. `None` only if the work
    /// panicked.
    pub async fn join<F: Future<Output = T>>(&self, key: &Key, ask: impl FnOnce() -> F) -> Option<T> {
        loop {
            match self.begin(key, None) {
                Role::Leads => {
                    let mut guard = CompletionGuard::new(self, key);
                    return guard.run(ask).await;
                }
                Role::Joins(result) => {
                    if let Some(result) = received(result).await {
                        return result;
                    }
                }
            }
        }
    }

    /// As above, for a task that may be cancelled while others wait: the query is sent in a task of its own.
    pub async fn join_in_task<F>(self: &Arc<Self>, key: Key, asking: F) -> Option<T>
    where
        F: Future<Output = T> + Send + 'static,
    {
        loop {
            let (sender, result) = watch::channel(None);
            match self.begin(&key, Some(sender)) {
                Role::Leads => {
                    let singleflight = Arc::clone(self);
                    drop(task::spawn_brief(async move {
                        CompletionGuard::new(&singleflight, &key).run(|| asking).await;
                    }));
                    return received(result).await.flatten();
                }
                Role::Joins(result) => {
                    if let Some(result) = received(result).await {
                        return result;
                    }
                }
            }
        }
    }

    /// Whether the caller sends the query or joins an outstanding one.
    fn begin(&self, key: &Key, own: Option<ResultSender<T>>) -> Role<T> {
        let mut outstanding = self.lock();
        match outstanding.entry(*key) {
            Entry::Occupied(mut other) => Role::Joins(subscribe(other.get_mut())),
            Entry::Vacant(entry) => {
                entry.insert(own);
                Role::Leads
            }
        }
    }
}

/// What a task does about a query.
enum Role<T> {
    /// Sends it.
    Leads,
    /// Waits for the one that sends it.
    Joins(watch::Receiver<Option<Option<T>>>),
}

/// Subscribes to the result; the channel is made for the first subscriber.
fn subscribe<T>(result: &mut Option<ResultSender<T>>) -> watch::Receiver<Option<Option<T>>> {
    result.get_or_insert_with(|| watch::Sender::new(None)).subscribe()
}

/// The result; `None` where the first one was cancelled.
async fn received<T: Clone>(mut result: watch::Receiver<Option<Option<T>>>) -> Option<Option<T>> {
    result.wait_for(Option::is_some).await.ok()?.clone()
}

/// Removes a query when it ends in any way, and gives the result to those that joined.
struct CompletionGuard<'a, T> {
    singleflight: &'a Singleflight<T>,
    key: &'a Key,
    /// `None` before the end; `Some(None)` where the work panicked.
    result: Option<Option<T>>,
}

impl<'a, T> CompletionGuard<'a, T> {
    const fn new(singleflight: &'a Singleflight<T>, key: &'a Key) -> Self {
        Self {
            singleflight,
            key,
            result: None,
        }
    }
}

impl<T: Clone> CompletionGuard<'_, T> {
    /// Runs the work; `None` where it panicked. The future is made here: one passed in as an argument takes its size twice.
    async fn run<F: Future<Output = T>>(&mut self, ask: impl FnOnce() -> F) -> Option<T> {
        let mut asking = pin!(ask());
        let result = std::future::poll_fn(|context| {
            let polled = catch_unwind(AssertUnwindSafe(|| asking.as_mut().poll(context)));
            polled.map_or(Poll::Ready(None), |poll| poll.map(Some))
        });
        let result = result.await;
        self.result = Some(result.clone());
        result
    }
}

impl<T> Drop for CompletionGuard<'_, T> {
    fn drop(&mut self) {
        let mut outstanding = self.singleflight.lock();
        let sender = outstanding.remove(self.key).flatten();
        self.singleflight.completions.fetch_add(1, Ordering::Release);
        drop(outstanding);
        // Without a result, the closed channel says that the first one was cancelled.
        if let (Some(sender), Some(result)) = (sender, self.result.take()) {
            sender.send_replace(Some(result));
        }
    }
}
