//! AdminNetworkPolicies and the BaselineAdminNetworkPolicy as ClusterNetworkPolicies, asked of the built program.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails there and then")]

use std::collections::BTreeMap;
use std::process::Command;

use serde_json::Value;

mod invocation;

use invocation::{Invocation, ProgramOutput, network_policy, pod};

fn convert(test: &str, manifests: &str, options: &[&str]) -> ProgramOutput {
    let asked = Invocation::of(&format!("convert-{test}")).file("all.yaml", manifests);
    let mut command = Command::new(env!("CARGO_BIN_EXE_egret"));
    command
        .args(["convert", "--manifests"])
        .arg(asked.folder().join("manifests"))
        .args(options);
    invocation::run(command, "")
}

/// What comes out, where something does.
#[track_caller]
fn converted(test: &str, manifests: &str) -> ProgramOutput {
    let answered = convert(test, manifests, &[]);
    assert_eq!(answered.status, Some(0), "{test}: {}", answered.stderr);
    answered
}

/// Why nothing comes out.
#[track_caller]
fn refused(test: &str, manifests: &str, said: &str) {
    let answered = convert(test, manifests, &[]);
    assert_eq!(
        (answered.status, answered.stdout.as_str()),
        (Some(2), ""),
        "{test}"
    );
    assert!(
        answered.stderr.contains(said),
        "{test}: {said}: {}",
        answered.stderr
    );
}

fn admin(name: &str, priority: u32, rules: &str) -> String {
    format!(
        "---\napiVersion: policy.networking.k8s.io/v1alpha1\nkind: AdminNetworkPolicy\nmetadata: {{name: {name}}}\n\
         spec:\n  priority: {priority}\n  subject: {{namespaces: {{}}}}\n{rules}"
    )
}

fn baseline(name: &str, rules: &str) -> String {
    admin(name, 0, rules)
        .replace("AdminNetworkPolicy", "BaselineAdminNetworkPolicy")
        .replace("  priority: 0\n", "")
}

fn cluster(name: &str, tier: &str, priority: u32, rules: &str) -> String {
    format!(
        "---\napiVersion: policy.networking.k8s.io/v1alpha2\nkind: ClusterNetworkPolicy\nmetadata: {{name: {name}}}\n\
         spec:\n  tier: {tier}\n  priority: {priority}\n  subject: {{namespaces: {{}}}}\n{rules}"
    )
}

const DENY: &str = "  egress:\n  - {action: Deny, to: [{networks: [192.0.2.0/24]}]}\n";
const ALLOW: &str = "  egress:\n  - {action: Allow, to: [{networks: [192.0.2.0/24]}]}\n";
const ACCEPT: &str = "  egress:\n  - {action: Accept, to: [{networks: [192.0.2.0/24]}]}\n";

