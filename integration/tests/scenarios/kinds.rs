//! Each kind of policy in the namespaces and at the ports that it names: the form of 2016, both Admin kinds, the baseline,
//! named ports, nodes.

use std::net::SocketAddr;

use egret_integration::{Outcome, PodSpec, Service, World, node, other_node};

use super::{
    deployment::{Deployment, QUICK, Setup, TestResult, eventually},
    rules::{Probe, assert_verdicts},
};

const REDIS: u16 = 6379;

/// Examples 1 and 2 of the proposal.
const EXAMPLES_OF_2016: &str = "apiVersion: extensions/v1beta1
kind: NetworkPolicy
metadata: {name: allow-frontend, namespace: shop}
spec:
  podSelector: {matchLabels: {role: backend}}
  ingress:
  - from: [{podSelector: {matchLabels: {role: frontend}}}]
    ports: [{protocol: TCP, port: 6379}]
---
apiVersion: extensions/v1beta1
kind: NetworkPolicy
metadata: {name: allow-tcp-443, namespace: shop}
spec:
  podSelector: {matchLabels: {role: frontend}}
  ingress:
  - ports: [{protocol: TCP, port: 443}]
    from: [{namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: bob}}}]
";

/// Example 3.
const ALLOW_ALL_OF_2016: &str = "apiVersion: extensions/v1beta1
kind: NetworkPolicy
metadata: {name: allow-all, namespace: shop}
spec:
  podSelector:
  ingress:
  - {}
";

/// P-2, P-3, P-5, P-6, P-7, P-17: the namespace is annotated while connections are open.
pub(super) fn the_annotation_of_2016_isolates_a_namespace_and_its_objects_open_it(
    world: &mut World,
) -> TestResult {
    let of_shop = |name: &str| PodSpec::new(name).in_namespace("shop");
    let deployment = Setup::of(EXAMPLES_OF_2016)
        .instead([
            of_shop("redis").labelled("role", "backend"),
            of_shop("web").labelled("role", "frontend"),
            of_shop("beside"),
            PodSpec::new("bob").in_namespace("bob"),
        ])
        .deploy(world)?;
    for (pod, port) in [("redis", REDIS), ("redis", 443), ("web", 443), ("web", REDIS)] {
        deployment.pod(pod).serve(port, Service::TcpEcho)?;
    }
    let [redis, web] = ["redis", "web"].map(|pod| deployment.pod(pod).addresses());
    let probes = |is_open_to_all: bool| {
        let probe = |from, to: [_; 2], port, is_open| {
            to.map(|address| (from, address, port, is_open || is_open_to_all))
        };
        [
            probe("web", redis, REDIS, true),
            probe("web", redis, 443, false),
            probe("beside", redis, REDIS, false),
            probe("bob", redis, REDIS, false),
            probe("bob", web, 443, true),
            probe("bob", web, REDIS, false),
            probe("beside", web, 443, false),
        ]
        .concat()
    };
    assert_verdicts(&deployment, &probes(true));
    let connect = |from: &str| {
        let to = SocketAddr::new(redis[0], REDIS);
        deployment.pod(from).connect_tcp(to, QUICK)
    };
    let (mut kept, mut ended) = (connect("web").connection(), connect("beside").connection());
    annotate_shop(&deployment)?;
    eventually("the open connection is ended", || {
        ended.echo_within(QUICK).is_err()
    });
    assert!(kept.is_alive(), "an object allows this one");
    assert_verdicts(&deployment, &probes(false));
    let replies = ["203.0.113.1", "2001:db8::1"].map(|to| ("redis", to.parse().unwrap(), 7, true));
    assert_verdicts(&deployment, &replies);
    for address in redis {
        let of_node = deployment.world.client_on_node();
        let outcome = of_node.connect_tcp(SocketAddr::new(address, REDIS), QUICK);
        assert!(outcome.is_connected(), "the own node: {outcome:?}");
    }
    let manifests = deployment.world.manifests();
    manifests.write("allow-all.yaml", ALLOW_ALL_OF_2016)?;
    eventually("the third example is in force", || {
        connect("beside").is_connected()
    });
    assert_verdicts(&deployment, &probes(true));
    Ok(())
}

