//! The objects of manifests as they were written: those to convert, and the rest.

use egret_policies::diagnostic::ObjectRef;

use crate::manifests::text::{ManifestText, ManifestTexts};

use super::document::Document;
use super::document::{BlankLine, CollectionKind, Entry, Value};
use super::form_of_2016;
use super::parse::{SourceDocument, read};
use super::policy::SourceKind;
use super::print::print;

/// An object to convert, or a document of other objects.
#[derive(Clone, Debug)]
pub struct OriginalObject {
    /// What it is.
    pub origin: ObjectKind,
    /// The object.
    pub document: Document,
    /// Comments around it for which there is no place.
    pub lost: Vec<String>,
}

/// What is converted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// A policy of v1alpha1.
    Cluster(SourceKind),
    /// A NetworkPolicy in the form of 2016.
    Of2016,
    /// A Namespace with the annotation of 2016.
    Namespace,
}

/// What a document is.
#[derive(Clone, Debug)]
pub enum ObjectKind {
    /// A policy to convert.
    Policy {
        /// Which.
        reference: ObjectRef,
        /// Of which kind.
        source: Source,
    },
    /// Anything else, as it is written.
    Other {
        /// The text.
        text: String,
    },
}

/// Finds all objects of texts that were read without an error.
#[must_use]
pub fn find(texts: &ManifestTexts) -> Vec<OriginalObject> {
    let documents = texts
        .read
        .iter()
        .flat_map(|ManifestText { text, .. }| read(text).unwrap_or_default());
    documents.flat_map(objects).collect()
}

/// A list with policies to convert is taken apart; everything else stays as it is.
fn objects(written: SourceDocument) -> Vec<OriginalObject> {
    let SourceDocument { document, text, lost } = written;
    let mut items = Vec::new();
    let mut of_list = Vec::new();
    take_apart(document.root.clone(), None, &mut items, &mut of_list);
    let is_list = items.len() != 1 || items.first() != Some(&document.root);
    let is_other = items.iter().all(|item| origin(item).is_none());
    if is_other {
        let origin = ObjectKind::Other { text };
        return vec![OriginalObject {
            origin,
            document,
            lost,
        }];
    }
    let mut below = document.below;
    let last = items.len() - 1;
    let found = items.into_iter().enumerate().map(|(index, root)| {
        let below = if index == last {
            std::mem::take(&mut below)
        } else {
            Vec::new()
        };
        let document = Document { root, below };
        let origin = origin(&document.root).unwrap_or_else(|| ObjectKind::Other {
            text: print(&document),
        });
        OriginalObject {
            origin,
            document,
            lost: Vec::new(),
        }
    });
    let mut found: Vec<OriginalObject> = found.collect();
    let first = found
        .iter_mut()
        .find(|one| matches!(one.origin, ObjectKind::Policy { .. }));
    if let Some(first) = first {
        first.lost.extend(lost);
        if is_list {
            first.lost.extend(of_list);
        }
    }
    found
}

/// The items of lists, at any depth, and the comments of the lists themselves.
fn take_apart(root: Value, inherited: Option<(&str, &str)>, items: &mut Vec<Value>, lost: &mut Vec<String>) {
    let root = typed(root, inherited);
    let kind = root
        .get("kind")
        .and_then(Value::text)
        .unwrap_or_default()
        .to_owned();
    let version = root
        .get("apiVersion")
        .and_then(Value::text)
        .unwrap_or_default()
        .to_owned();
    let item_kind = kind
        .strip_suffix("List")
        .filter(|item| item.is_empty() || root.get("items").is_some());
    let Some(item_kind) = item_kind else {
        return items.push(root);
    };
    let inherited = (!item_kind.is_empty()).then_some((version.as_str(), item_kind));
    for field in root.slots() {
        if !field.is("items") {
            lost.extend(field.comments());
            continue;
        }
        lost.extend(
            Entry {
                value: Value::word(""),
                ..field.clone()
            }
            .comments(),
        );
        for item in field.value.slots() {
            let mut value = item.value.clone();
            let first = value.collection_mut().and_then(|value| value.slots.first_mut());
            match first {
                Some(first) => {
                    let above = item
                        .above
                        .iter()
                        .filter(|line| **line != BlankLine::Empty)
                        .cloned();
                    first.above.splice(0..0, above);
                }
                None => lost.extend(item.comments()),
            }
            take_apart(value, inherited, items, lost);
        }
    }
}

/// Items of a typed list need not say what they are.
fn typed(mut root: Value, inherited: Option<(&str, &str)>) -> Value {
    let Some((version, kind)) = inherited else {
        return root;
    };
    for (key, word) in [("kind", kind), ("apiVersion", version)] {
        if root.get(key).is_none() {
            root.remove(key);
            if let Some(root) = root
                .collection_mut()
                .filter(|root| root.shape == CollectionKind::Mapping)
            {
                root.slots.insert(0, Entry::field(key, Value::word(word)));
            }
        }
    }
    root
}

fn origin(root: &Value) -> Option<ObjectKind> {
    let text = |key| root.get(key).and_then(Value::text);
    let (source, is_of_group) = match (text("kind")?, text("apiVersion")?) {
        ("AdminNetworkPolicy", version) => (Source::Cluster(SourceKind::Admin), is_of_npa(version)),
        ("BaselineAdminNetworkPolicy", version) => {
            (Source::Cluster(SourceKind::Baseline), is_of_npa(version))
        }
        ("NetworkPolicy", version) => (Source::Of2016, version == "extensions/v1beta1"),
        ("Namespace", version) => (
            Source::Namespace,
            version == "v1" && form_of_2016::is_in_namespace(root),
        ),
        _ => return None,
    };
    let metadata = root.get("metadata")?;
    let name = |key| metadata.get(key).and_then(Value::text);
    let generated = || name("generateName").map(|name| name.trim_end_matches('-'));
    let namespace = name("namespace").unwrap_or("default");
    let name = name("name").or_else(generated)?;
    is_of_group.then(|| ObjectKind::Policy {
        reference: ObjectRef {
            kind: text("kind").unwrap_or_default().into(),
            namespace: (source == Source::Of2016).then(|| namespace.into()),
            name: name.into(),
        },
        source,
    })
}

fn is_of_npa(version: &str) -> bool {
    version.starts_with("policy.networking.k8s.io/")
}