#[test]
fn every_word_of_v1alpha1_has_its_word_in_v1alpha2() {
    let to = "to: [{namespaces: {}}]";
    for (row, direction, before, after) in [
        (
            "the_verb",
            "egress",
            format!("{{action: Allow, {to}}}"),
            format!("{{action: Accept, {to}}}"),
        ),
        (
            "the_other_verbs",
            "egress",
            format!("{{action: Pass, {to}, ports: [{{portNumber: {{protocol: UDP, port: 53}}}}]}}"),
            format!("{{action: Pass, {to}, protocols: [{{udp: {{destinationPort: {{number: 53}}}}}}]}}"),
        ),
        (
            "sctp",
            "egress",
            format!("{{action: Deny, {to}, ports: [{{portNumber: {{protocol: SCTP, port: 3868}}}}]}}"),
            format!("{{action: Deny, {to}, protocols: [{{sctp: {{destinationPort: {{number: 3868}}}}}}]}}"),
        ),
        (
            "the_protocol_that_is_not_written",
            "egress",
            format!("{{action: Deny, {to}, ports: [{{portNumber: {{port: 80}}}}, {{portRange: {{start: 1, end: 9}}}}]}}"),
            format!(
                "{{action: Deny, {to}, protocols: [{{tcp: {{destinationPort: {{number: 80}}}}}}, {{tcp: {{destinationPort: {{range: {{start: 1, end: 9}}}}}}}}]}}"
            ),
        ),
        (
            "a_range_of_one_port",
            "egress",
            format!("{{action: Deny, {to}, ports: [{{portRange: {{protocol: UDP, start: 7, end: 7}}}}]}}"),
            format!("{{action: Deny, {to}, protocols: [{{udp: {{destinationPort: {{number: 7}}}}}}]}}"),
        ),
        (
            "a_range_of_all_ports",
            "egress",
            format!("{{action: Deny, {to}, ports: [{{portRange: {{start: 1, end: 65535}}}}]}}"),
            format!(
                "{{action: Deny, {to}, protocols: [{{tcp: {{destinationPort: {{range: {{start: 1, end: 65535}}}}}}}}]}}"
            ),
        ),
        (
            "a_named_port",
            "ingress",
            "{action: Deny, from: [{namespaces: {}}], ports: [{namedPort: web}]}".to_owned(),
            "{action: Deny, from: [{namespaces: {}}], protocols: [{destinationNamedPort: web}]}".to_owned(),
        ),
        (
            "half_a_pair_of_selectors",
            "ingress",
            "{action: Deny, from: [{pods: {podSelector: {matchLabels: {app: x}}}}, {pods: {namespaceSelector: {}}}]}"
                .to_owned(),
            "{action: Deny, from: [{pods: {podSelector: {matchLabels: {app: x}}, namespaceSelector: {}}}, {pods: {namespaceSelector: {}, podSelector: {}}}]}"
                .to_owned(),
        ),
        (
            "nodes_and_networks",
            "egress",
            "{action: Deny, to: [{nodes: {}}, {networks: [10.0.0.0/8, \"fd00::/8\"]}]}".to_owned(),
            "{action: Deny, to: [{nodes: {}}, {networks: [10.0.0.0/8, \"fd00::/8\"]}]}".to_owned(),
        ),
        (
            "names",
            "egress",
            "{name: by name, action: Allow, to: [{domainNames: [\"*.example.com\", api.example.com]}]}".to_owned(),
            "{name: by name, action: Accept, to: [{domainNames: [\"*.example.com\", api.example.com]}]}".to_owned(),
        ),
    ] {
        let answered = converted(row, &admin("p", 7, &format!("  {direction}:\n  - {before}\n")));
        assert_eq!(
            answered.stdout,
            format!(
                "apiVersion: policy.networking.k8s.io/v1alpha2\nkind: ClusterNetworkPolicy\nmetadata: {{name: p}}\n\
                 spec:\n  tier: Admin\n  priority: 7\n  subject: {{namespaces: {{}}}}\n  {direction}:\n  - {after}\n"
            ),
            "{row}"
        );
    }
}

#[test]
fn what_matches_nothing_is_left_out_and_said() {
    let rules = "  egress:\n\
                 \x20 - {action: Deny, to: [{namespaces: {}}], ports: [{portRange: {start: 9, end: 1}}, {portNumber: {port: 80}}]}\n\
                 \x20 - {action: Allow, to: [{namespaces: {}}], ports: [{portNumber: {protocol: TCP6, port: 1}}]}\n";
    let answered = converted("nothing", &admin("p", 7, rules));
    assert!(
        answered.stdout.ends_with(
            "  egress:\n  - {action: Deny, to: [{namespaces: {}}], protocols: [{tcp: {destinationPort: {number: 80}}}]}\n"
        ),
        "{}",
        answered.stdout
    );
    for said in [
        "spec.egress[0].ports[0] is left out: the range 9 to 1 matches nothing",
        "spec.egress[1].ports[0] is left out: the protocol \"TCP6\" matches nothing",
        "spec.egress[1] is left out: it matches nothing",
    ] {
        assert!(answered.stderr.contains(said), "{said}: {}", answered.stderr);
    }
}

const COMMENTED: &str = r#"# The platform team owns this.

