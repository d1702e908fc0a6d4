//! A kind of objects, watched as long as somebody listens. What breaks is begun again, by a new client.

use std::time::Duration;

use futures::StreamExt as _;
use kube::api::{Api, ApiResource, DynamicObject};
use kube::runtime::watcher::{Config, Event, watcher};
use rand::RngExt as _;
use tokio::sync::mpsc;

use super::ApiServer;

const FIRST_PAUSE: Duration = Duration::from_millis(500);
/// A kind that is not served is asked for again after this.
const UNSERVED_FOR: Duration = Duration::from_secs(10);

/// What is watched.
#[derive(Clone, Debug)]
pub(crate) struct Watched {
    pub(crate) resource: ApiResource,
    /// None for all.
    pub(crate) namespace: Option<String>,
    pub(crate) labels: Option<String>,
    pub(crate) fields: Option<String>,
    /// The longest pause after it broke.
    pub(crate) patience: Duration,
}

/// What a watch tells.
#[derive(Debug)]
pub(crate) enum WatchEvent {
    /// All objects follow.
    Listing,
    Applied(Box<DynamicObject>),
    Deleted(Box<DynamicObject>),
    /// What was told since `Listing` is all that there is.
    Listed,
    /// It does not work now, and begins again by itself.
    Broke(String),
    /// The API server does not have the kind: so there is no object of it.
    NotServed,
}

/// Runs until nobody listens.
pub(crate) async fn watch<T>(
    api_server: ApiServer,
    watched: Watched,
    listener: mpsc::Sender<T>,
    wrap: impl Fn(WatchEvent) -> T,
) {
    let mut pause = FIRST_PAUSE;
    loop {
        let is_unserved = match api_server.client().await {
            Err(error) => {
                if listener
                    .send(wrap(WatchEvent::Broke(format!("{error:#}"))))
                    .await
                    .is_err()
                {
                    return;
                }
                false
            }
            Ok(client) => {
                let api: Api<DynamicObject> = match &watched.namespace {
                    Some(namespace) => Api::namespaced_with(client, namespace, &watched.resource),
                    None => Api::all_with(client, &watched.resource),
                };
                let config = Config {
                    label_selector: watched.labels.clone(),
                    field_selector: watched.fields.clone(),
                    ..Config::default()
                };
                let mut events = Box::pin(watcher(api, config));
                let broke = loop {
                    let next = tokio::select! {
                        next = events.next() => next,
                        () = listener.closed() => return,
                    };
                    let event = match next {
                        Some(Ok(Event::Init)) => WatchEvent::Listing,
                        Some(Ok(Event::InitApply(object))) => WatchEvent::Applied(Box::new(object)),
                        Some(Ok(Event::InitDone)) => WatchEvent::Listed,
                        Some(Ok(Event::Apply(object))) => {
                            pause = FIRST_PAUSE;
                            WatchEvent::Applied(Box::new(object))
                        }
                        Some(Ok(Event::Delete(object))) => {
                            pause = FIRST_PAUSE;
                            WatchEvent::Deleted(Box::new(object))
                        }
                        Some(Err(error)) => break Some(error),
                        None => break None,
                    };
                    if listener.send(wrap(event)).await.is_err() {
                        return;
                    }
                };
                let is_unserved = broke.as_ref().is_some_and(is_unserved);
                let event = match broke {
                    Some(_) if is_unserved => WatchEvent::NotServed,
                    Some(error) => WatchEvent::Broke(reason(&error)),
                    None => WatchEvent::Broke("the watch ended".to_owned()),
                };
                if listener.send(wrap(event)).await.is_err() {
                    return;
                }
                is_unserved
            }
        };
        let until = if is_unserved {
            UNSERVED_FOR
        } else {
            pause = (pause * 2).min(watched.patience);
            // Thousands whose API server is back do not come at once.
            pause.mul_f64(rand::rng().random_range(0.5..1.0))
        };
        tokio::select! {
            () = tokio::time::sleep(until) => {}
            () = listener.closed() => return,
        }
    }
}

/// The list failed because no such path exists.
fn is_unserved(error: &kube::runtime::watcher::Error) -> bool {
    use kube::runtime::watcher::Error;
    matches!(error, Error::InitialListFailed(kube::Error::Api(status)) if status.code == 404)
}

/// The innermost cause: what is around it only says that a watch failed.
fn reason(error: &kube::runtime::watcher::Error) -> String {
    let mut cause: &dyn std::error::Error = error;
    while let Some(inner) = cause.source() {
        cause = inner;
    }
    cause.to_string()
}
