//! The schema of our kinds and what reads them know the same fields.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails there and then")]

mod common;

use std::collections::BTreeSet;
use std::net::IpAddr;

use common::lowered;
use egret_policies::controller::{Condition, RejectedService, ResolvedPort, ResolvedRule, Status};
use egret_policies::diagnostic::Code;
use egret_policies::schema::definitions;
use egret_shared::net::Transport;
use serde_json::{Map, Value};

/// Every field that a user or an agent may write.
const EVERY_FIELD: [&str; 3] = [
    "
apiVersion: policy.egret.dev/v1alpha1
kind: ClusterEgressFirewall
metadata: {name: every-field}
spec:
  priority: 10
  rules:
  - name: names
    action: Allow
    to:
    - domainNames: ['*.example.com']
    - apiServer: {additionalAddresses: [203.0.113.60], additionalNames: [api.example.com]}
  - name: places
    action: Deny
    to:
    - networks: [10.0.0.0/8, 'fd00::/8']
    - nodes:
        selector:
          matchLabels: {role: worker}
          matchExpressions: [{key: role, operator: In, values: [worker]}]
        addresses: All
    - external: {}
    protocols:
    - tcp: {destinationPort: {number: 443}}
    - tcp: {destinationPort: {range: {start: 1, end: 1}}}
    - udp: {destinationPort: {number: 443}}
    - udp: {destinationPort: {range: {start: 1, end: 1}}}
    - sctp: {destinationPort: {number: 443}}
    - sctp: {destinationPort: {range: {start: 1, end: 1}}}
    - icmp: {}
  services: {exposure: Ignore}
",
    "
apiVersion: policy.egret.dev/v1alpha1
kind: APIServerAddresses
metadata: {name: every-field}
spec: {addresses: [203.0.113.60]}
",
    "
apiVersion: policy.egret.dev/v1alpha1
kind: NodeAddressReport
metadata: {name: every-field}
addresses: [{ip: 192.0.2.1, interface: eth0, scope: global}]
observedTime: '2026-11-21T12:00:00Z'
",
];

/// What a field that nobody knows is called.
const UNKNOWN: [Code; 2] = [Code::UnknownField, Code::UnknownFieldOutside];

#[test]
fn every_field_of_the_schemas_is_read() {
    for (text, schema) in objects_and_schemas() {
        let mut expected = paths_of_schema(&schema);
        expected.retain(|path| is_of_users(path));
        let object: Value = serde_saphyr::from_str(text).unwrap();
        let mut written = BTreeSet::new();
        collect(&object, &schema, "", &mut written);
        written.retain(|path| is_of_users(path));
        assert_eq!(written, expected);
        assert_eq!(lowered(text).diagnostics, []);
    }
}

#[test]
fn every_field_of_the_schemas_is_missed_where_it_is_misspelt() {
    for (text, schema) in objects_and_schemas() {
        let paths = paths_of_schema(&schema);
        for path in paths.iter().filter(|path| is_of_users(path)) {
            let mut object: Value = serde_saphyr::from_str(text).unwrap();
            let keys: Vec<&str> = path.split('.').collect();
            assert!(misspell(&mut object, &keys), "{path}");
            let diagnostics = lowered(&object.to_string()).diagnostics;
            let misspelt = format!("{}Misspelt", keys.last().unwrap());
            let is_told = diagnostics.iter().any(|diagnostic| {
                UNKNOWN.contains(&diagnostic.code) && diagnostic.field.ends_with(&misspelt)
            });
            assert!(is_told, "{path}: {diagnostics:#?}");
        }
    }
}

#[test]
fn the_status_that_is_written_is_the_one_of_the_schema() {
    let written = serde_json::to_value(status()).unwrap();
    let schema = definitions()[0].schema()["properties"]["status"].clone();
    let mut paths = BTreeSet::new();
    collect(&written, &schema, "", &mut paths);
    let mut expected = paths_of_schema(&schema);
    // Whoever writes the object knows what the time is, and when a condition was another.
    assert!(expected.remove("conditions.lastTransitionTime"));
    assert_eq!(paths, expected);
}

#[test]
fn everything_has_a_bound() {
    for definition in definitions() {
        unbounded(&definition.schema(), definition.kind());
    }
}

