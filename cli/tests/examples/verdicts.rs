//! The table of an example's verdicts, as docs/policies.md shows it.

use serde_json::Value;

use super::rows;

const HEADER: [&str; 2] = [
    "| connection | from → to | verdict | egress | ingress |",
    "|---|---|---|---|---|",
];

/// One row for each probe.
pub(crate) fn table(example: &str) -> Vec<String> {
    let probes = rows(&format!("{example}/probes.jsonl"));
    let expected = rows(&format!("{example}/expected.jsonl"));
    assert_eq!(probes.len(), expected.len(), "{example}");
    let header = HEADER.map(str::to_owned).into_iter();
    header
        .chain(probes.iter().zip(&expected).map(|(probe, row)| line(probe, row)))
        .collect()
}

fn line(probe: &Value, row: &Value) -> String {
    assert_eq!(probe["id"], row["id"]);
    let what = probe["id"].as_str().unwrap();
    let verdict = match row["verdict"].as_str().unwrap() {
        "deny" => "**deny**",
        word => word,
    };
    let [egress, ingress] = ["egress", "ingress"].map(|direction| side(&row[direction]));
    format!(
        "| {what} | {} | {verdict} | {egress} | {ingress} |",
        connection(probe)
    )
}

fn connection(probe: &Value) -> String {
    let protocol = probe["protocol"].as_str().unwrap();
    let port = probe["port"]
        .as_u64()
        .map_or_else(String::new, |port| format!(" {port}"));
    let family = probe["family"]
        .as_str()
        .map_or_else(String::new, |family| format!(", {family}"));
    let at = probe["at"]
        .as_u64()
        .map_or_else(String::new, |at| format!(", {at} s later"));
    format!(
        "{} → {}, {protocol}{port}{family}{at}",
        end(&probe["from"]),
        end(&probe["to"])
    )
}

fn end(end: &Value) -> String {
    match end {
        Value::String(pod) => pod.clone(),
        _ => {
            let (tag, value) = end.as_object().unwrap().iter().next().unwrap();
            let value = value.as_str().unwrap();
            match tag.as_str() {
                "ip" | "name" => value.to_owned(),
                tag => format!("{tag} {value}"),
            }
        }
    }
}

/// Who decided, and which policy in audit would deny it.
fn side(side: &Value) -> String {
    match &side["wouldDeny"] {
        Value::Null => decided(side),
        would => format!("{}; in audit: ✗ {}", decided(side), decided(would)),
    }
}

/// Who decided: `np: db 0` is the first rule of the policy db.
fn decided(side: &Value) -> String {
    let tier = side["tier"].as_str().unwrap();
    let denies = if side["verdict"] == "deny" { "✗ " } else { "" };
    let decided = match (tier, side["policy"].as_str(), side["rule"].as_u64()) {
        ("none", ..) => return "–".to_owned(),
        (tier, Some(policy), Some(rule)) => {
            let name = policy.rsplit('/').next().unwrap();
            let rule_name = side["ruleName"]
                .as_str()
                .map_or_else(String::new, |name| format!(" ({name})"));
            format!("{tier}: {name} {rule}{rule_name}")
        }
        (tier, Some(_), None) => format!("{tier}: own node"),
        ("np", None, _) => "np: isolated".to_owned(),
        (tier, None, _) => tier.to_owned(),
    };
    format!("{denies}{decided}")
}
