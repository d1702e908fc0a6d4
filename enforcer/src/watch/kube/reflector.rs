//! One watch of one kind, for as long as the kind is served: lists, watches, and begins again where that ended.

use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use kube::api::{Api, ApiResource};
use kube::runtime::utils::Backoff;
use kube::runtime::watcher::{self, DefaultBackoff, Event, watcher};
use kube::{Client, Error};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::sync::mpsc;

use super::client::Contact;
use super::object::{NodeObject, ObjectName, Pod, Stored, Whole};
use super::resources::{RESOURCE_TYPES, Shape};

/// What a watch tells.
#[derive(Debug)]
pub(super) enum Change {
    /// All objects follow.
    Listing,
    /// An object is there, or changed.
    Applied(ObjectName, serde_json::Map<String, serde_json::Value>),
    /// It is there no more.
    Deleted(ObjectName),
    /// What was told since `Listing` is all that there is.
    Listed,
    /// The watch broke, and is tried again; whether it works is seen by `Contact`.
    Broke {
        reason: String,
        /// Of `Contact`, before it broke.
        answered: u64,
        /// The API server does not have the kind.
        is_unknown: bool,
    },
    /// The API server has forgotten where the watch stood: everything is listed.
    Expired,
}

/// A kind to be watched.
pub(super) struct Reflector {
    pub(super) client: Client,
    pub(super) contact: Arc<Contact>,
    pub(super) kind: usize,
    pub(super) resource: ApiResource,
    /// Whether the API server may know streaming lists (KEP-3157).
    pub(super) may_stream: bool,
}

impl Reflector {
    /// Runs until nobody listens.
    pub(super) async fn run(self, changes: mpsc::Sender<(usize, Change)>) {
        match RESOURCE_TYPES[self.kind].shape {
            Shape::Whole => self.run_as::<Whole>(changes).await,
            Shape::Pod => self.run_as::<Pod>(changes).await,
            Shape::Node => self.run_as::<NodeObject>(changes).await,
        }
    }

    async fn run_as<B>(mut self, changes: mpsc::Sender<(usize, Change)>)
    where
        B: DeserializeOwned + Serialize + 'static,
    {
        let mut backoff = DefaultBackoff::default();
        loop {
            let api = Api::<Stored<B>>::all_with(self.client.clone(), &self.resource);
            let mut events = Box::pin(watcher(api, self.config()));
            while let Some(event) = events.next().await {
                let error = match event {
                    Ok(event) => {
                        backoff.reset();
                        // A list from the cache of a server that lags would take back what is in force.
                        self.may_stream &= !matches!(event, Event::InitDone);
                        if changes.send((self.kind, change(event))).await.is_err() {
                            return;
                        }
                        continue;
                    }
                    Err(error) => error,
                };
                let (next, told) = self.judge(&error);
                if let Some(told) = told
                    && changes.send((self.kind, told)).await.is_err()
                {
                    return;
                }
                if next != Next::ListNow {
                    self.pause(backoff.next().unwrap_or_default(), &error).await;
                }
                if next != Next::Resume {
                    break;
                }
            }
        }
    }

    /// What the API server refuses is tried again later; where it did not answer, also as soon as it answers another watch.
    async fn pause(&self, pause: Duration, error: &watcher::Error) {
        if code(error).is_some_and(|code| code < 500) {
            return tokio::time::sleep(pause).await;
        }
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            () = self.contact.is_back.notified() => {}
        }
    }

    fn config(&self) -> watcher::Config {
        let config = watcher::Config {
            field_selector: RESOURCE_TYPES[self.kind].field_selector.map(ToOwned::to_owned),
            ..watcher::Config::default()
        };
        if self.may_stream {
            config.streaming_lists()
        } else {
            config
        }
    }

    fn judge(&mut self, error: &watcher::Error) -> (Next, Option<Change>) {
        let code = code(error);
        if code == Some(410) {
            return (Next::ListNow, Some(Change::Expired));
        }
        if self.may_stream && code.is_some_and(is_refusal) {
            self.may_stream = false;
            tracing::debug!(kind = self.resource.kind, %error, "objects are listed, not streamed");
            return (Next::ListNow, None);
        }
        let broke = Change::Broke {
            reason: reason(error),
            answered: self.contact.answered(self.kind),
            is_unknown: code == Some(404),
        };
        (
            if is_lost(error) { Next::List } else { Next::Resume },
            Some(broke),
        )
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Next {
    /// Goes on where the watch stood.
    Resume,
    /// Lists everything.
    List,
    /// The same, without a pause: the server answers.
    ListNow,
}

fn change<B>(event: Event<Stored<B>>) -> Change {
    match event {
        Event::Init => Change::Listing,
        Event::InitApply(object) | Event::Apply(object) => Change::Applied(object.name(), object.json),
        Event::InitDone => Change::Listed,
        Event::Delete(object) => Change::Deleted(object.name()),
    }
}

/// Whether an API server says by it that it has no streaming lists, which it says in several ways: the feature may be off, or its
/// etcd too old. Who may not, or is to come later, is told so by the list as well.
fn is_refusal(code: u16) -> bool {
    !matches!(code, 401 | 403 | 404 | 429 | 503 | 504)
}

fn code(error: &watcher::Error) -> Option<u16> {
    match error {
        watcher::Error::WatchError(status) => Some(status.code),
        watcher::Error::InitialListFailed(Error::Api(status))
        | watcher::Error::WatchStartFailed(Error::Api(status))
        | watcher::Error::WatchFailed(Error::Api(status)) => Some(status.code),
        _ => None,
    }
}

/// Whether an event may have been lost, so that everything has to be listed: what cannot be decoded is passed over by the watcher, and an
/// error that a watch sends leaves it open.
fn is_lost(error: &watcher::Error) -> bool {
    match error {
        watcher::Error::WatchError(_) | watcher::Error::NoResourceVersion => true,
        watcher::Error::WatchFailed(error) => !matches!(error, Error::ReadEvents(_) | Error::HyperError(_)),
        watcher::Error::InitialListFailed(_) | watcher::Error::WatchStartFailed(_) => false,
    }
}

fn reason(error: &watcher::Error) -> String {
    match error {
        watcher::Error::InitialListFailed(error)
        | watcher::Error::WatchStartFailed(error)
        | watcher::Error::WatchFailed(error) => super::client::reason(error),
        watcher::Error::WatchError(status) => status.message.clone(),
        watcher::Error::NoResourceVersion => error.to_string(),
    }
}
