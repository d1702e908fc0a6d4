//! Which kinds are served, now and when a CustomResourceDefinition comes, changes or goes.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use egret_shared::rt::clock;
use egret_shared::time::Timestamp;
use futures::StreamExt;
use kube::Client;
use kube::api::{Api, ApiResource, DynamicObject, GroupVersionKind, PartialObjectMeta};
use kube::runtime::utils::Backoff;
use kube::runtime::watcher::{self, DefaultBackoff, Event, watcher};
use tokio::sync::{Notify, mpsc};

use super::client::reason;
use super::resources::{KINDS, RESOURCE_TYPES, discover};

/// From a CustomResourceDefinition to its kind being served, the API server takes up to seconds: so soon it is asked
/// again, then after twice the time.
const SOON: Duration = Duration::from_millis(250);
/// How often at most, where what is declared is not what is served: a version may be switched off.
const SELDOM: Duration = Duration::from_secs(60);
/// How often where definitions cannot be watched.
const UNWATCHED: Duration = Duration::from_secs(30);
/// How long the first sync waits for kinds that are declared and not served.
const SETTLES_WITHIN: Duration = Duration::from_secs(10);

/// What the API server serves.
#[derive(Debug)]
pub(super) struct Served {
    /// The version of each kind that is to be watched.
    pub(super) resources: [Option<ApiResource>; KINDS],
    /// No definition declares the kind: its objects are gone. A kind that is merely not served, as while an API
    /// server starts, says nothing.
    pub(super) is_gone: [bool; KINDS],
    /// Nothing that is declared is expected to be served any moment.
    pub(super) is_settled: bool,
    /// The API server is not too old for streaming lists.
    pub(super) may_stream: bool,
}

/// Tells what is served whenever that may be other than before, until nobody listens.
pub(super) struct Discovery {
    pub(super) client: Client,
    /// A kind that was served is not known to the API server.
    pub(super) nudge: Arc<Notify>,
}

/// The names of definitions that there are; none until they were listed.
type Declared = Option<BTreeSet<String>>;

impl Discovery {
    async fn ask(&self) -> kube::Result<([Option<ApiResource>; KINDS], bool)> {
        let version = self.client.apiserver_version().await?;
        Ok((discover(&self.client).await?, may_stream(&version.minor)))
    }

    pub(super) async fn run(self, told: mpsc::Sender<Result<Served, String>>) {
        let resource = definition();
        let api = Api::<PartialObjectMeta<DynamicObject>>::all_with(self.client.clone(), &resource);
        let mut definitions = Box::pin(watcher(api, watcher::Config::default()));
        let mut pause_of_watch = DefaultBackoff::default();
        let mut pause_of_failure = DefaultBackoff::default();
        let mut pause = SOON;
        let mut declared: Declared = None;
        let mut listing = BTreeSet::new();
        let mut is_watched = true;
        let mut watch_again: Option<Timestamp> = None;
        let begun = clock::now();
        loop {
            let served = self.ask().await;
            let mut mismatch = false;
            let next = match &served {
                Ok((resources, _)) => {
                    pause_of_failure.reset();
                    mismatch = is_mismatch(resources, declared.as_ref());
                    match (mismatch, is_watched) {
                        (true, true) => pause,
                        (_, false) => UNWATCHED,
                        (false, true) => Duration::MAX,
                    }
                }
                Err(_failed) => pause_of_failure.next().unwrap_or(SELDOM),
            };
            let is_settled = !mismatch || !is_watched || clock::now().since(begun) > SETTLES_WITHIN;
            let served = served
                .map(|(resources, may_stream)| Served {
                    may_stream,
                    is_gone: std::array::from_fn(|kind| is_gone(kind, &resources, declared.as_ref())),
                    resources,
                    is_settled,
                })
                .map_err(|error| reason(&error));
            if told.send(served).await.is_err() {
                return;
            }
            pause = (pause * 2).min(SELDOM);
            let due = tokio::time::sleep(next.min(Duration::from_secs(3600)));
            tokio::pin!(due);
            loop {
                let watch_pause = watch_again.map_or(Duration::ZERO, |at| at.since(clock::now()));
                let event = tokio::select! {
                    () = &mut due => break,
                    () = self.nudge.notified() => {
                        pause = SOON;
                        // Whoever nudges has just been refused.
                        tokio::time::sleep(SOON).await;
                        break;
                    }
                    event = async {
                        tokio::time::sleep(watch_pause).await;
                        definitions.next().await
                    } => event,
                };
                watch_again = None;
                let is_news = match event {
                    None => return,
                    Some(Err(_refused_or_gone)) => {
                        is_watched = declared.is_some();
                        watch_again = Some(clock::now().after(pause_of_watch.next().unwrap_or(SELDOM)));
                        // Discovery itself says whether the API server is gone.
                        !is_watched
                    }
                    Some(Ok(event)) => {
                        pause_of_watch.reset();
                        is_watched = true;
                        note(event, &mut declared, &mut listing)
                    }
                };
                if is_news {
                    pause = SOON;
                    break;
                }
            }
        }
    }
}

/// An API server before streaming lists (KEP-3157) passes over the parameter, and never says that it has sent everything.
const STREAMS_SINCE: u32 = 27;

fn may_stream(minor: &str) -> bool {
    // Some vendors write "27+".
    let digits = minor.trim_end_matches(|letter: char| !letter.is_ascii_digit());
    digits.parse().is_ok_and(|minor: u32| minor >= STREAMS_SINCE)
}

fn definition() -> ApiResource {
    let kind = GroupVersionKind::gvk("apiextensions.k8s.io", "v1", "CustomResourceDefinition");
    ApiResource::from_gvk_with_plural(&kind, "customresourcedefinitions")
}

/// Whether it concerns a kind of ours.
fn note(
    event: Event<PartialObjectMeta<DynamicObject>>,
    declared: &mut Declared,
    listing: &mut BTreeSet<String>,
) -> bool {
    let ours = |object: PartialObjectMeta<DynamicObject>| {
        let name = object.metadata.name.unwrap_or_default();
        let mut custom = RESOURCE_TYPES.iter().filter(|resource| resource.is_custom());
        custom
            .any(|resource| resource.definition() == name)
            .then_some(name)
    };
    match event {
        Event::Init => {
            listing.clear();
            false
        }
        Event::InitApply(object) => {
            listing.extend(ours(object));
            false
        }
        Event::InitDone => {
            *declared = Some(std::mem::take(listing));
            true
        }
        Event::Apply(object) => {
            let name = ours(object);
            let is_ours = name.is_some();
            declared.get_or_insert_default().extend(name);
            is_ours
        }
        Event::Delete(object) => {
            ours(object).is_some_and(|name| declared.get_or_insert_default().remove(&name))
        }
    }
}

fn is_mismatch(resources: &[Option<ApiResource>; KINDS], declared: Option<&BTreeSet<String>>) -> bool {
    let Some(declared) = declared else {
        return true;
    };
    let kinds = RESOURCE_TYPES.iter().zip(resources);
    let mut custom = kinds.filter(|(resource, _)| resource.is_custom());
    custom.any(|(resource, served)| declared.contains(&resource.definition()) != served.is_some())
}

fn is_gone(
    kind: usize,
    resources: &[Option<ApiResource>; KINDS],
    declared: Option<&BTreeSet<String>>,
) -> bool {
    let resource = &RESOURCE_TYPES[kind];
    resource.is_custom()
        && resources[kind].is_none()
        && declared.is_some_and(|declared| !declared.contains(&resource.definition()))
}
