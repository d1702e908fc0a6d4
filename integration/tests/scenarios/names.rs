//! Which addresses a name opens, and for whom.

use std::{
    collections::BTreeSet,
    net::{IpAddr, SocketAddr},
};

use egret_integration::{Lookup, PodSpec, ProxyMode, RecordType, Records, Service, ServicePort, World, node};

use super::deployment::{QUICK, Setup, TestResult, eventually, ip, only_names};

/// Each name is fresh, so each first packet would meet a kernel that does not know its address yet.
/// F-19, F-30: without a question for PTR records, and with the node's routes as they were.
pub(super) fn an_allowed_name_resolves_and_connects_at_once(world: &mut World) -> TestResult {
    world.add(PodSpec::new("client"))?;
    let routes = routes(world)?;
    let policy = only_names(&["*.fresh.example.test"]);
    let deployment = Setup::of(policy).instead([]).deploy(world)?;
    let late = |number: &u8| {
        let (name, address) = (
            format!("n{number}.fresh.example.test"),
            format!("198.51.100.{number}"),
        );
        deployment
            .upstream()
            .set(&name, Records::addresses([address.as_str()]));
        assert_eq!(deployment.ask("client", &name).addresses().len(), 1);
        !deployment.reach("client", &address).is_connected()
    };
    let late: Vec<u8> = (1..=100).filter(late).take(3).collect();
    assert!(
        late.is_empty(),
        "not open when it was told: {late:?} (the first three)"
    );
    assert_eq!(deployment.kernel_records("client").len(), 100);
    let log = deployment.upstream().log();
    assert!(log.len() >= 100, "{} questions are in the log", log.len());
    let others: Vec<_> = log
        .iter()
        .filter(|query| query.record_type != RecordType::A)
        .collect();
    assert!(others.is_empty(), "asked besides: {others:?}");
    assert_eq!(self::routes(deployment.world)?, routes);
    Ok(())
}

/// The routes of all tables and the rules that choose one.
fn routes(world: &World) -> Result<[String; 4], Box<dyn std::error::Error>> {
    let list = |arguments: &[&str]| -> Result<String, Box<dyn std::error::Error>> {
        let output = world.node().run(arguments)?;
        assert_eq!(output.status, Some(0), "{output:?}");
        Ok(output.stdout)
    };
    Ok([
        list(&["ip", "-4", "route", "show", "table", "all"])?,
        list(&["ip", "-6", "route", "show", "table", "all"])?,
        list(&["ip", "-4", "rule"])?,
        list(&["ip", "-6", "rule"])?,
    ])
}

pub(super) fn the_pod_that_asked_is_refused_another_names_address(world: &mut World) -> TestResult {
    let deployment = Setup::of(only_names(&["api.example.test"])).deploy(world)?;
    deployment
        .upstream()
        .set("other.example.test", Records::addresses(["203.0.113.8"]));
    deployment
        .upstream()
        .set("api.example.test", Records::addresses(["203.0.113.7"]));
    // No policy filters DNS: the pod is told both.
    assert_eq!(
        deployment.ask("client", "other.example.test").addresses().len(),
        1
    );
    assert_eq!(deployment.ask("client", "api.example.test").addresses().len(), 1);
    deployment.assert_reaches("client", "203.0.113.7");
    deployment.assert_refused("client", "203.0.113.8");
    assert_eq!(
        deployment.kernel_records("client"),
        [IpAddr::from([203, 0, 113, 7])]
    );
    Ok(())
}

pub(super) fn a_pod_that_did_not_ask_is_refused_the_same_address(world: &mut World) -> TestResult {
    let deployment = Setup::of(only_names(&["api.example.test"]))
        .and_pod("other")
        .deploy(world)?;
    deployment
        .upstream()
        .set("api.example.test", Records::addresses(["203.0.113.7"]));
    deployment.ask("client", "api.example.test");
    deployment.assert_reaches("client", "203.0.113.7");
    deployment.assert_refused("other", "203.0.113.7");
    assert!(!deployment.kernel_holds("other", "203.0.113.7"));
    deployment.ask("other", "api.example.test");
    deployment.assert_reaches("other", "203.0.113.7");
    assert_eq!(
        deployment.upstream().asked("api.example.test"),
        1,
        "the second answer is from the cache"
    );
    Ok(())
}

pub(super) fn a_wildcard_covers_one_or_more_labels_and_not_its_apex(world: &mut World) -> TestResult {
    let deployment = Setup::of(only_names(&["*.wild.example.test"])).deploy(world)?;
    let names = [
        ("wild.example.test", "203.0.113.1", false),
        ("notwild.example.test", "203.0.113.2", false),
        ("wild.example.test.example", "203.0.113.3", false),
        ("one.wild.example.test", "203.0.113.4", true),
        ("under_score.wild.example.test", "203.0.113.5", true),
        ("two.one.wild.example.test", "203.0.113.6", true),
    ];
    for (name, address, _) in names {
        deployment.upstream().set(name, Records::addresses([address]));
        assert_eq!(deployment.ask("client", name).addresses().len(), 1, "{name}");
    }
    for (name, address, is_allowed) in names {
        let outcome = deployment.reach("client", address);
        assert_eq!(outcome.is_connected(), is_allowed, "{name}: {outcome:?}");
    }
    Ok(())
}