---
# Nobody asks for metadata.
apiVersion: policy.networking.k8s.io/v1alpha1   # soon v1
kind: AdminNetworkPolicy
metadata:
  name: metadata  # as in the runbook
  uid: 0d9b5f5e-7d1c-4f5e-9b3a-1f2e3d4c5b6a
  resourceVersion: "12"
  creationTimestamp: "2026-01-01T00:00:00Z"
  labels:
    team: 'platform'
  annotations:
    kubectl.kubernetes.io/last-applied-configuration: |
      {"kind": "AdminNetworkPolicy"}
    why: |
      It holds secrets.
      # no comment
spec:
  # stronger than what teams write
  priority: 10

  subject:
    namespaces: {}  # everybody
  ingress:
    - name: monitoring  # first of all
      action: Allow     # always
      from:
        # Prometheus
        - pods:
            namespaceSelector:
              matchLabels: {kubernetes.io/metadata.name: monitoring}
            podSelector: {}
        - namespaces:  # and its friends
            matchExpressions:
              - {key: team, operator: In, values: [ops, sre]}
      ports:
        # metrics
        - portNumber:
            protocol: TCP
            port: 9090  # by convention
        - namedPort: metrics  # or by name
    # more to come
  egress:
  # IPv4 only
  - action: Deny
    to: [{networks: [169.254.169.254/32]}]  # metadata
status:
  conditions: []
# the end
"#;

const COMMENTED_CONVERTED: &str = r#"# The platform team owns this.

# Nobody asks for metadata.
apiVersion: policy.networking.k8s.io/v1alpha2   # soon v1
kind: ClusterNetworkPolicy
metadata:
  name: metadata  # as in the runbook
  labels:
    team: 'platform'
  annotations:
    why: |
      It holds secrets.
      # no comment
spec:
  tier: Admin
  # stronger than what teams write
  priority: 10

  subject:
    namespaces: {}  # everybody
  ingress:
    - name: monitoring  # first of all
      action: Accept     # always
      from:
        # Prometheus
        - pods:
            namespaceSelector:
              matchLabels: {kubernetes.io/metadata.name: monitoring}
            podSelector: {}
        - namespaces:  # and its friends
            matchExpressions:
              - {key: team, operator: In, values: [ops, sre]}
      protocols:
        # metrics
        - tcp:
            destinationPort:
              number: 9090  # by convention
        - destinationNamedPort: metrics  # or by name
    # more to come
  egress:
  # IPv4 only
  - action: Deny
    to: [{networks: [169.254.169.254/32]}]  # metadata
# the end
"#;

#[test]
fn comments_quotes_and_indentation_are_kept() {
    let answered = converted("comments", COMMENTED);
    assert_eq!(answered.stdout, COMMENTED_CONVERTED);
    assert!(
        answered
            .stderr
            .contains("the annotation kubectl.kubernetes.io/last-applied-configuration is left out"),
        "{}",
        answered.stderr
    );
    assert!(
        !answered.stderr.contains("comments that are left out"),
        "{}",
        answered.stderr
    );
}

#[test]
fn comments_between_brackets_are_kept_on_lines_of_their_own() {
    let rules = "  egress: [  # all\n    # first\n    {action: Deny,  # no\n     to: [{namespaces: {}}]},\n    {action: Allow, to: [{networks: [\n      10.0.0.0/8,  # ours\n      192.0.2.0/24]}]}\n  ]\n";
    let answered = converted("brackets", &admin("p", 7, rules));
    assert!(
        answered.stdout.ends_with(
            "  egress:  # all\n    # first\n    - action: Deny  # no\n      to: [{namespaces: {}}]\n    - action: Accept\n      to:\n        - networks:\n            - 10.0.0.0/8  # ours\n            - 192.0.2.0/24\n"
        ),
        "{}",
        answered.stdout
    );
    assert!(!answered.stderr.contains("left out"), "{}", answered.stderr);
}

