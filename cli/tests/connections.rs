//! `egret list`, `egret matrix` and `egret diff`: what is allowed altogether, and what changes.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails there and then")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

mod invocation;

use invocation::{ProgramOutput, network_policy, pod};

/// Manifests in a folder that no other test has.
fn folder(test: &str, manifests: &[String]) -> PathBuf {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR"))
        .join("connections")
        .join(test);
    if folder.exists() {
        fs::remove_dir_all(&folder).unwrap();
    }
    fs::create_dir_all(&folder).unwrap();
    for (number, manifest) in manifests.iter().enumerate() {
        fs::write(folder.join(format!("{number}.yaml")), manifest).unwrap();
    }
    folder
}

fn egret(arguments: &[&str], folders: &[(&str, &Path)]) -> ProgramOutput {
    let mut command = Command::new(env!("CARGO_BIN_EXE_egret"));
    command.args(arguments);
    for (option, folder) in folders {
        command.arg(option).arg(folder);
    }
    invocation::run(command, "")
}

fn list(test: &str, manifests: &[String]) -> Vec<String> {
    let folder = folder(test, manifests);
    let answered = egret(&["list", "-o", "json"], &[("--manifests", &folder)]);
    assert_eq!(answered.status, Some(0), "{}", answered.stderr);
    answered.rows().iter().map(words).collect()
}

/// A row in words: `a/web -> outside 10.0.0.0/8: TCP 80`.
fn words(row: &Value) -> String {
    let end = |end: &Value| {
        let text = |key: &str| end[key].as_str().map(str::to_owned);
        let own = end["ownNode"].as_bool().map(|_| "own node".to_owned());
        let name = ["workload", "node", "name"].into_iter().find_map(text).or(own);
        let networks = end["networks"].as_array().map(|networks| {
            let networks: Vec<&str> = networks.iter().map(|network| network.as_str().unwrap()).collect();
            networks.join(" ")
        });
        let parts: Vec<String> = [name, networks].into_iter().flatten().collect();
        parts.join(" at ")
    };
    let family = row["family"].as_str().map(|family| format!(" {family}"));
    let ports = ports(&row["ports"]);
    format!(
        "{} -> {}{}: {ports}",
        end(&row["from"]),
        end(&row["to"]),
        family.unwrap_or_default()
    )
}

fn ports(ports: &Value) -> String {
    let mut texts = Vec::new();
    for protocol in ["TCP", "UDP", "SCTP"] {
        for range in ports[protocol].as_array().unwrap() {
            texts.push(format!("{protocol}/{}", range.as_str().unwrap()));
        }
    }
    for protocol in ["ICMP", "others"] {
        if ports[protocol] == true {
            texts.push(protocol.to_owned());
        }
    }
    match texts.join(" ") {
        all if all == "TCP/1-65535 UDP/1-65535 SCTP/1-65535 ICMP others" => "all".to_owned(),
        some => some,
    }
}

fn web_and_client() -> Vec<String> {
    vec![
        pod("a/web", "app: web", &["10.0.0.1"]),
        pod("a/client", "app: client", &["10.0.0.2"]),
    ]
}

#[test]
fn ports_of_several_rules_are_merged() {
    let rules = "{podSelector: {matchLabels: {app: web}}, ingress: [\
        {from: [{podSelector: {}}], ports: [{port: 80, endPort: 90}, {protocol: UDP, port: 53}]}, \
        {from: [{podSelector: {matchLabels: {app: client}}}], ports: [{port: 91}, {port: 85, endPort: 95}]}]}";
    let mut manifests = web_and_client();
    manifests.push(network_policy("a/web", rules));
    assert_eq!(
        list("merged", &manifests),
        [
            "a/client -> a/web: TCP/80-95 UDP/53",
            "a/client -> 0.0.0.0/0: all",
            "a/web -> a/client: all",
            "a/web -> 0.0.0.0/0: all",
            "0.0.0.0/0 -> a/client: all",
        ]
    );
}

