//! Who is at an end of a connection: pods, nodes, addresses.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails there and then")]

use serde_json::{Value, json};

mod invocation;

use invocation::{Invocation, cluster_policy, codes, network_policy, pod};

const ISOLATED: &str = "{podSelector: {}, policyTypes: [Ingress, Egress]}";
const NODES: &str = "apiVersion: v1\nkind: Node\nmetadata: {name: n1}\nstatus: {addresses: [{type: InternalIP, address: 10.9.0.1}]}\n\
                     ---\napiVersion: v1\nkind: Node\nmetadata: {name: n2}\nstatus: {addresses: [{type: InternalIP, address: 10.9.0.2}]}\n";

fn ended(key: &str, address: &str) -> String {
    pod(key, "app: web", &[address]).replace("phase: Running", "phase: Succeeded")
}

#[test]
fn the_address_of_a_live_pod_is_that_pod() {
    let words = Invocation::of("live_address")
        .manifest(&pod("a/web", "app: web", &["10.0.0.1", "fd00::1"]))
        .manifest(&ended("a/job", "10.0.0.3"))
        .manifest(&network_policy("a/isolated", ISOLATED))
        .tcp("192.0.2.1", "10.0.0.1", 80)
        .tcp("10.0.0.1", "192.0.2.1", 80)
        .tcp("192.0.2.1", "10.0.0.3", 80)
        .tcp("2001:db8::1", "fd00::1", 80)
        .tcp("192.0.2.1", "::ffff:10.0.0.1", 80)
        .words();
    assert_eq!(
        words,
        [
            "deny none np",
            "deny np none",
            "allow none none",
            "deny none np",
            "deny none np"
        ]
    );
}

#[test]
fn of_two_pods_with_one_address_the_one_that_started_last_has_it() {
    let started = |key: &str, app: &str, time: &str| {
        pod(key, &format!("app: {app}"), &["10.0.0.1"])
            .replace("phase:", &format!("startTime: \"{time}\", phase:"))
    };
    let answered = Invocation::of("newest")
        .manifest(&started("a/old", "old", "2026-01-01T00:00:00Z"))
        .manifest(&started("a/new", "new", "2026-01-02T00:00:00Z"))
        .manifest(&network_policy(
            "a/old-isolated",
            "{podSelector: {matchLabels: {app: old}}}",
        ))
        .tcp("192.0.2.1", "10.0.0.1", 80)
        .tcp("192.0.2.1", "a/old", 80)
        .answer();
    let rows = answered.rows();
    assert_eq!(invocation::words(&rows[0]), "allow none default");
    assert_eq!(invocation::words(&rows[1]), "error - -");
    assert!(
        rows[1]["reason"]
            .as_str()
            .unwrap()
            .contains("a/old has lost its address")
    );
    assert_eq!(answered.status, Some(2));
}

