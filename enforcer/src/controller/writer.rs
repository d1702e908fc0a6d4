//! Writes statuses: each object's at most once in five seconds, and only as the leader.

use std::time::Duration;

use egret_shared::rt::clock;
use egret_shared::time::Timestamp;
use futures::StreamExt;
use kube::Client;
use kube::api::{Api, ApiResource, DynamicObject, Patch, PatchParams};
use serde_json::{Value as Json, json};
use tokio::sync::watch;

use super::lease::Leadership;
use super::objects::{Desired, Objects};
use super::{FIELD_MANAGER, RequestError, metrics, within_limit};
use crate::state::date_of;
use crate::watch::kube::ObjectId;

/// Two writes of an object are so long apart.
const MIN_INTERVAL: Duration = Duration::from_secs(5);
const AFTER_A_CONFLICT: Duration = Duration::from_millis(500);
/// Requests that are open at once.
const MOST_AT_ONCE: usize = 8;
/// Statuses of one pass; the next one, which knows what happened meanwhile, writes the others.
const MOST_OF_A_PASS: usize = 256;

pub(super) struct Writer {
    client: Client,
    leadership: watch::Receiver<Leadership>,
}

impl Writer {
    pub(super) fn new(client: Client, leadership: watch::Receiver<Leadership>) -> Self {
        Self { client, leadership }
    }

    /// Writes what differs. Returns when something is to be written that is not yet.
    pub(super) async fn write(
        &self,
        objects: &mut Objects,
        desired: Vec<Desired>,
        now: Timestamp,
    ) -> Option<Timestamp> {
        let date = date_of(clock::since_epoch().as_secs());
        let mut next: Option<Timestamp> = None;
        let mut wait_until = |at: Timestamp| next = Some(next.map_or(at, |next| next.min(at)));
        let mut requests = Vec::new();
        for Desired { id, status, .. } in desired {
            let (Some(status), Some(object)) = (status, objects.policy_mut(&id)) else {
                continue;
            };
            let Some(status) = status.to_write(&object.state.status, &date) else {
                continue;
            };
            if requests.len() == MOST_OF_A_PASS {
                wait_until(now);
                break;
            }
            if now < object.not_before {
                wait_until(object.not_before);
                continue;
            }
            object.not_before = now.after(MIN_INTERVAL);
            let (resource, version) = (object.state.resource.clone(), object.state.resource_version);
            requests.push(self.write_one(id, resource, version, status));
        }
        let mut answers = futures::stream::iter(requests).buffer_unordered(MOST_AT_ONCE);
        let mut is_said = false;
        while let Some((id, answer)) = answers.next().await {
            match answer {
                Ok((version, status)) => {
                    metrics::written();
                    if let Some(object) = objects.policy_mut(&id) {
                        object.state.resource_version = version;
                        object.state.status = status;
                    }
                }
                Err(NotWritten::NotLeading) => {}
                Err(NotWritten::Refused(error)) if error.is_conflict() => {
                    metrics::conflicted();
                    // What it conflicts with comes by the watch.
                    let at = now.after(AFTER_A_CONFLICT);
                    if let Some(object) = objects.policy_mut(&id) {
                        object.not_before = at;
                    }
                    wait_until(at);
                }
                Err(NotWritten::Refused(error)) => {
                    metrics::refused();
                    wait_until(now.after(MIN_INTERVAL));
                    if !is_said {
                        tracing::warn!(object = %name(&id), reason = error.reason(), "a status cannot be written; it is tried again");
                    }
                    is_said = true;
                }
            }
        }
        next
    }

    /// The version and the status as they are then. It is refused where the object is another by now: what a leader of before
    /// was about to write, when its machine stopped, comes to nothing.
    async fn write_one(
        &self,
        id: ObjectId,
        resource: ApiResource,
        version: u64,
        status: Json,
    ) -> (ObjectId, Result<(u64, Json), NotWritten>) {
        if !self.leadership.borrow().may_write(clock::now()) {
            return (id, Err(NotWritten::NotLeading));
        }
        let object = json!({
            "apiVersion": resource.api_version,
            "kind": resource.kind,
            "metadata": {"name": id.name, "resourceVersion": version.to_string()},
            "status": status,
        });
        let api = Api::<DynamicObject>::all_with(self.client.clone(), &resource);
        let parameters = PatchParams::apply(FIELD_MANAGER).force();
        let patch = Patch::Apply(&object);
        let answer = within_limit(api.patch_status(&id.name, &parameters, &patch)).await;
        let status = answer.map(|object| {
            let version = object.metadata.resource_version.unwrap_or_default();
            let status = object.data.get("status").cloned().unwrap_or_default();
            (version.parse().unwrap_or(0), status)
        });
        (id, status.map_err(NotWritten::Refused))
    }
}

/// Why a status was not written.
enum NotWritten {
    /// The lease ended meanwhile.
    NotLeading,
    Refused(RequestError),
}

fn name(id: &ObjectId) -> String {
    format!("{}/{}", id.kind, id.name)
}
