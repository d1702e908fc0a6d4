//! A plan as tables, one for each block, in the order of the chain.

use std::fmt::Write;

use serde_json::Value;

use crate::config::convert::without_defaults;
use crate::config::model::{Bind, BindTo, Block, Scheme};

use super::Found;

/// The chain, by field names.
const CHAIN: [&str; 16] = [
    "tls",
    "timeouts",
    "bufsize",
    "debug",
    "prometheus",
    "errors",
    "log",
    "dns64",
    "loadbalance",
    "cache",
    "rewrite",
    "template",
    "hosts",
    "loop",
    "forward",
    "whoami",
];

pub(super) fn table(found: &Found) -> String {
    let mut text = String::new();
    let count = found.plan.blocks.len();
    let blocks = if count == 1 {
        "server block"
    } else {
        "server blocks"
    };
    line(
        &mut text,
        format_args!("{}: {}, {count} {blocks}", found.file, found.format.name()),
    );
    let whole = without_defaults::plan(&found.plan);
    for (index, block) in found.plan.blocks.iter().enumerate() {
        line(&mut text, format_args!(""));
        push_block(&mut text, block, &whole["servers"][index]);
    }
    line(&mut text, format_args!(""));
    for field in ["reload", "health", "prometheus"] {
        for (name, words) in rows(field, &whole[field]) {
            row(&mut text, "", name, &words);
        }
    }
    text
}

fn push_block(text: &mut String, block: &Block, fields: &Value) {
    let zones: Vec<String> = block.zones.iter().map(ToString::to_string).collect();
    line(
        text,
        format_args!(
            "{}{} on port {} of {} ({})",
            zones.join(" "),
            scheme(block.scheme),
            block.port,
            addresses(&block.bind),
            block.origin
        ),
    );
    for field in CHAIN {
        for (name, words) in rows(field, &fields[field]) {
            row(text, "  ", name, &words);
        }
    }
}

fn scheme(scheme: Scheme) -> String {
    match scheme {
        Scheme::Dns => String::new(),
        encrypted => format!(" over {}", encrypted.name()),
    }
}

fn addresses(bind: &[Bind]) -> String {
    if bind.is_empty() {
        return "every address".to_owned();
    }
    let one = |bind: &Bind| {
        let to = words(&bind.to);
        if bind.except.is_empty() {
            to
        } else {
            format!("{to} but {}", words(&bind.except))
        }
    };
    bind.iter().map(one).collect::<Vec<_>>().join(", ")
}

fn words(of: &[BindTo]) -> String {
    let words: Vec<String> = of.iter().cloned().map(String::from).collect();
    words.join(", ")
}

/// A row for each element, and none for an absent field.
fn rows<'n>(name: &'n str, value: &Value) -> Vec<(&'n str, String)> {
    match value {
        Value::Null | Value::Bool(false) => Vec::new(),
        Value::Array(several) => several.iter().map(|one| (name, said(one))).collect(),
        Value::Bool(true) | Value::Number(_) | Value::String(_) | Value::Object(_) => {
            vec![(name, said(value))]
        }
    }
}

fn row(text: &mut String, indent: &str, name: &str, words: &str) {
    line(text, format_args!("{indent}{name:<12} {words}"));
}

/// The fields that differ from the defaults, as `field=value`.
fn said(value: &Value) -> String {
    let mut words = Vec::new();
    flatten("", value, &mut words);
    if words.is_empty() {
        "as by default".to_owned()
    } else {
        words.join(" ")
    }
}

fn flatten(path: &str, value: &Value, words: &mut Vec<String>) {
    match value {
        Value::Object(fields) => {
            for (name, value) in fields {
                let path = if path.is_empty() {
                    name.clone()
                } else {
                    format!("{path}.{name}")
                };
                flatten(&path, value, words);
            }
        }
        Value::Array(list) if list.iter().all(|one| !one.is_object() && !one.is_array()) => {
            let list: Vec<String> = list.iter().map(plain).collect();
            words.push(named(path, &list.join(",")));
        }
        Value::Array(list) => {
            for one in list {
                flatten(path, one, words);
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {
            words.push(named(path, &plain(value)));
        }
    }
}

fn named(path: &str, value: &str) -> String {
    match (path, value) {
        ("", "true") => "on".to_owned(),
        ("", value) => value.to_owned(),
        (path, "true") => path.to_owned(),
        (path, value) => format!("{path}={value}"),
    }
}

fn plain(value: &Value) -> String {
    match value {
        Value::String(text) if text.contains(char::is_whitespace) => format!("{text:?}"),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

fn line(text: &mut String, said: std::fmt::Arguments<'_>) {
    writeln!(text, "{said}").expect("writing to a String does not fail");
}
