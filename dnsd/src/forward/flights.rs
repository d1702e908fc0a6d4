//! Equal questions that are under way at once are asked once; each client still gets an answer, a record and a
//! wait of its own.
//!
//! Nearly every question is alone. Who asks first therefore asks in its own task, and a channel is made only when a
//! second one comes.

use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Poll;

use egret_shared::rt::task;
use egret_shared::switch::{Switch, is_off};
use tokio::sync::watch;

use crate::cache::Key;
use crate::table::HashMap;

/// What became of a question: nothing yet, or a result for all who wait.
type News<T> = watch::Sender<Option<T>>;

/// The questions under way; with news where somebody waits besides who asked.
#[derive(Debug)]
pub struct Flights<T> {
    /// Held for one map operation.
    under_way: Mutex<HashMap<Key, Option<News<T>>>>,
}

/// Whether who asks first may go before there is an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stays {
    /// It stays until the end: it asks itself.
    Always,
    /// It may go, and others wait: a task of its own asks.
    Perhaps,
}

impl<T> Default for Flights<T> {
    fn default() -> Self {
        Self {
            under_way: Mutex::default(),
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

    /// Waits for the result of the question that is under way, or asks it. Nothing comes only if asking panicked.
    pub async fn join<F>(self: &Arc<Self>, key: Key, stays: Stays, ask: impl FnOnce() -> F) -> Option<T>
    where
        F: Future<Output = T> + Send + 'static,
    {
        match self.role(key, stays) {
            Role::Asks => self.landing(key).fly(ask()).await,
            Role::Sends(news) => {
                drop(task::spawn_brief(self.landing(key).fly(ask())));
                heard(news).await
            }
            Role::Waits(news) => heard(news).await,
        }
    }

    /// What is to be done by who has this question. It is under way from now on.
    fn role(&self, key: Key, stays: Stays) -> Role<T> {
        let mut under_way = self.lock();
        if let Some(news) = under_way.get_mut(&key).filter(|_| !is_off(Switch::OneFlight)) {
            return Role::Waits(subscribe(news));
        }
        match stays {
            Stays::Always => {
                under_way.insert(key, None);
                Role::Asks
            }
            Stays::Perhaps => {
                let (sender, news) = watch::channel(None);
                under_way.insert(key, Some(sender));
                Role::Sends(news)
            }
        }
    }

    fn landing(self: &Arc<Self>, key: Key) -> Landing<T> {
        Landing {
            flights: Arc::clone(self),
            key,
            result: None,
        }
    }
}

/// Who has a question.
enum Role<T> {
    /// Asks it.
    Asks,
    /// Has it asked, and waits.
    Sends(watch::Receiver<Option<T>>),
    /// Waits for who asked it before.
    Waits(watch::Receiver<Option<T>>),
}

/// The news of a question, which has none before somebody waits for them.
fn subscribe<T>(news: &mut Option<News<T>>) -> watch::Receiver<Option<T>> {
    news.get_or_insert_with(|| watch::Sender::new(None)).subscribe()
}

async fn heard<T: Clone>(mut news: watch::Receiver<Option<T>>) -> Option<T> {
    news.wait_for(Option::is_some).await.ok()?.clone()
}

/// Takes a question off the list however it ended, and tells those who wait.
struct Landing<T> {
    flights: Arc<Flights<T>>,
    key: Key,
    result: Option<T>,
}

impl<T: Clone> Landing<T> {
    /// Asks; nothing comes of a fault.
    async fn fly<F: Future<Output = T>>(mut self, asking: F) -> Option<T> {
        let mut asking = pin!(asking);
        let result = std::future::poll_fn(|context| {
            let polled = catch_unwind(AssertUnwindSafe(|| asking.as_mut().poll(context)));
            polled.map_or(Poll::Ready(None), |poll| poll.map(Some))
        });
        self.result = result.await;
        self.result.clone()
    }
}

impl<T> Drop for Landing<T> {
    fn drop(&mut self) {
        let news = self.flights.lock().remove(&self.key).flatten();
        // Without a result the end of the channel tells that there is none.
        if let (Some(news), Some(result)) = (news, self.result.take()) {
            news.send_replace(Some(result));
        }
    }
}
