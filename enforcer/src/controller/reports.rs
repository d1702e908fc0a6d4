//! The NodePolicyReports, watched.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use egret_policies::controller::ProgrammedNodes;
use futures::StreamExt;
use kube::Client;
use kube::api::{Api, DynamicObject};
use kube::runtime::utils::Backoff;
use kube::runtime::watcher::{self, DefaultBackoff, Event, watcher};
use tokio::sync::watch;

use crate::policy_report::{NodeReport, resource};
use crate::watch::kube::ObjectId;

/// How often at most, where the kind is not served.
const SELDOM: Duration = Duration::from_secs(30);

/// What nodes have programmed, by the node's name.
#[derive(Debug, Default)]
pub(super) struct Reports(BTreeMap<String, Reported>);

#[derive(Debug)]
struct Reported {
    content: NodeReport,
    /// `metadata.uid` of the Node that it is about; none where its enforcer found no Node.
    node_uid: Option<String>,
}

impl Reports {
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// On how many of these nodes, given with their `metadata.uid`, this version of an object is in the kernel.
    pub(super) fn programmed<'a>(
        &'a self,
        id: &ObjectId,
        version: u64,
        nodes: &'a BTreeMap<String, String>,
    ) -> ProgrammedNodes<'a> {
        let mut programmed = ProgrammedNodes {
            nodes: 0,
            of: nodes.len(),
            behind: None,
        };
        for (node, uid) in nodes {
            let Some(report) = self.content(node, uid) else {
                continue;
            };
            if report.has(id.kind, id.namespace.as_deref(), &id.name, version) {
                programmed.nodes += 1;
            } else if programmed.behind.is_none() {
                programmed.behind = report.behind.as_deref().map(|why| (node.as_str(), why));
            }
        }
        programmed
    }

    /// What the enforcer of this Node says, not that of one that had its name before.
    fn content(&self, node: &str, uid: &str) -> Option<&NodeReport> {
        let reported = self.0.get(node)?;
        (reported.node_uid.as_deref() == Some(uid)).then_some(&reported.content)
    }

    /// Whether the enforcer of this Node has every policy in its kernel.
    pub(super) fn is_in_force(&self, node: &str, uid: &str) -> bool {
        let report = self.content(node, uid);
        report.is_some_and(|report| report.behind.is_none())
    }

    /// What each node says of itself that its operator should know: the reason of the Event, and its note.
    pub(super) fn notes(&self) -> impl Iterator<Item = (&str, Vec<(&'static str, &str)>)> {
        self.0.iter().map(|(node, reported)| {
            let report = &reported.content;
            let behind = report.behind.iter().map(|why| ("Behind", why.as_str()));
            let limits = report.limits.iter().map(|limit| ("LimitReached", limit.as_str()));
            (node.as_str(), behind.chain(limits).collect())
        })
    }
}

/// Runs until nobody listens.
pub(super) async fn watch(client: Client, reports: watch::Sender<Reports>) {
    let api = Api::<DynamicObject>::all_with(client, &resource());
    let mut events = watcher(api, watcher::Config::default()).boxed();
    let mut backoff = DefaultBackoff::default();
    let mut listing = BTreeSet::new();
    let mut is_said = false;
    loop {
        let event = tokio::select! {
            event = events.next() => event,
            () = reports.closed() => return,
        };
        match event {
            Some(Ok(event)) => {
                backoff.reset();
                is_said = false;
                reports.send_modify(|reports| note(&mut reports.0, &mut listing, event));
            }
            Some(Err(error)) => {
                if !is_said {
                    tracing::warn!(%error, "the NodePolicyReports cannot be watched; it is tried again");
                }
                is_said = true;
                tokio::time::sleep(backoff.next().unwrap_or(SELDOM).min(SELDOM)).await;
            }
            None => return,
        }
    }
}

fn note(
    reports: &mut BTreeMap<String, Reported>,
    listing: &mut BTreeSet<String>,
    event: Event<DynamicObject>,
) {
    match event {
        Event::Init => listing.clear(),
        Event::InitApply(object) => {
            listing.extend(object.metadata.name.clone());
            apply(reports, object);
        }
        Event::InitDone => reports.retain(|node, _| listing.contains(node)),
        Event::Apply(object) => apply(reports, object),
        Event::Delete(object) => {
            object.metadata.name.map(|node| reports.remove(&node));
        }
    }
}

fn apply(reports: &mut BTreeMap<String, Reported>, object: DynamicObject) {
    let metadata = object.metadata;
    if let Some(node) = metadata.name {
        let mut owners = metadata.owner_references.into_iter().flatten();
        let reported = Reported {
            content: NodeReport::read(&object.data),
            node_uid: owners.find(|owner| owner.kind == "Node").map(|owner| owner.uid),
        };
        reports.insert(node, reported);
    }
}
