//! The mistakes that `egret lint` finds: for each, manifests that have it and the smallest change to them that
//! does not.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails there and then")]

use std::fs;
use std::path::Path;
use std::process::Command;

use egret_cli::lint::code::MISTAKES;
use egret_policies::diagnostic::Severity;
use serde_json::Value;

mod invocation;

use invocation::{Invocation, ProgramOutput, cluster_policy, network_policy, pod};

const V4: &str = "10.0.0.1";
const V6: &str = "fd00::1";

fn lint(test: &str, manifests: &str, options: &[&str]) -> ProgramOutput {
    let asked = Invocation::of(&format!("lint-{test}")).file("all.yaml", manifests);
    let mut command = Command::new(env!("CARGO_BIN_EXE_egret"));
    command
        .arg("lint")
        .arg("--manifests")
        .arg(asked.folder().join("manifests"))
        .args(options);
    invocation::run(command, "")
}

/// What is found: code, object and field.
fn found(test: &str, manifests: &str, options: &[&str]) -> Vec<String> {
    let options = [&["-o", "json"], options].concat();
    let answered = lint(test, manifests, &options);
    let rows = answered.rows();
    let counts = |row: &Value| row["severity"] != "info";
    let expected = i32::from(rows.iter().any(counts));
    assert_eq!(
        answered.status,
        Some(expected),
        "{}{}",
        answered.stdout,
        answered.stderr
    );
    rows.iter()
        .map(|row| {
            let word = |key: &str| row[key].as_str().unwrap_or("-").to_owned();
            format!("{} {} {}", word("code"), word("object"), word("field"))
        })
        .collect()
}

/// A pod with a container port.
fn serving(key: &str, labels: &str, name: &str, port: u16) -> String {
    let ports = format!("containers: [{{name: c, ports: [{{name: {name}, containerPort: {port}}}]}}]");
    pod(key, labels, &[V4]).replace("containers: []", &ports)
}

fn service(key: &str, spec: &str) -> String {
    let (namespace, name) = key.split_once('/').unwrap();
    format!(
        "---\napiVersion: v1\nkind: Service\nmetadata: {{name: {name}, namespace: {namespace}}}\nspec: {spec}\n"
    )
}

/// Manifests with a mistake are found to have it and nothing else, others nothing at all.
fn assert_found(test: &str, [with, without]: [&str; 2], options: &[&str], expected: &str) {
    assert_eq!(found(test, with, options), [expected], "{test}: with");
    let nothing: [&str; 0] = [];
    assert_eq!(found(test, without, options), nothing, "{test}: without");
}

#[test]
fn a_policy_that_selects_no_pod_is_found() {
    let of = |label: &str| {
        let policy = network_policy(
            "a/p",
            &format!("{{podSelector: {{matchLabels: {{app: {label}}}}}}}"),
        );
        pod("a/web", "app: web", &[V4]) + &policy
    };
    let expected = "EG1001 NetworkPolicy/a/p spec.podSelector";
    assert_found("nothing-selected", [&of("wbe"), &of("web")], &[], expected);
}

#[test]
fn policies_without_any_pod_beside_them_are_not_said_to_select_nothing() {
    let nothing: [&str; 0] = [];
    assert_eq!(
        found("no-pods", &network_policy("a/p", "{podSelector: {}}"), &[]),
        nothing
    );
}

#[test]
fn a_rule_behind_one_that_matches_all_of_it_is_found() {
    let rules = |first: &str| {
        let rules = format!(
            "egress: [{{action: Deny, to: [{{networks: [{first}]}}]}}, {{action: Accept, to: [{{networks: [10.1.0.0/16]}}]}}]"
        );
        pod("a/web", "app: web", &[V4]) + &cluster_policy("p", "Admin", &rules)
    };
    let expected = "EG1002 ClusterNetworkPolicy/p spec.egress[1]";
    assert_found(
        "hidden",
        [&rules("10.0.0.0/8"), &rules("10.2.0.0/16")],
        &[],
        expected,
    );
}