#[test]
fn comments_that_cannot_be_kept_are_said() {
    let rules = "  egress:\n  - action: Deny\n    to: [{namespaces: {}}]\n    ports:\n    - portRange: {start: 9, end: 1}  # too many to count\n    - portNumber: {port: 1}\n";
    let answered = converted("lost-comments", &admin("p", 7, rules));
    assert!(
        answered
            .stderr
            .contains("comments that are left out: # too many to count\n"),
        "{}",
        answered.stderr
    );
}

#[test]
fn anchors_aliases_and_merge_keys_are_written_out() {
    let rules = "  ingress:\n  - &rule\n    action: Allow\n    from: &all [{namespaces: {}}]\n  - <<: *rule\n    action: Deny\n  egress:\n  - {action: Deny, to: *all}\n";
    let answered = converted("anchors", &admin("p", 7, rules));
    assert!(
        answered.stdout.ends_with(
            "  ingress:\n  - action: Accept\n    from: [{namespaces: {}}]\n  - action: Deny\n    from: [{namespaces: {}}]\n  egress:\n  - {action: Deny, to: [{namespaces: {}}]}\n"
        ),
        "{}",
        answered.stdout
    );
}

/// The rules of all objects, as JSON.
fn objects(answered: &ProgramOutput) -> Vec<Value> {
    let list: Value = serde_json::from_str(&answered.stdout).unwrap();
    list["items"].as_array().unwrap().clone()
}

#[test]
fn what_is_more_than_25_is_split_and_25_are_not() {
    let many =
        |count: usize, item: &dyn Fn(usize) -> String| (0..count).map(item).collect::<Vec<_>>().join(", ");
    let networks = |number: usize| format!("{{networks: [10.0.{number}.0/24]}}");
    let ports = |number: usize| format!("{{portNumber: {{port: {}}}}}", number + 1);
    let rule = |number: usize| format!("{{action: Deny, to: [{{networks: [10.0.{number}.0/24]}}]}}");
    let name = |number: usize| format!("n{number}.example.com");
    for (count, expected) in [(25, [1, 1, 1, 1]), (26, [2, 2, 2, 1]), (51, [3, 3, 3, 1])] {
        let peers = format!("  egress: [{{action: Deny, to: [{}]}}]\n", many(count, &networks));
        let of_ports = format!(
            "  egress: [{{action: Deny, to: [{{namespaces: {{}}}}], ports: [{}]}}]\n",
            many(count, &ports)
        );
        let of_rules = format!("  egress: [{}]\n", many(count, &rule));
        let of_names = format!(
            "  egress: [{{action: Allow, to: [{{domainNames: [{}]}}]}}]\n",
            many(count, &name)
        );
        let asked = [
            ("peers", peers),
            ("ports", of_ports),
            ("rules", of_rules),
            ("names", of_names),
        ];
        for ((what, rules), expected) in asked.into_iter().zip(expected) {
            let test = format!("split-{what}-{count}");
            let answered = convert(&test, &admin("p", 7, &rules), &["-o", "json"]);
            assert_eq!(answered.status, Some(0), "{test}: {}", answered.stderr);
            let objects = objects(&answered);
            let counts = |value: &Value| value.as_array().map_or(0, Vec::len);
            let rules: Vec<&Value> = objects
                .iter()
                .flat_map(|object| object["spec"]["egress"].as_array().unwrap())
                .collect();
            let is_rules = what == "rules";
            assert_eq!(objects.len(), if is_rules { expected } else { 1 }, "{test}");
            assert_eq!(rules.len(), if is_rules { count } else { expected }, "{test}");
            for rule in &rules {
                assert!(
                    counts(&rule["to"]) <= 25 && counts(&rule["protocols"]) <= 25,
                    "{test}"
                );
            }
            let all = |key: &str| rules.iter().map(|rule| counts(&rule[key])).sum::<usize>();
            match what {
                "ports" => assert_eq!(all("protocols"), count),
                "names" => assert_eq!(all("to"), count.div_ceil(25)),
                _ => assert_eq!(all("to"), count),
            }
        }
    }
}

