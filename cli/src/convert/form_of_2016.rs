//! The form of 2016 in the words of `networking.k8s.io/v1`: the annotation of a Namespace becomes a NetworkPolicy that
//! isolates, an object of `extensions/v1beta1` one that allows the same.
//!
//! An empty list of peers or ports is nobody there and everybody in v1, so a rule with one is left out. Where the
//! annotation is not, objects have no effect, and in v1 they would isolate: they are left out, too.

use std::collections::BTreeSet;
use std::sync::Arc;

use egret_policies::model::{Effect, Kind, Policy};

use super::document::{Collection, CollectionKind, CollectionStyle, Entry, Value};
use super::known_fields::SPEC_OF_2016;
use super::policy::{clean, put, text};

const ANNOTATION: &str = "net.beta.kubernetes.io/network-policy";
const VERSION: &str = "networking.k8s.io/v1";
/// What the NetworkPolicy is called that a Namespace's annotation becomes.
const NAMES: [&str; 2] = ["default-deny", "default-deny-ingress"];

/// What a Namespace or an object of 2016 becomes.
#[derive(Clone, Debug, Default)]
pub struct ConvertedForm {
    /// The objects.
    pub roots: Vec<Value>,
    /// What its author should know.
    pub notes: Vec<String>,
}

/// Whether a Namespace has what the form of 2016 puts there.
#[must_use]
pub fn is_in_namespace(root: &Value) -> bool {
    let annotations = root
        .get("metadata")
        .and_then(|metadata| metadata.get("annotations"));
    let has_annotation = annotations.is_some_and(|annotations| annotations.get(ANNOTATION).is_some());
    has_annotation
        || root
            .get("spec")
            .is_some_and(|spec| spec.get("networkPolicy").is_some())
}

/// A Namespace without the annotation, and the NetworkPolicy in its place, where the annotation isolates.
///
/// # Errors
/// The names for the NetworkPolicy are taken.
pub fn namespace(
    mut root: Value,
    isolated: Option<&Policy>,
    before: &[Policy],
) -> Result<ConvertedForm, String> {
    let mut converted = ConvertedForm::default();
    clean(&mut root, &mut converted.notes);
    let mut comments = Vec::new();
    if let Some(metadata) = root.get_mut("metadata") {
        comments.extend(take(metadata, "annotations", ANNOTATION));
    }
    comments.extend(take(&mut root, "spec", "networkPolicy"));
    converted.roots.push(root);
    match isolated.and_then(|policy| policy.id.namespace.as_ref()) {
        Some(namespace) => {
            converted
                .roots
                .push(isolation(namespace, free_name(namespace, before)?, comments));
            converted.notes.push(match isolated.map(|policy| policy.id.name.as_ref()) {
                Some(ANNOTATION) => format!(
                    "the annotation becomes a NetworkPolicy; once that is applied, kubectl annotate namespace {namespace} {ANNOTATION}- removes it"
                ),
                Some(_) | None => "spec.networkPolicy becomes a NetworkPolicy".to_owned(),
            });
        }
        None => converted
            .notes
            .push("what it has of the form of 2016 isolates nobody, and is left out".to_owned()),
    }
    Ok(converted)
}

/// Takes a field out of a mapping, which goes with its last one. The comments that stood there.
fn take(parent: &mut Value, mapping: &str, key: &str) -> Vec<String> {
    let Some(fields) = parent.get_mut(mapping) else {
        return Vec::new();
    };
    let taken = fields.remove(key);
    let mut comments: Vec<String> = taken.iter().flat_map(Entry::comments).collect();
    if !taken.is_empty() && fields.slots().is_empty() {
        comments.extend(parent.remove(mapping).iter().flat_map(Entry::comments));
    }
    comments
}

fn free_name(namespace: &str, before: &[Policy]) -> Result<&'static str, String> {
    let taken: BTreeSet<&str> = before
        .iter()
        .filter(|policy| matches!(policy.id.kind, Kind::NetworkPolicy | Kind::LegacyNetworkPolicy))
        .filter(|policy| policy.id.namespace.as_deref() == Some(namespace))
        .map(|policy| policy.id.name.as_ref())
        .collect();
    NAMES
        .into_iter()
        .find(|name| !taken.contains(name))
        .ok_or_else(|| {
            format!(
                "there are NetworkPolicies called {} in its namespace: give one of them another name",
                NAMES.join(" and ")
            )
        })
}

