//! The reader of manifests, from octets to what an object means.

use egret_policies::api::manifest::{Manifest, read, read_octets};
use egret_policies::api::{Kind, Node, Object, UnknownFields, Value};
use egret_policies::lower::{lower, lower_as};
use egret_policies::model::cluster::Entity;
use serde_json::Value as Json;

/// Reading ends; every problem is a line that names what would be accepted; every object means something; what is
/// sound means the same when it is written as JSON; and no policy is lost without a word.
pub fn check(octets: &[u8]) {
    let manifest = read_octets(octets, "f");
    for problem in &manifest.problems {
        let line = problem.to_string();
        assert!(is_line(&line), "{line:?}");
        assert!(
            !problem.found.is_empty() && !problem.accepted.is_empty(),
            "{line}"
        );
        assert!(problem.position.line > 0 && problem.position.column > 0, "{line}");
    }
    for document in &manifest.documents {
        means_something(&document.object);
    }
    if manifest.problems.is_empty() {
        for document in &manifest.documents {
            means_the_same_in_json(&document.object);
        }
        loses_no_policy(octets, &manifest);
    }
}

fn is_line(text: &str) -> bool {
    !text.contains(char::is_control) && text.len() < 20_000
}

fn means_something(object: &Object) {
    for reading in [UnknownFields::AsWritten, UnknownFields::AsStored] {
        let lowered = lower_as(object, reading);
        assert!(!lowered.entities.is_empty(), "an object without a meaning");
        for diagnostic in &lowered.diagnostics {
            let line = diagnostic.to_string();
            assert!(is_line(&line), "{line:?}");
            assert!(!diagnostic.enforced.is_empty(), "{line}");
        }
        if let Kind::Policy(_) = object.kind {
            let is_kept = |entity: &Entity| matches!(entity, Entity::Policy(policy) if policy.id.name == object.metadata.name);
            assert!(lowered.entities.iter().any(is_kept), "a policy without a policy");
        }
    }
}

fn means_the_same_in_json(object: &Object) {
    let before = lower(object);
    // The names of fields are looked for a few thousand characters far.
    if !before.diagnostics.is_empty() || longest_name(&object.body) > 1_000 {
        return;
    }
    let mut text = format!(
        "{{\"apiVersion\":{},\"kind\":{}",
        quoted(&object.api_version),
        quoted(&object.kind_name)
    );
    if let Value::Mapping(mapping) = &object.body.value {
        for entry in &mapping.entries {
            if !matches!(&*entry.key, "apiVersion" | "kind") {
                text.push_str(&format!(",{}:", quoted(&entry.key)));
                write_json(&entry.value, &mut text);
            }
        }
    }
    text.push('}');
    let manifest = read(&text, "f.json");
    assert!(manifest.problems.is_empty(), "{:?} in {text}", manifest.problems);
    let [document] = manifest.documents.as_slice() else {
        panic!("{} objects in {text}", manifest.documents.len());
    };
    let after = lower(&document.object);
    assert!(after.diagnostics.is_empty(), "{:?} in {text}", after.diagnostics);
    assert_eq!(before.entities, after.entities, "{text}");
}

fn longest_name(node: &Node) -> usize {
    match &node.value {
        Value::Null | Value::Scalar(_) => 0,
        Value::Sequence(items) => items.iter().map(longest_name).max().unwrap_or(0),
        Value::Mapping(mapping) => {
            let entries = mapping.entries.iter();
            let lengths = entries.map(|entry| longest_name(&entry.value).max(entry.key.len()));
            lengths.max().unwrap_or(0)
        }
    }
}

fn write_json(node: &Node, out: &mut String) {
    match &node.value {
        Value::Null => out.push_str("null"),
        Value::Scalar(scalar) if scalar.plain => out.push_str(&plain(&scalar.text)),
        Value::Scalar(scalar) => out.push_str(&quoted(&scalar.text)),
        Value::Sequence(items) => {
            out.push('[');
            for (index, item) in items.iter().enumerate() {
                out.push_str(if index == 0 { "" } else { "," });
                write_json(item, out);
            }
            out.push(']');
        }
        Value::Mapping(mapping) => {
            out.push('{');
            for (index, entry) in mapping.entries.iter().enumerate() {
                out.push_str(if index == 0 { "" } else { "," });
                out.push_str(&quoted(&entry.key));
                out.push(':');
                write_json(&entry.value, out);
            }
            out.push('}');
        }
    }
}

/// What YAML 1.1 makes of a scalar without quotes.
fn plain(text: &str) -> String {
    let is_number = || {
        let digits = text.strip_prefix('-').unwrap_or(text);
        digits == "0"
            || (!digits.starts_with('0')
                && !digits.is_empty()
                && digits.bytes().all(|octet| octet.is_ascii_digit()))
    };
    match text.to_ascii_lowercase().as_str() {
        "true" | "yes" | "on" => "true".to_owned(),
        "false" | "no" | "off" => "false".to_owned(),
        _ if is_number() => text.to_owned(),
        _ => quoted(text),
    }
}

/// In ASCII, so that nothing which YAML refuses unescaped is in it.
fn quoted(text: &str) -> String {
    let mut quoted = String::from("\"");
    for unit in text.encode_utf16() {
        match u8::try_from(unit) {
            Ok(octet @ (b' '..=b'~')) if !matches!(octet, b'"' | b'\\') => quoted.push(octet.into()),
            _ => quoted.push_str(&format!("\\u{unit:04x}")),
        }
    }
    quoted.push('"');
    quoted
}

/// Kinds of policies with a group in which they are.
const POLICIES: [(&str, &str); 6] = [
    ("networking.k8s.io/", "NetworkPolicy"),
    ("extensions/", "NetworkPolicy"),
    ("policy.networking.k8s.io/", "AdminNetworkPolicy"),
    ("policy.networking.k8s.io/", "BaselineAdminNetworkPolicy"),
    ("policy.networking.k8s.io/", "ClusterNetworkPolicy"),
    ("policy.egret.dev/", "ClusterEgressFirewall"),
];

/// Counted again by other means: documents are what stands between lines that begin with `---`, and a library
/// says what is in them.
fn loses_no_policy(octets: &[u8], manifest: &Manifest) {
    let Ok(text) = std::str::from_utf8(octets) else {
        panic!("what is not UTF-8 is a problem");
    };
    let mut documents = vec![String::new()];
    for line in text.lines() {
        match line.strip_prefix("---") {
            Some(rest) if rest.is_empty() || rest.starts_with([' ', '\t']) => {
                documents.push(format!("{rest}\n"))
            }
            Some(_) | None => {
                let document = documents.last_mut().expect("there is one from the start");
                document.push_str(line);
                document.push('\n');
            }
        }
    }
    let written = documents.iter().filter(|document| is_policy(document)).count();
    let kept = manifest
        .documents
        .iter()
        .filter(|document| matches!(document.object.kind, Kind::Policy(_)))
        .count();
    assert!(
        kept >= written,
        "{written} policies were written, {kept} are kept"
    );
}

fn is_policy(document: &str) -> bool {
    let Ok(Json::Object(fields)) = serde_saphyr::from_str::<Json>(document) else {
        return false;
    };
    let text = |field: &str| fields.get(field).and_then(Json::as_str);
    match (text("apiVersion"), text("kind")) {
        (Some(version), Some(kind)) => POLICIES
            .iter()
            .any(|(group, policy)| version.starts_with(group) && kind == *policy),
        _ => false,
    }
}
