//! The objects that policies ask for, and the policies that are objects, as an API server has them: a watch for each kind.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use egret_policies::api::manifest::read;
use egret_policies::diagnostic::Severity;
use egret_policies::lower::lower;
use egret_policies::model::api_server::ApiServerPolicy;
use egret_policies::model::cluster::{Entity, EntityKey};
use egret_shared::rt::task;
use kube::api::{ApiResource, DynamicObject, GroupVersionKind};
use serde_json::{Map, Value, json};
use tokio::sync::mpsc;
use tokio_util::task::AbortOnDropHandle;

use crate::api_server::{ApiServer, WatchEvent, Watched, watch};

/// Events that wait; beyond, the watches wait.
const WAITING: usize = 1024;

/// The longest pause of a watch that broke: at the start everything waits for it.
const PATIENCE: Duration = Duration::from_secs(5);

struct KindSpec {
    group: &'static str,
    version: &'static str,
    kind: &'static str,
    plural: &'static str,
    /// Nothing is known as long as it is not served: Kubernetes always serves its own.
    is_own: bool,
    fields: Option<&'static str>,
}

const fn core(kind: &'static str, plural: &'static str) -> KindSpec {
    KindSpec {
        group: "",
        version: "v1",
        kind,
        plural,
        is_own: false,
        fields: None,
    }
}

const fn own(kind: &'static str, plural: &'static str) -> KindSpec {
    KindSpec {
        group: "policy.egret.dev",
        version: "v1alpha1",
        is_own: true,
        ..core(kind, plural)
    }
}

const KINDS: [KindSpec; 6] = [
    core("Namespace", "namespaces"),
    KindSpec {
        // A pod that is done has no address any more.
        fields: Some("status.phase!=Succeeded,status.phase!=Failed"),
        ..core("Pod", "pods")
    },
    core("Node", "nodes"),
    core("Service", "services"),
    own("NodeAddressReport", "nodeaddressreports"),
    own("APIServerEgressPolicy", "apiserveregresspolicies"),
];

type ObjectName = (Option<String>, String);

/// What is known of the cluster.
#[derive(Debug)]
pub(super) struct Cluster {
    kinds: [Kind; KINDS.len()],
    events: mpsc::Receiver<(usize, WatchEvent)>,
    entities: BTreeMap<EntityKey, Entity>,
    policies: BTreeMap<String, ApiServerPolicy>,
    changes: Changes,
    _watches: Vec<AbortOnDropHandle<()>>,
}

#[derive(Debug, Default)]
struct Kind {
    is_listed: bool,
    listing: Option<BTreeSet<ObjectName>>,
    objects: BTreeMap<ObjectName, Vec<EntityKey>>,
    /// Why it is not read now.
    failure: Option<String>,
}

/// What is other than when it was last asked.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Changes {
    pub(super) applied: BTreeMap<EntityKey, Entity>,
    pub(super) deleted: BTreeSet<EntityKey>,
    pub(super) has_other_policies: bool,
}

impl Changes {
    pub(super) fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

impl Cluster {
    /// Watches from now on, on the runtime that this is called on.
    pub(super) fn start(api_server: &ApiServer) -> Self {
        let (sender, events) = mpsc::channel(WAITING);
        let watches = KINDS.iter().enumerate().map(|(index, kind)| {
            let named = GroupVersionKind::gvk(kind.group, kind.version, kind.kind);
            let watched = Watched {
                resource: ApiResource::from_gvk_with_plural(&named, kind.plural),
                namespace: None,
                labels: None,
                fields: kind.fields.map(ToOwned::to_owned),
                patience: PATIENCE,
            };
            let told = move |event| (index, event);
            let watching = watch(api_server.clone(), watched, sender.clone(), told);
            AbortOnDropHandle::new(task::spawn("watch-kind", watching))
        });
        Self {
            _watches: watches.collect(),
            kinds: Default::default(),
            events,
            entities: BTreeMap::new(),
            policies: BTreeMap::new(),
            changes: Changes::default(),
        }
    }

    /// Waits for an event, and takes it in.
    pub(super) async fn next(&mut self) {
        match self.events.recv().await {
            Some((kind, event)) => self.take(kind, event),
            // The watches run as long as this is here.
            None => std::future::pending().await,
        }
    }

