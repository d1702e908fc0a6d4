//! What policies mean, on packets: ports, networks, selectors, isolation, tiers.

use std::net::{IpAddr, SocketAddr};

use egret_integration::{PodSpec, Service, UdpOutcome, World};

use super::deployment::{Deployment, QUICK, Setup, TestResult, eventually};

/// Each line: who, where to, port, whether it must connect.
pub(super) type Probe<'a> = (&'a str, IpAddr, u16, bool);

#[track_caller]
pub(super) fn assert_verdicts(deployment: &Deployment<'_>, probes: &[Probe<'_>]) {
    // Silence takes its time: all are tried at once.
    let outcomes: Vec<_> = std::thread::scope(|scope| {
        let tries = probes.iter().map(|(pod, to, port, _)| {
            let (pod, to) = (deployment.pod(pod), SocketAddr::new(*to, *port));
            scope.spawn(move || pod.connect_tcp(to, QUICK).is_connected())
        });
        let tries: Vec<_> = tries.collect();
        tries
            .into_iter()
            .map(|probe| probe.join().expect("a probe does not panic"))
            .collect()
    });
    let wrong: Vec<_> = probes
        .iter()
        .zip(outcomes)
        .filter(|((.., wanted), got)| wanted != got)
        .collect();
    assert!(wrong.is_empty(), "wanted and got: {wrong:?}");
}

const PORTS: &str = r#"apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata:
  name: in
  namespace: default
spec:
  podSelector: {matchLabels: {app: server}}
  policyTypes: [Ingress]
  ingress:
  - ports:
    - {protocol: TCP, port: 70, endPort: 79}
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata:
  name: out
  namespace: default
spec:
  podSelector: {matchLabels: {app: client}}
  policyTypes: [Egress]
  egress:
  - to:
    - ipBlock: {cidr: 203.0.113.0/24}
    - ipBlock: {cidr: "2001:db8::/32"}
    ports:
    - {protocol: TCP, port: 70, endPort: 79}
"#;

pub(super) fn a_port_range_holds_at_its_edges_in_both_directions_and_families(
    world: &mut World,
) -> TestResult {
    let deployment = Setup::of(PORTS).and_pod("server").and_pod("free").deploy(world)?;
    let ports = [(69, false), (70, true), (79, true), (80, false)];
    for (port, _) in ports {
        deployment.pod("server").serve(port, Service::TcpEcho)?;
        if port != 80 {
            deployment.world.serve(port, Service::TcpEcho)?;
        }
    }
    let outside = ["203.0.113.1", "2001:db8::1"].map(|address| address.parse().unwrap());
    let probes = ports.into_iter().flat_map(|(port, is_open)| {
        let server = deployment.pod("server").addresses();
        let inward = server.map(|address| ("free", address, port, is_open));
        let outward = outside.map(|address| ("client", address, port, is_open));
        let unselected = outside.map(|address| ("free", address, port, true));
        [inward, outward, unselected].concat()
    });
    assert_verdicts(&deployment, &probes.collect::<Vec<_>>());
    // The range is TCP's.
    deployment.pod("server").serve(75, Service::UdpEcho)?;
    let to = SocketAddr::new(deployment.pod("server").address(), 75);
    let datagram = deployment.pod("free").exchange_udp(to, b"?", QUICK);
    assert!(matches!(datagram, UdpOutcome::Silent), "{datagram:?}");
    Ok(())
}

const EXCEPT: &str = r#"apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata:
  name: blocks
  namespace: default
spec:
  podSelector: {}
  policyTypes: [Egress]
  egress:
  - to:
    - ipBlock: {cidr: 203.0.113.0/24, except: [203.0.113.64/26, 203.0.113.7/32]}
    - ipBlock: {cidr: "2001:db8::/32", except: ["2001:db8:1::/48"]}
  - to:
    - ipBlock: {cidr: 203.0.113.96/30}
"#;

/// Another block allows a part of what the first one excepts.
pub(super) fn an_exception_of_an_ip_block_is_refused(world: &mut World) -> TestResult {
    let deployment = Setup::of(EXCEPT).deploy(world)?;
    let probes = [
        ("203.0.113.6", true),
        ("203.0.113.7", false),
        ("203.0.113.8", true),
        ("203.0.113.63", true),
        ("203.0.113.64", false),
        ("203.0.113.95", false),
        ("203.0.113.96", true),
        ("203.0.113.99", true),
        ("203.0.113.100", false),
        ("203.0.113.127", false),
        ("203.0.113.128", true),
        ("198.51.100.1", false),
        ("2001:db8::1", true),
        ("2001:db8:0:ffff::1", true),
        ("2001:db8:1::1", false),
        ("2001:db8:2::1", true),
    ];
    let probes = probes.map(|(address, is_open)| ("client", address.parse().unwrap(), 7, is_open));
    assert_verdicts(&deployment, &probes);
    Ok(())
}