#[test]
fn the_outside_is_cut_where_networks_of_rules_begin_and_end() {
    let rules = "{podSelector: {}, policyTypes: [Egress], egress: [\
        {to: [{ipBlock: {cidr: 10.0.0.0/8, except: [10.128.0.0/9]}}], ports: [{port: 80}]}, \
        {to: [{ipBlock: {cidr: 10.64.0.0/10}}]}, \
        {to: [{ipBlock: {cidr: \"::/0\"}}]}]}";
    let manifests = [
        pod("a/one", "", &["192.0.2.1", "2001:db8::1"]),
        network_policy("a/p", rules),
    ];
    assert_eq!(
        list("cut", &manifests),
        [
            "a/one -> 10.0.0.0/10: TCP/80",
            "a/one -> 10.64.0.0/10 ::/0: all",
            "0.0.0.0/0 ::/0 -> a/one: all",
        ]
    );
}

#[test]
fn families_that_differ_have_rows_of_their_own() {
    let rules = "{podSelector: {matchLabels: {app: web}}, ingress: [{from: [{ipBlock: {cidr: \"fd00::/8\"}}], ports: [{port: 80}]}]}";
    let manifests = [
        pod("a/web", "app: web", &["10.0.0.1", "fd00::1"]),
        pod("a/client", "app: client", &["10.0.0.2", "fd00::2"]),
        network_policy("a/web", rules),
    ];
    let rows = list("families", &manifests);
    assert!(
        rows.contains(&"a/client -> a/web IPv6: TCP/80".to_owned()),
        "{rows:?}"
    );
    assert!(rows.contains(&"fd00::/8 -> a/web: TCP/80".to_owned()), "{rows:?}");
}

#[test]
fn names_are_listed_where_more_is_allowed_because_of_them() {
    let policy = invocation::cluster_policy(
        "names",
        "Admin",
        "egress: [\
         {action: Accept, to: [{domainNames: [\"*.example.com\"]}], protocols: [{tcp: {destinationPort: {number: 443}}}]}, \
         {action: Accept, to: [{domainNames: [api.example.com]}], protocols: [{tcp: {destinationPort: {number: 80}}}]}, \
         {action: Accept, to: [{networks: [198.51.100.0/24]}]}, \
         {action: Deny, to: [{networks: [0.0.0.0/0]}]}]",
    );
    let rows = list("names", &[pod("a/one", "", &["192.0.2.1"]), policy]);
    let [wildcard, name] = ["*.example.com", "api.example.com"]
        .map(|name| rows.iter().find(|row| row.contains(name)).unwrap().as_str());
    assert!(wildcard.ends_with(": TCP/443"), "{wildcard}");
    assert!(
        name.ends_with(": TCP/80 TCP/443"),
        "a name below it has both: {name}"
    );
    assert!(
        name.contains(" at "),
        "not where its addresses are allowed anyway: {name}"
    );
}

#[test]
fn a_pods_own_node_and_other_nodes_are_told_apart() {
    let node = |name: &str, address: &str| {
        format!(
            "---\napiVersion: v1\nkind: Node\nmetadata: {{name: {name}}}\nstatus: {{addresses: [{{type: InternalIP, address: {address}}}]}}\n"
        )
    };
    let manifests = [
        pod("a/one", "", &["10.0.0.1"]),
        node("n1", "192.0.2.1"),
        node("n2", "192.0.2.2"),
        network_policy("a/none", "{podSelector: {}, policyTypes: [Ingress, Egress]}"),
    ];
    assert_eq!(
        list("nodes", &manifests),
        ["a/one -> own node: all", "own node -> a/one: all"]
    );
}

