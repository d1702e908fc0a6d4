//! What the objects of each kind mean, and by which events the engine learns of it.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{BuildHasher as _, RandomState};
use std::path::PathBuf;
use std::sync::Arc;

use egret_policies::api::manifest;
use egret_policies::compiler::Event;
use egret_policies::diagnostic::{Diagnostic, Severity};
use egret_policies::lower::lower;
use egret_policies::model::Shared;
use egret_policies::model::cluster::Entity;
use egret_shared::tree::pack_map;
use kube::api::ApiResource;
use serde_json::{Map, Value as Json};

use super::changes::{Header, ObjectChange, ObjectId};
use super::object::{ObjectName, tree};
use super::resources::{KINDS, RESOURCE_TYPES};
use crate::engine::RejectedObject;
use crate::state::{ManifestTexts, TextChanges};

/// The objects of all kinds, as they are in force.
#[derive(Debug)]
pub(super) struct Store {
    kinds: [BTreeMap<ObjectName, Object>; KINDS],
    shared: Shared,
    /// What a later life reads the objects from, as far as it changed; none where nothing is kept.
    pub(super) texts: Option<TextChanges>,
    hasher: RandomState,
    pub(super) diagnostics: BTreeMap<Severity, usize>,
    /// Events that follow from what was taken in, in its order.
    pub(super) events: Vec<Event>,
    /// What was taken in, for those who write about objects; none where nobody does.
    pub(super) changes: Option<Vec<ObjectChange>>,
    /// The highest `metadata.resourceVersion` of each kind.
    versions: [u64; KINDS],
    /// Policies that are enforced closed, in part or as a whole.
    rejected: BTreeMap<(usize, ObjectName), RejectedObject>,
}

#[derive(Debug, Default)]
struct Object {
    entities: Box<[Arc<Entity>]>,
    problems: Vec<(Severity, String)>,
    /// Of what it is read from in a later life; none where nothing is kept.
    text_hash: Option<u64>,
    /// `metadata.resourceVersion`.
    version: u64,
}

/// Objects that are told as rejected; a cluster with more has another problem.
const MOST_REJECTED: usize = 100;

impl Store {
    pub(super) fn new(keeps_texts: bool) -> Self {
        Self {
            kinds: Default::default(),
            shared: Shared::default(),
            texts: keeps_texts.then(TextChanges::new),
            hasher: RandomState::new(),
            diagnostics: BTreeMap::new(),
            events: Vec::new(),
            changes: None,
            versions: [0; KINDS],
            rejected: BTreeMap::new(),
        }
    }