fn objects_and_schemas() -> impl Iterator<Item = (&'static str, Value)> {
    EVERY_FIELD
        .into_iter()
        .zip(definitions())
        .map(|(text, definition)| {
            assert!(text.contains(definition.kind()));
            (text, definition.schema())
        })
}

/// Neither common to all kinds nor written by a controller.
fn is_of_users(path: &str) -> bool {
    let first = path.split('.').next().unwrap();
    !["apiVersion", "kind", "metadata", "status"].contains(&first)
}

/// The fields of a schema, `a.b.c`; lists are looked through.
fn paths_of_schema(schema: &Value) -> BTreeSet<String> {
    let mut paths = BTreeSet::new();
    let mut waiting = vec![(String::new(), schema)];
    while let Some((path, schema)) = waiting.pop() {
        if let Some(items) = schema.get("items") {
            waiting.push((path, items));
            continue;
        }
        for (name, inside) in properties(schema).into_iter().flatten() {
            let path = join(&path, name);
            paths.insert(path.clone());
            waiting.push((path, inside));
        }
    }
    paths
}

/// The fields of a value; where the schema admits any name, names are no fields.
fn collect(value: &Value, schema: &Value, path: &str, paths: &mut BTreeSet<String>) {
    match value {
        Value::Array(items) => {
            for item in items {
                collect(item, &schema["items"], path, paths);
            }
        }
        Value::Object(fields) if schema.get("additionalProperties").is_none() => {
            for (name, field) in fields {
                let path = join(path, name);
                collect(field, &schema["properties"][name], &path, paths);
                paths.insert(path);
            }
        }
        Value::Object(_) | Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

/// Renames the first field of this path.
fn misspell(value: &mut Value, path: &[&str]) -> bool {
    match value {
        Value::Array(items) => items.iter_mut().any(|item| misspell(item, path)),
        Value::Object(fields) => match path {
            [last] => fields
                .remove(*last)
                .map(|field| fields.insert(format!("{last}Misspelt"), field))
                .is_some(),
            [first, rest @ ..] => fields.get_mut(*first).is_some_and(|field| misspell(field, rest)),
            [] => false,
        },
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => false,
    }
}

fn unbounded(schema: &Value, path: &str) {
    let bound = match schema["type"].as_str().unwrap() {
        "array" => "maxItems",
        "string" if schema.get("enum").is_none() && schema.get("format").is_none() => "maxLength",
        "object" if schema.get("additionalProperties").is_some() => "maxProperties",
        _ => "type",
    };
    assert!(schema.get(bound).is_some(), "{path} has no {bound}");
    for inside in ["items", "additionalProperties"] {
        if let Some(inside) = schema.get(inside) {
            unbounded(inside, path);
        }
    }
    for (name, inside) in properties(schema).into_iter().flatten() {
        // The API server itself describes these.
        if !["apiVersion", "kind", "metadata"].contains(&name.as_str()) {
            unbounded(inside, &join(path, name));
        }
    }
}

fn properties(schema: &Value) -> Option<&Map<String, Value>> {
    schema.get("properties").and_then(Value::as_object)
}

fn join(path: &str, name: &str) -> String {
    if path.is_empty() {
        name.to_owned()
    } else {
        format!("{path}.{name}")
    }
}

/// A status with all fields.
fn status() -> Status {
    let address = IpAddr::from([192, 0, 2, 1]);
    Status {
        observed_generation: 1,
        rules: 1,
        conditions: vec![Condition {
            r#type: "Accepted",
            status: "True",
            reason: "Accepted",
            message: String::new(),
        }],
        resolved_rules: vec![ResolvedRule {
            index: 0,
            name: Some("name".into()),
            action: "Deny",
            cidrs: vec![address.into()],
            ports: Some(vec![ResolvedPort {
                protocol: Transport::Tcp,
                from: 1,
                to: 2,
            }]),
            icmp: false,
            source: BTreeSet::from(["Networks".to_owned()]),
            truncated: false,
            total: 1,
        }],
        rejected_services: vec![RejectedService {
            namespace: "shop".to_owned(),
            name: "till".to_owned(),
            port: 1,
            endpoint: address,
            rule: 0,
        }],
    }
}