#[test]
fn a_rule_behind_a_policy_of_a_stronger_priority_is_found_if_all_its_pods_are_of_that_policy() {
    let of = |subject: &str, ports: &str| {
        let strong = format!(
            "ingress: [{{action: Accept, from: [{{namespaces: {{}}}}], protocols: [{{tcp: {{destinationPort: {ports}}}}}]}}]"
        );
        let strong = cluster_policy("strong", "Admin", &strong)
            .replace("priority: 10", "priority: 5")
            .replace(
                "subject: {namespaces: {}}",
                &format!("subject: {{namespaces: {subject}}}"),
            );
        let weak = "ingress: [{action: Deny, from: [{namespaces: {matchLabels: {team: web}}}], protocols: [{tcp: {destinationPort: {number: 80}}}]}]";
        pod("a/web", "app: web", &[V4]) + &strong + &cluster_policy("weak", "Admin", weak)
    };
    let wide = of("{}", "{range: {start: 1, end: 100}}");
    let expected = "EG1002 ClusterNetworkPolicy/weak spec.ingress[0]";
    let own = "{matchLabels: {kubernetes.io/metadata.name: a}}";
    assert_found(
        "narrower-ports",
        [&wide, &of("{}", "{number: 81}")],
        &[],
        expected,
    );
    assert_found(
        "narrower-subject",
        [&wide, &of(own, "{range: {start: 1, end: 100}}")],
        &[],
        expected,
    );
}

#[test]
fn a_rule_of_a_firewall_behind_a_wider_one_is_found() {
    let of = |first: &str| {
        pod("a/web", "app: web", &[V4])
            + "---\napiVersion: policy.egret.dev/v1alpha1\nkind: ClusterEgressFirewall\nmetadata: {name: f}\n"
            + &format!(
                "spec: {{services: {{exposure: Ignore}}, rules: [{{action: Deny, to: [{{networks: [{first}]}}]}}, {{action: Allow, to: [{{networks: [10.1.0.0/16]}}]}}]}}\n"
            )
    };
    let expected = "EG1002 ClusterEgressFirewall/f spec.rules[1]";
    assert_found(
        "hidden-in-firewall",
        [&of("10.0.0.0/8"), &of("10.2.0.0/16")],
        &[],
        expected,
    );
}

#[test]
fn equal_priorities_are_found_where_policies_may_be_about_one_pod() {
    let of = |namespace: &str| {
        let rules = "ingress: [{action: Deny, from: [{namespaces: {}}]}]";
        let other = cluster_policy(
            "other",
            "Admin",
            "ingress: [{action: Accept, from: [{pods: {podSelector: {}}}]}]",
        );
        let named = |text: String, name: &str| {
            let subject =
                format!("subject: {{namespaces: {{matchLabels: {{kubernetes.io/metadata.name: {name}}}}}}}");
            text.replace("subject: {namespaces: {}}", &subject)
        };
        pod("a/web", "app: web", &[V4])
            + &pod("b/web", "app: web", &["10.0.0.2"])
            + &named(cluster_policy("one", "Admin", rules), "a")
            + &named(other, namespace)
    };
    let equal = found("equal", &of("a"), &[]);
    assert_eq!(
        equal[..2],
        [
            "EG0119 ClusterNetworkPolicy/one spec.priority",
            "EG0119 ClusterNetworkPolicy/other spec.priority"
        ]
    );
    let nothing: [&str; 0] = [];
    assert_eq!(found("equal-but-disjoint", &of("b"), &[]), nothing);
}

#[test]
fn all_of_one_family_is_found_where_pods_have_both() {
    let of = |networks: &str, addresses: &[&str]| {
        let rules = format!("egress: [{{action: Deny, to: [{{networks: [{networks}]}}]}}]");
        pod("a/web", "app: web", addresses) + &cluster_policy("p", "Admin", &rules)
    };
    let expected = "EG1003 ClusterNetworkPolicy/p spec.egress[0]";
    for (test, half) in [("v4", "0.0.0.0/0"), ("v6", "'::/0'")] {
        let with = of(half, &[V4, V6]);
        assert_found(test, [&with, &of("0.0.0.0/0, '::/0'", &[V4, V6])], &[], expected);
    }
    let nothing: [&str; 0] = [];
    assert_eq!(found("single-stack", &of("0.0.0.0/0", &[V4]), &[]), nothing);
}

#[test]
fn the_other_family_may_be_in_another_rule() {
    let rules = "{podSelector: {}, egress: [{to: [{ipBlock: {cidr: 0.0.0.0/0}}]}, {to: [{ipBlock: {cidr: '::/0'}}]}]}";
    let manifests = pod("a/web", "app: web", &[V4, V6]) + &network_policy("a/p", rules);
    let nothing: [&str; 0] = [];
    assert_eq!(found("other-rule", &manifests, &[]), nothing);
}