#[test]
fn objects_of_one_policy_have_the_next_priorities_and_each_rule_once() {
    let rule = |number: usize| {
        format!(
            "  - {{name: r{number}, action: Deny, to: [{{networks: [10.0.{number}.0/24]}}]}}  # {number}\n"
        )
    };
    let rules: String = (0..60).map(rule).collect();
    let ingress = "  ingress:\n  - {action: Deny, from: [{namespaces: {}}]}\n";
    let answered = converted(
        "parts",
        &format!(
            "# once\n{}",
            admin("p", 7, &format!("  egress:\n{rules}{ingress}"))
        ),
    );
    let parts: Vec<&str> = answered.stdout.split("---\n").collect();
    assert_eq!(parts.len(), 3, "{}", answered.stdout);
    for (part, (name, priority)) in parts.iter().zip([("p", 7), ("p-2", 8), ("p-3", 9)]) {
        assert!(part.contains(&format!("name: {name}}}\n")), "{part}");
        assert!(part.contains(&format!("priority: {priority}\n")), "{part}");
        assert_eq!(part.contains("ingress:"), name == "p", "{part}");
        assert_eq!(part.contains("# once"), name == "p", "{part}");
    }
    for number in 0..60 {
        let comment = format!("# {number}\n");
        let at: Vec<usize> = (0..3).filter(|part| parts[*part].contains(&comment)).collect();
        assert_eq!(at, [number / 25], "{number}");
    }
    assert!(
        answered
            .stderr
            .contains("becomes 3 objects with priorities 7 to 9"),
        "{}",
        answered.stderr
    );
}

/// Names and priorities of what comes out.
fn places(test: &str, manifests: &str) -> BTreeMap<String, u64> {
    let answered = convert(test, manifests, &["-o", "json"]);
    assert_eq!(answered.status, Some(0), "{test}: {}", answered.stderr);
    let place = |object: &Value| {
        let name = object["metadata"]["name"].as_str().unwrap().to_owned();
        (name, object["spec"]["priority"].as_u64().unwrap())
    };
    objects(&answered).iter().map(place).collect()
}

#[test]
fn every_policy_is_asked_when_it_was_asked_before() {
    let many = |word: &str| {
        let rule =
            |number: usize| format!("  - {{action: {word}, to: [{{networks: [192.0.2.{number}/32]}}]}}\n");
        format!("  egress:\n{}", (0..26).map(rule).collect::<String>())
    };
    for (test, manifests, expected) in [
        ("alone", admin("a", 10, DENY), vec![("a", 10)]),
        (
            "in-order-by-name",
            cluster("a", "Admin", 10, ACCEPT) + &admin("b", 10, DENY),
            vec![("b", 10)],
        ),
        (
            "not-in-order-by-name",
            cluster("z", "Admin", 10, ACCEPT) + &admin("b", 10, DENY) + &admin("c", 10, ALLOW),
            vec![("b", 11), ("c", 11)],
        ),
        (
            "others-of-the-priority",
            admin("a", 10, DENY) + &admin("b", 10, ALLOW),
            vec![("a", 10), ("b", 10)],
        ),
        (
            "several-objects",
            admin("a", 10, &many("Deny")) + &admin("b", 10, ALLOW) + &admin("c", 13, DENY),
            vec![("a", 10), ("a-2", 11), ("b", 12), ("c", 13)],
        ),
        (
            "several-objects-behind-another",
            admin("a", 10, DENY) + &admin("b", 10, &many("Allow")),
            vec![("a", 10), ("b", 11), ("b-2", 12)],
        ),
        (
            "the-baseline",
            baseline("default", DENY) + &cluster("x", "Baseline", 999, ACCEPT),
            vec![("default", 1000)],
        ),
        (
            "the-baseline-behind-one-of-its-priority",
            baseline("default", DENY) + &cluster("a", "Baseline", 1000, ACCEPT),
            vec![("default", 1000)],
        ),
        (
            "the-baseline-in-several-objects",
            baseline("default", &many("Deny")),
            vec![("default", 999), ("default-2", 1000)],
        ),
    ] {
        let expected = expected
            .into_iter()
            .map(|(name, priority)| (name.to_owned(), priority));
        assert_eq!(places(test, &manifests), expected.collect(), "{test}");
    }
}

