//! Peers whose addresses are found out from the whole cluster, explained: nodes, the API server, what is outside, and
//! dnsd in the place of pods.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails there and then")]

use serde_json::Value;

mod invocation;

use invocation::{Invocation, cluster_policy, leads_to_its_end, pod};

const CLUSTER: &str = r#"apiVersion: v1
kind: Node
metadata: {name: n1, labels: {pool: a}}
spec: {podCIDRs: [10.0.0.0/24]}
status: {addresses: [{type: InternalIP, address: 192.0.2.1}]}
---
apiVersion: v1
kind: Node
metadata: {name: n2, labels: {pool: b}}
status: {addresses: [{type: InternalIP, address: 192.0.2.2}]}
---
apiVersion: policy.egret.dev/v1alpha1
kind: NodeAddressReport
metadata: {name: n1}
spec: {addresses: [192.0.2.1, 172.17.0.1]}
---
apiVersion: policy.egret.dev/v1alpha1
kind: NodeAddressReport
metadata: {name: n2}
spec: {addresses: [192.0.2.2, 198.18.0.2]}
---
apiVersion: policy.egret.dev/v1alpha1
kind: APIServerAddresses
metadata: {name: lb}
spec: {addresses: [203.0.113.100]}
---
apiVersion: v1
kind: Service
metadata: {name: kubernetes, namespace: default}
spec: {clusterIP: 10.96.0.1, ports: [{port: 443}]}
---
apiVersion: v1
kind: Service
metadata: {name: web, namespace: shop}
spec: {clusterIP: 10.96.0.2, selector: {app: web}, ports: [{port: 80}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: kubernetes, namespace: default, labels: {kubernetes.io/service-name: kubernetes}}
addressType: IPv4
endpoints: [{addresses: [192.0.2.2]}]
ports: [{port: 6443, protocol: TCP}]
---
apiVersion: v1
kind: Service
metadata: {name: kube-dns, namespace: kube-system}
spec: {selector: {k8s-app: kube-dns}, clusterIP: 10.96.0.10, ports: [{name: dns, protocol: UDP, port: 53}]}
"#;

fn cluster(test: &str) -> Invocation {
    let dns = pod("kube-system/coredns", "k8s-app: kube-dns", &["10.0.1.1"]).replace(
        "containers: []",
        "containers: [{name: c, ports: [{name: dns, containerPort: 53, protocol: UDP}]}]",
    );
    Invocation::of(test)
        .manifest(CLUSTER)
        .manifest(&pod("shop/client", "app: client", &["10.0.0.1"]))
        .manifest(&pod("shop/web", "app: web", &["10.0.0.2"]))
        .manifest(&dns)
        .option("--dns-address=169.254.20.10")
}

/// Whether the peer of the only rule matches, and why; the whole explanation leads to its verdict.
fn peer_of(explanation: &Value, tier: usize) -> (bool, String) {
    let egress = &explanation["connections"][0]["egress"];
    assert_eq!(leads_to_its_end(egress), Ok(()), "{egress}");
    let peer = &egress["tiers"][tier]["policies"][0]["rules"][0]["peer"];
    (
        peer["matches"].as_bool().unwrap(),
        peer["because"].as_str().unwrap().to_owned(),
    )
}

#[test]
fn peers_of_a_firewall_are_explained_by_what_is_known_of_the_address() {
    let rows = [
        (
            "nodes: {}",
            "192.0.2.2",
            80,
            true,
            "192.0.2.2 is an address of node n2 (its status): whatever its labels",
        ),
        (
            "nodes: {}",
            "198.18.0.2",
            80,
            true,
            "198.18.0.2 is an address of node n2 (NodeAddressReport): whatever its labels",
        ),
        (
            "nodes: {}",
            "172.17.0.1",
            80,
            true,
            "172.17.0.1 is an address of node n1 (NodeAddressReport): whatever its labels",
        ),
        (
            "nodes: {}",
            "169.254.20.10",
            53,
            true,
            "169.254.20.10 is an address of node n1 (dnsd answers there): whatever its labels",
        ),
        (
            "nodes: {selector: {matchLabels: {pool: a}}}",
            "192.0.2.2",
            80,
            false,
            "node n2 has pool=b, not pool=a",
        ),
        (
            "nodes: {}",
            "203.0.113.7",
            80,
            false,
            "203.0.113.7 is no node's, neither by status nor by NodeAddressReport",
        ),
        (
            "nodes: {}",
            "10.0.0.2",
            80,
            false,
            "10.0.0.2 is pod shop/web's, and no node's",
        ),
        (
            "external: {}",
            "203.0.113.7",
            80,
            true,
            "203.0.113.7 is in 0.0.0.0/0, and no pod's or Service's",
        ),
        (
            "external: {}",
            "10.0.0.2",
            80,
            false,
            "10.0.0.2 is pod shop/web's, and the rule is about what is outside of the cluster; 10.0.0.2 is pod shop/web's, and no node's",
        ),
        (
            "external: {}",
            "10.96.0.2",
            81,
            false,
            "10.96.0.2 is Service shop/web's, and the rule is about what is outside of the cluster; 10.96.0.2 is Service shop/web's, and no node's",
        ),
        (
            "external: {}",
            "10.0.0.77",
            80,
            false,
            "10.0.0.77 is in 10.0.0.0/24, the network of the pods of node n1, and the rule is about what is outside of the cluster; 10.0.0.77 is in 10.0.0.0/24, the network of the pods of node n1, and no node's",
        ),
        (
            "apiServer: {}",
            "10.96.0.1",
            443,
            true,
            "192.0.2.2 is the API server (an endpoint in EndpointSlice default/kubernetes) at TCP/6443",
        ),
        (
            "apiServer: {}",
            "10.96.0.1",
            80,
            false,
            "10.96.0.1 is the API server (Service default/kubernetes) at TCP/443, and not at TCP/80",
        ),
        (
            "apiServer: {}",
            "192.0.2.2",
            6443,
            true,
            "192.0.2.2 is the API server (an endpoint in EndpointSlice default/kubernetes) at TCP/6443",
        ),
        (
            "apiServer: {}",
            "198.18.0.2",
            6443,
            true,
            "198.18.0.2 is the API server (an address of node n2, on which the endpoint 192.0.2.2 is (EndpointSlice default/kubernetes)) at TCP/6443",
        ),
        (
            "apiServer: {}",
            "203.0.113.100",
            22,
            true,
            "203.0.113.100 is the API server (APIServerAddresses lb) at TCP/22",
        ),
        (
            "apiServer: {}",
            "192.0.2.1",
            6443,
            false,
            "192.0.2.1 is not the API server: not its Service default/kubernetes, no endpoint of it, no address of a node that has one, and in no APIServerAddresses",
        ),
    ];
    for (number, (peer, to, port, matches, because)) in rows.into_iter().enumerate() {
        let firewall = format!(
            "apiVersion: policy.egret.dev/v1alpha1\nkind: ClusterEgressFirewall\nmetadata: {{name: f}}\n\
             spec: {{priority: 1, services: {{exposure: Ignore}}, rules: [{{action: Deny, to: [{{{peer}}}]}}]}}\n"
        );
        let asked = cluster(&format!("explain-place-{number}")).manifest(&firewall);
        let explanation = asked.tcp("shop/client", to, port).explanations().remove(0);
        assert_eq!(
            peer_of(&explanation, 0),
            (matches, because.to_owned()),
            "{peer} {to} {port}"
        );
    }
}

const STANDS: &str = "169.254.20.10 stands in for kube-system/kube-dns at port 53";

fn of_dnsd(number: usize, peer: &str, ports: &str, protocol: &str, port: u16) -> Value {
    let rules = format!("egress: [{{action: Deny, to: [{peer}]{ports}}}]");
    let probe = format!(
        r#"{{"id":"dns","from":"shop/client","to":{{"ip":"169.254.20.10"}},"protocol":"{protocol}","port":{port}}}"#
    );
    let asked = cluster(&format!("explain-dnsd-{number}")).manifest(&cluster_policy("dns", "Admin", &rules));
    asked.probe(&probe).explanations().remove(0)
}

#[test]
fn dnsd_is_explained_by_the_pods_in_whose_place_it_answers() {
    let kube_dns = "{pods: {namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: kube-system}}, podSelector: {matchLabels: {k8s-app: kube-dns}}}}";
    let others = "{pods: {namespaceSelector: {}, podSelector: {matchLabels: {app: web}}}}";
    let selected = "kube-system/coredns is in namespace kube-system (has kubernetes.io/metadata.name=kube-system), has k8s-app=kube-dns";
    for (number, (peer, protocol, port, matches, because)) in [
        (kube_dns, "UDP", 53, true, format!("{STANDS}: {selected}")),
        (kube_dns, "TCP", 53, true, format!("{STANDS}: {selected}")),
        (
            kube_dns,
            "TCP",
            80,
            false,
            format!("{STANDS} over UDP and TCP, and not at TCP/80"),
        ),
        (
            others,
            "UDP",
            53,
            false,
            format!("{STANDS}, and pod kube-system/coredns has no label app, not app=web"),
        ),
    ]
    .into_iter()
    .enumerate()
    {
        let explanation = of_dnsd(number, peer, "", protocol, port);
        assert_eq!(
            peer_of(&explanation, 1),
            (matches, because),
            "{peer} {protocol}/{port}"
        );
        let verdict = if matches { "deny" } else { "allow" };
        assert_eq!(explanation["verdict"], verdict, "{peer} {protocol}/{port}");
    }
    let named = of_dnsd(
        9,
        kube_dns,
        ", protocols: [{destinationNamedPort: dns}]",
        "UDP",
        53,
    );
    assert_eq!(named["verdict"], "deny");
    let port = &named["connections"][0]["egress"]["tiers"][1]["policies"][0]["rules"][0]["port"];
    assert_eq!(
        port["because"],
        "UDP/53 is in port \"dns\" (UDP/53 at kube-system/coredns)"
    );
    let ingress = &named["connections"][0]["ingress"];
    assert_eq!(ingress["of"], "dnsd (169.254.20.10)");
    assert_eq!(
        ingress["because"],
        "dnsd answers at 169.254.20.10 on every node, and no policy is about nodes"
    );
}

/// What is proposed for a pod that may not ask is the rule for kube-dns that everybody knows.
#[test]
fn the_way_to_let_a_pod_ask_dnsd_is_a_rule_for_the_pods_of_the_service() {
    let proposal = |extra: &str| {
        let rules =
            format!("egress: [{extra}{{name: no, action: Deny, to: [{{networks: [169.254.0.0/16]}}]}}]");
        let asked = cluster("explain-dnsd-way").manifest(&cluster_policy("dns", "Admin", &rules));
        let explanation = asked
            .tcp("shop/client", "169.254.20.10", 53)
            .explanations()
            .remove(0);
        let how = &explanation["connections"][0]["change"]["how"][0];
        (explanation["verdict"].clone(), how.as_str().unwrap().to_owned())
    };
    let (denied, how) = proposal("");
    assert_eq!(denied, "deny");
    assert!(
        how.contains("podSelector: {matchLabels: {k8s-app: kube-dns}}"),
        "{how}"
    );
    let (_, rule) = how.split_once("the rule ").unwrap();
    assert_eq!(proposal(&format!("{rule}, ")).0, "allow", "{how}");
}

/// The documentation of NetworkPolicy exempts the own node: by whatever address.
#[test]
fn an_address_that_is_reported_of_a_node_is_its_pods_own_node() {
    let isolated = invocation::network_policy("shop/isolated", "{podSelector: {}, policyTypes: [Egress]}");
    let words = cluster("explain-reported")
        .manifest(&isolated)
        .tcp("shop/client", "172.17.0.1", 80)
        .tcp("shop/client", "198.18.0.2", 80)
        .words();
    assert_eq!(words, ["allow np none", "deny np none"]);
}

/// The rule that is proposed for a ClusterEgressFirewall has the fields of its kind, and opens what it is to open.
#[test]
fn the_way_past_a_firewall_is_a_rule_of_its_kind() {
    let firewall = |rules: &str| {
        format!(
            "---\napiVersion: policy.egret.dev/v1alpha1\nkind: ClusterEgressFirewall\nmetadata: {{name: f}}\nspec: {{rules: [{rules}]}}\n"
        )
    };
    let deny = "{action: Deny, to: [{external: {}}]}";
    for (number, (to, protocol, port, expected)) in [
        (
            "192.0.2.2",
            "TCP",
            6443,
            "{action: Allow, to: [{apiServer: {}}], protocols: [{tcp: {destinationPort: {number: 6443}}}]}",
        ),
        (
            "198.51.100.1",
            "UDP",
            53,
            "{action: Allow, to: [{networks: [198.51.100.1/32]}], protocols: [{udp: {destinationPort: {number: 53}}}]}",
        ),
        (
            "198.51.100.1",
            "ICMP",
            0,
            "{action: Allow, to: [{networks: [198.51.100.1/32]}], protocols: [{icmp: {}}]}",
        ),
    ]
    .into_iter()
    .enumerate()
    {
        let asked = |test: &str, rules: &str| {
            let port = if port == 0 { String::new() } else { format!(r#","port":{port}"#) };
            cluster(&format!("explain-firewall-{test}-{number}"))
                .file("firewall.yaml", &firewall(rules))
                .probe(&format!(
                    r#"{{"id":"1","from":"shop/web","to":{{"ip":"{to}"}},"protocol":"{protocol}"{port}}}"#
                ))
                .explanations()
        };
        let denied = asked("denied", deny);
        let how = denied[0]["connections"][0]["change"]["how"][0].as_str().unwrap();
        assert_eq!(
            how,
            format!(
                "egress of shop/web: put before rule 0 of ClusterEgressFirewall/f the rule {expected}; the tiers after it decide then"
            )
        );
        let allowed = asked("allowed", &format!("{expected}, {deny}"));
        assert_eq!(allowed[0]["verdict"], "allow", "{}", allowed[0]);
    }
    let misplaced = cluster("explain-firewall-names")
        .file(
            "firewall.yaml",
            &firewall("{action: Deny, to: [{apiServer: {additionalNames: [api.example.com]}}]}"),
        )
        .tcp("shop/web", "192.0.2.2", 6443)
        .explanations();
    let note = misplaced[0]["diagnostics"][0]["message"].as_str().unwrap();
    assert!(
        note.contains("accepted: additionalNames only in rules that allow"),
        "{note}"
    );
}

#[test]
fn a_name_that_is_the_address_of_a_service_is_said_to_be_protected() {
    let explained = cluster("explain-cluster-address")
        .manifest(&cluster_policy(
            "by-name",
            "Admin",
            "egress: [{action: Accept, to: [{domainNames: [web.shop.svc.cluster.local]}]}, {action: Deny, to: [{networks: [0.0.0.0/0]}]}]",
        ))
        .record("shop/client", "web.shop.svc.cluster.local", "10.96.0.2")
        .tcp("shop/client", r#"{"name":"web.shop.svc.cluster.local"}"#, 80)
        .explanations();
    let (matches, because) = peer_of(&explained[0], 1);
    assert!(!matches);
    assert!(
        because.starts_with("10.96.0.2 is web.shop.svc.cluster.local for this pod, a Service's address, and no name opens it: it is protected; the connection goes on to shop/web"),
        "{because}"
    );
}
