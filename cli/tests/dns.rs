//! dnsd in the place of kube-dns: `--dns-address` and `--dns-service`.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails there and then")]

use std::process::Command;

use serde_json::{Value, json};

mod invocation;

use invocation::{Invocation, ProgramOutput, cluster_policy, network_policy, pod};

const DNSD: &str = "169.254.20.10";
const AT_DNSD: &str = "--dns-address=169.254.20.10";
const SERVICE: &str = "---\napiVersion: v1\nkind: Service\nmetadata: {name: kube-dns, namespace: kube-system}\n\
                       spec: {selector: {k8s-app: kube-dns}, clusterIP: 10.96.0.10, ports: [{name: dns, protocol: UDP, port: 53}, {name: dns-tcp, port: 53}]}\n";
const KUBE_DNS: &str = "{namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: kube-system}}, podSelector: {matchLabels: {k8s-app: kube-dns}}}";
const PORTS: &str = "ports: [{protocol: UDP, port: 53}, {protocol: TCP, port: 53}]";

fn allow_dns() -> String {
    network_policy(
        "a/allow-dns",
        &format!("{{podSelector: {{}}, policyTypes: [Egress], egress: [{{to: [{KUBE_DNS}], {PORTS}}}]}}"),
    )
}

/// A client of node n1, and a DNS server of another one.
fn pods() -> String {
    pod("a/client", "app: client", &["10.0.0.1"])
        + &pod("kube-system/coredns-1", "k8s-app: kube-dns", &["10.0.1.1"]).replace("n1", "n2")
}

fn cluster(test: &str) -> Invocation {
    Invocation::of(test).manifest(&pods()).manifest(SERVICE)
}

fn udp(asked: Invocation, to: &str, port: u16) -> Invocation {
    asked.probe(&format!(
        r#"{{"id":"udp","from":"a/client","to":{{"ip":"{to}"}},"protocol":"UDP","port":{port}}}"#
    ))
}

/// Verdict, tier and policy of what the source's side says.
fn egress(row: &Value) -> String {
    let end = &row["egress"];
    let word = |field: &str| end[field].as_str().unwrap_or("-").to_owned();
    format!("{} {} {}", word("verdict"), word("tier"), word("policy"))
}

fn listed(asked: &Invocation, options: &[&str]) -> ProgramOutput {
    let mut command = Command::new(env!("CARGO_BIN_EXE_egret"));
    command
        .args(["list", "-o", "json", "--manifests"])
        .arg(asked.folder().join("manifests"));
    command.args(options);
    invocation::run(command, "")
}

#[test]
fn a_rule_that_was_written_for_kube_dns_is_about_dnsd() {
    let asked = || {
        let asked = cluster("dns_rule").manifest(&allow_dns());
        udp(asked, DNSD, 53)
            .tcp("a/client", DNSD, 53)
            .tcp("a/client", DNSD, 80)
    };
    let with: Vec<String> = asked().option(AT_DNSD).rows().iter().map(egress).collect();
    let own_node = "allow np own-node";
    let by_rule = "allow np NetworkPolicy/a/allow-dns";
    assert_eq!(with, [by_rule, by_rule, own_node]);
    let without: Vec<String> = asked().rows().iter().map(egress).collect();
    assert_eq!(without, ["deny np -"; 3], "nobody said that this is the node's");
}

#[test]
fn other_ports_of_the_address_are_not_dnsd() {
    let rules = format!(
        "egress: [{{action: Accept, to: [{{pods: {KUBE_DNS}}}]}}, {{action: Deny, to: [{{networks: [169.254.0.0/16]}}]}}]"
    );
    let asked = cluster("dns_ports").manifest(&cluster_policy("dns", "Admin", &rules));
    let asked = udp(udp(asked, DNSD, 53), DNSD, 54)
        .tcp("a/client", DNSD, 53)
        .tcp("a/client", DNSD, 80);
    let words: Vec<String> = asked.option(AT_DNSD).rows().iter().map(egress).collect();
    let [allow, deny] = ["allow", "deny"].map(|word| format!("{word} admin ClusterNetworkPolicy/dns"));
    assert_eq!(words, [&allow, &deny, &allow, &deny].map(String::clone));
}

#[test]
fn a_deny_of_kube_dns_denies_dnsd() {
    let rules = format!(
        "egress: [{{action: Deny, to: [{{pods: {KUBE_DNS}}}], protocols: [{{udp: {{destinationPort: {{number: 53}}}}}}]}}]"
    );
    let asked = cluster("dns_deny").manifest(&cluster_policy("no-dns", "Admin", &rules));
    let asked = udp(asked, DNSD, 53).tcp("a/client", DNSD, 53);
    let words: Vec<String> = asked.option(AT_DNSD).rows().iter().map(egress).collect();
    assert_eq!(
        words,
        ["deny admin ClusterNetworkPolicy/no-dns", "allow default -"]
    );
}