#[test]
fn a_named_port_that_no_pod_serves_is_found() {
    for direction in [
        "ingress",
        "egress: [{to: [{podSelector: {}}], ports: [{port: NAME}]}], ingress",
    ] {
        let of = |name: &str| {
            let rules = format!("{{podSelector: {{}}, {direction}: [{{ports: [{{port: http}}]}}]}}")
                .replace("NAME", name);
            let rules = if direction == "ingress" {
                rules.replace("http", name)
            } else {
                rules
            };
            serving("a/web", "app: web", "http", 8080) + &network_policy("a/p", &rules)
        };
        let side = if direction == "ingress" {
            "ingress"
        } else {
            "egress"
        };
        let expected = format!("EG1004 NetworkPolicy/a/p spec.{side}[0]");
        assert_found(
            &format!("named-{side}"),
            [&of("htttp"), &of("http")],
            &[],
            &expected,
        );
    }
}

#[test]
fn a_named_port_of_another_protocol_is_not_served() {
    let of = |protocol: &str| {
        let rules =
            format!("{{podSelector: {{}}, ingress: [{{ports: [{{port: http, protocol: {protocol}}}]}}]}}");
        serving("a/web", "app: web", "http", 8080) + &network_policy("a/p", &rules)
    };
    let expected = "EG1004 NetworkPolicy/a/p spec.ingress[0]";
    assert_found("named-protocol", [&of("UDP"), &of("TCP")], &[], expected);
}

#[test]
fn the_port_of_a_service_is_found_where_its_pods_listen_elsewhere() {
    let of = |port: u16, target: &str| {
        let rules = format!("{{podSelector: {{}}, ingress: [{{ports: [{{port: {port}}}]}}]}}");
        serving("a/web", "app: web", "http", 8080)
            + &service(
                "a/web",
                &format!("{{selector: {{app: web}}, ports: [{{port: 80, targetPort: {target}}}]}}"),
            )
            + &network_policy("a/p", &rules)
    };
    let expected = "EG1005 NetworkPolicy/a/p spec.ingress[0]";
    assert_found(
        "service-port",
        [&of(80, "8080"), &of(8080, "8080")],
        &[],
        expected,
    );
    assert_found(
        "service-port-named",
        [&of(80, "http"), &of(80, "80")],
        &[],
        expected,
    );
}

#[test]
fn the_port_of_a_service_is_right_where_another_pod_may_listen_there() {
    let rules = "{podSelector: {}, ingress: [{ports: [{port: 80}]}]}";
    let manifests = serving("a/web", "app: web", "http", 8080)
        + &pod("a/other", "app: other", &["10.0.0.2"])
        + &service(
            "a/web",
            "{selector: {app: web}, ports: [{port: 80, targetPort: 8080}]}",
        )
        + &network_policy("a/p", rules);
    let nothing: [&str; 0] = [];
    assert_eq!(found("service-port-of-some", &manifests, &[]), nothing);
}

/// A policy with a name, then a Deny of everything else; before them, maybe DNS.
fn by_name(tier: &str, name: &str, before: &str) -> String {
    let rules = format!(
        "egress: [{before}{{action: Accept, to: [{{domainNames: ['{name}']}}]}}, {{action: Deny, to: [{{networks: [0.0.0.0/0, '::/0']}}]}}]"
    );
    cluster_policy("p", tier, &rules)
}

const ALLOW_DNS: &str = "{action: Accept, to: [{networks: [10.0.0.53/32]}], protocols: [{udp: {destinationPort: {number: 53}}}, {tcp: {destinationPort: {number: 53}}}]}, ";

#[test]
fn dns_that_is_blocked_for_a_pod_with_names_is_found_for_each_protocol() {
    let of = |before: &str| pod("a/web", "app: web", &[V4]) + &by_name("Admin", "api.example.com", before);
    let options = ["--dns", "10.0.0.53"];
    let at = |rule: usize| format!("EG1006 ClusterNetworkPolicy/p spec.egress[{rule}]");
    assert_eq!(found("dns-blocked", &of(""), &options), [at(0), at(0)]);
    let udp_only = ALLOW_DNS.replace(", {tcp: {destinationPort: {number: 53}}}", "");
    assert_found("dns-tcp", [&of(&udp_only), &of(ALLOW_DNS)], &options, &at(1));
}

#[test]
fn dns_is_also_blocked_by_the_policies_of_its_own_pods() {
    let of = |rules: &str| {
        pod("a/web", "app: web", &[V4])
            + &pod("kube-system/dns", "k8s-app: kube-dns", &["10.0.0.53"])
            + &by_name("Admin", "api.example.com", ALLOW_DNS)
            + &network_policy(
                "kube-system/p",
                &format!("{{podSelector: {{}}, ingress: [{{ports: [{rules}]}}]}}"),
            )
    };
    let both = "{port: 53}, {port: 53, protocol: UDP}";
    let expected = "EG1006 ClusterNetworkPolicy/p spec.egress[1]";
    assert_found("dns-pods", [&of("{port: 53}"), &of(both)], &[], expected);
}