/// In the policy, in the question, and in the owner of the upstream's records (which need not be the question's case:
/// RFC 4343 section 4.1).
pub(super) fn letter_case_makes_no_difference_anywhere(world: &mut World) -> TestResult {
    let deployment = Setup::of(only_names(&["API.Example.TEST."])).deploy(world)?;
    let records = Records::addresses(["203.0.113.7"]).spelled("Api.eXAMPLE.test");
    deployment.upstream().set("api.example.test", records);
    let reply = deployment.ask("client", "aPI.exaMPLe.tesT");
    assert_eq!(
        reply.question().as_deref(),
        Some("aPI.exaMPLe.tesT."),
        "as it was asked"
    );
    deployment.assert_reaches("client", "203.0.113.7");
    assert_eq!(deployment.ask("client", "api.example.test").addresses().len(), 1);
    assert_eq!(
        deployment.upstream().asked("api.example.test"),
        1,
        "one name in the cache"
    );
    Ok(())
}

/// F-17: of either family.
pub(super) fn a_name_with_120_addresses_is_reached_at_each_of_them(world: &mut World) -> TestResult {
    let deployment = Setup::of(only_names(&["many.example.test"])).deploy(world)?;
    let v4 = (1..=120).map(|last| format!("198.51.100.{last}"));
    let v6 = (1..=120).map(|last| format!("2001:db8::64:{last}"));
    let addresses: Vec<String> = v4.chain(v6).collect();
    deployment.upstream().set(
        "many.example.test",
        Records::addresses(addresses.iter().map(String::as_str)),
    );
    for record_type in [RecordType::A, RecordType::AAAA] {
        let question = Lookup::of("many.example.test", record_type).over_tcp();
        assert_eq!(deployment.ask_as("client", &question).addresses().len(), 120);
    }
    for address in &addresses {
        deployment.assert_reaches("client", address);
    }
    assert_eq!(deployment.kernel_records("client").len(), 240);
    Ok(())
}

/// Each answer has 20 of a name's 120 addresses; its TTL is 0, so that dnsd asks each time.
pub(super) fn rotating_answers_add_up_for_each_name_under_a_wildcard(world: &mut World) -> TestResult {
    let deployment = Setup::of(only_names(&["*.cdn.example.test"])).deploy(world)?;
    let names = [
        ("docs.cdn.example.test", "198.51.100"),
        ("blog.cdn.example.test", "203.0.113"),
    ];
    let mut told = BTreeSet::new();
    for round in 0..6 {
        for (name, network) in names {
            let addresses = (1..=20).map(|last| format!("{network}.{}", round * 20 + last));
            deployment
                .upstream()
                .set(name, Records::addresses(addresses).ttl(0));
            let reply = deployment.ask("client", name).addresses();
            assert_eq!(reply.len(), 20);
            told.extend(reply);
        }
    }
    assert_eq!(told.len(), 240);
    for address in &told {
        deployment.assert_reaches("client", &address.to_string());
    }
    let held: BTreeSet<IpAddr> = deployment.kernel_records("client").into_iter().collect();
    assert_eq!(held, told);
    Ok(())
}

/// Clients ask for A and AAAA at once, over either family, and connect to either.
pub(super) fn both_families_are_learned_side_by_side(world: &mut World) -> TestResult {
    let deployment = Setup::of(only_names(&["*.dual.example.test"])).deploy(world)?;
    for number in 1..=10 {
        let name = format!("n{number}.dual.example.test");
        let addresses = [format!("203.0.113.{number}"), format!("2001:db8::{number}")];
        deployment
            .upstream()
            .set(&name, Records::addresses(addresses.clone()));
        let server = [IpAddr::from(node::DNS), IpAddr::from(node::DNS_V6)][number % 2];
        let questions =
            [RecordType::A, RecordType::AAAA].map(|record_type| Lookup::of(&name, record_type).at(server));
        std::thread::scope(|scope| {
            let asked = questions
                .each_ref()
                .map(|question| scope.spawn(|| deployment.ask_as("client", question)));
            for answer in asked {
                assert_eq!(answer.join().expect("it was answered").addresses().len(), 1);
            }
        });
        for address in &addresses {
            deployment.assert_reaches("client", address);
        }
    }
    eventually("the kernel has all of them", || {
        deployment.kernel_records("client").len() == 20
    });
    Ok(())
}

/// The older kind, with its own words; the deny is another object's.
const NAMES_AND_PORTS: &str = r#"apiVersion: policy.networking.k8s.io/v1alpha1
kind: AdminNetworkPolicy
metadata:
  name: names-and-ports