#[test]
fn new_objects_of_one_priority_are_said() {
    let tied = admin("default", 10, DENY) + &admin("e", 10, ALLOW) + &baseline("default", DENY);
    let said = converted("tied", &tied).stderr;
    for object in ["default-admin", "e"] {
        let tie = format!("ClusterNetworkPolicy/{object}: EG0119 priority 10 in tier admin");
        assert!(said.contains(&tie), "{tie}: {said}");
    }
    assert!(!said.contains("ClusterNetworkPolicy/default: EG0119"), "{said}");
}

#[test]
fn where_there_is_no_room_for_the_order_nothing_is_converted() {
    let rule = |number: usize| format!("  - {{action: Deny, to: [{{networks: [192.0.2.{number}/32]}}]}}\n");
    let many = format!("  egress:\n{}", (0..26).map(rule).collect::<String>());
    for (test, manifests, said) in [
        (
            "next-taken",
            cluster("z", "Admin", 10, ACCEPT) + &admin("b", 10, DENY) + &cluster("c", "Admin", 11, DENY),
            "it would need the priorities 11 to 11, and ClusterNetworkPolicy/c has 11",
        ),
        (
            "next-taken-by-one-to-convert",
            admin("a", 10, &many) + &admin("b", 11, ALLOW),
            "it would need the priorities 11 to 11, and AdminNetworkPolicy/b has 11",
        ),
        (
            "no-next",
            admin("a", 1000, &many),
            "it would need the priorities up to 1001, and 1000 is the last",
        ),
        (
            "baseline-not-last",
            baseline("default", DENY) + &cluster("x", "Baseline", 1000, ACCEPT),
            "give ClusterNetworkPolicy/x one below 1000",
        ),
        (
            "baseline-without-room",
            baseline("default", &many) + &cluster("a", "Baseline", 999, ACCEPT),
            "give ClusterNetworkPolicy/a one below 999",
        ),
    ] {
        refused(test, &manifests, said);
    }
}

#[test]
fn a_name_that_another_has_gets_an_ending() {
    let both = admin("default", 10, DENY) + &baseline("default", ALLOW);
    let expected = [("default-admin".to_owned(), 10), ("default".to_owned(), 1000)];
    assert_eq!(places("two-defaults", &both), expected.into());
    let there = baseline("default", DENY) + &cluster("default", "Admin", 3, ACCEPT);
    assert_eq!(
        places("default-there", &there),
        [("default-baseline".to_owned(), 1000)].into()
    );
    let taken =
        admin("a", 10, DENY) + &cluster("a", "Baseline", 3, DENY) + &cluster("a-admin", "Baseline", 4, DENY);
    refused(
        "no-name-left",
        &taken,
        "there are ClusterNetworkPolicies called a and a-admin",
    );
}

#[test]
fn what_is_enforced_closed_has_no_form_and_is_refused() {
    let egress = |rule: &str| admin("p", 10, &format!("  egress:\n  - {rule}\n"));
    for (test, manifests, said) in [
        (
            "unknown-field",
            egress("{action: Allow, too: []}"),
            "EG0103 spec.egress[0].too",
        ),
        (
            "unknown-peer",
            egress("{action: Deny, to: [{services: {}}]}"),
            "EG0103 spec.egress[0].to[0].services",
        ),
        (
            "no-peer",
            egress("{action: Deny, to: []}"),
            "EG0106 spec.egress[0].to",
        ),
        (
            "unknown-verb",
            egress("{action: Accept, to: [{namespaces: {}}]}"),
            "EG0112 spec.egress[0].action",
        ),
        (
            "denied-names",
            egress("{action: Deny, to: [{domainNames: [a.example.com]}]}"),
            "EG0402 spec.egress[0].to[0].domainNames",
        ),
        (
            "baseline-passes",
            baseline(
                "default",
                "  egress:\n  - {action: Pass, to: [{namespaces: {}}]}\n",
            ),
            "EG0112 spec.egress[0].action",
        ),
        ("baseline-of-another-name", baseline("other", DENY), "EG0113"),
        (
            "baseline-names",
            baseline(
                "default",
                "  egress:\n  - {action: Allow, to: [{domainNames: [a.example.com]}]}\n",
            ),
            "EG0103 spec.egress[0].to[0].domainNames",
        ),
        (
            "bad-network",
            egress("{action: Deny, to: [{networks: [10.0.0/8]}]}"),
            "EG0301",
        ),
        ("bad-priority", admin("p", 1001, DENY), "EG0110 spec.priority"),
        (
            "another-version",
            admin("p", 10, DENY).replace("v1alpha1", "v1alpha9"),
            "EG0102",
        ),
    ] {
        refused(test, &manifests, said);
        // One that cannot be converted is enough: policies are evaluated together.
        refused(
            &format!("{test}-and-others"),
            &(admin("fine", 20, DENY) + &manifests),
            said,
        );
    }
}

