//! One watch of one kind, for as long as the kind is served: lists, watches, and begins again where that ended.

use std::sync::Arc;
use std::time::Duration;

use egret_shared::rt::clock;
use egret_shared::time::Timestamp;
use futures::StreamExt;
use kube::api::{Api, ApiResource, ListParams};
use kube::runtime::utils::Backoff;
use kube::runtime::watcher::{self, DefaultBackoff, Event, watcher};
use kube::{Client, Error};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::sync::mpsc;

use super::contact::Contact;
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

/// A change, of which watch of which kind.
#[derive(Debug)]
pub(super) struct ReflectorEvent {
    pub(super) kind: usize,
    pub(super) watch: u64,
    pub(super) change: Change,
}

/// Watches that expire more often are begun again after a pause.
const EXPIRES_SELDOM: Duration = Duration::from_secs(120);

/// A kind to be watched.
pub(super) struct Reflector {
    pub(super) client: Client,
    pub(super) contact: Arc<Contact>,
    pub(super) kind: usize,
    pub(super) resource: ApiResource,
    /// Whether the API server may know streaming lists (KEP-3157).
    pub(super) may_stream: bool,
    /// Counted up with each watch of the kind.
    pub(super) watch: u64,
    pub(super) expired_at: Option<Timestamp>,
}

impl Reflector {
    /// Runs until nobody listens.
    pub(super) async fn run(self, changes: mpsc::Sender<ReflectorEvent>) {
        match RESOURCE_TYPES[self.kind].shape {
            Shape::Whole => self.run_as::<Whole>(changes).await,
            Shape::Pod => self.run_as::<Pod>(changes).await,
            Shape::Node => self.run_as::<NodeObject>(changes).await,
        }
    }

    async fn run_as<B>(mut self, changes: mpsc::Sender<ReflectorEvent>)
    where
        B: DeserializeOwned + Serialize + 'static,
    {
        let mut backoff = DefaultBackoff::default();
        loop {
            let api = Api::<Stored<B>>::all_with(self.client.clone(), &self.resource);
            let mut events = Box::pin(watcher(api.clone(), self.config()));
            loop {
                let (next, told, pause) = tokio::select! {
                    event = events.next() => match event {
                        Some(Ok(event)) => {
                            // That a list could be had says nothing of the watch.
                            if matches!(event, Event::Apply(_) | Event::Delete(_)) {
                                backoff.reset();
                            }
                            // A list from the cache of a server that lags would take back what is in force.
                            self.may_stream &= !matches!(event, Event::InitDone);
                            if self.send(&changes, change(event)).await.is_err() {
                                return;
                            }
                            continue;
                        }
                        Some(Err(error)) => {
                            let (next, told) = self.judge(&error);
                            (next, told, if is_unreached(&error) { Pause::UntilBack } else { Pause::Full })
                        }
                        None => (Next::List, None, Pause::Full),
                    },
                    from = self.contact.resumed(self.kind) => match is_ahead(&api, from).await {
                        Ok(false) => continue,
                        Ok(true) => (self.expired(), Some(Change::Expired), Pause::Full),
                        Err(error) => (Next::List, Some(self.broke(super::client::reason(&error), false)), Pause::Full),
                    },
                };
                if let Some(told) = told
                    && self.send(&changes, told).await.is_err()
                {
                    return;
                }
                if next != Next::ListNow {
                    self.pause(backoff.next().unwrap_or_default(), pause).await;
                }
                if next != Next::Resume {
                    break;
                }
            }
        }
    }

    async fn send(
        &self,
        changes: &mpsc::Sender<ReflectorEvent>,
        change: Change,
    ) -> Result<(), mpsc::error::SendError<ReflectorEvent>> {
        let told = ReflectorEvent {
            kind: self.kind,
            watch: self.watch,
            change,
        };
        changes.send(told).await
    }

    /// Never shorter than the API server asks for. Where it was not reached, only until another watch reaches it.
    async fn pause(&self, pause: Duration, how: Pause) {
        if let Some(asked) = self.contact.retry_after(self.kind) {
            return tokio::time::sleep(asked + pause).await;
        }
        match how {
            Pause::Full => tokio::time::sleep(pause).await,
            Pause::UntilBack => tokio::select! {
                () = tokio::time::sleep(pause) => {}
                () = self.contact.is_back.notified() => {}
            },
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
            return (self.expired(), Some(Change::Expired));
        }
        if self.may_stream && code.is_some_and(is_refusal) {
            self.may_stream = false;
            tracing::debug!(kind = self.resource.kind, %error, "objects are listed, not streamed");
            return (Next::ListNow, None);
        }
        let next = if is_lost(error) { Next::List } else { Next::Resume };
        (next, Some(self.broke(reason(error), code == Some(404))))
    }

    /// Once everything is listed at once; a server on which watches expire over and over is asked ever more seldom.
    fn expired(&mut self) -> Next {
        let now = clock::now();
        let before = self.expired_at.replace(now);
        let is_over = before.is_none_or(|before| now.since(before) > EXPIRES_SELDOM);
        if is_over { Next::ListNow } else { Next::List }
    }

    fn broke(&self, reason: String, is_unknown: bool) -> Change {
        Change::Broke {
            reason,
            answered: self.contact.answered(self.kind),
            is_unknown,
        }
    }
}

/// Whether the objects are older than the resource version from which they are watched, as after etcd was restored from
/// a backup. The API server says nothing then, and nothing comes until the store has caught up. Resource versions of a kind
/// are compared as numbers (KEP-5504); where one is none, nothing is known.
async fn is_ahead<B>(api: &Api<Stored<B>>, from: u64) -> kube::Result<bool>
where
    B: DeserializeOwned + Serialize + 'static,
{
    let list = api.list(&ListParams::default().limit(1)).await?;
    let now = list
        .metadata
        .resource_version
        .and_then(|version| version.parse::<u64>().ok());
    Ok(now.is_some_and(|now| now < from))
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Pause {
    Full,
    UntilBack,
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

/// Whether no server answered. A watch that was begun and cut was answered: others that are begun do not hasten it, or two
/// that are cut at once would wake each other.
fn is_unreached(error: &watcher::Error) -> bool {
    match error {
        watcher::Error::InitialListFailed(error) | watcher::Error::WatchStartFailed(error) => {
            matches!(error, Error::HyperError(_) | Error::Service(_))
        }
        _ => false,
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
