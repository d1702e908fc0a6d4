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
            for (set, of_set) in by_set(&name(&set["name"]), members(set)) {
                sets.entry(set).or_default().extend(of_set);
            }
        } else if let Some(map) = object.get("map") {
            rules.extend(dispatched(map));
        } else if let Some(rule) = object.get("rule") {
            rules.push(line(rule));
        }
    }
    (sets, rules)
}

/// The members of the sets that share one of the kernel: a member of these begins with the digest of its set.
fn by_set(set: &str, members: BTreeMap<String, Option<u64>>) -> Sets {
    let mut sets = Sets::new();
    for (member, left) in members {
        let key: Value = serde_json::from_str(&member).unwrap_or_default();
        let parts = key["concat"].as_array().map(Vec::as_slice).unwrap_or_default();
        let (set, member) = match parts {
            [Value::String(digest), rest @ ..] if digest.len() == 16 => {
                let rest: Vec<String> = rest.iter().map(name).collect();
                (of_part(digest, set), rest.join(","))
            }
            _ => (set.to_owned(), member),
        };
        sets.entry(set).or_default().insert(member, left);
    }
    sets
}

/// The name that a set has which shares this one of the kernel.
fn of_part(digest: &str, shared: &str) -> String {
    format!("{digest}-egret-{}", &shared[shared.len() - 1..])
}

/// The digest with which a key begins; nft writes a constant of 16 octets as a number.
fn letters(constant: &Value) -> Option<String> {
    let digits = constant.as_str()?.strip_prefix("0x")?.split(' ').next()?;
    let octets = (0..16).map(|at| u8::from_str_radix(digits.get(2 * at..2 * at + 2)?, 16).ok());
    String::from_utf8(octets.collect::<Option<_>>()?).ok()
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
            let part = letters(&word["match"]["left"]["concat"][0]);
            let set = part.map_or_else(|| set.to_owned(), |letters| of_part(&letters, set));
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_of_sets_that_share_one_are_told_by_the_digest_that_they_begin_with() {
        let text = r#"{"nftables": [
            {"set": {"name": "v-records-4", "elem": [
                {"elem": {"val": {"concat": ["v2zeavubbu6r6huk", "192.0.2.1"]}, "timeout": 300, "expires": 299}},
                {"elem": {"val": {"concat": ["v3zeavubbu6r6huk", "192.0.2.2"]}, "timeout": 300, "expires": 7}}]}},
            {"set": {"name": "aaaaaaaaaaaaaaaa-egret-6", "elem": ["2001:db8::1"]}},
            {"rule": {"chain": "EGRET-E-x-4", "expr": [
                {"match": {"op": "==", "left": {"concat": ["0x76327a6561767562627536723668756b [invalid type]",
                    {"payload": {"base": "nh", "offset": 128, "len": 32}}]}, "right": "@v-records-4"}},
                {"goto": {"target": "EGRET-EA-x"}}]}},
            {"rule": {"chain": "EGRET-E-x-6", "expr": [
                {"match": {"op": "==", "left": {"payload": {}}, "right": "@aaaaaaaaaaaaaaaa-egret-6"}}]}}]}"#;
        let (sets, rules) = read(text);
        let of = |address: &str, left| BTreeMap::from([(address.to_owned(), left)]);
        let expected = [
            ("aaaaaaaaaaaaaaaa-egret-6", of("2001:db8::1", None)),
            ("v2zeavubbu6r6huk-egret-4", of("192.0.2.1", Some(299))),
            ("v3zeavubbu6r6huk-egret-4", of("192.0.2.2", Some(7))),
        ];
        assert_eq!(
            sets,
            expected.map(|(name, members)| (name.to_owned(), members)).into()
        );
        assert_eq!(
            rules,
            [
                "-A EGRET-E-x-4 -m set --match-set v2zeavubbu6r6huk-egret-4 dst -g EGRET-EA-x",
                "-A EGRET-E-x-6 -m set --match-set aaaaaaaaaaaaaaaa-egret-6 dst",
            ]
        );
    }
}