/// --as-stored is offered where it helps.
#[test]
fn a_rule_with_the_other_end_of_its_direction_is_no_dead_end() {
    let rule = |fields: &str| admin("p", 10, &format!("  ingress:\n  - {{action: Deny, {fields}}}\n"));
    let both = rule("from: [{namespaces: {}}], to: [{namespaces: {}}]");
    refused("other-end-both", &both, "--as-stored reads and converts it");
    assert_eq!(
        convert("other-end-stored", &both, &["--as-stored"]).status,
        Some(0)
    );
    let one = rule("to: [{namespaces: {}}]");
    refused("other-end", &one, "--as-stored does not help");
    let answered = convert("other-end-as-stored", &one, &["--as-stored"]);
    assert_eq!((answered.status, answered.stdout.as_str()), (Some(2), ""));
    for said in [
        "nothing is converted, for one reason",
        "spec.ingress[0].from",
        "no API server has such an object: correct it, or take it out of the manifests",
    ] {
        assert!(answered.stderr.contains(said), "{said}: {}", answered.stderr);
    }
}

#[test]
fn as_stored_converts_what_an_api_server_has() {
    let rules = "  ingress:\n  - {action: Allow, from: [{namespaces: {}, note: x}], port: [1], ports: [{portNumber: {port: 80, name: web}}]}\n";
    let manifests = admin("p", 10, rules);
    refused("as-written", &manifests, "--as-stored reads and converts it");
    let answered = convert("as-stored", &manifests, &["--as-stored"]);
    assert_eq!(answered.status, Some(0), "{}", answered.stderr);
    assert!(
        answered.stdout.ends_with(
            "  ingress:\n  - {action: Accept, from: [{namespaces: {}}], protocols: [{tcp: {destinationPort: {number: 80}}}]}\n"
        ),
        "{}",
        answered.stdout
    );
}

#[test]
fn lists_json_and_other_documents() {
    let json = r#"{"apiVersion": "policy.networking.k8s.io/v1alpha1", "kind": "AdminNetworkPolicyList", "items": [
      {"metadata": {"name": "p", "uid": "1", "annotations": {"kubectl.kubernetes.io/last-applied-configuration": "{}"}},
       "spec": {"priority": 10, "subject": {"namespaces": {}}, "egress": [{"action": "Allow", "to": [{"networks": ["10.0.0.0/8", "fd00::/8"]}], "ports": [{"portNumber": {"protocol": "UDP", "port": 53}}]}]}}]}"#;
    let answered = converted("json", json);
    let expected = "apiVersion: policy.networking.k8s.io/v1alpha2\nkind: ClusterNetworkPolicy\nmetadata:\n  name: p\nspec:\n  tier: Admin\n  priority: 10\n";
    assert!(answered.stdout.starts_with(expected), "{}", answered.stdout);
    assert!(
        answered.stdout.ends_with(
            "      to:\n        - networks:\n            - \"10.0.0.0/8\"\n            - \"fd00::/8\"\n      protocols:\n        - udp:\n            destinationPort:\n              number: 53\n"
        ),
        "{}",
        answered.stdout
    );
    let config =
        "# mine\napiVersion: v1\nkind: ConfigMap\nmetadata: {name: c,   namespace: a}\ndata: {mode: 0644}\n";
    let guard = network_policy("a/guard", "{podSelector: {}}");
    let all = format!("{config}{}{guard}", admin("p", 10, DENY));
    assert!(!converted("others-left-out", &all).stdout.contains("guard"));
    let answered = convert("others-passed-on", &all, &["--all"]);
    let expected = format!("{config}{}{guard}", cluster("p", "Admin", 10, DENY));
    assert_eq!(answered.stdout, expected, "{}", answered.stderr);
    let answered = convert("others-as-json", &all, &["--all", "-o", "json"]);
    assert_eq!((answered.status, answered.stdout.as_str()), (Some(2), ""));
}

