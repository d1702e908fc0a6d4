//! The list of plugins in a configuration file (CNI specification, section 1): the plugin goes behind all others. Only its own
//! entry is written or removed; every other octet of the file stays.

use std::ops::Range;

use serde_json::{Value, json};

use crate::network_config::VERSIONS;

/// The name of the plugin, and of its program.
pub(crate) const PLUGIN: &str = "egret-cni";

/// Why a configuration cannot have the plugin.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum InvalidChain {
    #[error("it is no JSON: {0}")]
    NoJson(String),
    #[error("it has no plugins: neither a field \"plugins\" with any, nor a field \"type\"")]
    NoPlugins,
    #[error("its cniVersion is {0}; accepted are {VERSIONS:?}")]
    Version(String),
}

/// The text of a list with the plugin as its last entry.
pub(crate) fn with_plugin(list: &str, entry: &Value) -> Result<String, InvalidChain> {
    let config = parse(list)?;
    let plugins = config.get("plugins").and_then(Value::as_array);
    let is_others = |plugin: &Value| !is_ours(plugin) && plugin.is_object();
    if !plugins.is_some_and(|plugins| plugins.iter().any(is_others)) {
        return Err(InvalidChain::NoPlugins);
    }
    check_version(&config)?;
    let mut text = without_plugin(list)?;
    let spans = plugin_spans(&text);
    let end = spans.last().ok_or(InvalidChain::NoPlugins)?.end;
    text.insert_str(end, &format!(", {entry}"));
    Ok(text)
}

/// The text of a list without the plugin: what `with_plugin` was given.
pub(crate) fn without_plugin(list: &str) -> Result<String, InvalidChain> {
    parse(list)?;
    let mut text = list.to_owned();
    loop {
        let spans = plugin_spans(&text);
        let is_our_span =
            |span: &Range<usize>| parse(&text[span.clone()]).is_ok_and(|plugin| is_ours(&plugin));
        let Some(found) = spans.iter().position(is_our_span) else {
            return Ok(text);
        };
        let gone = match (found.checked_sub(1), spans.get(found + 1)) {
            (Some(before), _) => spans[before].end..spans[found].end,
            (None, Some(after)) => spans[found].start..after.start,
            (None, None) => spans[found].clone(),
        };
        text.replace_range(gone, "");
    }
}

/// A list of a single plugin's configuration and the plugin.
pub(crate) fn list_of(single: &str, entry: &Value) -> Result<String, InvalidChain> {
    let config = parse(single)?;
    if config.get("type").and_then(Value::as_str).is_none() {
        return Err(InvalidChain::NoPlugins);
    }
    check_version(&config)?;
    let list = json!({
        "cniVersion": config.get("cniVersion"),
        "name": config.get("name"),
        "plugins": [config, entry],
    });
    Ok(format!("{list:#}\n"))
}

/// Whether the plugin is in a configuration.
pub(crate) fn has_plugin(list: &str) -> bool {
    let plugins = parse(list).ok().and_then(|config| config.get("plugins").cloned());
    plugins.is_some_and(|plugins| {
        plugins
            .as_array()
            .is_some_and(|plugins| plugins.iter().any(is_ours))
    })
}

fn is_ours(plugin: &Value) -> bool {
    plugin.get("type").and_then(Value::as_str) == Some(PLUGIN)
}

fn parse(text: &str) -> Result<Value, InvalidChain> {
    serde_json::from_str(text).map_err(|error| InvalidChain::NoJson(error.to_string()))
}

fn check_version(config: &Value) -> Result<(), InvalidChain> {
    let version = config.get("cniVersion");
    let is_accepted = version
        .and_then(Value::as_str)
        .is_some_and(|version| VERSIONS.contains(&version));
    let found = || version.map_or_else(|| "missing".to_owned(), ToString::to_string);
    if is_accepted {
        Ok(())
    } else {
        Err(InvalidChain::Version(found()))
    }
}

/// Where the entries of the field `plugins` are in a text that is JSON. Of several fields of the name the last counts, as for
/// Go's `encoding/json`.
fn plugin_spans(text: &str) -> Vec<Range<usize>> {
    let octets = text.as_bytes();
    let (mut spans, mut depth, mut is_within) = (Vec::new(), 0_usize, false);
    let (mut start, mut last_string, mut at) = (0, 0..0, 0);
    while let Some(octet) = octets.get(at) {
        match octet {
            b'"' => {
                let end = end_of_string(octets, at);
                if depth == 1 {
                    last_string = at..end + 1;
                }
                at = end;
            }
            b'{' | b'[' => {
                if depth == 1 && &text[last_string.clone()] == "\"plugins\"" && *octet == b'[' {
                    (is_within, spans) = (true, Vec::new());
                } else if depth == 2 && is_within {
                    start = at;
                }
                depth += 1;
            }
            b'}' | b']' => {
                depth = depth.saturating_sub(1);
                if depth == 2 && is_within {
                    spans.push(start..at + 1);
                }
                is_within &= depth > 1;
            }
            _ => {}
        }
        at += 1;
    }
    spans
}