fn replica(name: &str, owner: &str, hash: &str, address: &str) -> String {
    format!(
        "---\napiVersion: v1\nkind: Pod\nmetadata:\n  name: {name}\n  namespace: a\n  labels: {{app: web, pod-template-hash: {hash}}}\n  \
         ownerReferences: [{{apiVersion: apps/v1, kind: ReplicaSet, name: {owner}, uid: u, controller: true}}]\n\
         spec: {{containers: []}}\nstatus: {{phase: Running, podIPs: [{{ip: {address}}}]}}\n"
    )
}

#[test]
fn pods_of_a_workload_are_one_unless_policies_treat_them_otherwise() {
    let mut manifests = vec![
        replica("web-77-x", "web-77", "77", "10.0.0.1"),
        replica("web-77-y", "web-77", "77", "10.0.0.2"),
        pod("a/client", "app: client", &["10.0.1.1"]),
        "---\napiVersion: apps/v1\nkind: Deployment\nmetadata: {name: web, namespace: a}\nspec: {template: {metadata: {labels: {app: web}}, spec: {containers: []}}}\n"
            .to_owned(),
    ];
    let to_client = |rows: &[String]| -> Vec<String> {
        rows.iter()
            .filter(|row| row.contains("-> a/client"))
            .cloned()
            .collect()
    };
    assert_eq!(
        to_client(&list("folded", &manifests)),
        ["a/web -> a/client: all", "0.0.0.0/0 -> a/client: all"]
    );
    let rule =
        "{podSelector: {matchLabels: {app: client}}, ingress: [{from: [{ipBlock: {cidr: 10.0.0.1/32}}]}]}";
    manifests.push(network_policy("a/client", rule));
    assert_eq!(
        to_client(&list("split", &manifests)),
        ["a/web-77-x -> a/client: all", "10.0.0.1/32 -> a/client: all"]
    );
}

#[test]
fn all_forms_of_a_list_are_printed() {
    let mut manifests = web_and_client();
    manifests.push(network_policy(
        "a/web",
        "{podSelector: {matchLabels: {app: web}}}",
    ));
    let folder = folder("forms", &manifests);
    let printed = |form: &str| {
        let answered = egret(&["list", "-o", form], &[("--manifests", &folder)]);
        assert_eq!(answered.status, Some(0), "{}", answered.stderr);
        answered.stdout
    };
    let (table, yaml, dot) = (printed("table"), printed("yaml"), printed("dot"));
    assert!(table.contains("2 workloads (2 pods), 4 connections"), "{table}");
    assert!(table.lines().all(|line| line.chars().count() <= 100) && !table.contains('\u{1b}'));
    assert!(yaml.starts_with("- from:"), "{yaml}");
    assert!(
        dot.starts_with("digraph") && dot.contains("\"a/web\" -> \"a/client\" [label=\"everything\"]"),
        "{dot}"
    );
    assert!(!dot.contains("-> \"a/web\""), "{dot}");
}

#[test]
fn a_matrix_has_a_mark_for_every_pair() {
    let mut manifests = web_and_client();
    let rule = "{podSelector: {matchLabels: {app: web}}, ingress: [{from: [{podSelector: {}}], ports: [{port: 80}]}]}";
    manifests.push(network_policy("a/web", rule));
    let folder = folder("matrix", &manifests);
    let marks = |arguments: &[&str]| -> Vec<String> {
        let answered = egret(arguments, &[("--manifests", &folder)]);
        assert_eq!(answered.status, Some(0), "{}", answered.stderr);
        let marks = |line: &str| line.split_whitespace().skip(2).collect::<Vec<_>>().join(" ");
        answered.stdout.lines().skip(3).map(marks).collect()
    };
    assert_eq!(marks(&["matrix", "--port", "80"]), ["· ✓", "✓ ·"]);
    assert_eq!(marks(&["matrix", "--port", "81"]), ["· ✗", "✓ ·"]);
    assert_eq!(marks(&["matrix", "--protocol", "icmp"]), ["· ✗", "✓ ·"]);
    for bad in [&["matrix"][..], &["matrix", "--protocol", "ICMP", "--port", "1"]] {
        let answered = egret(bad, &[("--manifests", &folder)]);
        assert_eq!(answered.status, Some(2));
        assert!(answered.stderr.contains("port"), "{}", answered.stderr);
    }
}