spec:
  priority: 3
  subject: {namespaces: {}}
  egress:
  - name: dns
    action: Allow
    to: [{networks: [169.254.20.10/32]}]
    ports: [{portNumber: {protocol: UDP, port: 53}}]
  - name: names
    action: Allow
    to: [{domainNames: [api.example.test]}]
    ports:
    - portNumber: {protocol: TCP, port: 443}
    - portRange: {protocol: UDP, start: 4990, end: 5000}
---
apiVersion: policy.networking.k8s.io/v1alpha2
kind: ClusterNetworkPolicy
metadata:
  name: nothing-else
spec:
  tier: Baseline
  priority: 0
  subject: {namespaces: {}}
  egress:
  - {name: rest, action: Deny, to: [{networks: [0.0.0.0/0, "::/0"]}]}
"#;

pub(super) fn a_rule_of_names_and_ports_opens_those_ports_alone(world: &mut World) -> TestResult {
    let deployment = Setup::of(NAMES_AND_PORTS).deploy(world)?;
    deployment
        .upstream()
        .set("api.example.test", Records::addresses(["203.0.113.7"]));
    deployment.ask("client", "api.example.test");
    for (port, is_open) in [(443, true), (7, false), (80, false)] {
        let outcome = deployment.reach_port("client", "203.0.113.7", port);
        assert_eq!(outcome.is_connected(), is_open, "TCP {port}: {outcome:?}");
    }
    for (port, is_open) in [(5000, true), (443, false)] {
        let to = SocketAddr::new(ip("203.0.113.7"), port);
        let outcome = deployment.pod("client").exchange_udp(to, b"?", QUICK);
        assert_eq!(outcome.is_answered(), is_open, "UDP {port}: {outcome:?}");
    }
    Ok(())
}

/// A Service with a cluster address, and its only pod.
const DATABASE: &str = "apiVersion: v1
kind: Service
metadata: {name: db, namespace: default}
spec: {clusterIP: 10.96.0.30, clusterIPs: [10.96.0.30], selector: {app: db}, ports: [{port: 7, targetPort: 7}]}
";

/// F-20 to F-23: what a headless Service and a pod are called leads to pods, and an ExternalName is an alias. A cluster address is opened by no name, and neither
/// is what is behind it.
pub(super) fn names_of_the_cluster_open_pods_and_no_cluster_address(world: &mut World) -> TestResult {
    const HEADLESS: &str = "web.default.svc.cluster.test";
    const EXTERNAL: &str = "far.default.svc.cluster.test";
    const DB: &str = "db.default.svc.cluster.test";
    const CLUSTER_IP: &str = "10.96.0.30";
    for name in ["client", "web-0", "web-1", "by-name", "db", "unnamed"] {
        world.add(PodSpec::new(name))?;
        world.pod(name).serve(7, Service::TcpEcho)?;
    }
    let service = ServicePort::tcp("db").at(SocketAddr::new(ip(CLUSTER_IP), 7));
    let db = SocketAddr::new(world.pod("db").address(), 7);
    world.proxy(ProxyMode::Iptables, &[service.to(db)])?;
    world.manifests().write("services.yaml", DATABASE)?;
    let of_pod = world.pod("by-name").address().to_string().replace('.', "-") + ".default.pod.cluster.test";
    let policy = only_names(&[HEADLESS, DB, EXTERNAL, &of_pod]);
    let deployment = Setup::of(policy).instead([]).deploy(world)?;
    let addresses_of = |pods: &[&str]| -> Vec<String> {
        let all = pods.iter().flat_map(|pod| deployment.pod(pod).addresses());
        all.map(|address| address.to_string()).collect()
    };
    let upstream = deployment.upstream();
    let records = |addresses: &[String]| Records::addresses(addresses.iter().map(String::as_str));
    upstream.set(HEADLESS, records(&addresses_of(&["web-0", "web-1"])));
    upstream.set(&of_pod, records(&addresses_of(&["by-name"])));
    upstream.set(EXTERNAL, Records::alias("www.example.test"));
    upstream.set("www.example.test", Records::addresses(["203.0.113.9"]));
    upstream.set(DB, Records::addresses([CLUSTER_IP]));
    for name in [HEADLESS, DB, EXTERNAL, &of_pod] {
        for record_type in [RecordType::A, RecordType::AAAA] {
            deployment.ask_as("client", &Lookup::of(name, record_type));
        }
    }
    for address in addresses_of(&["web-0", "web-1", "by-name"]) {
        deployment.assert_reaches("client", &address);
    }
    deployment.assert_reaches("client", "203.0.113.9");
    for address in addresses_of(&["db", "unnamed"]) {
        deployment.assert_refused("client", &address);
    }
    deployment.assert_refused("client", CLUSTER_IP);
    assert!(!deployment.kernel_records("client").contains(&ip(CLUSTER_IP)));
    let of_node = deployment.world.client_on_node();
    let outcome = of_node.connect_tcp(SocketAddr::new(ip(CLUSTER_IP), 7), QUICK);
    assert!(outcome.is_connected(), "the Service works: {outcome:?}");
    Ok(())
}