fn annotate_shop(deployment: &Deployment<'_>) -> TestResult {
    const ANNOTATION: &str = r#"  annotations:
    net.beta.kubernetes.io/network-policy: '{"ingress": {"isolation": "DefaultDeny"}}'
"#;
    let manifests = deployment.world.manifests();
    let text = std::fs::read_to_string(manifests.folder().join("world.yaml"))?;
    let plain = "kind: Namespace\nmetadata:\n  name: shop\n";
    assert!(text.contains(plain), "{text}");
    manifests.write(
        "world.yaml",
        &text.replace(plain, &format!("{plain}{ANNOTATION}")),
    )?;
    Ok(())
}

/// A NetworkPolicy isolates `isolated` alone; ClusterNetworkPolicies of the Baseline go first.
const BASELINE: &str = r#"apiVersion: policy.networking.k8s.io/v1alpha1
kind: BaselineAdminNetworkPolicy
metadata: {name: default}
spec:
  subject: {namespaces: {}}
  ingress:
  - {name: friend, action: Allow, from: [{pods: {namespaceSelector: {}, podSelector: {matchLabels: {app: friend}}}}]}
  - {name: others, action: Deny, from: [{namespaces: {}}]}
  egress:
  - {name: open, action: Allow, to: [{networks: [203.0.113.1/32, "2001:db8::1/128"]}]}
  - {name: closed, action: Deny, to: [{networks: [203.0.113.0/24, "2001:db8::/64"]}]}
---
apiVersion: policy.networking.k8s.io/v1alpha2
kind: ClusterNetworkPolicy
metadata: {name: before}
spec:
  tier: Baseline
  priority: 1000
  subject: {namespaces: {}}
  egress:
  - {name: opened, action: Accept, to: [{networks: [203.0.113.2/32, "2001:db8::2/128"]}]}
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: own-words, namespace: default}
spec:
  podSelector: {matchLabels: {app: isolated}}
  policyTypes: [Ingress, Egress]
  ingress: [{from: [{podSelector: {matchLabels: {app: client}}}]}]
  egress: [{to: [{ipBlock: {cidr: 203.0.113.3/32}}, {ipBlock: {cidr: "2001:db8::3/128"}}]}]
"#;

/// DECIDE-3: the baseline is asked where no NetworkPolicy isolates, after the Baseline ClusterNetworkPolicies.
pub(super) fn the_baseline_decides_for_pods_that_no_network_policy_isolates(world: &mut World) -> TestResult {
    let deployment = Setup::of(BASELINE)
        .and_pod("friend")
        .and_pod("plain")
        .and_pod("isolated")
        .deploy(world)?;
    let mut probes: Vec<Probe<'_>> = Vec::new();
    for pod in ["plain", "isolated"] {
        deployment.pod(pod).serve(7, Service::TcpEcho)?;
    }
    for (last, plain, isolated) in [(1, true, false), (2, true, false), (3, false, true)] {
        for to in [format!("203.0.113.{last}"), format!("2001:db8::{last}")] {
            let to = to.parse()?;
            probes.extend([("plain", to, 7, plain), ("isolated", to, 7, isolated)]);
        }
    }
    let inside = [
        ("friend", "plain", true),
        ("client", "plain", false),
        ("friend", "isolated", false),
        ("client", "isolated", true),
    ];
    for (from, to, is_open) in inside {
        let to = deployment.pod(to).addresses();
        probes.extend(to.map(|address| (from, address, 7, is_open)));
    }
    assert_verdicts(&deployment, &probes);
    Ok(())
}

