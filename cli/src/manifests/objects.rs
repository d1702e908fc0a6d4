//! The objects as they were written: for the line of a field, and for what the model leaves out.

use std::collections::BTreeMap;

use egret_policies::api::manifest::{Problem, read};
use egret_policies::api::{Node, Object, Value};
use egret_policies::diagnostic::ObjectRef;

use crate::manifests::text::{ManifestText, ManifestTexts};

/// Every object with its file.
#[derive(Debug, Default)]
pub struct WrittenObjects {
    written: BTreeMap<ObjectRef, (String, Object)>,
    /// What is wrong with files.
    pub problems: Vec<Problem>,
}

impl WrittenObjects {
    /// Of all manifests.
    #[must_use]
    pub fn of(texts: &ManifestTexts) -> Self {
        let mut objects = Self::default();
        for text in &texts.read {
            objects.take(text);
        }
        objects
    }

    fn take(&mut self, ManifestText { file, text }: &ManifestText) {
        let manifest = read(text, file);
        self.problems.extend(manifest.problems);
        for document in manifest.documents {
            let object = document.object;
            self.written
                .insert(object.reference(), (file.to_string(), object));
        }
    }

    /// An object.
    #[must_use]
    pub fn get(&self, reference: &ObjectRef) -> Option<&Object> {
        self.written.get(reference).map(|(_, object)| object)
    }

    /// File and line of a field; of what is around it where the field is not written.
    #[must_use]
    pub fn place(&self, reference: &ObjectRef, field: &str) -> (Option<String>, Option<usize>) {
        let Some((file, object)) = self.written.get(reference) else {
            return (None, None);
        };
        (Some(file.clone()), Some(line_of(&object.body, field)))
    }
}

/// The text of a field, such as `spec.clusterIP`, where it is one.
pub(crate) fn text_at<'a>(object: &'a Object, path: &[&str]) -> Option<&'a str> {
    let mut node = &object.body;
    for key in path {
        let Value::Mapping(mapping) = &node.value else {
            return None;
        };
        node = mapping.get(key)?;
    }
    match &node.value {
        Value::Scalar(scalar) => Some(&scalar.text),
        Value::Null | Value::Sequence(_) | Value::Mapping(_) => None,
    }
}

fn line_of(root: &Node, field: &str) -> usize {
    let (mut node, mut line) = (root, root.position.line);
    for step in field.split(['.', '[']).filter(|step| !step.is_empty()) {
        let below = match &node.value {
            Value::Mapping(mapping) => mapping
                .entries
                .iter()
                .rev()
                .find(|entry| &*entry.key == step)
                .map(|entry| (entry.position.line, &entry.value)),
            Value::Sequence(items) => step
                .trim_end_matches(']')
                .parse::<usize>()
                .ok()
                .and_then(|index| items.get(index))
                .map(|item| (item.position.line, item)),
            Value::Null | Value::Scalar(_) => None,
        };
        let Some(below) = below else {
            break;
        };
        (line, node) = below;
    }
    line
}