#[test]
fn a_matrix_of_many_pods_fits_100_columns() {
    let manifests: Vec<String> = (1..=60)
        .map(|number| pod(&format!("a/pod-{number}"), "", &[&format!("10.0.0.{number}")]))
        .collect();
    let folder = folder("wide", &manifests);
    let answered = egret(&["matrix", "--port", "80"], &[("--manifests", &folder)]);
    assert!(
        answered.stdout.lines().all(|line| line.chars().count() <= 100),
        "{}",
        answered.stdout
    );
    assert_eq!(answered.stdout.matches('✓').count(), 60 * 59);
}

#[test]
fn a_difference_says_which_rule_made_it() {
    let before = folder("before", &web_and_client());
    let mut manifests = web_and_client();
    let rule = "{podSelector: {matchLabels: {app: web}}, ingress: [{from: [{podSelector: {}}], ports: [{port: 80}]}]}";
    manifests.push(network_policy("a/web", rule));
    let after = folder("after", &manifests);
    let both = [("--manifests", after.as_path()), ("--against", before.as_path())];
    let answered = egret(&["diff", "-o", "json"], &both);
    assert_eq!((answered.status, answered.stderr.as_str()), (Some(1), ""));
    let rows = answered.rows();
    let changes: Vec<(&str, String, String)> = rows
        .iter()
        .map(|row| {
            (
                row["change"].as_str().unwrap(),
                ports(&row["before"]),
                ports(&row["after"]),
            )
        })
        .collect();
    assert_eq!(
        changes,
        [
            ("changes", "all".to_owned(), "TCP/80".to_owned()),
            ("vanishes", "all".to_owned(), String::new())
        ]
    );
    for row in &rows {
        assert_eq!(row["because"][0]["direction"], "ingress");
        assert_eq!(row["because"][0]["before"]["tier"], "default");
        assert_eq!(row["because"][0]["after"]["isolatedBy"][0], "NetworkPolicy/a/web");
    }
    for (form, said) in [
        ("table", "denied, isolated by NetworkPolicy/a/web"),
        ("table", "2 connections: 0 appear, 1 vanish, 1 change"),
        ("markdown", "| **vanishes** | `outside` | `a/web` | everything |"),
        ("yaml", "- change: changes"),
    ] {
        let answered = egret(&["diff", "-o", form], &both);
        assert_eq!(answered.status, Some(1));
        assert!(answered.stdout.contains(said), "{said}:\n{}", answered.stdout);
        let fits = |line: &str| line.chars().count() <= 100;
        assert!(
            form == "markdown" || answered.stdout.lines().all(fits),
            "{}",
            answered.stdout
        );
    }
}

#[test]
fn each_reason_of_a_difference_is_tied_to_its_ports() {
    let web = |rules: &str| {
        let mut manifests = web_and_client();
        manifests.push(network_policy(
            "a/web",
            &format!("{{podSelector: {{matchLabels: {{app: web}}}}, ingress: [{rules}]}}"),
        ));
        manifests
    };
    let from = "from: [{podSelector: {}}], ports:";
    let before = folder(
        "ports-before",
        &web(&format!(
            "{{{from} [{{port: 80}}, {{port: 81}}]}}, {{{from} [{{port: 90}}]}}"
        )),
    );
    let after = folder(
        "ports-after",
        &web(&format!(
            "{{{from} [{{port: 80}}]}}, {{{from} [{{protocol: UDP, port: 53}}]}}"
        )),
    );
    let both = [("--manifests", after.as_path()), ("--against", before.as_path())];
    let rows = egret(&["diff", "-o", "json"], &both).rows();
    let mut seen: Vec<(String, Value, Value)> = rows[0]["because"]
        .as_array()
        .unwrap()
        .iter()
        .map(|cause| {
            let rule = |side: &str| cause[side]["rule"].clone();
            (ports(&cause["ports"]), rule("before"), rule("after"))
        })
        .collect();
    seen.sort_by(|one, other| one.0.cmp(&other.0));
    let number = |number: u64| Value::from(number);
    assert_eq!(
        seen,
        [
            ("TCP/81".to_owned(), number(0), Value::Null),
            ("TCP/90".to_owned(), number(1), Value::Null),
            ("UDP/53".to_owned(), Value::Null, number(1)),
        ]
    );
    let table = egret(&["diff"], &both).stdout;
    for said in ["TCP 81: ingress: denied", "UDP 53: ingress: allowed by"] {
        assert!(table.contains(said), "{said}:\n{table}");
    }
}