const SELECTORS: &str = r#"apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata:
  name: shop
  namespace: sales
spec:
  podSelector: {matchLabels: {app: shop}}
  policyTypes: [Ingress]
  ingress:
  - from:
    - podSelector: {matchLabels: {tier: front}}
    - namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: default}}
      podSelector: {matchExpressions: [{key: app, operator: In, values: [client]}]}
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata:
  name: client
  namespace: default
spec:
  podSelector: {matchLabels: {app: client}}
  policyTypes: [Egress]
  egress:
  - to:
    - namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: sales}}
"#;

pub(super) fn selectors_choose_who_may_reach_whom(world: &mut World) -> TestResult {
    let setting = Setup::of(SELECTORS)
        .and_pod("stranger")
        .and(PodSpec::new("shop").in_namespace("sales"))
        .and(
            PodSpec::new("web")
                .in_namespace("sales")
                .labelled("tier", "front"),
        )
        .and(PodSpec::new("back").in_namespace("sales"));
    let deployment = setting.deploy(world)?;
    for pod in ["shop", "web", "back", "stranger"] {
        deployment.pod(pod).serve(7, Service::TcpEcho)?;
    }
    let probes = [
        ("client", "shop", true),
        ("web", "shop", true),
        ("back", "shop", false),
        ("stranger", "shop", false),
        ("client", "back", true),
        ("client", "stranger", false),
        ("back", "web", true),
        ("shop", "stranger", true),
    ];
    let probes = probes.into_iter().flat_map(|(from, to, is_open)| {
        deployment
            .pod(to)
            .addresses()
            .map(|address| (from, address, 7, is_open))
    });
    assert_verdicts(&deployment, &probes.collect::<Vec<_>>());
    Ok(())
}

/// Two policies of one pod at one port, which are one rule over one set.
fn of_two_rings() -> String {
    let policy = |ring: &str| {
        format!(
            r#"apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata:
  name: {ring}
  namespace: default
spec:
  podSelector: {{matchLabels: {{app: client}}}}
  policyTypes: [Ingress]
  ingress:
  - from:
    - namespaceSelector: {{matchLabels: {{kubernetes.io/metadata.name: sales}}}}
      podSelector: {{matchLabels: {{{ring}: in}}}}
    ports:
    - {{protocol: TCP, port: 7}}
"#
        )
    };
    format!("{}---\n{}", policy("inner"), policy("outer"))
}

/// A pod comes into what one policy allows, into what the other does, and leaves them one after the other.
pub(super) fn what_two_policies_allow_at_a_port_follows_each_of_them(world: &mut World) -> TestResult {
    let rings = |inner, outer| format!("inner: \"{inner}\"\n    outer: \"{outer}\"");
    let shop = PodSpec::new("shop").in_namespace("sales");
    let shop = shop.labelled("inner", "out").labelled("outer", "out");
    let deployment = Setup::of(of_two_rings()).and(shop).deploy(world)?;
    deployment.pod("client").serve(7, Service::TcpEcho)?;
    let [address, _] = deployment.pod("client").addresses();
    let address = address.to_string();
    let pods = std::fs::read_to_string(deployment.world.manifests().folder().join("world.yaml"))?;
    assert!(pods.contains(&rings("out", "out")), "{pods}");
    let label = |inner, outer| {
        let pods = pods.replace(&rings("out", "out"), &rings(inner, outer));
        deployment.world.manifests().write("world.yaml", &pods)
    };
    deployment.assert_refused("shop", &address);
    label("in", "out")?;
    eventually("one policy allows it", || {
        deployment.reach("shop", &address).is_connected()
    });
    let mut open = deployment.assert_reaches("shop", &address);
    label("in", "in")?;
    label("out", "in")?;
    eventually("the other still does, and what is open goes on", || {
        open.is_alive() && deployment.reach("shop", &address).is_connected()
    });
    label("out", "out")?;
    eventually("none does any more", || {
        !deployment.reach("shop", &address).is_connected()
    });
    assert!(open.echo_within(QUICK).is_err(), "the open connection goes on");
    Ok(())
}