fn isolation(namespace: &str, name: &str, comments: Vec<String>) -> Value {
    let block = CollectionStyle::Block(2);
    let metadata = [("name", text(name)), ("namespace", text(namespace))];
    let spec = [("podSelector", Value::empty()), ("policyTypes", ingress_only())];
    let mut root = Value::fields(
        block,
        [
            ("apiVersion", Value::word(VERSION)),
            ("kind", Value::word("NetworkPolicy")),
            ("metadata", Value::fields(block, metadata)),
            ("spec", Value::fields(block, spec)),
        ],
    );
    let first = root.collection_mut().and_then(|root| root.slots.first_mut());
    if let Some(first) = first {
        first.above = comments.into_iter().map(super::document::BlankLine::of).collect();
    }
    root
}

fn ingress_only() -> Value {
    Value::Collection(Collection {
        shape: CollectionKind::List,
        style: CollectionStyle::Flow,
        slots: vec![Entry::item(Value::word("Ingress"))],
    })
}

/// Whether the annotation isolates the namespace of a policy: what else the objects of 2016 say counts only there.
#[must_use]
pub fn is_isolated(policy: &Policy, before: &[Policy]) -> bool {
    before.iter().any(|other| {
        other.id.kind == Kind::LegacyNetworkPolicy
            && other.id.namespace == policy.id.namespace
            && matches!(other.ingress, Effect::Rules(_))
    })
}

/// An object of `extensions/v1beta1` that was understood; with `prune`, without the fields that nobody knows.
#[must_use]
pub fn policy(mut root: Value, policy: &Policy, before: &[Policy], prune: bool) -> ConvertedForm {
    let mut converted = ConvertedForm::default();
    if !is_isolated(policy, before) {
        let namespace = policy.id.namespace.as_ref().map(Arc::clone).unwrap_or_default();
        converted.notes.push(format!(
            "it is left out: it has no effect, as Namespace {namespace} is not isolated by the annotation {ANNOTATION}"
        ));
        return converted;
    }
    clean(&mut root, &mut converted.notes);
    put(&mut root, "kind", "NetworkPolicy");
    put(&mut root, "apiVersion", VERSION);
    if root.get("spec").is_none() {
        root.remove("spec");
        if let Some(root) = root.collection_mut() {
            root.slots
                .push(Entry::field("spec", Value::fields(CollectionStyle::Block(2), [])));
        }
    }
    if let Some(spec) = root.get_mut("spec") {
        if prune {
            SPEC_OF_2016.prune(spec);
        }
        converted.spec(spec);
    }
    converted.roots.push(root);
    converted
}

impl ConvertedForm {
    fn spec(&mut self, spec: &mut Value) {
        if spec.get("podSelector").is_none() {
            spec.remove("podSelector");
            insert(spec, 0, "podSelector", Value::empty());
        }
        let place = spec.slots().iter().position(|slot| slot.is("podSelector"));
        insert(
            spec,
            place.map_or(0, |place| place + 1),
            "policyTypes",
            ingress_only(),
        );
        let Some(rules) = spec.get_mut("ingress").and_then(Value::collection_mut) else {
            return;
        };
        let written = std::mem::take(&mut rules.slots);
        for (index, rule) in written.into_iter().enumerate() {
            let is_empty = |key: &&str| rule.value.get(key).is_some_and(|list| list.slots().is_empty());
            match ["from", "ports"].into_iter().find(is_empty) {
                Some(empty) => self.notes.push(format!(
                    "spec.ingress[{index}] is left out: with an empty {empty} it matches nothing"
                )),
                None => rules.slots.push(rule),
            }
        }
        if rules.slots.is_empty() {
            rules.style = CollectionStyle::Flow;
        }
    }
}

fn insert(mapping: &mut Value, place: usize, key: &str, value: Value) {
    if let Some(mapping) = mapping.collection_mut() {
        mapping.slots.insert(place, Entry::field(key, value));
    }
}