#[test]
fn a_network_policy_does_not_keep_pods_from_dns_on_their_own_node() {
    let node = "---\napiVersion: v1\nkind: Node\nmetadata: {name: n1}\n\
                status: {addresses: [{type: InternalIP, address: 10.9.0.1}]}\n";
    let allowed = "egress: [{action: Accept, to: [{domainNames: [api.example.com]}]}]";
    let manifests = pod("a/web", "app: web", &[V4])
        + node
        + &network_policy("a/p", "{podSelector: {}, policyTypes: [Egress]}")
        + &cluster_policy("p", "Admin", allowed);
    let at = "EG1006 ClusterNetworkPolicy/p spec.egress[0]";
    assert_eq!(
        found("dns-elsewhere", &manifests, &["--dns", "10.9.0.2"]),
        [at, at]
    );
    let nothing: [&str; 0] = [];
    assert_eq!(found("dns-on-node", &manifests, &["--dns", "10.9.0.1"]), nothing);
}

#[test]
fn without_a_dns_server_that_is_known_there_is_an_info() {
    let manifests = pod("a/web", "app: web", &[V4]) + &by_name("Admin", "api.example.com", ALLOW_DNS);
    let expected = "EG1007 ClusterNetworkPolicy/p spec.egress[1]";
    assert_eq!(found("dns-unknown", &manifests, &[]), [expected]);
    let nothing: [&str; 0] = [];
    assert_eq!(found("dns-known", &manifests, &["--dns", "10.0.0.53"]), nothing);
}

#[test]
fn the_name_of_a_service_with_a_cluster_address_is_found() {
    let of = |name: &str, address: &str| {
        pod("a/web", "app: web", &[V4])
            + &service(
                "a/web",
                &format!("{{selector: {{app: web}}, {address}ports: [{{port: 80}}]}}"),
            )
            + &by_name("Admin", name, ALLOW_DNS)
    };
    let options = ["--dns", "10.0.0.53"];
    let expected = "EG1008 ClusterNetworkPolicy/p spec.egress[1]";
    let headless = of("web.a.svc.cluster.local", "clusterIP: None, ");
    for (test, name) in [
        ("exact", "web.a.svc.cluster.local"),
        ("wildcard", "*.svc.cluster.local"),
    ] {
        let with = of(name, "clusterIP: 10.96.0.1, ");
        assert_found(&format!("service-{test}"), [&with, &headless], &options, expected);
    }
    let other = of("api.a.svc.cluster.local", "");
    assert_found(
        "service-other",
        [&of("web.a.svc.cluster.local", ""), &other],
        &options,
        expected,
    );
}

#[test]
fn names_in_the_baseline_tier_are_an_info() {
    let of = |tier: &str| pod("a/web", "app: web", &[V4]) + &by_name(tier, "api.example.com", ALLOW_DNS);
    let expected = "EG1009 ClusterNetworkPolicy/p spec.egress[1]";
    assert_found(
        "baseline",
        [&of("Baseline"), &of("Admin")],
        &["--dns", "10.0.0.53"],
        expected,
    );
}

#[test]
fn a_workload_with_the_name_of_a_pod_is_found() {
    let of = |name: &str| {
        pod("a/web", "app: web", &[V4])
            + &format!(
                "---\napiVersion: apps/v1\nkind: Deployment\nmetadata: {{name: {name}, namespace: a}}\n\
                 spec: {{template: {{metadata: {{labels: {{app: web}}}}, spec: {{containers: []}}}}}}\n"
            )
    };
    let expected = "EG1010 Pod/a/web metadata.name";
    assert_found("same-name", [&of("web"), &of("other")], &[], expected);
}

#[test]
fn diagnostics_of_reading_are_findings_with_file_line_and_fix() {
    let manifests = pod("a/web", "app: web", &[V4])
        + &network_policy("a/p", "\n  podSelector: {}\n  ingress:\n  - form: []");
    let answered = lint("diagnostic", &manifests, &["-o", "json"]);
    assert_eq!(answered.status, Some(1), "{}", answered.stderr);
    let [row] = answered.rows().try_into().unwrap();
    assert_eq!(
        (&row["code"], &row["severity"]),
        (&"EG0103".into(), &"error".into())
    );
    assert_eq!(row["field"], "spec.ingress[0].form");
    assert!(row["file"].as_str().unwrap().ends_with("all.yaml"), "{row}");
    let line = 1 + manifests.lines().position(|line| line.contains("form")).unwrap();
    assert_eq!(row["line"], line);
    assert!(
        row["found"].as_str().unwrap().contains("one of from, ports"),
        "{row}"
    );
    assert!(
        row["fix"].as_str().unwrap().starts_with("Correct its name"),
        "{row}"
    );
}

