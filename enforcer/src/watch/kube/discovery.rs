//! Which kinds are served, now and when a CustomResourceDefinition comes, changes or goes.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use egret_shared::rt::clock;
use egret_shared::time::Timestamp;
use futures::StreamExt;
use futures::stream::BoxStream;
use kube::Client;
use kube::api::{Api, ApiResource, DynamicObject, GroupVersionKind, PartialObjectMeta};
use kube::runtime::utils::Backoff;
use kube::runtime::watcher::{self, DefaultBackoff, Event, watcher};
use tokio::sync::{Notify, mpsc};

use super::client::reason;
use super::resources::{Discovered, KINDS, RESOURCE_TYPES, discover};

/// From a CustomResourceDefinition to its kind being served, the API server takes up to seconds: so soon it is asked
/// again, then after twice the time.
const SOON: Duration = Duration::from_millis(250);
/// How often at most, where what is declared is not what is served: a version may be switched off.
const SELDOM: Duration = Duration::from_secs(60);
/// How often where it is: a watch of definitions that is refused from some time on would not tell.
const AT_REST: Duration = Duration::from_secs(600);
/// How often where definitions cannot be watched.
const UNWATCHED: Duration = Duration::from_secs(30);
/// How long the first sync waits for kinds that are declared and not served.
const SETTLES_WITHIN: Duration = Duration::from_secs(10);

/// What the API server serves.
#[derive(Debug)]
pub(super) struct Served {
    /// The version of each kind that is to be watched.
    pub(super) resources: [Option<ApiResource>; KINDS],
    /// It is not known which versions of the kind are served: what is watched stays watched.
    pub(super) is_unknown: [bool; KINDS],
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

impl Discovery {
    pub(super) async fn run(self, told: mpsc::Sender<Result<Served, String>>) {
        let mut definitions = Definitions::watch(self.client.clone());
        let mut backoff = DefaultBackoff::default();
        let mut pause = SOON;
        let begun = clock::now();
        let mut said = None;
        loop {
            let asked = self.ask().await;
            let is_late = clock::now().since(begun) > SETTLES_WITHIN;
            let (served, next) = match asked {
                Ok((found, may_stream)) => {
                    backoff.reset();
                    let is_settled = definitions.agree_with(&found);
                    definitions.are_changing &= pause < SETTLES_WITHIN;
                    let next = match (definitions.is_watched, is_settled) {
                        (false, _) => UNWATCHED,
                        (true, true) if !definitions.are_changing => AT_REST,
                        (true, _) => pause,
                    };
                    if said != found.failure {
                        if let Some(reason) = &found.failure {
                            tracing::warn!(
                                reason,
                                "it is not known what is served of a group; what is known of it stays"
                            );
                        }
                        said = found.failure.clone();
                    }
                    let served = Served {
                        is_gone: definitions.gone(&found),
                        is_unknown: found.is_unknown,
                        resources: found.resources,
                        is_settled: is_settled || !definitions.is_watched || is_late,
                        may_stream,
                    };
                    (Ok(served), next)
                }
                Err(error) => (Err(reason(&error)), backoff.next().unwrap_or(SELDOM)),
            };
            if told.send(served).await.is_err() {
                return;
            }
            pause = (pause * 2).min(SELDOM);
            tokio::select! {
                () = tokio::time::sleep(next) => {}
                () = definitions.changed() => pause = SOON,
                () = self.nudge.notified() => {
                    pause = SOON;
                    // Whoever nudges has just been refused.
                    tokio::time::sleep(SOON).await;
                }
            }
        }
    }