/// Empty rules allow nothing; a direction that is not named is not isolated; the own node is always reached.
const ISOLATION: &str = r#"apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata:
  name: no-way-in
  namespace: default
spec:
  podSelector: {matchLabels: {app: client}}
  policyTypes: [Ingress]
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata:
  name: no-way-out
  namespace: default
spec:
  podSelector: {matchLabels: {app: other}}
  policyTypes: [Egress]
  egress: []
"#;

pub(super) fn a_selected_pod_is_isolated_in_the_named_direction_alone(world: &mut World) -> TestResult {
    let deployment = Setup::of(ISOLATION)
        .and_pod("other")
        .and_pod("free")
        .deploy(world)?;
    for pod in ["client", "other"] {
        deployment.pod(pod).serve(7, Service::TcpEcho)?;
    }
    let of = |pod: &str| deployment.pod(pod).addresses();
    let outside: [IpAddr; 2] = ["203.0.113.1", "2001:db8::1"].map(|address| address.parse().unwrap());
    let own_node: [IpAddr; 2] = [
        egret_integration::node::DNS.into(),
        egret_integration::node::DNS_V6.into(),
    ];
    let probes = [
        of("client").map(|address| ("free", address, 7, false)),
        of("other").map(|address| ("free", address, 7, true)),
        outside.map(|address| ("client", address, 7, true)),
        outside.map(|address| ("other", address, 7, false)),
        own_node.map(|address| ("other", address, 53, true)),
    ];
    assert_verdicts(&deployment, &probes.concat());
    Ok(())
}

const TIERS: &str = r#"apiVersion: policy.networking.k8s.io/v1alpha1
kind: AdminNetworkPolicy
metadata:
  name: first
spec:
  priority: 5
  subject: {namespaces: {}}
  egress:
  - {name: one, action: Allow, to: [{networks: [198.51.100.1/32, "2001:db8::1/128"]}]}
  - {name: two, action: Deny, to: [{networks: [198.51.100.2/32, "2001:db8::2/128"]}]}
  - {name: three, action: Pass, to: [{networks: [198.51.100.3/32, "2001:db8::3/128"]}]}
---
apiVersion: policy.networking.k8s.io/v1alpha2
kind: ClusterNetworkPolicy
metadata:
  name: second
spec:
  tier: Admin
  priority: 10
  subject: {namespaces: {}}
  egress:
  - {name: shadowed, action: Deny, to: [{networks: [198.51.100.1/32, 198.51.100.3/32, "2001:db8::1/128", "2001:db8::3/128"]}]}
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata:
  name: third
  namespace: default
spec:
  podSelector: {matchLabels: {app: client}}
  policyTypes: [Egress]
  egress:
  - to:
    - ipBlock: {cidr: 198.51.100.2/31}
    - ipBlock: {cidr: 198.51.100.4/32}
    - ipBlock: {cidr: "2001:db8::2/127"}
    - ipBlock: {cidr: "2001:db8::4/128"}
---
apiVersion: policy.networking.k8s.io/v1alpha2
kind: ClusterNetworkPolicy
metadata:
  name: last
spec:
  tier: Baseline
  priority: 10
  subject: {namespaces: {}}
  egress:
  - {name: rest, action: Deny, to: [{networks: [198.51.100.0/24, "2001:db8::/112"]}]}
"#;

/// Of two pods, a NetworkPolicy isolates the client; for the other, what the Admin tier does not decide is the
/// Baseline's.
pub(super) fn tiers_decide_in_their_order(world: &mut World) -> TestResult {
    let deployment = Setup::of(TIERS).and_pod("other").deploy(world)?;
    let table = [
        (1, true, true),
        (2, false, false),
        (3, true, false),
        (4, true, false),
        (5, false, false),
    ];
    let mut probes = Vec::new();
    for (last, client, other) in table {
        for address in [format!("198.51.100.{last}"), format!("2001:db8::{last}")] {
            let address = address.parse()?;
            probes.extend([("client", address, 7, client), ("other", address, 7, other)]);
        }
    }
    probes.extend([
        ("client", "203.0.113.1".parse()?, 7, false),
        ("other", "203.0.113.1".parse()?, 7, true),
    ]);
    assert_verdicts(&deployment, &probes);
    // CNP-11: a Deny of either tier says nothing to the sender.
    for address in ["198.51.100.2", "2001:db8::2", "198.51.100.5", "2001:db8::5"] {
        deployment.assert_refused("other", address);
    }
    Ok(())
}