/// What a NetworkPolicy allows is denied before, and what it does not allow is allowed before.
const ADMIN_INGRESS: &str = r#"apiVersion: policy.networking.k8s.io/v1alpha1
kind: AdminNetworkPolicy
metadata: {name: in}
spec:
  priority: 20
  subject: {pods: {namespaceSelector: {}, podSelector: {matchLabels: {app: server}}}}
  ingress:
  - name: monitoring
    action: Allow
    from: [{namespaces: {matchLabels: {kubernetes.io/metadata.name: monitoring}}}]
    ports: [{portNumber: {protocol: TCP, port: 9000}}]
  - name: left-to-others
    action: Pass
    from: [{pods: {namespaceSelector: {}, podSelector: {matchLabels: {app: client}}}}]
  - name: rest
    action: Deny
    from: [{namespaces: {}}]
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: in, namespace: default}
spec:
  podSelector: {matchLabels: {app: server}}
  policyTypes: [Ingress]
  ingress:
  - ports: [{port: 7}]
"#;

pub(super) fn an_admin_policy_decides_ingress_before_network_policies(world: &mut World) -> TestResult {
    let deployment = Setup::of(ADMIN_INGRESS)
        .and_pod("server")
        .and_pod("other")
        .and(PodSpec::new("scraper").in_namespace("monitoring"))
        .deploy(world)?;
    for port in [7, 9000] {
        deployment.pod("server").serve(port, Service::TcpEcho)?;
    }
    let table = [
        ("scraper", false, true),
        ("client", true, false),
        ("other", false, false),
    ];
    let server = deployment.pod("server").addresses();
    let probes = table.into_iter().flat_map(|(from, seven, nine)| {
        server
            .into_iter()
            .flat_map(move |to| [(from, to, 7, seven), (from, to, 9000, nine)])
    });
    assert_verdicts(&deployment, &probes.collect::<Vec<_>>());
    Ok(())
}

/// The same name is another number in each pod.
const NAMED: &str = r#"apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: in, namespace: default}
spec:
  podSelector: {matchLabels: {kind: server}}
  policyTypes: [Ingress]
  ingress:
  - ports: [{protocol: TCP, port: web}]
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: out, namespace: default}
spec:
  podSelector: {matchLabels: {app: client}}
  policyTypes: [Egress]
  egress:
  - ports: [{protocol: TCP, port: web}]
---
apiVersion: policy.networking.k8s.io/v1alpha1
kind: AdminNetworkPolicy
metadata: {name: named}
spec:
  priority: 4
  subject: {namespaces: {}}
  ingress:
  - name: no-admin
    action: Deny
    from: [{pods: {namespaceSelector: {}, podSelector: {matchLabels: {app: free}}}}]
    ports: [{namedPort: admin}]
---
apiVersion: policy.networking.k8s.io/v1alpha2
kind: ClusterNetworkPolicy
metadata: {name: named}
spec:
  tier: Admin
  priority: 5
  subject: {pods: {podSelector: {matchLabels: {app: other}}}}
  egress:
  - name: no-web
    action: Deny
    to: [{pods: {podSelector: {matchLabels: {kind: server}}}}]
    protocols: [{destinationNamedPort: web}]
"#;

/// CASE-9, CASE-10, CASE-12: a name is the number of the pod that is reached; where it has none, nothing is matched.
pub(super) fn a_named_port_is_the_number_that_the_reached_pod_gives_it(world: &mut World) -> TestResult {
    let server = |name: &str| PodSpec::new(name).labelled("kind", "server");
    let deployment = Setup::of(NAMED)
        .and_pod("free")
        .and_pod("other")
        .and(
            server("low")
                .with_named_port("web", 8001)
                .with_named_port("admin", 8002),
        )
        .and(server("high").with_named_port("web", 8002))
        .and(server("none"))
        .and(PodSpec::new("open").with_named_port("admin", 8001))
        .deploy(world)?;
    let mut probes: Vec<Probe<'_>> = Vec::new();
    for (to, of_client, of_free, of_other) in [
        ("low", [true, false], [true, false], [false, false]),
        ("high", [false, true], [false, true], [false, false]),
        ("none", [false, false], [false, false], [false, false]),
        ("open", [false, false], [false, true], [true, true]),
    ] {
        for (port, number) in [8001, 8002].into_iter().zip(0..) {
            deployment.pod(to).serve(port, Service::TcpEcho)?;
            for address in deployment.pod(to).addresses() {
                probes.extend([
                    ("client", address, port, of_client[number]),
                    ("free", address, port, of_free[number]),
                    ("other", address, port, of_other[number]),
                ]);
            }
        }
    }
    probes.push(("client", "203.0.113.1".parse()?, 8080, false));
    assert_verdicts(&deployment, &probes);
    Ok(())
}