    /// Takes in what is there already.
    pub(super) fn take_waiting(&mut self) {
        while let Ok((kind, event)) = self.events.try_recv() {
            self.take(kind, event);
        }
    }

    /// What is not known yet; none once all kinds were listed.
    pub(super) fn unknown(&self) -> Option<String> {
        let unlisted = KINDS.iter().zip(&self.kinds).filter(|(_, kind)| !kind.is_listed);
        let told = unlisted.map(|(spec, kind)| match &kind.failure {
            Some(failure) => format!("{} ({failure})", spec.plural),
            None => spec.plural.to_owned(),
        });
        let told: Vec<String> = told.collect();
        (!told.is_empty()).then(|| told.join(", "))
    }

    pub(super) fn entities(&self) -> impl Iterator<Item = Entity> {
        self.entities.values().cloned()
    }

    pub(super) fn policies(&self) -> impl Iterator<Item = &ApiServerPolicy> {
        self.policies.values()
    }

    pub(super) fn take_changes(&mut self) -> Changes {
        std::mem::take(&mut self.changes)
    }

    fn take(&mut self, kind: usize, event: WatchEvent) {
        match event {
            WatchEvent::Listing => self.kinds[kind].listing = Some(BTreeSet::new()),
            WatchEvent::Applied(object) => {
                let name = name_of(&object);
                if let Some(listing) = &mut self.kinds[kind].listing {
                    listing.insert(name.clone());
                }
                self.apply(kind, name, *object);
            }
            WatchEvent::Deleted(object) => self.delete(kind, &name_of(&object)),
            WatchEvent::Listed => {
                let listed = self.kinds[kind].listing.take().unwrap_or_default();
                let gone = self.kinds[kind]
                    .objects
                    .keys()
                    .filter(|name| !listed.contains(name));
                for name in gone.cloned().collect::<Vec<_>>() {
                    self.delete(kind, &name);
                }
                let of_kind = &mut self.kinds[kind];
                of_kind.is_listed = true;
                if of_kind.failure.take().is_some() {
                    tracing::info!(kind = KINDS[kind].kind, "the API server is read again");
                }
            }
            WatchEvent::NotServed if KINDS[kind].is_own => self.take_none(kind),
            WatchEvent::NotServed => self.fail(kind, "it is not served".to_owned()),
            WatchEvent::Broke(failure) => self.fail(kind, failure),
        }
    }

    /// No definition declares the kind.
    fn take_none(&mut self, kind: usize) {
        for name in self.kinds[kind].objects.keys().cloned().collect::<Vec<_>>() {
            self.delete(kind, &name);
        }
        self.kinds[kind].is_listed = true;
        self.kinds[kind].failure = None;
    }

    fn fail(&mut self, kind: usize, failure: String) {
        let of_kind = &mut self.kinds[kind];
        if of_kind.failure.is_none() {
            let kind = KINDS[kind].kind;
            tracing::warn!(kind, failure, "the API server is not read; what it said stays");
        }
        of_kind.failure = Some(failure);
    }

    fn apply(&mut self, kind: usize, name: ObjectName, object: DynamicObject) {
        let spec = &KINDS[kind];
        let understood = understand(spec, &name, &object);
        if let Some(policy) = understood.policy {
            let before = self.policies.insert(name.1.clone(), policy);
            self.changes.has_other_policies |= before.as_ref() != self.policies.get(&name.1);
        }
        let keys: Vec<EntityKey> = understood.entities.iter().map(Entity::key).collect();
        let before = self.kinds[kind].objects.insert(name, keys.clone());
        for gone in before.into_iter().flatten().filter(|key| !keys.contains(key)) {
            self.forget(gone);
        }
        for entity in understood.entities {
            let key = entity.key();
            if self.entities.get(&key) != Some(&entity) {
                self.changes.deleted.remove(&key);
                self.changes.applied.insert(key.clone(), entity.clone());
                self.entities.insert(key, entity);
            }
        }
    }

    fn delete(&mut self, kind: usize, name: &ObjectName) {
        for key in self.kinds[kind].objects.remove(name).unwrap_or_default() {
            self.forget(key);
        }
        if is_of_policies(kind) {
            self.changes.has_other_policies |= self.policies.remove(&name.1).is_some();
        }
    }