/// Where the string ends that begins at `start`.
fn end_of_string(octets: &[u8], start: usize) -> usize {
    let mut at = start + 1;
    while let Some(octet) = octets.get(at) {
        match octet {
            b'"' => return at,
            b'\\' => at += 2,
            _ => at += 1,
        }
    }
    at
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that cannot go on fails there and then")]

    use super::*;

    fn entry() -> Value {
        json!({"type": PLUGIN})
    }

    const FLANNEL: &str = "{\n  \"name\": \"cbr0\",\n  \"cniVersion\": \"0.3.1\",\n  \"plugins\": [\n    {\n      \"type\": \"flannel\",\n      \
                           \"delegate\": {\n        \"hairpinMode\": true\n      }\n    },\n    {\n      \"type\": \"portmap\"\n    }\n  ]\n}\n";

    #[test]
    fn it_is_behind_the_others_and_leaves_the_text_as_it_was() {
        for list in [
            FLANNEL,
            r#"{"cniVersion":"1.0.0","name":"a","plugins":[{"type":"ptp"}]}"#,
            r#"{"plugins":[{"type":"ptp","x":"a\"],{}"}  ],"cniVersion":"1.1.0","name":"plugins","disableCheck":true}"#,
            r#"{"cniVersion":"1.0.0","args":{"plugins":[{"type":"egret-cni"}]},"plugins":[{"type":"ptp","plugins":[[1]]}]}"#,
            r#"{"cniVersion":"1.0.0","x":"plugins","y":[{"type":"no"}],"plugins":[{"type":"ptp"}]}"#,
        ] {
            let with = with_plugin(list, &entry()).unwrap();
            let plugins = parse(&with).unwrap()["plugins"].clone();
            assert_eq!(plugins.as_array().unwrap().last(), Some(&entry()), "{with}");
            assert_eq!(
                plugins.as_array().unwrap().len(),
                parse(list).unwrap()["plugins"].as_array().unwrap().len() + 1
            );
            assert_eq!(with_plugin(&with, &entry()).unwrap(), with, "again");
            assert_eq!(without_plugin(&with).unwrap(), list);
            let other = json!({"type": PLUGIN, "waitSeconds": 9});
            assert_eq!(
                without_plugin(&with_plugin(&with, &other).unwrap()).unwrap(),
                list
            );
        }
    }

    #[test]
    fn it_is_moved_behind_what_others_put_behind_it() {
        for (list, expected) in [
            (
                r#"[{"type":"ptp"}, {"type":"egret-cni"}, {"type":"x"}]"#,
                r#"[{"type":"ptp"}, {"type":"x"}, {"type":"egret-cni"}]"#,
            ),
            (
                r#"[{"type":"egret-cni"}, {"type":"ptp"}]"#,
                r#"[{"type":"ptp"}, {"type":"egret-cni"}]"#,
            ),
        ] {
            let whole = |plugins: &str| format!(r#"{{"cniVersion":"1.0.0","plugins":{plugins}}}"#);
            assert_eq!(with_plugin(&whole(list), &entry()).unwrap(), whole(expected));
        }
    }

    #[test]
    fn what_cannot_have_it_is_refused() {
        for (list, expected) in [
            ("{", "it is no JSON"),
            (r#"{"cniVersion":"1.0.0"}"#, "it has no plugins"),
            (r#"{"cniVersion":"1.0.0","plugins":[]}"#, "it has no plugins"),
            (
                r#"{"cniVersion":"1.0.0","plugins":[{"type":"egret-cni"}]}"#,
                "it has no plugins",
            ),
            (
                r#"{"cniVersion":"0.2.0","plugins":[{"type":"ptp"}]}"#,
                "its cniVersion is \"0.2.0\"",
            ),
            (r#"{"plugins":[{"type":"ptp"}]}"#, "its cniVersion is missing"),
        ] {
            let error = with_plugin(list, &entry()).unwrap_err().to_string();
            assert!(error.starts_with(expected), "{list}: {error}");
        }
    }
}