const NODES: &str = r#"apiVersion: policy.networking.k8s.io/v1alpha1
kind: AdminNetworkPolicy
metadata: {name: nodes}
spec:
  priority: 4
  subject: {pods: {namespaceSelector: {}, podSelector: {matchLabels: {app: client}}}}
  egress:
  - name: others
    action: Deny
    to: [{nodes: {matchLabels: {kubernetes.io/hostname: node-2}}}]
    ports: [{portNumber: {protocol: TCP, port: 7070}}]
---
apiVersion: policy.networking.k8s.io/v1alpha2
kind: ClusterNetworkPolicy
metadata: {name: nodes}
spec:
  tier: Admin
  priority: 5
  subject: {pods: {podSelector: {matchLabels: {app: other}}}}
  egress:
  - name: all-of-them
    action: Deny
    to: [{nodes: {}}]
    protocols: [{tcp: {destinationPort: {number: 7070}}}]
"#;

/// CROSS-5, R-4: nodes by their labels. A node that goes, comes or gets another address is followed.
pub(super) fn nodes_are_denied_by_their_labels_as_they_come_go_and_change(world: &mut World) -> TestResult {
    let elsewhere = world.lay_other_node()?;
    for port in [7070, 7071] {
        world.serve_on_node(port, Service::TcpEcho)?;
        elsewhere.serve(port, Service::TcpEcho)?;
    }
    let deployment = Setup::of(NODES).and_pod("other").deploy(world)?;
    let own = [node::ADDRESS.into(), node::ADDRESS_V6.into()];
    let far = [other_node::ADDRESS.into(), other_node::ADDRESS_V6.into()];
    let second = other_node::UNREPORTED.into();
    let table = |is_far_open: bool, is_second_open: bool| {
        let mut probes: Vec<Probe<'_>> = Vec::new();
        for pod in ["client", "other"] {
            probes.extend(own.map(|to| (pod, to, 7070, pod == "client")));
            probes.extend(far.map(|to| (pod, to, 7070, is_far_open)));
            probes.extend(far.map(|to| (pod, to, 7071, true)));
            probes.push((pod, second, 7070, is_second_open));
        }
        probes
    };
    let reach = |to| {
        deployment
            .pod("client")
            .connect_tcp(SocketAddr::new(to, 7070), QUICK)
    };
    assert_verdicts(&deployment, &table(false, true));
    let manifests = deployment.world.manifests();
    let document = std::fs::read_to_string(manifests.folder().join("node-2.yaml"))?;
    manifests.remove("node-2.yaml")?;
    eventually("the node has gone", || reach(far[0]).is_connected());
    assert_verdicts(&deployment, &table(true, true));
    manifests.write("node-2.yaml", &document)?;
    eventually("the node has come", || !reach(far[0]).is_connected());
    assert_verdicts(&deployment, &table(false, true));
    let mut open = reach(second).connection();
    let more = format!(
        "{document}  - type: InternalIP\n    address: {}\n",
        other_node::UNREPORTED
    );
    manifests.write("node-2.yaml", &more)?;
    eventually("what is open to its new address is ended", || {
        open.echo_within(QUICK).is_err()
    });
    assert_verdicts(&deployment, &table(false, false));
    let relabelled = document.replace("hostname: node-2", "hostname: elsewhere");
    manifests.write("node-2.yaml", &relabelled)?;
    eventually("it has other labels", || reach(far[0]).is_connected());
    let other = SocketAddr::new(far[0], 7070);
    let outcome = deployment.pod("other").connect_tcp(other, QUICK);
    assert!(!outcome.is_connected(), "it is a node all the same");
    Ok(())
}

/// One port with the end of its range: none of `None`.
fn range(end: Option<u16>) -> String {
    let end = end.map_or_else(String::new, |end| format!(", endPort: {end}"));
    format!(
        "apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {{name: range, namespace: default}}
spec:
  podSelector: {{matchLabels: {{app: client}}}}
  policyTypes: [Egress]
  egress:
  - ports: [{{protocol: TCP, port: 70{end}}}]
"
    )
}

