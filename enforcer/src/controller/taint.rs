//! The startup taint: an operator gives it to new nodes, so that no pod starts there before policy is in force. It is
//! taken away once, when the node's enforcer says that the kernel holds every policy. Nothing gives it back: rules stay
//! in force when an enforcer ends.

use std::collections::BTreeMap;
use std::time::Duration;

use egret_shared::rt::clock;
use egret_shared::time::Timestamp;
use kube::Client;
use kube::api::{Api, DynamicObject, Patch, PatchParams};
use serde_json::{Value as Json, json};
use tokio::sync::watch;

use super::lease::Leadership;
use super::reports::Reports;
use super::within_limit;
use crate::policy_report::node_resource;
use crate::watch::kube::ObjectState;

/// The key of the taint, whatever its value and effect.
const KEY: &str = "policy.egret.dev/enforcer-not-ready";
/// A node is not written again before: until then the watch has said what became of it.
const RETRY_AFTER: Duration = Duration::from_secs(2);

/// The nodes that have the taint.
#[derive(Default)]
pub(super) struct TaintedNodes(BTreeMap<String, TaintedNode>);

struct TaintedNode {
    uid: String,
    resource_version: u64,
    /// Those of others.
    others: Vec<Json>,
    not_before: Timestamp,
}

impl TaintedNodes {
    /// Takes a Node in as it is. Whether it has the taint.
    pub(super) fn take(&mut self, node: &ObjectState) -> bool {
        let taints = node.taints.as_array().map(Vec::as_slice).unwrap_or_default();
        let (own, others): (Vec<&Json>, Vec<&Json>) = taints.iter().partition(|taint| taint["key"] == KEY);
        if own.is_empty() {
            self.remove(&node.id.name);
            return false;
        }
        let not_before = self.0.get(&node.id.name).map(|node| node.not_before);
        let tainted = TaintedNode {
            uid: node.uid.clone(),
            resource_version: node.resource_version,
            others: others.into_iter().cloned().collect(),
            not_before: not_before.unwrap_or(Timestamp::from_millis(0)),
        };
        self.0.insert(node.id.name.clone(), tainted);
        true
    }

    pub(super) fn remove(&mut self, node: &str) {
        self.0.remove(node);
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// The nodes whose enforcer has everything in force, with what is written, and when the next one may be written.
    pub(super) fn ready(
        &mut self,
        reports: &Reports,
        now: Timestamp,
    ) -> (Vec<(String, Json)>, Option<Timestamp>) {
        let (mut patches, mut next) = (Vec::new(), None::<Timestamp>);
        for (name, node) in &mut self.0 {
            if !reports.is_in_force(name, &node.uid) {
                continue;
            }
            if node.not_before <= now {
                node.not_before = now.after(RETRY_AFTER);
                patches.push((name.clone(), node.patch()));
            }
            next = Some(next.map_or(node.not_before, |next| next.min(node.not_before)));
        }
        (patches, next)
    }
}

impl TaintedNode {
    /// It is refused where the Node is another by now, or has other taints.
    fn patch(&self) -> Json {
        json!({
            "metadata": {"uid": self.uid, "resourceVersion": self.resource_version.to_string()},
            "spec": {"taints": self.others},
        })
    }
}

/// Takes the taint from every node that is ready. Returns when it is to be tried again.
pub(super) async fn remove(
    client: &Client,
    leadership: &watch::Receiver<Leadership>,
    (patches, next): (Vec<(String, Json)>, Option<Timestamp>),
) -> Option<Timestamp> {
    let api = Api::<DynamicObject>::all_with(client.clone(), &node_resource());
    for (node, patch) in patches {
        if !leadership.borrow().may_write(clock::now()) {
            break;
        }
        let (parameters, patch) = (PatchParams::default(), Patch::Merge(patch));
        match within_limit(api.patch_metadata(&node, &parameters, &patch)).await {
            Ok(_) => tracing::info!(
                node,
                taint = KEY,
                "policy is in force there: the taint is removed"
            ),
            Err(error) if error.is_conflict() => {}
            Err(error) => {
                let reason = error.reason();
                tracing::warn!(
                    node,
                    taint = KEY,
                    reason,
                    "the taint cannot be removed; it is tried again"
                );
            }
        }
    }
    next
}