#[test]
fn a_probe_that_cannot_be_judged_says_why_and_the_others_are_judged() {
    let answered = Invocation::of("unjudgeable")
        .manifest(&pod("a/web", "app: web", &["10.0.0.1"]))
        .manifest(&ended("a/job", "10.0.0.3"))
        .tcp("a/nobody", "a/web", 80)
        .tcp("a/web", "a/job", 80)
        .tcp("a/web", r#"{"name":"api.example.com"}"#, 80)
        .tcp("192.0.2.1", r#"{"name":"api.example.com"}"#, 80)
        .tcp("a/web", "2001:db8::1", 80)
        .tcp("a/web", r#"{"service":"a/web"}"#, 80)
        .tcp("a/web", "192.0.2.1", 80)
        .answer();
    assert_eq!(answered.status, Some(2));
    let rows = answered.rows();
    let expected = [
        ("error", "no pod or workload a/nobody in the manifests"),
        ("error", "pod a/job has ended (phase Succeeded or Failed)"),
        ("error", "no record of a/web for api.example.com"),
        (
            "error",
            "192.0.2.1 is no pod of the manifests, so nobody knows what it was told for a name",
        ),
        ("error", "no common family: a/web has IPv4, 2001:db8::1 has IPv6"),
        ("error", "no service a/web in the manifests"),
    ];
    for (row, (verdict, reason)) in rows.iter().zip(expected) {
        assert_eq!(
            (&row["verdict"], &row["reason"]),
            (&json!(verdict), &json!(reason))
        );
        assert_eq!((&row["egress"], &row["ingress"]), (&Value::Null, &Value::Null));
    }
    assert_eq!(invocation::words(&rows[6]), "allow default none");
}

#[test]
fn the_first_family_of_the_source_that_both_have_is_used_unless_the_probe_names_one() {
    let only_v6 = "{podSelector: {matchLabels: {app: web}}, policyTypes: [Egress], egress: [{to: [{ipBlock: {cidr: \"fd00::/8\"}}]}]}";
    let family = |name: &str| {
        format!(
            r#"{{"id":"{name}","from":"a/web","to":"a/db","protocol":"TCP","port":80,"family":"{name}"}}"#
        )
    };
    let answered = Invocation::of("families")
        .manifest(&pod("a/web", "app: web", &["fd00::1", "10.0.0.1"]))
        .manifest(&pod("a/db", "app: db", &["10.0.0.2", "fd00::2"]))
        .manifest(&pod("a/v4", "app: v4", &["10.0.0.3"]))
        .manifest(&network_policy("a/only-v6", only_v6))
        .tcp("a/web", "a/db", 80)
        .tcp("a/web", "a/v4", 80)
        .probe(&family("IPv4"))
        .probe(&family("IPv6"))
        .probe(r#"{"id":1,"from":"a/web","to":"a/v4","protocol":"TCP","port":80,"family":"IPv6"}"#)
        .answer();
    let words: Vec<String> = answered.rows().iter().map(invocation::words).collect();
    assert_eq!(
        words,
        [
            "allow np default",
            "deny np default",
            "deny np default",
            "allow np default",
            "error - -"
        ]
    );
}

#[test]
fn a_made_up_address_is_told_of_wherever_networks_were_compared_with_it() {
    let unaddressed = |key: &str| pod(key, "app: x", &[]);
    let by_network = "{podSelector: {}, policyTypes: [Egress], egress: [{to: [{ipBlock: {cidr: 10.0.0.0/8}}], ports: [{port: 80}]}, {to: [{namespaceSelector: {}}], ports: [{port: 81}]}]}";
    let rows = Invocation::of("made_up")
        .manifest(&(unaddressed("a/one") + &unaddressed("a/two") + &unaddressed("b/three")))
        .manifest(&pod("b/real", "app: x", &["10.0.0.9"]))
        .manifest(&network_policy("a/by-network", by_network))
        .tcp("a/one", "a/two", 80)
        .tcp("a/one", "b/three", 80)
        .tcp("a/one", "a/two", 81)
        .tcp("b/three", "a/one", 80)
        .tcp("a/one", "b/real", 80)
        .rows();
    let words: Vec<String> = rows.iter().map(invocation::words).collect();
    assert_eq!(
        words,
        [
            "deny np default",
            "deny np default",
            "allow np default",
            "allow default default",
            "allow np default"
        ]
    );
    let told: Vec<bool> = rows
        .iter()
        .map(|row| codes(row).contains(&"made-up-address"))
        .collect();
    assert_eq!(told, [true, true, false, false, false]);
}

#[test]
fn a_made_up_address_is_the_same_each_time_and_in_no_range_that_anybody_uses() {
    let message = |test: &str, more: &str| {
        let rows = Invocation::of(test)
            .manifest(&pod("a/one", "app: x", &["10.0.0.1"]))
            .manifest(&(pod("a/two", "app: x", &[]) + more))
            .manifest(&network_policy(
                "a/by-network",
                "{podSelector: {}, policyTypes: [Egress], egress: [{to: [{ipBlock: {cidr: 0.0.0.0/0}}]}]}",
            ))
            .tcp("a/one", "a/two", 80)
            .rows();
        rows[0]["diagnostics"][0]["message"].as_str().unwrap().to_owned()
    };
    let alone = message("stable_alone", "");
    assert_eq!(alone, message("stable_together", &pod("a/three", "app: x", &[])));
    assert!(alone.contains(": 198.1"), "{alone}");
    let used = message("stable_used", &pod("a/three", "app: x", &["198.18.0.1"]));
    assert!(used.contains(": 240."), "{used}");
}

#[test]
fn a_pod_and_its_own_node_are_exempt_where_a_network_policy_isolates() {
    let asked = Invocation::of("own_node")
        .manifest(NODES)
        .manifest(&pod("a/web", "app: web", &["10.0.0.1"]))
        .manifest(&network_policy("a/isolated", ISOLATED));
    let rows = asked
        .tcp("10.9.0.1", "a/web", 80)
        .tcp("a/web", "10.9.0.1", 80)
        .tcp("10.9.0.2", "a/web", 80)
        .tcp("a/web", "10.9.0.2", 80)
        .rows();
    let words: Vec<String> = rows.iter().map(invocation::words).collect();
    assert_eq!(words[1..], ["allow np none", "deny none np", "deny np none"]);
    assert_eq!(rows[0]["verdict"], "allow");
    assert_eq!(rows[1]["egress"]["policy"], "own-node");
}

/// What is local to a node is its own, as an agent reports it, though no status has it; of another node it is another's.
#[test]
fn a_reported_address_is_the_own_nodes_as_well() {
    let report = |node: &str, address: &str| {
        format!(
            "apiVersion: policy.egret.dev/v1alpha1\nkind: NodeAddressReport\nmetadata: {{name: {node}}}\naddresses: [{{ip: {address}}}]\n"
        )
    };
    let asked = |name: &str| {
        Invocation::of(name)
            .manifest(NODES)
            .manifest(&pod("a/web", "app: web", &["10.0.0.1"]))
            .manifest(&network_policy("a/isolated", ISOLATED))
    };
    let words = |asked: Invocation| -> Vec<String> {
        let rows = asked
            .tcp("a/web", "198.18.0.1", 80)
            .tcp("a/web", "169.254.20.10", 53)
            .tcp("a/web", "198.18.0.2", 80)
            .tcp("a/web", "10.0.0.1", 80)
            .rows();
        rows.iter().map(invocation::words).collect()
    };
    let [deny, allow, itself] = ["deny np none", "allow np none", "allow exempt exempt"];
    assert_eq!(words(asked("own_node_unreported")), [deny, deny, deny, itself]);
    let reported = asked("own_node_reported")
        .manifest(&report("n1", "198.18.0.1}, {ip: 169.254.20.10}, {ip: 10.0.0.1"))
        .manifest(&report("n2", "198.18.0.2"));
    assert_eq!(words(reported), [allow, allow, deny, itself]);
}

#[test]
fn a_deny_of_the_admin_tier_holds_for_the_own_node_too() {
    let rules = "egress: [{action: Deny, to: [{nodes: {}}]}]";
    let words = Invocation::of("own_node_denied")
        .manifest(NODES)
        .manifest(&pod("a/web", "app: web", &["10.0.0.1"]))
        .manifest(&cluster_policy("no-nodes", "Admin", rules))
        .tcp("a/web", "10.9.0.1", 22)
        .words();
    assert_eq!(words, ["deny admin none"]);
}

#[test]
fn a_pod_of_its_nodes_network_is_no_policed_pod_but_the_node() {
    let on_node = |key: &str, status: &str| {
        let (namespace, name) = key.split_once('/').unwrap();
        format!(
            "---\napiVersion: v1\nkind: Pod\nmetadata: {{name: {name}, namespace: {namespace}}}\n\
             spec: {{hostNetwork: true, nodeName: n1}}\n{status}"
        )
    };
    let answered = Invocation::of("host_network")
        .manifest(NODES)
        .manifest(&on_node(
            "a/agent",
            "status: {phase: Running, podIPs: [{ip: 10.9.0.1}]}\n",
        ))
        .manifest(&on_node("a/written", ""))
        .manifest(&on_node("a/lost", "").replace("n1", "n9"))
        .manifest(&pod("a/web", "app: web", &["10.0.0.1"]))
        .manifest(&network_policy("a/isolated", ISOLATED))
        .tcp("a/agent", "192.0.2.1", 80)
        .tcp("192.0.2.1", "a/agent", 80)
        .tcp("a/written", "192.0.2.1", 80)
        .tcp("a/agent", "a/web", 80)
        .tcp("a/lost", "a/web", 80)
        .answer();
    let rows = answered.rows();
    for row in &rows[..3] {
        assert_eq!(invocation::words(row), "allow none none");
    }
    assert_eq!(rows[3]["verdict"], "allow", "the node of the pod itself");
    assert_eq!(rows[4]["verdict"], "error");
    assert!(
        rows[4]["reason"]
            .as_str()
            .unwrap()
            .contains("uses the network of its node")
    );
}

#[test]
fn a_pod_is_never_kept_from_its_own_address() {
    let rules = "egress: [{action: Deny, to: [{networks: [0.0.0.0/0]}]}]";
    let words = Invocation::of("itself")
        .manifest(&pod("a/web", "app: web", &["10.0.0.1"]))
        .manifest(&network_policy("a/isolated", ISOLATED))
        .manifest(&cluster_policy("nothing", "Admin", rules))
        .tcp("a/web", "a/web", 80)
        .tcp("10.0.0.1", "10.0.0.1", 80)
        .words();
    assert_eq!(words, ["allow exempt exempt", "allow exempt exempt"]);
}