    /// The highest `metadata.resourceVersion` of each kind of policy. They are numbers that grow within a kind (KEP-5504).
    pub(super) fn versions(&self) -> BTreeMap<&'static str, u64> {
        let kinds = RESOURCE_TYPES.iter().zip(self.versions);
        let policies = kinds.filter(|(resource, version)| resource.is_policy() && *version > 0);
        policies
            .map(|(resource, version)| (resource.kind, version))
            .collect()
    }

    /// Policies that are enforced closed, in part or as a whole; the first hundred, and how many there are.
    pub(super) fn rejected(&self) -> (Vec<RejectedObject>, usize) {
        let first = self.rejected.values().take(MOST_REJECTED).cloned();
        (first.collect(), self.rejected.len())
    }

    /// How many objects of a kind there are.
    pub(super) fn count(&self, kind: usize) -> usize {
        self.kinds[kind].len()
    }

    /// Whether there is an object of this name, of a kind without namespaces.
    pub(super) fn has(&self, kind: usize, name: &str) -> bool {
        let name = ObjectName {
            namespace: None,
            name: name.to_owned(),
        };
        self.kinds[kind].contains_key(&name)
    }

    /// An object as the API server has it. It counts as it is, whatever it was before: the server has accepted it, so a
    /// policy that is not understood is enforced closed.
    pub(super) fn apply(
        &mut self,
        kind: usize,
        name: ObjectName,
        resource: &ApiResource,
        mut json: Map<String, Json>,
    ) {
        // The items of a list do not say what they are.
        json.insert("apiVersion".to_owned(), Json::from(resource.api_version.as_str()));
        json.insert("kind".to_owned(), Json::from(RESOURCE_TYPES[kind].kind));
        self.take(kind, name, json);
    }

    fn take(&mut self, kind: usize, name: ObjectName, mut json: Map<String, Json>) {
        let header = Header::of(kind, &name, &json);
        // Nobody asks for that of other objects, and it alone changes most often.
        if !RESOURCE_TYPES[kind].is_policy()
            && let Some(Json::Object(metadata)) = json.get_mut("metadata")
        {
            metadata.remove("resourceVersion");
        }
        let text_hash = self.keep_text(kind, &name, &mut json);
        let Understood {
            entities,
            problems,
            diagnostics,
        } = understand(json, &name, RESOURCE_TYPES[kind].kind);
        let entities: Box<[Arc<Entity>]> = entities
            .into_iter()
            .map(|entity| Arc::new(self.shared.entity(entity)))
            .collect();
        let version = header.resource_version;
        self.versions[kind] = self.versions[kind].max(version);
        self.rejected.remove(&(kind, name.clone()));
        if RESOURCE_TYPES[kind].is_policy()
            && let Some(found) = diagnostics.iter().find(|found| found.severity == Severity::Error)
        {
            let rejected = RejectedObject::from(found);
            self.rejected.insert((kind, name.clone()), rejected);
        }
        if let Some(changes) = &mut self.changes {
            changes.push(header.applied(entities.clone(), diagnostics));
        }
        let object = Object {
            entities,
            problems,
            text_hash,
            version,
        };
        self.replace(kind, name, Some(object));
    }

    /// Has the text of an object kept, unless it is kept already; its hash.
    fn keep_text(&mut self, kind: usize, name: &ObjectName, json: &mut Map<String, Json>) -> Option<u64> {
        let texts = self.texts.as_mut()?;
        let object = Json::Object(std::mem::take(json));
        let text: Arc<[u8]> = Arc::from(object.to_string().into_bytes());
        if let Json::Object(object) = object {
            *json = object;
        }
        let hash = self.hasher.hash_one(&text);
        let before = self.kinds[kind].get(name).and_then(|object| object.text_hash);
        if before != Some(hash) {
            texts.insert(path(kind, name), Some(vec![text]));
        }
        Some(hash)
    }

    /// An object that is there no more.
    pub(super) fn delete(&mut self, kind: usize, name: ObjectName) {
        if let Some(texts) = &mut self.texts {
            texts.insert(path(kind, &name), None);
        }
        self.rejected.remove(&(kind, name.clone()));
        if let Some(changes) = &mut self.changes {
            changes.push(ObjectChange::Deleted(ObjectId::of(kind, &name)));
        }
        self.replace(kind, name, None);
    }

    /// All objects of a kind but these are there no more.
    pub(super) fn retain(&mut self, kind: usize, listed: &BTreeSet<ObjectName>) {
        let gone = self.kinds[kind].keys().filter(|name| !listed.contains(name));
        for name in gone.cloned().collect::<Vec<_>>() {
            self.delete(kind, name);
        }
        // It was listed: an API server that was restored from a backup begins with lower numbers.
        let listed = self.kinds[kind].values().map(|object| object.version);
        self.versions[kind] = listed.max().unwrap_or(0);
        pack_map(&mut self.kinds[kind]);
    }

    fn replace(&mut self, kind: usize, name: ObjectName, object: Option<Object>) {
        let before = self.kinds[kind].remove(&name).unwrap_or_default();
        let is_there = object.is_some();
        let after = object.unwrap_or_default();
        let is_gone = |entity: &&Arc<Entity>| after.entities.iter().all(|other| other.key() != entity.key());
        let gone = before.entities.iter().filter(is_gone);
        self.events.extend(gone.map(|entity| Event::Delete(entity.key())));
        let changed = after
            .entities
            .iter()
            .filter(|entity| !before.entities.contains(entity));
        self.events
            .extend(changed.map(|entity| Event::Apply(Entity::clone(entity))));
        for (severity, _) in &before.problems {
            if let Some(count) = self.diagnostics.get_mut(severity) {
                *count = count.saturating_sub(1);
            }
        }
        for (severity, line) in &after.problems {
            *self.diagnostics.entry(*severity).or_default() += 1;
            if !before.problems.iter().any(|(_, said)| said == line) {
                say(*severity, line);
            }
        }
        if is_there {
            self.kinds[kind].insert(name, after);
        }
    }

    /// Takes in what an earlier life kept.
    pub(super) fn recall(&mut self, texts: &ManifestTexts) {
        for text in texts.values().flatten() {
            let json: Option<Map<String, Json>> = serde_json::from_slice(text).ok();
            let kept = json.and_then(|json| Some((kind_of(&json)?, ObjectName::of(&json)?, json)));
            match kept {
                Some((kind, name, json)) => self.take(kind, name, json),
                // Its kind was watched by another version of this program.
                None => tracing::warn!("an object of the file of objects is not known and does not count"),
            }
        }
    }
}