/// K-14, K-19: the manual test and the rollback of KEP-2079, on live objects.
pub(super) fn an_end_port_that_is_edited_moves_the_end_of_what_is_open(world: &mut World) -> TestResult {
    const PORTS: [u16; 7] = [69, 70, 78, 79, 80, 90, 91];
    let deployment = Setup::of(range(Some(90))).and_pod("server").deploy(world)?;
    for port in PORTS {
        deployment.pod("server").serve(port, Service::TcpEcho)?;
    }
    let server = deployment.pod("server").addresses();
    let connect = |port| {
        let to = SocketAddr::new(server[0], port);
        deployment.pod("client").connect_tcp(to, QUICK)
    };
    let assert_open_up_to = |end: u16| {
        let probes = PORTS
            .into_iter()
            .flat_map(|port| server.map(|address| ("client", address, port, (70..=end).contains(&port))));
        assert_verdicts(&deployment, &probes.collect::<Vec<_>>());
    };
    let manifests = deployment.world.manifests();
    assert_open_up_to(90);
    let (mut first, mut eighty) = (connect(70).connection(), connect(80).connection());
    manifests.write("policy.yaml", &range(Some(79)))?;
    eventually("what is open at 80 is ended", || {
        eighty.echo_within(QUICK).is_err()
    });
    assert_open_up_to(79);
    manifests.write("policy.yaml", &range(None))?;
    eventually("79 is closed", || !connect(79).is_connected());
    assert_open_up_to(70);
    manifests.write("policy.yaml", &range(Some(90)))?;
    eventually("80 is open again", || connect(80).is_connected());
    assert_open_up_to(90);
    assert!(first.is_alive(), "70 was open all the time");
    Ok(())
}

/// The own node's probes come in; the Admin tier has no word for them, and the baseline is not asked.
const NOBODY: &str = r#"apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: nobody, namespace: default}
spec:
  podSelector: {matchLabels: {app: client}}
  policyTypes: [Ingress, Egress]
---
apiVersion: policy.networking.k8s.io/v1alpha2
kind: ClusterNetworkPolicy
metadata: {name: nobody}
spec:
  tier: Admin
  priority: 1
  subject: {pods: {podSelector: {matchLabels: {app: other}}}}
  ingress:
  - {name: nobody, action: Deny, from: [{namespaces: {}}]}
"#;

/// CASE-33, CASE-22: `tcpSocket` and `httpGet` of the own node. Another node is refused where a NetworkPolicy isolates.
pub(super) fn a_kubelet_probes_pods_that_nobody_else_reaches(world: &mut World) -> TestResult {
    let elsewhere = world.lay_other_node()?;
    let deployment = Setup::of(NOBODY).and_pod("other").and_pod("free").deploy(world)?;
    for (port, service) in [(8080, Service::Http), (9090, Service::TcpEcho)] {
        for pod in ["client", "other"] {
            deployment.pod(pod).serve(port, service)?;
        }
    }
    let kubelet = deployment.world.client_on_node();
    for pod in ["client", "other"] {
        for address in deployment.pod(pod).addresses() {
            let connect = |outcome: Outcome| outcome.is_connected();
            let tcp = SocketAddr::new(address, 9090);
            assert!(
                connect(kubelet.connect_tcp(tcp, QUICK)),
                "tcpSocket of {pod} at {tcp}"
            );
            let http = SocketAddr::new(address, 8080);
            let url = format!("http://{http}/healthz");
            let get = ["curl", "--silent", "--fail", "--max-time", "2", &url];
            deployment.world.node().run_well(&get)?;
            assert!(
                !connect(deployment.pod("free").connect_tcp(tcp, QUICK)),
                "a pod to {tcp}"
            );
        }
    }
    for address in deployment.pod("client").addresses() {
        let outcome = elsewhere
            .client()
            .connect_tcp(SocketAddr::new(address, 9090), QUICK);
        assert!(!outcome.is_connected(), "another node: {outcome:?}");
    }
    Ok(())
}
