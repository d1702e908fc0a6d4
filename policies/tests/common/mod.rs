//! Reading a snippet as a user would write it.

#![allow(dead_code, reason = "each test file uses what it needs")]

use egret_policies::api::{UnknownFields, manifest};
use egret_policies::diagnostic::{Code, Diagnostic};
use egret_policies::lower::{Lowered, lower, lower_as};
use egret_policies::model::cluster::{Entity, Pod};
use egret_policies::model::{Effect, Labels, Policy, Rule};

/// Lowers the only object of a text.
pub(crate) fn lowered_as(text: &str, reading: UnknownFields) -> Lowered {
    let manifest = manifest::read(text, "test.yaml");
    assert!(manifest.is_whole(), "{:#?}\n{text}", manifest.problems);
    assert_eq!(manifest.documents.len(), 1, "{text}");
    lower_as(&manifest.documents[0].object, reading)
}

/// Lowers the only object of a text, as written.
pub(crate) fn lowered(text: &str) -> Lowered {
    lowered_as(text, UnknownFields::AsWritten)
}

/// What all objects of a text are lowered to.
pub(crate) fn entities(text: &str) -> Vec<Entity> {
    let manifest = manifest::read(text, "test.yaml");
    assert!(manifest.is_whole(), "{:?}", manifest.problems);
    let objects = manifest.documents.iter();
    objects
        .flat_map(|document| lower(&document.object).entities)
        .collect()
}

/// The policy in a text, and its diagnostics.
pub(crate) fn policy(text: &str) -> (Policy, Vec<Diagnostic>) {
    let lowered = lowered(text);
    match lowered.entities.as_slice() {
        [Entity::Policy(policy)] => (policy.clone(), lowered.diagnostics),
        other => panic!("{other:?}"),
    }
}

/// The pod in a text, and its diagnostics.
pub(crate) fn pod(text: &str) -> (Pod, Vec<Diagnostic>) {
    let lowered = lowered(text);
    match lowered.entities.as_slice() {
        [Entity::Pod(pod)] => (pod.clone(), lowered.diagnostics),
        other => panic!("{other:?}"),
    }
}

/// The codes of diagnostics, in their order.
pub(crate) fn codes(diagnostics: &[Diagnostic]) -> Vec<Code> {
    diagnostics.iter().map(|diagnostic| diagnostic.code).collect()
}

/// The rules of an effect.
pub(crate) fn rules(effect: &Effect) -> &[Rule] {
    match effect {
        Effect::Rules(rules) | Effect::Opens(rules) => rules,
        Effect::None => panic!("no effect"),
    }
}

/// Labels.
pub(crate) fn labels(pairs: &[(&str, &str)]) -> Labels {
    pairs.iter().copied().collect()
}

/// Shifts every line but the first to the right, so that snippets can be put into others.
pub(crate) fn indent(text: &str, by: usize) -> String {
    text.replace('\n', &format!("\n{}", " ".repeat(by)))
}
