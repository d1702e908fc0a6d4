//! Equal questions that are under way at once are asked once; each client still gets an answer, a record and a
//! wait of its own.
//!
//! Nearly every question is alone. Who asks first therefore asks in its own task, and a channel is made only when a
//! second one comes.

use std::collections::hash_map::Entry;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Poll;

use egret_shared::rt::task;
use egret_shared::switch::{Switch, is_off};
use tokio::sync::watch;

use crate::cache::Key;
use crate::hash::HashMap;

/// What became of a question: nothing yet, or a result for all who wait, which is none where asking panicked. It is dropped
/// without either where who asked had to go: then one of those who wait asks.
type News<T> = watch::Sender<Option<Option<T>>>;

/// The questions under way; with news where somebody waits besides who asked.
#[derive(Debug)]
pub struct Flights<T> {
    /// Held for one map operation.
    under_way: Mutex<HashMap<Key, Option<News<T>>>>,
    landings: AtomicU64,
}

/// How many questions had ended at a moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Landings(u64);

impl<T> Default for Flights<T> {
    fn default() -> Self {
        Self {
            under_way: Mutex::default(),
            landings: AtomicU64::new(0),
        }
    }
}

impl<T> Flights<T> {
    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.lock().len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// How many have ended. Who looks in the cache after this, finds nothing there, and asks when it is still the same,
    /// asks what nobody has asked meanwhile: an answer is kept before its question has ended.
    #[must_use]
    pub fn landings(&self) -> Landings {
        Landings(self.landings.load(Ordering::Acquire))
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Key, Option<News<T>>>> {
        self.under_way.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T: Clone + Send + Sync + 'static> Flights<T> {
    /// The end of `other`, for a question that is not under way itself while that one is.
    #[must_use]
    pub fn meanwhile(&self, own: &Key, other: &Key) -> Option<impl Future<Output = ()> + use<T>> {
        let mut under_way = self.lock();
        if under_way.contains_key(own) {
            return None;
        }
        let mut end = subscribe(under_way.get_mut(other)?);
        Some(async move {
            // An error means that asking panicked: that is an end too.
            drop(end.wait_for(Option::is_some).await);
        })
    }

    /// Waits for the result of the question that is under way, or asks it here: for who mostly stays until the end. Nothing
    /// comes only if asking panicked.
    pub async fn join<F: Future<Output = T>>(&self, key: &Key, ask: impl FnOnce() -> F) -> Option<T> {
        loop {
            match self.begin(key, None) {
                Role::Asks => {
                    let mut landing = Landing::new(self, key);
                    return landing.fly(ask).await;
                }
                Role::Waits(news) => {
                    if let Some(result) = heard(news).await {
                        return result;
                    }
                }
            }
        }
    }

    /// The same for who may go before there is an answer, while others wait: a task of its own asks.
    pub async fn join_in_task<F>(self: &Arc<Self>, key: Key, asking: F) -> Option<T>
    where
        F: Future<Output = T> + Send + 'static,
    {
        loop {
            let (sender, news) = watch::channel(None);
            match self.begin(&key, Some(sender)) {
                Role::Asks => {
                    let flights = Arc::clone(self);
                    drop(task::spawn_brief(async move {
                        Landing::new(&flights, &key).fly(|| asking).await;
                    }));
                    return heard(news).await.flatten();
                }
                Role::Waits(news) => {
                    if let Some(result) = heard(news).await {
                        return result;
                    }
                }
            }
        }
    }

    /// What is to be done by who has this question. It is under way from now on.
    fn begin(&self, key: &Key, own: Option<News<T>>) -> Role<T> {
        let mut under_way = self.lock();
        match under_way.entry(*key) {
            Entry::Occupied(mut other) if !is_off(Switch::OneFlight) => {
                Role::Waits(subscribe(other.get_mut()))
            }
            entry => {
                entry.insert_entry(own);
                Role::Asks
            }
        }
    }
}

/// Who has a question.
enum Role<T> {
    /// Asks it.
    Asks,
    /// Waits for who asked it before.
    Waits(watch::Receiver<Option<Option<T>>>),
}

/// The news of a question, which has none before somebody waits for them.
fn subscribe<T>(news: &mut Option<News<T>>) -> watch::Receiver<Option<Option<T>>> {
    news.get_or_insert_with(|| watch::Sender::new(None)).subscribe()
}

/// The result; nothing where who asked had to go.
async fn heard<T: Clone>(mut news: watch::Receiver<Option<Option<T>>>) -> Option<Option<T>> {
    news.wait_for(Option::is_some).await.ok()?.clone()
}

/// Takes a question off the list however it ended, and tells those who wait.
struct Landing<'a, T> {
    flights: &'a Flights<T>,
    key: &'a Key,
    /// Nothing before the end; and none where asking panicked.
    result: Option<Option<T>>,
}

impl<'a, T> Landing<'a, T> {
    const fn new(flights: &'a Flights<T>, key: &'a Key) -> Self {
        Self {
            flights,
            key,
            result: None,
        }
    }
}

impl<T: Clone> Landing<'_, T> {
    /// Asks; nothing comes of a fault. The question is made here, since what is handed to a future is in it twice.
    async fn fly<F: Future<Output = T>>(&mut self, ask: impl FnOnce() -> F) -> Option<T> {
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

impl<T> Drop for Landing<'_, T> {
    fn drop(&mut self) {
        let mut under_way = self.flights.lock();
        let news = under_way.remove(self.key).flatten();
        self.flights.landings.fetch_add(1, Ordering::Release);
        drop(under_way);
        // Without a result the end of the channel tells that who asked had to go.
        if let (Some(news), Some(result)) = (news, self.result.take()) {
            news.send_replace(Some(result));
        }
    }
}
