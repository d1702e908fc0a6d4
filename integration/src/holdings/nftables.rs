//! The enforcer's table of nftables, read as if it were sets and rules of iptables: what holdings say of it is the same.

use std::collections::BTreeMap;

use serde_json::Value;

/// Sets with their members, each with the seconds that it has left.
type Sets = BTreeMap<String, BTreeMap<String, Option<u64>>>;

/// Reads `nft -j list table`.
pub(super) fn read(text: &str) -> (Sets, Vec<String>) {
    let (mut sets, mut rules) = (Sets::new(), Vec::new());
    let listed: Value = serde_json::from_str(text).unwrap_or_default();
    for object in listed["nftables"].as_array().into_iter().flatten() {
        if let Some(set) = object.get("set") {
            sets.insert(name(&set["name"]), members(set));
        } else if let Some(map) = object.get("map") {
            rules.extend(dispatched(map));
        } else if let Some(rule) = object.get("rule") {
            rules.push(line(rule));
        }
    }
    (sets, rules)
}

fn members(set: &Value) -> BTreeMap<String, Option<u64>> {
    let elements = set["elem"].as_array().into_iter().flatten();
    let member = |element: &Value| {
        let (key, left) = match element.get("elem") {
            Some(inside) => (inside["val"].clone(), inside["expires"].as_u64()),
            None => (element.clone(), None),
        };
        (name(&key), left)
    };
    elements.map(member).collect()
}

/// The elements of a map of interfaces, as rules that lead to chains.
fn dispatched(map: &Value) -> Vec<String> {
    let elements = map["elem"].as_array().into_iter().flatten();
    let rule = |element: &Value| {
        let chain = verdict(&element[1])?;
        let option = if name(&map["name"]).starts_with("ingress") {
            "-o"
        } else {
            "-i"
        };
        Some(format!(
            "-A {} {option} {} {chain}",
            name(&map["name"]),
            name(&element[0])
        ))
    };
    elements.filter_map(rule).collect()
}

fn line(rule: &Value) -> String {
    let mut line = format!("-A {}", name(&rule["chain"]));
    for word in rule["expr"].as_array().into_iter().flatten() {
        if let Some(set) = word["match"]["right"]
            .as_str()
            .and_then(|right| right.strip_prefix('@'))
        {
            line += &format!(" -m set --match-set {set} dst");
        } else if let Some(verdict) = verdict(word) {
            line += &format!(" {verdict}");
        } else {
            line += &format!(" {}", without_counts(word));
        }
    }
    line
}

/// `-g CHAIN`, `-j CHAIN`.
fn verdict(word: &Value) -> Option<String> {
    let target = |kind: &str| word.get(kind).map(|verdict| name(&verdict["target"]));
    let goto = target("goto").map(|chain| format!("-g {chain}"));
    goto.or_else(|| target("jump").map(|chain| format!("-j {chain}")))
}

fn without_counts(word: &Value) -> String {
    word.to_string()
}

fn name(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}