#[test]
fn a_finding_in_a_rule_has_the_line_of_the_rule() {
    let manifests = serving("a/web", "app: web", "http", 8080)
        + &network_policy(
            "a/p",
            "\n  podSelector: {}\n  ingress:\n  - {}\n  - ports: [{port: htttp}]",
        );
    let answered = lint("line", &manifests, &["-o", "json"]);
    let [row] = answered.rows().try_into().unwrap();
    let line = 1 + manifests.lines().position(|line| line.contains("htttp")).unwrap();
    assert_eq!((&row["code"], &row["line"]), (&"EG1004".into(), &line.into()));
}

#[test]
fn tables_fit_100_columns_and_have_no_colours_in_a_pipe() {
    let manifests =
        pod("a/web", "app: web", &[V4, V6]) + &by_name("Admin", "*.very-long-name.of-a-zone.example.com", "");
    let answered = lint("table", &manifests, &["--dns", "10.0.0.53"]);
    assert_eq!(answered.status, Some(1), "{}", answered.stderr);
    assert!(
        answered.stdout.ends_with("0 errors, 2 warnings, 0 infos\n"),
        "{}",
        answered.stdout
    );
    for line in answered.stdout.lines() {
        assert!(line.chars().count() <= 100 && !line.contains('\u{1b}'), "{line}");
    }
}

#[test]
fn yaml_has_the_same_findings_as_json() {
    let manifests =
        pod("a/web", "app: web", &[V4]) + &network_policy("a/p", "{podSelector: {matchLabels: {app: x}}}");
    let answered = lint("yaml", &manifests, &["-o", "yaml"]);
    assert_eq!(answered.status, Some(1));
    assert!(answered.stdout.starts_with("- file: "), "{}", answered.stdout);
    assert!(
        answered.stdout.contains("  code: EG1001\n"),
        "{}",
        answered.stdout
    );
}

#[test]
fn what_cannot_be_read_ends_with_2() {
    for manifests in ["a: [", "kind: Pod\napiVersion: v1\n"] {
        let answered = lint("unreadable", manifests, &[]);
        assert_eq!((answered.status, answered.stdout.as_str()), (Some(2), ""));
        assert!(answered.stderr.contains("all.yaml:"), "{}", answered.stderr);
    }
}

#[test]
fn a_pipe_is_linted_though_it_can_be_read_only_once() {
    let manifests = pod("a/web", "app: web", &[V4])
        + &network_policy(
            "a/p",
            "{podSelector: {matchLabels: {app: wbe}}, ingress: [{form: []}]}",
        );
    let asked = Invocation::of("lint-pipe");
    let pipe = asked.folder().join("pipe.yaml");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let mut command = Command::new(env!("CARGO_BIN_EXE_egret"));
    command.args(["lint", "-o", "json", "--manifests"]).arg(&pipe);
    let writer = std::thread::spawn(move || fs::write(pipe, manifests).unwrap());
    let answered = invocation::run(command, "");
    writer.join().unwrap();
    assert_eq!(answered.status, Some(1), "{}", answered.stderr);
    let rows = answered.rows();
    let codes: Vec<&Value> = rows.iter().map(|row| &row["code"]).collect();
    assert_eq!(codes, ["EG0103", "EG1001"]);
    assert_eq!(rows[1]["line"], 11, "{}", rows[1]);
}

#[test]
fn the_examples_are_free_of_errors_and_warnings() {
    let examples = Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/examples/by-name");
    let mut command = Command::new(env!("CARGO_BIN_EXE_egret"));
    command.arg("lint").arg("--manifests").arg(examples);
    command.args(["--dns", "169.254.20.10", "--dns", "fd00:53::10"]);
    let answered = invocation::run(command, "");
    assert_eq!(
        (answered.status, answered.stdout.as_str()),
        (Some(0), "nothing found\n")
    );
}

#[test]
fn the_document_has_every_code_with_its_words() {
    let document = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/egret-lint.md");
    let document = fs::read_to_string(document).unwrap();
    for mistake in MISTAKES {
        let severity = match mistake.severity {
            Severity::Error => "error",
            Severity::Warning => "warning",
            Severity::Info => "info",
        };
        let row = format!(
            "| {} | {severity} | {} | {} |",
            mistake.id, mistake.title, mistake.fix
        );
        assert!(document.contains(&row), "missing: {row}");
    }
    let rows = document.lines().filter(|line| line.starts_with("| EG1")).count();
    assert_eq!(rows, MISTAKES.len());
}