/// Where the file of objects has an object.
fn path(kind: usize, name: &ObjectName) -> PathBuf {
    PathBuf::from(format!("{}/{name}", RESOURCE_TYPES[kind].plural))
}

fn kind_of(json: &Map<String, Json>) -> Option<usize> {
    let kind = json.get("kind")?.as_str()?;
    RESOURCE_TYPES.iter().position(|resource| resource.kind == kind)
}

/// What an object means, and what is wrong with it.
struct Understood {
    entities: Vec<Entity>,
    /// As they are logged.
    problems: Vec<(Severity, String)>,
    diagnostics: Vec<Diagnostic>,
}

fn understand(json: Map<String, Json>, name: &ObjectName, kind: &'static str) -> Understood {
    let label = format!("{kind}/{name}");
    let stand_in = stand_in(&json, name);
    let mut read = manifest::read_tree(tree(json), &label);
    let mut problems: Vec<(Severity, String)> = read
        .problems
        .iter()
        .map(|problem| (problem.severity, problem.to_string()))
        .collect();
    let mut diagnostics: Vec<Diagnostic> = read
        .problems
        .iter()
        .map(|problem| Diagnostic {
            code: problem.code,
            severity: problem.severity,
            object: name.reference(kind),
            position: None,
            field: problem.field.clone(),
            found: problem.found.clone(),
            accepted: problem.accepted.clone(),
            enforced: "what is not understood is closed".to_owned(),
        })
        .collect();
    if read.documents.is_empty() {
        read = manifest::read_tree(tree(stand_in), &label);
    }
    let mut entities = Vec::new();
    for document in &read.documents {
        let lowered = lower(&document.object);
        entities.extend(lowered.entities);
        for found in lowered.diagnostics {
            // There is no file in which it would have a line.
            let found = Diagnostic {
                position: None,
                ..found
            };
            problems.push((found.severity, found.to_string()));
            diagnostics.push(found);
        }
    }
    Understood {
        entities,
        problems,
        diagnostics,
    }
}

/// An object of this name of which nothing can be read, as `spec` says: a policy is enforced closed.
fn stand_in(json: &Map<String, Json>, name: &ObjectName) -> Map<String, Json> {
    let mut metadata = Map::new();
    metadata.insert("name".to_owned(), Json::from(name.name.as_str()));
    if let Some(namespace) = &name.namespace {
        metadata.insert("namespace".to_owned(), Json::from(namespace.as_str()));
    }
    let mut stand_in = Map::new();
    for key in ["apiVersion", "kind"] {
        stand_in.insert(key.to_owned(), json.get(key).cloned().unwrap_or_default());
    }
    stand_in.insert("metadata".to_owned(), Json::Object(metadata));
    stand_in.insert("spec".to_owned(), Json::from("unreadable"));
    stand_in
}

