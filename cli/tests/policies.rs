//! What a row says of the policies that decide.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails there and then")]

use serde_json::{Value, json};

mod invocation;

use invocation::{Invocation, cluster_policy, codes, network_policy, pod};

fn two_pods() -> String {
    pod("a/web", "app: web", &["10.0.0.1"]) + &pod("b/db", "app: db", &["10.0.0.2"])
}

#[test]
fn each_direction_names_its_tier_policy_and_rule() {
    let rules = "egress: [{action: Pass, to: [{networks: [192.0.2.0/24]}]}, \
                 {name: to-db, action: Accept, to: [{namespaces: {}}], protocols: [{tcp: {destinationPort: {number: 5432}}}]}]";
    let rows = Invocation::of("each_direction")
        .manifest(&two_pods())
        .manifest(&cluster_policy("reach", "Admin", rules))
        .manifest(&network_policy(
            "b/guard",
            "{podSelector: {}, ingress: [{from: [{ipBlock: {cidr: 192.0.2.0/24}}]}, {from: [{namespaceSelector: {}}], ports: [{port: 5432}]}]}",
        ))
        .tcp("a/web", "b/db", 5432)
        .tcp("a/web", "b/db", 5433)
        .rows();
    assert_eq!(
        rows[0]["egress"],
        json!({"verdict": "allow", "tier": "admin", "policy": "ClusterNetworkPolicy/reach", "rule": 1, "ruleName": "to-db"})
    );
    assert_eq!(
        rows[0]["ingress"],
        json!({"verdict": "allow", "tier": "np", "policy": "NetworkPolicy/b/guard", "rule": 1})
    );
    assert_eq!(rows[0]["verdict"], "allow");
    assert_eq!(rows[1]["verdict"], "deny", "both directions must allow");
    assert_eq!(
        rows[1]["egress"],
        json!({"verdict": "allow", "tier": "default", "policy": null, "rule": null})
    );
    assert_eq!(
        rows[1]["ingress"],
        json!({"verdict": "deny", "tier": "np", "policy": null, "rule": null}),
        "isolated, and no rule matched"
    );
}

#[test]
fn tiers_are_asked_in_their_order() {
    let admin = "egress: [{action: Deny, to: [{networks: [203.0.113.1/32]}]}, {action: Pass, to: [{networks: [203.0.113.2/32]}]}, \
                 {action: Accept, to: [{networks: [203.0.113.3/32]}]}]";
    let baseline = "egress: [{action: Deny, to: [{networks: [0.0.0.0/0]}]}]";
    let isolated =
        "{podSelector: {}, policyTypes: [Egress], egress: [{to: [{ipBlock: {cidr: 203.0.113.2/32}}]}]}";
    let asked = Invocation::of("tiers")
        .manifest(&two_pods())
        .manifest(&cluster_policy("admin", "Admin", admin))
        .manifest(&cluster_policy("baseline", "Baseline", baseline))
        .manifest(&network_policy("a/isolated", isolated));
    let words = asked
        .tcp("a/web", "203.0.113.1", 80)
        .tcp("a/web", "203.0.113.2", 80)
        .tcp("a/web", "203.0.113.3", 80)
        .tcp("a/web", "203.0.113.4", 80)
        .tcp("b/db", "203.0.113.2", 80)
        .tcp("b/db", "2001:db8::1", 80)
        .answer();
    let rows = words.rows();
    let words: Vec<String> = rows.iter().map(invocation::words).collect();
    assert_eq!(
        words,
        [
            "deny admin none",
            "allow np none",
            "allow admin none",
            "deny np none",
            "deny baseline none",
            "error - -",
        ]
    );
}