#[test]
fn texts_of_other_systems_are_read_alike() {
    let policy = admin(
        "p",
        10,
        "  egress:  # all\n  # none\n  - {action: Deny, to: [{namespaces: {}}]}  # ä\n",
    );
    let expected = converted("unix", &policy).stdout;
    let others = [
        ("windows", policy.replace('\n', "\r\n")),
        ("byte-order-mark", format!("\u{feff}{policy}")),
        ("version", format!("%YAML 1.2\n{policy}")),
        ("end-of-document", format!("{policy}...\n")),
        ("behind-the-mark", policy.replacen("---\n", "--- # mine\n", 1)),
    ];
    for (test, text) in others {
        let came = converted(test, &text).stdout;
        assert_eq!(came.trim_start_matches("# mine\n\n"), expected, "{test}");
    }
}

#[test]
fn a_large_document_on_one_line_takes_no_time_worth_mentioning() {
    let configs = r#"{"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c"}},"#.repeat(20_000);
    let policy = r#"{"apiVersion": "policy.networking.k8s.io/v1alpha1", "kind": "AdminNetworkPolicy", "metadata": {"name": "p"}, "spec": {"priority": 1, "subject": {"namespaces": {}}, "egress": [{"action": "Deny", "to": [{"networks": ["10.0.0.0/8"]}]}]}}"#;
    let list = format!(r#"{{"apiVersion": "v1", "kind": "List", "items": [{configs}{policy}]}}"#);
    let answered = converted("one-line", &list);
    assert!(answered.stdout.contains("tier: Admin"), "{}", answered.stdout);
}

#[test]
fn what_is_converted_needs_no_conversion() {
    let first = converted("once", &(admin("p", 10, ALLOW) + &baseline("default", DENY)));
    let second = convert("twice", &first.stdout, &[]);
    assert_eq!((second.status, second.stdout.as_str()), (Some(0), ""));
    assert!(second.stderr.contains("nothing to convert"), "{}", second.stderr);
    let third = convert("thrice", &first.stdout, &["--all"]);
    assert_eq!(third.stdout, first.stdout);
}

#[test]
fn it_is_said_whose_connections_were_compared() {
    let policy = admin("p", 10, DENY);
    let said = |test: &str, manifests: &str| converted(test, manifests).stderr;
    let without = said("no-pods", &policy);
    assert!(
        without.contains(" only, as there are no pods in the manifests"),
        "{without}"
    );
    let one = pod("a/web", "app: web", &["10.0.0.1"]);
    let with = said("one-pod", &format!("{policy}{one}"));
    assert!(with.contains("of the pod in the manifests and"), "{with}");
    let two = pod("b/web", "app: web", &["10.0.0.2"]);
    let with = said("two-pods", &format!("{policy}{one}{two}"));
    assert!(with.contains("of the 2 pods in the manifests and"), "{with}");
}

#[test]
fn standard_input_is_converted() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_egret"));
    command.args(["convert", "--manifests", "-"]);
    let answered = invocation::run(command, &admin("p", 10, DENY));
    assert_eq!(answered.status, Some(0), "{}", answered.stderr);
    assert!(
        answered
            .stdout
            .starts_with("apiVersion: policy.networking.k8s.io/v1alpha2\n"),
        "{}",
        answered.stdout
    );
}
