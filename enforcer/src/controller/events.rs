//! Events of what is wrong with policies, and on nodes. Kubernetes keeps them an hour; the conditions stay.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use egret_policies::diagnostic::Severity;
use egret_shared::rt::{clock, task};
use k8s_openapi::api::core::v1::ObjectReference;
use kube::Client;
use kube::runtime::events::{Event, EventType, Recorder, Reporter};
use tokio::sync::{mpsc, watch};

use super::lease::Leadership;
use super::objects::{Desired, Objects, PolicyObject};
use super::reports::Reports;
use super::status::is_about;
use super::{FIELD_MANAGER, metrics, within_limit};
use crate::policy_report;
use crate::watch::kube::ObjectId;

/// Events that wait; those beyond are dropped and counted.
const QUEUE: usize = 256;
/// The time between two: five a second.
const PACE: Duration = Duration::from_millis(200);
/// The longest note, in octets (events.k8s.io/v1).
const MOST_OCTETS: usize = 1024;

/// Publishes each diagnostic of an object once. Equal ones of one object are a series (the recorder's).
pub(super) struct EventPublisher {
    queue: mpsc::Sender<(Event, ObjectReference)>,
    told: BTreeMap<ObjectId, BTreeSet<String>>,
    told_of_nodes: BTreeMap<String, BTreeSet<String>>,
}

impl EventPublisher {
    /// Starts the task that writes them, as long as this replica is the leader.
    pub(super) fn start(client: Client, leadership: watch::Receiver<Leadership>) -> Self {
        let (queue, waiting) = mpsc::channel(QUEUE);
        let recorder = Recorder::new(client, Reporter::from(FIELD_MANAGER));
        drop(task::spawn("events", write(recorder, leadership, waiting)));
        Self {
            queue,
            told: BTreeMap::new(),
            told_of_nodes: BTreeMap::new(),
        }
    }

    /// Events of what nodes say of themselves and did not say before, about their NodePolicyReports.
    pub(super) fn publish_of_nodes(&mut self, reports: &Reports) {
        let mut told = BTreeMap::new();
        for (node, notes) in reports.notes() {
            let before = self.told_of_nodes.remove(node).unwrap_or_default();
            let mut now = BTreeSet::new();
            for (reason, note) in notes {
                if !before.contains(note) {
                    self.queue(reason, note, "Program", of_report(node));
                }
                now.insert(note.to_owned());
            }
            told.insert(node.to_owned(), now);
        }
        self.told_of_nodes = told;
    }

    /// Events of diagnostics that were not there before. Of an object whose status an earlier leader has written, those of
    /// then are not told again.
    pub(super) fn publish(&mut self, objects: &Objects, desired: &[Desired]) {
        let mut told = BTreeMap::new();
        for Desired { id, diagnostics, .. } in desired {
            let Some(object) = objects.policy(id) else {
                continue;
            };
            let is_first = !self.told.contains_key(id);
            let before = self.told.remove(id).unwrap_or_default();
            let is_known = is_first && is_about(&object.state.status, object.state.generation);
            let mut now = BTreeSet::new();
            for found in diagnostics
                .iter()
                .filter(|found| found.severity != Severity::Info)
            {
                let note = found.to_string();
                if !is_known && !before.contains(&note) {
                    self.queue(&format!("{:?}", found.code), &note, "Lower", reference(object));
                }
                now.insert(note);
            }
            told.insert(id.clone(), now);
        }
        self.told = told;
    }

    fn queue(&self, reason: &str, note: &str, action: &str, object: ObjectReference) {
        let event = Event {
            type_: EventType::Warning,
            reason: reason.to_owned(),
            note: Some(shortened(note)),
            action: action.to_owned(),
            secondary: None,
        };
        if self.queue.try_send((event, object)).is_err() {
            metrics::event_dropped();
        }
    }
}

async fn write(
    recorder: Recorder,
    leadership: watch::Receiver<Leadership>,
    mut waiting: mpsc::Receiver<(Event, ObjectReference)>,
) {
    while let Some((event, object)) = waiting.recv().await {
        if !leadership.borrow().may_write(clock::now()) {
            continue;
        }
        match within_limit(recorder.publish(&event, &object)).await {
            Ok(()) => metrics::event_written(),
            Err(error) => {
                metrics::event_dropped();
                tracing::debug!(reason = error.reason(), "an Event cannot be written");
            }
        }
        tokio::time::sleep(PACE).await;
    }
}

fn reference(object: &PolicyObject) -> ObjectReference {
    let state = &object.state;
    ObjectReference {
        api_version: Some(state.resource.api_version.clone()),
        kind: Some(state.resource.kind.clone()),
        namespace: state.id.namespace.clone(),
        name: Some(state.id.name.clone()),
        uid: Some(state.uid.clone()),
        ..ObjectReference::default()
    }
}

fn of_report(node: &str) -> ObjectReference {
    let resource = policy_report::resource();
    ObjectReference {
        api_version: Some(resource.api_version),
        kind: Some(resource.kind),
        name: Some(node.to_owned()),
        ..ObjectReference::default()
    }
}

fn shortened(note: &str) -> String {
    let end = (0..=MOST_OCTETS.min(note.len()))
        .rev()
        .find(|end| note.is_char_boundary(*end));
    note[..end.unwrap_or(0)].to_owned()
}