#[test]
fn a_rule_with_ports_says_nothing_of_icmp() {
    let spec = "{podSelector: {}, egress: [{to: [{ipBlock: {cidr: 203.0.113.1/32}}], ports: [{port: 80}]}, {to: [{ipBlock: {cidr: 203.0.113.2/32}}]}], policyTypes: [Egress]}";
    let icmp = |to: &str, port: &str| {
        format!(r#"{{"id":1,"from":"a/web","to":{{"ip":"{to}"}},"protocol":"ICMP"{port}}}"#)
    };
    let rows = Invocation::of("icmp")
        .manifest(&two_pods())
        .manifest(&network_policy("a/out", spec))
        .probe(&icmp("203.0.113.1", ""))
        .probe(&icmp("203.0.113.2", ""))
        .probe(&icmp("203.0.113.2", ",\"port\":80"))
        .rows();
    let verdicts: Vec<&Value> = rows.iter().map(|row| &row["verdict"]).collect();
    assert_eq!(verdicts, ["deny", "allow", "allow"]);
    assert_eq!(codes(&rows[1]), Vec::<&str>::new());
    assert_eq!(codes(&rows[2]), ["port-ignored"]);
}

#[test]
fn a_row_carries_the_diagnostics_of_policies_that_select_an_end_and_stderr_the_rest() {
    let misspelt = "{podSelector: {}, ingress: [{form: [{podSelector: {}}]}]}";
    let answered = Invocation::of("diagnostics")
        .manifest(&two_pods())
        .manifest(&network_policy("b/misspelt", misspelt))
        .manifest(&network_policy("c/elsewhere", misspelt))
        .tcp("a/web", "b/db", 80)
        .tcp("b/db", "192.0.2.1", 80)
        .tcp("a/web", "192.0.2.1", 80)
        .answer();
    assert_eq!(answered.status, Some(0));
    let rows = answered.rows();
    for (row, expected) in rows.iter().zip([&["EG0103"][..], &["EG0103"], &[]]) {
        assert_eq!(codes(row), expected, "{row}");
    }
    let note = &rows[0]["diagnostics"][0];
    assert_eq!(note["object"], "NetworkPolicy/b/misspelt");
    assert_eq!(note["field"], "spec.ingress[0].form");
    assert_eq!(note["severity"], "error");
    assert!(note["file"].as_str().unwrap().ends_with("1.yaml"));
    assert_eq!(note["line"], 5);
    assert_eq!(rows[0]["verdict"], "deny", "the rule that has it allows nothing");
    assert!(
        answered.stderr.contains("NetworkPolicy/c/elsewhere"),
        "{}",
        answered.stderr
    );
    assert!(
        !answered.stderr.contains("NetworkPolicy/b/misspelt"),
        "{}",
        answered.stderr
    );
}

#[test]
fn as_stored_reads_a_policy_as_an_api_server_keeps_it() {
    let asked = |test: &str| {
        Invocation::of(test)
            .manifest(&two_pods())
            .manifest(&network_policy(
                "b/misspelt",
                "{podSelector: {}, ingress: [{form: [{podSelector: {}}]}]}",
            ))
            .tcp("a/web", "b/db", 80)
    };
    let written = asked("as_written").rows();
    let stored = asked("as_stored").option("--as-stored").rows();
    assert_eq!(
        (&written[0]["verdict"], &stored[0]["verdict"]),
        (&json!("deny"), &json!("allow"))
    );
    assert_eq!(stored[0]["diagnostics"][0]["severity"], "warning");
}

#[test]
fn two_policies_of_one_priority_are_warned_of() {
    let rules = "egress: [{action: Deny, to: [{networks: [192.0.2.0/24]}]}]";
    let rows = Invocation::of("equal_priority")
        .manifest(&two_pods())
        .manifest(&cluster_policy("one", "Admin", rules))
        .manifest(&cluster_policy("two", "Admin", rules))
        .tcp("a/web", "192.0.2.1", 80)
        .rows();
    assert_eq!(codes(&rows[0]), ["EG0119", "EG0119"]);
    assert_eq!(
        rows[0]["egress"]["policy"], "ClusterNetworkPolicy/one",
        "then the name decides"
    );
}