    fn forget(&mut self, key: EntityKey) {
        self.entities.remove(&key);
        self.changes.applied.remove(&key);
        self.changes.deleted.insert(key);
    }
}

fn is_of_policies(kind: usize) -> bool {
    KINDS[kind].kind == "APIServerEgressPolicy"
}

fn name_of(object: &DynamicObject) -> ObjectName {
    let metadata = &object.metadata;
    (
        metadata.namespace.clone(),
        metadata.name.clone().unwrap_or_default(),
    )
}

#[derive(Default)]
struct Understood {
    entities: Vec<Entity>,
    policy: Option<ApiServerPolicy>,
}

/// The API server has accepted it: a policy that is not understood refuses, whatever it was before.
fn understand(spec: &KindSpec, name: &ObjectName, object: &DynamicObject) -> Understood {
    let label = match &name.0 {
        Some(namespace) => format!("{}/{namespace}/{}", spec.kind, name.1),
        None => format!("{}/{}", spec.kind, name.1),
    };
    let mut manifest = read(&text_of(spec, object), &label);
    for problem in &manifest.problems {
        say(problem.severity, &problem.to_string());
    }
    if manifest.documents.is_empty() && spec.kind == "APIServerEgressPolicy" {
        let unreadable = json!({
            "apiVersion": "policy.egret.dev/v1alpha1", "kind": spec.kind,
            "metadata": {"name": name.1}, "spec": "unreadable",
        });
        manifest = read(&unreadable.to_string(), &label);
    }
    let mut understood = Understood::default();
    for document in manifest.documents {
        let lowered = lower(&document.object);
        for diagnostic in &lowered.diagnostics {
            say(diagnostic.severity, &diagnostic.to_string());
        }
        let objects = lowered.entities.into_iter();
        understood
            .entities
            .extend(objects.filter(|entity| !matches!(entity, Entity::Policy(_))));
        understood.policy = lowered.api_server.or(understood.policy);
    }
    understood
}

fn say(severity: Severity, text: &str) {
    match severity {
        Severity::Error => tracing::error!("{text}"),
        Severity::Warning => tracing::warn!("{text}"),
        Severity::Info => tracing::debug!("{text}"),
    }
}

/// Of a pod and a node the hundredth part counts, and thousands come at once.
fn text_of(spec: &KindSpec, object: &DynamicObject) -> String {
    let metadata = &object.metadata;
    let api_version = if spec.group.is_empty() {
        spec.version.to_owned()
    } else {
        format!("{}/{}", spec.group, spec.version)
    };
    let mut kept = json!({"name": metadata.name});
    if let Some(namespace) = &metadata.namespace {
        kept["namespace"] = json!(namespace);
    }
    if let Some(labels) = &metadata.labels {
        kept["labels"] = json!(labels);
    }
    // Of other kinds they say nothing here, and may be long.
    if let Some(annotations) = &metadata.annotations
        && spec.kind == "APIServerEgressPolicy"
    {
        kept["annotations"] = json!(annotations);
    }
    let mut whole = match &object.data {
        Value::Object(fields) => fields.clone(),
        _other => Map::new(),
    };
    let fields: &[(&str, &[&str])] = match spec.kind {
        "Pod" => &[
            ("spec", &["nodeName", "hostNetwork"]),
            ("status", &["phase", "podIP", "podIPs", "startTime"]),
        ],
        "Node" => &[("spec", &["podCIDR", "podCIDRs"]), ("status", &["addresses"])],
        _ => &[],
    };
    for (part, fields) in fields {
        if let Some(Value::Object(part)) = whole.get_mut(*part) {
            part.retain(|key, _| fields.contains(&key.as_str()));
        }
    }
    if spec.kind == "Pod"
        && let Some(Value::Object(pod)) = whole.get_mut("spec")
    {
        // The reader wants one; its ports are named by no rule of this kind.
        pod.insert("containers".to_owned(), json!([{"name": "c"}]));
    }
    whole.insert("apiVersion".to_owned(), json!(api_version));
    whole.insert("kind".to_owned(), json!(spec.kind));
    whole.insert("metadata".to_owned(), kept);
    Value::Object(whole).to_string()
}
