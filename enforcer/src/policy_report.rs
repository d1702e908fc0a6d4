//! The NodePolicyReport of this node: which policies its kernel holds. One small object, which only the controller
//! watches. It is written when something changed, at most once in five seconds; at rest nothing is written.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::Arc;
use std::sync::mpsc::sync_channel;
use std::time::Duration;

use egret_shared::rt::clock;
use egret_shared::time::Timestamp;
use kube::Client;
use kube::api::{Api, DynamicObject, Patch, PatchParams};
use serde_json::Value as Json;
use tokio::sync::{Notify, mpsc};

use crate::engine::{AdminQuery, AdminReply, AdminRequest, Input, Report};
use crate::watch::kube::reason;

mod content;
mod limits;

pub use content::{NodeReport, ObjectException, node_resource, resource};

use limits::ReachedLimits;

/// Two writes of a node are so long apart.
const MIN_INTERVAL: Duration = Duration::from_secs(5);
/// A change reaches all nodes at once: each one waits up to this long by chance.
const JITTER: Duration = Duration::from_secs(3);
/// How often the engine is asked, where the source tells of no change: its backend may fail and recover.
const RECHECK: Duration = Duration::from_secs(10);
/// How long after the API server refused a report it is tried again; the definition may not be there yet.
const RETRY_AFTER: Duration = Duration::from_secs(30);
/// How long the engine may take for what was told before it is asked.
const REPLY_TIMEOUT: Duration = Duration::from_secs(60);
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
const FIELD_MANAGER: &str = "egret-enforcer";

/// Writes the report of a node.
pub struct PolicyReporter {
    /// The API server.
    pub client: Client,
    /// The name of the node.
    pub node: String,
    /// The engine, which knows what is in the kernel.
    pub engine: mpsc::Sender<Input>,
    /// Notified when the engine was told of a change.
    pub told: Arc<Notify>,
}

impl std::fmt::Debug for PolicyReporter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PolicyReporter")
            .field("node", &self.node)
            .finish_non_exhaustive()
    }
}

impl PolicyReporter {
    /// Runs until the engine ends.
    pub async fn run(self) {
        let mut written = None;
        let mut report = NodeReport::default();
        let mut limits = ReachedLimits::default();
        let mut owner = None;
        let mut not_before = Timestamp::from_millis(0);
        let mut is_refused = false;
        loop {
            tokio::select! {
                () = self.told.notified() => {}
                () = tokio::time::sleep(RECHECK) => {}
                () = self.engine.closed() => return,
            }
            tokio::time::sleep(by_chance(JITTER)).await;
            tokio::time::sleep(not_before.since(clock::now())).await;
            let Some(state) = self.ask().await else { continue };
            report.follow(&state);
            report.limits = limits.follow(&state.records, clock::now());
            if !state.source.is_complete || written.as_ref() == Some(&report) {
                continue;
            }
            match self.write(&report, &mut owner).await {
                Ok(()) => {
                    not_before = clock::now().after(MIN_INTERVAL);
                    written = Some(report.clone());
                    is_refused = false;
                }
                Err(reason) => {
                    if !is_refused {
                        tracing::warn!(
                            reason,
                            "the NodePolicyReport of this node cannot be written; it is tried again"
                        );
                    }
                    is_refused = true;
                    not_before = clock::now().after(RETRY_AFTER);
                }
            }
        }
    }

    /// What is in the kernel, of what the engine was told before.
    async fn ask(&self) -> Option<Report> {
        let (reply, replied) = sync_channel(1);
        let request = AdminRequest {
            query: AdminQuery::Report,
            reply,
        };
        self.engine.send(Input::Admin(request)).await.ok()?;
        let reply = tokio::task::spawn_blocking(move || replied.recv_timeout(REPLY_TIMEOUT)).await;
        match reply {
            Ok(Ok(AdminReply::Report(report))) => Some(*report),
            Ok(Ok(AdminReply::Page(_)) | Err(_)) | Err(_) => None,
        }
    }

    async fn write(&self, report: &NodeReport, owner: &mut Option<Json>) -> Result<(), String> {
        if owner.is_none() {
            *owner = self.own_node().await;
        }
        let resource = resource();
        let object = report.object(&self.node, owner.as_ref());
        let api = Api::<DynamicObject>::all_with(self.client.clone(), &resource);
        let parameters = PatchParams::apply(FIELD_MANAGER).force();
        let patch = Patch::Apply(&object);
        let request = api.patch(&self.node, &parameters, &patch);
        match tokio::time::timeout(REQUEST_TIMEOUT, request).await {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(error)) => Err(reason(&error)),
            Err(_elapsed) => Err("the API server does not answer".to_owned()),
        }
    }

    /// The Node, as the owner of the report: when it is deleted, so is the report. Without it the report stays, and
    /// is not counted.
    async fn own_node(&self) -> Option<Json> {
        let api = Api::<DynamicObject>::all_with(self.client.clone(), &node_resource());
        let request = api.get_metadata(&self.node);
        let node = tokio::time::timeout(REQUEST_TIMEOUT, request).await.ok()?.ok()?;
        let uid = node.metadata.uid?;
        Some(serde_json::json!({"apiVersion": "v1", "kind": "Node", "name": self.node, "uid": uid}))
    }
}

fn by_chance(most: Duration) -> Duration {
    let drawn = RandomState::new().build_hasher().finish();
    let most = u64::try_from(most.as_millis()).unwrap_or(u64::MAX);
    Duration::from_millis(drawn % most.max(1))
}