    async fn ask(&self) -> kube::Result<(Discovered, bool)> {
        let version = self.client.apiserver_version().await?;
        Ok((discover(&self.client).await?, may_stream(&version.minor)))
    }
}

/// An API server before streaming lists (KEP-3157) passes over the parameter, and never says that it has sent everything.
const STREAMS_SINCE: u32 = 27;

fn may_stream(minor: &str) -> bool {
    // Some vendors write "27+".
    let digits = minor.trim_end_matches(|letter: char| !letter.is_ascii_digit());
    digits.parse().is_ok_and(|minor: u32| minor >= STREAMS_SINCE)
}

type Definition = PartialObjectMeta<DynamicObject>;

/// The CustomResourceDefinitions of our kinds, watched by their metadata.
struct Definitions {
    events: BoxStream<'static, watcher::Result<Event<Definition>>>,
    /// Their names; none until they were listed.
    declared: Option<BTreeSet<String>>,
    listing: BTreeSet<String>,
    /// The watch has not failed, or has worked before.
    is_watched: bool,
    /// One of ours came, changed or went a moment ago. What is served follows within seconds, and where only its versions
    /// changed nothing tells when.
    are_changing: bool,
    backoff: DefaultBackoff,
    again_at: Option<Timestamp>,
}

impl Definitions {
    fn watch(client: Client) -> Self {
        let kind = GroupVersionKind::gvk("apiextensions.k8s.io", "v1", "CustomResourceDefinition");
        let resource = ApiResource::from_gvk_with_plural(&kind, "customresourcedefinitions");
        let api = Api::<Definition>::all_with(client, &resource);
        Self {
            events: watcher(api, watcher::Config::default()).boxed(),
            declared: None,
            listing: BTreeSet::new(),
            is_watched: true,
            are_changing: false,
            backoff: DefaultBackoff::default(),
            again_at: None,
        }
    }

    /// Returns when a definition of ours comes, changes or goes, when they are listed, or cannot be. May be cancelled.
    async fn changed(&mut self) {
        loop {
            if let Some(at) = self.again_at {
                tokio::time::sleep(at.since(clock::now())).await;
                self.again_at = None;
            }
            match self.events.next().await {
                Some(Ok(event)) => {
                    self.backoff.reset();
                    self.is_watched = true;
                    let is_change = matches!(event, Event::Apply(_) | Event::Delete(_));
                    if self.note(event) {
                        self.are_changing |= is_change;
                        return;
                    }
                }
                // Whether the API server is gone is said by discovery itself.
                Some(Err(_refused_or_gone)) => {
                    self.again_at = Some(clock::now().after(self.backoff.next().unwrap_or(SELDOM)));
                    if self.declared.is_none() && self.is_watched {
                        self.is_watched = false;
                        return;
                    }
                }
                None => std::future::pending().await,
            }
        }
    }

    /// Whether it concerns a kind of ours.
    fn note(&mut self, event: Event<Definition>) -> bool {
        match event {
            Event::Init => {
                self.listing.clear();
                false
            }
            Event::InitApply(object) => {
                self.listing.extend(name_of_ours(object));
                false
            }
            Event::InitDone => {
                self.declared = Some(std::mem::take(&mut self.listing));
                true
            }
            Event::Apply(object) => {
                let name = name_of_ours(object);
                let is_ours = name.is_some();
                self.declared.get_or_insert_default().extend(name);
                is_ours
            }
            Event::Delete(object) => {
                name_of_ours(object).is_some_and(|name| self.declared.get_or_insert_default().remove(&name))
            }
        }
    }

    /// Whether what is declared is what is served.
    fn agree_with(&self, found: &Discovered) -> bool {
        let Some(declared) = &self.declared else {
            return false;
        };
        let is_served = |kind: usize| found.resources[kind].is_some() && !found.is_unknown[kind];
        let mut kinds = RESOURCE_TYPES.iter().enumerate();
        kinds.all(|(kind, resource)| {
            !resource.is_custom() || declared.contains(&resource.definition()) == is_served(kind)
        })
    }

    /// Kinds that are neither declared nor served.
    fn gone(&self, found: &Discovered) -> [bool; KINDS] {
        std::array::from_fn(|kind| {
            let resource = &RESOURCE_TYPES[kind];
            let is_declared = |declared: &BTreeSet<String>| declared.contains(&resource.definition());
            resource.is_custom()
                && found.resources[kind].is_none()
                && !found.is_unknown[kind]
                && self
                    .declared
                    .as_ref()
                    .is_some_and(|declared| !is_declared(declared))
        })
    }
}

fn name_of_ours(object: Definition) -> Option<String> {
    let name = object.metadata.name?;
    let mut custom = RESOURCE_TYPES.iter().filter(|resource| resource.is_custom());
    custom
        .any(|resource| resource.definition() == name)
        .then_some(name)
}