#[test]
fn what_is_the_same_ends_with_0_and_what_is_new_is_named() {
    let before = folder("same", &web_and_client());
    let answered = egret(&["diff"], &[("--manifests", &before), ("--against", &before)]);
    assert_eq!((answered.status, answered.stderr.as_str()), (Some(0), ""));
    assert!(
        answered.stdout.starts_with("No connection"),
        "{}",
        answered.stdout
    );
    let mut manifests = web_and_client();
    manifests.push(pod("a/new", "", &["10.0.0.3"]));
    let after = folder("new", &manifests);
    let answered = egret(
        &["diff", "-o", "json"],
        &[("--manifests", &after), ("--against", &before)],
    );
    assert_eq!(answered.status, Some(1));
    for row in answered.rows() {
        assert_eq!(
            (&row["change"], &row["because"][0]["end"]),
            (&"appears".into(), &"a/new is new".into())
        );
    }
}

#[test]
fn another_policy_that_says_the_same_is_no_difference() {
    let rule =
        |name: &str, port: &str| network_policy(name, &format!("{{podSelector: {{}}, ingress: [{port}]}}"));
    let mut manifests = [web_and_client(), web_and_client()];
    manifests[0].push(rule("a/one", "{ports: [{port: 80, endPort: 89}]}"));
    manifests[1].push(rule(
        "a/two",
        "{ports: [{port: 80, endPort: 85}]}, {ports: [{port: 84, endPort: 89}]}",
    ));
    let [before, after] = [folder("one", &manifests[0]), folder("two", &manifests[1])];
    let answered = egret(&["diff"], &[("--manifests", &after), ("--against", &before)]);
    assert_eq!(answered.status, Some(0), "{}", answered.stdout);
}

#[test]
fn bad_input_ends_with_2_and_is_named() {
    let good = folder("good", &web_and_client());
    let bad = folder("bad", &["kind: Pod\nmetadata: [\n".to_owned()]);
    let nowhere = Path::new("/nowhere");
    for (arguments, folders, said) in [
        (
            &["list"][..],
            vec![("--manifests", nowhere)],
            "/nowhere: No such file",
        ),
        (&["list"], vec![("--manifests", bad.as_path())], "0.yaml:"),
        (
            &["matrix", "--port", "80"],
            vec![("--manifests", bad.as_path())],
            "0.yaml:",
        ),
        (
            &["diff"],
            vec![("--manifests", good.as_path()), ("--against", nowhere)],
            "/nowhere: No such file",
        ),
        (&["diff"], vec![("--manifests", good.as_path())], "--against"),
        (
            &["list", "-o", "xml"],
            vec![("--manifests", good.as_path())],
            "dot",
        ),
    ] {
        let answered = egret(arguments, &folders);
        assert_eq!(answered.status, Some(2), "{arguments:?}");
        assert!(answered.stderr.contains(said), "{said}: {}", answered.stderr);
        assert_eq!(answered.stdout, "");
    }
}
