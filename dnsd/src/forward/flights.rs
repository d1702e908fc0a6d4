//! Equal questions that are under way at once are asked once; each client still gets an answer, a record and a
//! wait of its own.

use std::collections::HashMap;
use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use egret_shared::rt::task;
use egret_shared::switch::{Switch, is_off};
use tokio::sync::watch;

use crate::cache::Key;

/// What became of a question: nothing yet, or a result for all who wait.
type News<T> = watch::Receiver<Option<T>>;

/// The questions under way.
#[derive(Debug)]
pub struct Flights<T> {
    /// Held for one map operation.
    under_way: Mutex<HashMap<Key, News<T>>>,
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

    fn lock(&self) -> MutexGuard<'_, HashMap<Key, News<T>>> {
        self.under_way.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T: Clone + Send + Sync + 'static> Flights<T> {
    /// The end of `other`, for a question that is not under way itself while that one is.
    #[must_use]
    pub fn meanwhile(&self, own: &Key, other: &Key) -> Option<impl Future<Output = ()> + use<T>> {
        let under_way = self.lock();
        let mut news = under_way
            .get(other)
            .filter(|_| !under_way.contains_key(own))?
            .clone();
        Some(async move {
            // An error means that asking panicked: that is an end too.
            drop(news.wait_for(Option::is_some).await);
        })
    }

    /// Waits for the result of the question that is under way, or asks it. Asking goes on when the client leaves:
    /// others wait. Nothing comes only if asking panicked.
    pub async fn join<F>(self: &Arc<Self>, key: Key, ask: impl FnOnce() -> F) -> Option<T>
    where
        F: Future<Output = T> + Send + 'static,
    {
        let mut news = self.news(key, ask);
        let result = news.wait_for(Option::is_some).await.ok()?;
        result.clone()
    }

    fn news<F>(self: &Arc<Self>, key: Key, ask: impl FnOnce() -> F) -> News<T>
    where
        F: Future<Output = T> + Send + 'static,
    {
        let mut under_way = self.lock();
        if let Some(news) = under_way.get(&key).filter(|_| !is_off(Switch::OneFlight)) {
            return news.clone();
        }
        let (sender, news) = watch::channel(None);
        under_way.insert(key, news.clone());
        let landing = Landing {
            flights: Arc::clone(self),
            key,
        };
        let asking = ask();
        drop(task::spawn_brief(async move {
            let result = asking.await;
            drop(landing);
            sender.send_replace(Some(result));
        }));
        news
    }
}

/// Takes a question off the list however it ended.
struct Landing<T> {
    flights: Arc<Flights<T>>,
    key: Key,
}

impl<T> Drop for Landing<T> {
    fn drop(&mut self) {
        self.flights.lock().remove(&self.key);
    }
}