fn say(severity: Severity, line: &str) {
    match severity {
        Severity::Error => tracing::error!("{line}"),
        Severity::Warning => tracing::warn!("{line}"),
        Severity::Info => tracing::info!("{line}"),
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use egret_policies::model::{Effect, Policy};

    use super::*;

    const POLICIES: usize = 5;
    const NAMESPACES: usize = 0;

    fn object(text: &str) -> (ObjectName, Map<String, Json>) {
        let json: Map<String, Json> = serde_json::from_str(text).unwrap();
        (ObjectName::of(&json).unwrap(), json)
    }

    fn resource(kind: usize) -> ApiResource {
        let kind = &RESOURCE_TYPES[kind];
        let version = kube::api::GroupVersionKind::gvk(kind.group, "v1", kind.kind);
        ApiResource::from_gvk_with_plural(&version, kind.plural)
    }

    fn apply(store: &mut Store, kind: usize, text: &str) -> Vec<Event> {
        let (name, json) = object(text);
        store.apply(kind, name, &resource(kind), json);
        std::mem::take(&mut store.events)
    }

    fn policy(events: &[Event]) -> &Policy {
        let [Event::Apply(Entity::Policy(policy))] = events else {
            panic!("{events:?}")
        };
        policy
    }

    #[test]
    fn what_means_the_same_as_before_is_no_event() {
        let mut store = Store::new(false);
        let pod = |version| {
            format!(r#"{{"metadata": {{"name": "a", "namespace": "b", "resourceVersion": "{version}"}}}}"#)
        };
        assert_eq!(apply(&mut store, 1, &pod(1)).len(), 1);
        assert_eq!(apply(&mut store, 1, &pod(2)), []);
        assert_eq!(store.count(1), 1);
        store.retain(1, &BTreeSet::new());
        assert!(
            matches!(store.events[..], [Event::Delete(_)]),
            "{:?}",
            store.events
        );
    }

    #[test]
    fn a_policy_with_a_field_that_nobody_knows_is_enforced_closed_and_counted_as_long_as_it_is_so() {
        let mut store = Store::new(false);
        let text = |field: &str| {
            format!(
                r#"{{"metadata": {{"name": "a", "namespace": "b"}},
                "spec": {{"podSelector": {{}}, "policyTypes": ["Egress"], "egress": [{{}}]{field}}}}}"#
            )
        };
        let events = apply(&mut store, POLICIES, &text(r#", "newer": 1"#));
        let Effect::Rules(rules) = &policy(&events).egress else {
            panic!("{events:?}")
        };
        assert!(
            rules
                .iter()
                .all(|rule| rule.peers != egret_policies::model::Peers::Any),
            "{rules:?}"
        );
        assert_eq!(store.diagnostics.get(&Severity::Error), Some(&1));
        apply(&mut store, POLICIES, &text(""));
        assert_eq!(store.diagnostics.get(&Severity::Error), Some(&0));
    }

    #[test]
    fn a_policy_of_which_nothing_can_be_read_isolates_in_both_directions() {
        let mut store = Store::new(false);
        let events = apply(
            &mut store,
            POLICIES,
            r#"{"metadata": {"name": "a", "namespace": "b", "labels": [1]}, "spec": {"podSelector": {}}}"#,
        );
        let policy = policy(&events);
        for effect in [&policy.egress, &policy.ingress] {
            assert!(matches!(effect, Effect::Rules(_)), "{effect:?}");
        }
    }

    #[test]
    fn what_is_kept_is_the_same_in_a_later_life() {
        let mut store = Store::new(true);
        let mut events = apply(
            &mut store,
            NAMESPACES,
            r#"{"metadata": {"name": "b", "labels": {"a": "1"}}}"#,
        );
        events.extend(apply(
            &mut store,
            POLICIES,
            r#"{"metadata": {"name": "a", "namespace": "b"}, "spec": {"podSelector": {}}}"#,
        ));
        let kept = std::mem::take(&mut store.texts).unwrap();
        let kept: ManifestTexts = kept
            .into_iter()
            .map(|(path, texts)| (path, texts.unwrap()))
            .collect();
        assert_eq!(
            kept.keys().collect::<Vec<_>>(),
            [Path::new("namespaces/b"), Path::new("networkpolicies/b/a")]
        );
        let mut later = Store::new(true);
        later.recall(&kept);
        assert_eq!(later.events, events);
    }

    #[test]
    fn the_highest_version_of_a_kind_is_told_and_what_is_listed_counts_anew() {
        let mut store = Store::new(false);
        let policy = |name: &str, version: u32| {
            format!(
                r#"{{"metadata": {{"name": "{name}", "namespace": "b", "resourceVersion": "{version}"}},
                "spec": {{"podSelector": {{}}}}}}"#
            )
        };
        apply(&mut store, POLICIES, &policy("a", 9));
        apply(&mut store, POLICIES, &policy("c", 7));
        apply(
            &mut store,
            NAMESPACES,
            r#"{"metadata": {"name": "b", "resourceVersion": "11"}}"#,
        );
        assert_eq!(store.versions(), BTreeMap::from([("NetworkPolicy", 9)]));
        // An API server that was restored from a backup has lower ones.
        let (listed, _) = object(&policy("c", 7));
        store.retain(POLICIES, &BTreeSet::from([listed]));
        assert_eq!(store.versions(), BTreeMap::from([("NetworkPolicy", 7)]));
    }

    #[test]
    fn a_policy_that_is_closed_is_told_as_long_as_it_is() {
        let mut store = Store::new(false);
        let policy = |rest: &str| {
            format!(
                r#"{{"metadata": {{"name": "a", "namespace": "b"}}, "spec": {{"podSelector": {{}}{rest}}}}}"#
            )
        };
        apply(&mut store, POLICIES, &policy(r#", "newer": 1"#));
        let (rejected, number) = store.rejected();
        assert_eq!((rejected.len(), number), (1, 1));
        assert_eq!(rejected[0].object.to_string(), "NetworkPolicy/b/a");
        apply(&mut store, POLICIES, &policy(""));
        assert_eq!(store.rejected().1, 0);
        apply(&mut store, POLICIES, &policy(r#", "newer": 1"#));
        let (name, _) = object(&policy(""));
        store.delete(POLICIES, name);
        assert_eq!(store.rejected().1, 0);
    }
}
