//! Pods, workloads, nodes, Services, EndpointSlices and namespaces.

#![allow(clippy::unwrap_used, reason = "a test that cannot read its own table fails")]

mod common;

use std::net::IpAddr;
use std::num::NonZeroU16;
use std::sync::Arc;

use common::{codes, labels, lowered, pod};
use egret_policies::diagnostic::Code;
use egret_policies::model::cluster::{
    EndpointSlice, Entity, NamedPort, Node, PodLife, Service, ServicePort, TargetPort,
};
use egret_policies::model::{Effect, Kind, NamespaceSelector, Selector};
use egret_shared::net::Transport;

fn address(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn port(number: u16) -> NonZeroU16 {
    NonZeroU16::new(number).unwrap()
}

fn pod_of(rest: &str) -> egret_policies::model::cluster::Pod {
    let (pod, diagnostics) = pod(&format!(
        "apiVersion: v1\nkind: Pod\nmetadata: {{name: web, namespace: shop}}\n{rest}"
    ));
    assert_eq!(diagnostics, [], "{rest}");
    pod
}

/// Its own UID is the API server's; its runtime and its cgroups know the other one.
#[test]
fn the_mirror_of_a_static_pod_has_the_uid_under_which_that_runs() {
    let (pod, diagnostics) = pod("apiVersion: v1
kind: Pod
metadata: {name: etcd-n1, namespace: kube-system, uid: u-1, annotations: {kubernetes.io/config.hash: h-2, kubernetes.io/config.mirror: h-1}}
spec: {nodeName: n1, containers: [{name: a}]}
");
    assert_eq!(diagnostics, []);
    assert_eq!(pod.uid.as_deref(), Some("h-1"));
}

#[test]
fn a_pod_with_everything() {
    let (pod, diagnostics) = pod(
        "apiVersion: v1
kind: Pod
metadata: {name: web-0, namespace: shop, uid: u-1, labels: {app: web, on: \"true\", n: \"1\", empty: \"\"}, creationTimestamp: 2026-01-01T00:00:00Z}
spec:
  nodeName: n1
  containers:
  - name: a
    ports: [{name: http, containerPort: 80}, {containerPort: 81}]
status:
  phase: Running
  startTime: 2026-01-02T00:00:00Z
  podIP: 10.0.0.7
  podIPs: [{ip: 10.0.0.7}, {ip: 'fd00::7'}]
",
    );
    assert_eq!(diagnostics, []);
    assert_eq!(pod.key.to_string(), "shop/web-0");
    assert_eq!(pod.uid.as_deref(), Some("u-1"));
    assert_eq!(
        pod.labels,
        labels(&[("app", "web"), ("on", "true"), ("n", "1"), ("empty", "")])
    );
    assert_eq!(pod.node.as_deref(), Some("n1"));
    assert_eq!(pod.addresses, [address("10.0.0.7"), address("fd00::7")]);
    assert_eq!((pod.host_network, pod.life), (false, PodLife::Live));
    assert_eq!(pod.started.as_deref(), Some("2026-01-02T00:00:00Z"));
    assert_eq!(
        pod.ports,
        [NamedPort {
            name: "http".into(),
            transport: Transport::Tcp,
            number: port(80)
        }]
    );
}

/// Corner case 1: the address of a pod that is done may be another's.
#[test]
fn pods_that_are_done_are_terminal_and_no_others() {
    for (status, life) in [
        ("status: {phase: Succeeded}", PodLife::Terminal),
        ("status: {phase: Failed}", PodLife::Terminal),
        ("status: {phase: Running}", PodLife::Live),
        ("status: {phase: Pending}", PodLife::Live),
        ("status: {phase: Unknown}", PodLife::Live),
        ("status: null", PodLife::Live),
        ("", PodLife::Live),
    ] {
        assert_eq!(pod_of(status).life, life, "{status}");
    }
    let terminating = pod("apiVersion: v1\nkind: Pod\nmetadata: {name: a, deletionTimestamp: 2026-01-01T00:00:00Z}\nstatus: {phase: Running}").0;
    assert_eq!(terminating.life, PodLife::Live, "until it is gone");
}

/// Corner case 14: sidecars count, other init containers do not.
#[test]
fn named_ports_are_those_of_containers_and_sidecars() {
    let pod = pod_of(
        "spec:
  initContainers:
  - {name: setup, ports: [{name: setup, containerPort: 1}]}
  - {name: proxy, restartPolicy: Always, ports: [{name: proxy, containerPort: 2, protocol: UDP}]}
  containers:
  - {name: a, ports: [{name: web, containerPort: 3}]}
  - {name: b, ports: [{name: web, containerPort: 4, protocol: SCTP}, {name: web, containerPort: 3}]}
",
    );
    let seen: Vec<_> = pod
        .ports
        .iter()
        .map(|port| (&*port.name, port.transport, port.number.get()))
        .collect();
    assert_eq!(
        seen,
        [
            ("proxy", Transport::Udp, 2),
            ("web", Transport::Tcp, 3),
            ("web", Transport::Sctp, 4)
        ],
        "one name may stand for several ports"
    );
}

#[test]
fn a_pod_of_the_nodes_network_says_so() {
    for (value, expected) in [("true", true), ("yes", true), ("false", false), ("null", false)] {
        assert_eq!(
            pod_of(&format!("spec: {{hostNetwork: {value}}}")).host_network,
            expected,
            "{value}"
        );
    }
}

#[test]
fn what_cannot_be_read_of_a_pod_is_left_out_and_told() {
    for (rest, code) in [
        ("status: {podIP: x}", Code::InvalidAddress),
        ("status: {podIPs: [{ip: 10.0.0.256}]}", Code::InvalidAddress),
        ("status: {podIPs: 10.0.0.1}", Code::WrongType),
        ("spec: {hostNetwork: 1}", Code::WrongType),
        (
            "spec: {containers: [{ports: [{name: a, containerPort: 0}]}]}",
            Code::InvalidObjectPort,
        ),
        (
            "spec: {containers: [{ports: [{name: a}]}]}",
            Code::InvalidObjectPort,
        ),
        (
            "spec: {containers: [{ports: [{name: a, containerPort: 1, protocol: ICMP}]}]}",
            Code::InvalidObjectPort,
        ),
    ] {
        let (pod, diagnostics) = pod(&format!(
            "apiVersion: v1\nkind: Pod\nmetadata: {{name: a}}\n{rest}"
        ));
        assert_eq!(codes(&diagnostics), [code], "{rest}");
        assert!(
            pod.addresses.is_empty() && pod.ports.is_empty() && !pod.host_network,
            "{rest}"
        );
    }
    assert_eq!(
        pod_of("status: {podIP: '::ffff:10.0.0.1'}").addresses,
        [address("10.0.0.1")]
    );
}

#[test]
fn a_workload_counts_as_one_pod_of_its_template() {
    let template = "{metadata: {labels: {app: web}}, spec: {hostNetwork: true, containers: [{ports: [{name: web, containerPort: 80}]}]}}";
    for (version, kind) in [
        ("apps/v1", "Deployment"),
        ("apps/v1", "StatefulSet"),
        ("apps/v1", "DaemonSet"),
        ("apps/v1", "ReplicaSet"),
        ("v1", "ReplicationController"),
        ("batch/v1", "Job"),
        ("extensions/v1beta1", "Deployment"),
        ("batch/v1", "CronJob"),
    ] {
        let spec = match kind {
            "CronJob" => format!("{{jobTemplate: {{spec: {{template: {template}}}}}}}"),
            _ => format!("{{replicas: 3, template: {template}}}"),
        };
        let text = format!(
            "apiVersion: {version}\nkind: {kind}\nmetadata: {{name: w, namespace: shop, labels: {{not: this}}}}\nspec: {spec}\n"
        );
        let (pod, diagnostics) = pod(&text);
        assert_eq!(diagnostics, [], "{kind}");
        assert_eq!(
            (pod.key.to_string().as_str(), &pod.labels),
            ("shop/w", &labels(&[("app", "web")])),
            "{kind}"
        );
        assert_eq!(
            (pod.life, pod.host_network, pod.ports.len()),
            (PodLife::Live, true, 1),
            "{kind}"
        );
    }
}

fn node(text: &str) -> Node {
    match lowered(text).entities.remove(0) {
        Entity::Node(node) => node,
        other => panic!("{other:?}"),
    }
}

/// A Hostname address may look like an address and is none.
#[test]
fn a_node_has_its_internal_and_external_addresses() {
    let node = node(
        "apiVersion: v1
kind: Node
metadata: {name: n1, labels: {zone: a}}
spec: {podCIDR: 10.0.0.0/24, podCIDRs: [10.0.0.0/24, 'fd00::/64']}
status:
  addresses:
  - {type: InternalIP, address: 192.168.0.1}
  - {type: ExternalIP, address: '2001:db8::1'}
  - {type: Hostname, address: 192.168.0.9}
  - {type: InternalDNS, address: n1.example}
",
    );
    assert_eq!(&*node.name, "n1");
    assert_eq!(node.labels, labels(&[("zone", "a")]));
    assert_eq!(node.addresses, [address("192.168.0.1"), address("2001:db8::1")]);
    assert_eq!(
        node.pod_networks,
        ["10.0.0.0/24".parse().unwrap(), "fd00::/64".parse().unwrap()]
    );
}

fn service(spec: &str) -> Service {
    let text =
        format!("apiVersion: v1\nkind: Service\nmetadata: {{name: s, namespace: shop}}\nspec: {spec}\n");
    let lowered = lowered(&text);
    assert_eq!(lowered.diagnostics, [], "{spec}");
    match lowered.entities.into_iter().next() {
        Some(Entity::Service(service)) => service,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_service_has_selector_addresses_and_ports() {
    let service = service(
        "{selector: {app: web}, clusterIP: 10.96.0.1, clusterIPs: [10.96.0.1, 'fd00::1'], ports: [{port: 80}, {name: b, port: 81, targetPort: 8081, protocol: UDP}, {port: 82, targetPort: web}]}",
    );
    assert_eq!(service.key.to_string(), "shop/s");
    assert_eq!(service.selector, Some(labels(&[("app", "web")])));
    assert_eq!(service.addresses, [address("10.96.0.1"), address("fd00::1")]);
    let of = |name: Option<&str>, transport, number, target| ServicePort {
        name: name.map(Into::into),
        transport,
        number: port(number),
        node_port: None,
        target,
    };
    assert_eq!(
        service.ports,
        [
            of(None, Transport::Tcp, 80, TargetPort::Number(port(80))),
            of(Some("b"), Transport::Udp, 81, TargetPort::Number(port(8081))),
            of(None, Transport::Tcp, 82, TargetPort::Name("web".into())),
        ]
    );
}

/// A node port of 0 is stored where none was given yet.
#[test]
fn a_service_is_reached_from_outside_where_it_says() {
    let text = "apiVersion: v1
kind: Service
metadata: {name: s}
spec:
  externalIPs: [198.51.100.7, '2001:db8::7']
  ports: [{port: 80, nodePort: 30080}, {name: b, port: 81, nodePort: 0}]
status:
  loadBalancer: {ingress: [{ip: 198.51.100.8}, {ip: 198.51.100.9, ipMode: Proxy}, {hostname: lb.example.com}]}
";
    let lowered = lowered(text);
    assert_eq!(lowered.diagnostics, []);
    let Entity::Service(service) = &lowered.entities[0] else {
        panic!("{lowered:?}");
    };
    assert_eq!(
        service.external_addresses,
        [
            address("198.51.100.7"),
            address("2001:db8::7"),
            address("198.51.100.8")
        ]
    );
    let node_ports: Vec<_> = service.ports.iter().map(|port| port.node_port).collect();
    assert_eq!(node_ports, [Some(port(30080)), None]);
}

#[test]
fn services_without_selector_or_address() {
    for spec in [
        "{clusterIP: None, ports: []}",
        "{clusterIP: '', selector: {}}",
        "null",
        "{type: ExternalName, externalName: x.io, selector: {a: b}}",
    ] {
        let service = service(spec);
        assert_eq!((service.selector, service.addresses.len()), (None, 0), "{spec}");
    }
}

#[test]
fn an_endpoint_slice_has_the_addresses_that_are_ready() {
    let lowered = lowered(
        "apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: s-1, namespace: shop, labels: {kubernetes.io/service-name: s}}
addressType: IPv4
endpoints:
- {addresses: [10.0.0.1], conditions: {ready: true}}
- {addresses: [10.0.0.2], conditions: {ready: false}}
- {addresses: [10.0.0.3]}
ports: [{name: http, port: 80, protocol: TCP}, {name: all}]
",
    );
    assert_eq!(lowered.diagnostics, []);
    let Entity::EndpointSlice(slice) = &lowered.entities[0] else {
        panic!("{lowered:?}");
    };
    assert_eq!(slice.service.as_deref(), Some("s"));
    assert_eq!(
        slice.addresses,
        [address("10.0.0.1"), address("10.0.0.3")],
        "unknown is ready"
    );
    assert_eq!(slice.ports, [(Some("http".into()), Transport::Tcp, port(80))]);
}

#[test]
fn a_namespace_always_has_the_label_of_its_name() {
    let lowered = lowered(
        "apiVersion: v1\nkind: Namespace\nmetadata: {name: shop, labels: {team: a, kubernetes.io/metadata.name: forged}}\n",
    );
    let [Entity::Namespace(namespace)] = lowered.entities.as_slice() else {
        panic!("{lowered:?}");
    };
    assert_eq!(
        namespace.labels,
        labels(&[("team", "a"), ("kubernetes.io/metadata.name", "shop")])
    );
}

/// P-1 to P-4 of the proposal of 2016; what cannot be read isolates.
#[test]
fn the_annotation_of_2016_isolates_ingress() {
    for (annotation, isolates) in [
        (r#"{"ingress":{"isolation":"DefaultDeny"}}"#, true),
        (
            "{\n  \"ingress\": {\n    \"isolation\": \"DefaultDeny\"\n  }\n}",
            true,
        ),
        (r#"{"ingress":{"isolation":"Other"}}"#, true),
        (r#"{"ingress":"DefaultDeny"}"#, true),
        ("{", true),
        ("", true),
        ("[]", true),
        ("{}", false),
        (r#"{"ingress":{}}"#, false),
        (r#"{"ingress":null}"#, false),
        (r#"{"ingress":{"isolation":null}}"#, false),
    ] {
        let text = format!(
            "apiVersion: v1\nkind: Namespace\nmetadata: {{name: shop, annotations: {{net.beta.kubernetes.io/network-policy: {annotation:?}}}}}\n"
        );
        let lowered = lowered(&text);
        assert_eq!(
            lowered.entities.len(),
            if isolates { 2 } else { 1 },
            "{annotation}"
        );
        let Some(Entity::Policy(policy)) = lowered.entities.get(1) else {
            assert_eq!(lowered.diagnostics, []);
            continue;
        };
        assert_eq!(
            codes(&lowered.diagnostics),
            [Code::LegacyAnnotation],
            "{annotation}"
        );
        assert_eq!(policy.id.kind, Kind::LegacyNetworkPolicy);
        assert_eq!(policy.subject.namespaces, NamespaceSelector::Named("shop".into()));
        assert_eq!(policy.subject.pods, Selector::everything());
        assert_eq!(
            (&policy.ingress, &policy.egress),
            (&Effect::Rules(Arc::default()), &Effect::None)
        );
    }
}

/// As the mirroring controller of a cluster makes slices of them (KEP-752).
#[test]
fn endpoints_are_slices() {
    let text = |labels: &str| {
        format!(
            "apiVersion: v1
kind: Endpoints
metadata: {{name: s, namespace: shop, labels: {{{labels}}}}}
subsets:
- addresses: [{{ip: 169.254.169.254}}, {{ip: 203.0.113.1}}]
  notReadyAddresses: [{{ip: 203.0.113.2}}]
  ports: [{{port: 80}}, {{name: dns, port: 53, protocol: UDP}}]
- addresses: [{{ip: '2001:db8::1'}}]
  ports: [{{port: 81}}]
"
        )
    };
    let slices = |labels: &str| -> Vec<EndpointSlice> {
        let lowered = lowered(&text(labels));
        assert_eq!(lowered.diagnostics, []);
        let entities = lowered.entities.into_iter();
        entities
            .map(|entity| match entity {
                Entity::EndpointSlice(slice) => slice,
                other => panic!("{other:?}"),
            })
            .collect()
    };
    let [first, second] = &slices("")[..] else {
        panic!("two subsets");
    };
    assert_eq!(
        (first.service.as_deref(), second.service.as_deref()),
        (Some("s"), Some("s"))
    );
    assert_eq!(first.key.namespace(), "shop");
    assert_ne!(first.key, second.key);
    assert_eq!(
        first.addresses,
        [address("169.254.169.254"), address("203.0.113.1")]
    );
    assert_eq!(
        first.ports,
        [
            (None, Transport::Tcp, port(80)),
            (Some("dns".into()), Transport::Udp, port(53))
        ]
    );
    assert_eq!(second.addresses, [address("2001:db8::1")]);
    assert!(
        slices("endpointslice.kubernetes.io/skip-mirror: 'true'")
            .iter()
            .all(|slice| slice.service.is_none())
    );
}