#[test]
fn dnsd_is_an_address_of_every_node_to_a_firewall() {
    let firewall = "---\napiVersion: policy.egret.dev/v1alpha1\nkind: ClusterEgressFirewall\nmetadata: {name: nodes}\n\
                    spec: {priority: 1, services: {exposure: Ignore}, rules: [{action: Deny, to: [{nodes: {}}]}]}\n";
    let asked = cluster("dns_firewall").manifest(firewall).manifest(&allow_dns());
    let words: Vec<String> = udp(asked, DNSD, 53)
        .option(AT_DNSD)
        .rows()
        .iter()
        .map(egress)
        .collect();
    assert_eq!(words, ["deny cef ClusterEgressFirewall/nodes"]);
}

#[test]
fn dnsd_at_the_address_of_its_service_is_asked_there() {
    let rules = format!("egress: [{{action: Accept, to: [{{pods: {KUBE_DNS}}}]}}]");
    let asked = || {
        let asked = cluster("dns_service_address").manifest(&cluster_policy("dns", "Admin", &rules));
        udp(asked, "10.96.0.10", 53)
    };
    let taken_over = asked().option("--dns-address=10.96.0.10").rows();
    assert_eq!(egress(&taken_over[0]), "allow admin ClusterNetworkPolicy/dns");
    assert_eq!(taken_over[0]["endpoints"], Value::Null);
    assert_eq!(asked().rows()[0]["endpoints"][0]["pod"], "kube-system/coredns-1");
}

#[test]
fn another_service_may_be_named_and_one_that_has_no_pods_is_remarked() {
    let rules = "egress: [{action: Accept, to: [{namespaces: {matchLabels: {kubernetes.io/metadata.name: dns}}}]}, {action: Deny, to: [{networks: [169.254.0.0/16]}]}]";
    let asked = |test| {
        let elsewhere = (pods() + SERVICE).replace("kube-system", "dns");
        let asked = Invocation::of(test)
            .manifest(&elsewhere)
            .manifest(&cluster_policy("dns", "Admin", rules));
        udp(asked, DNSD, 53).option(AT_DNSD)
    };
    let named = asked("dns_named").option("--dns-service=dns/kube-dns").answer();
    assert_eq!(
        (named.rows()[0]["verdict"].as_str(), named.stderr.as_str()),
        (Some("allow"), "")
    );
    let usual = asked("dns_unnamed").answer();
    assert_eq!(usual.rows()[0]["verdict"], "deny");
    let remark =
        "dnsd stands in for no pod of Service kube-system/kube-dns: the manifests have no such Service";
    assert!(usual.stderr.contains(remark), "{}", usual.stderr);
}

#[test]
fn a_service_without_dnsd_is_bad_usage() {
    let asked = udp(cluster("dns_usage"), DNSD, 53)
        .option("--dns-service=dns/kube-dns")
        .answer();
    assert_eq!(asked.status, Some(2));
    assert!(asked.stderr.contains("--dns-address"), "{}", asked.stderr);
}

#[test]
fn dnsd_is_listed_as_an_address_of_the_own_node() {
    let rules = format!(
        "egress: [{{action: Accept, to: [{{pods: {KUBE_DNS}}}]}}, {{action: Deny, to: [{{networks: [\"0.0.0.0/0\"]}}]}}]"
    );
    let node = "---\napiVersion: v1\nkind: Node\nmetadata: {name: n1}\nstatus: {addresses: [{type: InternalIP, address: 192.0.2.1}]}\n";
    let asked = cluster("dns_list")
        .manifest(node)
        .manifest(&cluster_policy("dns", "Admin", &rules));
    let listed = listed(&asked, &[AT_DNSD]);
    assert_eq!(listed.status, Some(0), "{}", listed.stderr);
    let rows = listed.rows();
    let of_client = |row: &&Value| row["from"]["workload"] == "a/client" && row["to"]["ownNode"] == true;
    let own: Vec<&Value> = rows.iter().filter(of_client).collect();
    let [only] = own.as_slice() else {
        panic!("{}", listed.stdout);
    };
    assert_eq!(only["to"]["networks"], json!(["169.254.20.10/32"]));
    assert_eq!(
        [
            &only["ports"]["UDP"],
            &only["ports"]["TCP"],
            &only["ports"]["ICMP"]
        ],
        [&json!(["53"]), &json!(["53"]), &json!(false)]
    );
}
