//! What no name opens, whoever answers: nodes, the API server, and Services.

mod fixture;

use egret_policies::compiler::{Event, Settings};
use egret_policies::model::cluster::{ApiServerAddresses, EndpointSlice, Entity, NodeAddressReport, Service};
use egret_policies::model::{Direction, Policy};
use egret_policies::records::{NamesMayOpen, RecordSettings};
use egret_policies::simulator::Connection;
use egret_policies::simulator::Verdict::{Allow, Deny};
use egret_shared::pod::PodKey;

use fixture::*;

/// Pods of app=client are isolated but for these names.
fn names_only(list: &[&str]) -> Policy {
    network_policy("default/names", "app=client").egress(vec![allow(names(list))])
}

fn with_records(records: RecordSettings, list: &[&str]) -> Fixture {
    with_policy(records, names_only(list))
}

fn with_policy(records: RecordSettings, policy: Policy) -> Fixture {
    let settings = Settings {
        records,
        ..settings()
    };
    let entities = [
        Entity::Pod(pod("default/client", "app=client", &["10.0.0.1"])),
        Entity::Pod(pod("default/other", "app=client", &["10.0.0.2"])),
        Entity::Policy(policy),
    ];
    Fixture::with(settings, entities)
}

fn reaches(fixture: &Fixture, pod: &str, peer: &str) -> bool {
    fixture.egress(pod, peer, tcp(443)) == Allow
}

/// An address of the cluster itself, what says so, and whether a name opens it: without and with `node`, and in each
/// without and with `api-server`.
type Belonging = (&'static str, &'static str, Vec<Entity>, [[bool; 2]; 2]);

fn of_the_cluster() -> Vec<Belonging> {
    let service = |name: &str, address: &str| {
        Entity::Service(Service {
            key: key(name),
            selector: None,
            addresses: vec![ip(address)],
            external_addresses: vec![ip("203.0.113.99")],
            ports: Vec::new(),
        })
    };
    let endpoints = |name: &str, of: &str, address: &str| {
        Entity::EndpointSlice(EndpointSlice {
            key: key(name),
            service: Some(of.into()),
            addresses: vec![ip(address)],
            ports: Vec::new(),
        })
    };
    let report = |addresses: &[&str]| {
        Entity::NodeAddressReport(NodeAddressReport {
            node: "there".into(),
            addresses: addresses.iter().map(|address| ip(address)).collect(),
        })
    };
    let declared = Entity::ApiServerAddresses(ApiServerAddresses {
        name: "cloud".into(),
        addresses: vec![ip("203.0.113.6")],
    });
    let [always, never] = [[[true; 2]; 2], [[false; 2]; 2]];
    let with_node = [[false, false], [true, true]];
    let with_api_server = [[false, true], [false, true]];
    let with_both = [[false, false], [false, true]];
    let master = || {
        vec![
            node("there", "", &["192.0.2.3"]),
            report(&["192.0.2.3", "10.9.0.1"]),
            endpoints("default/kubernetes", "kubernetes", "192.0.2.3"),
        ]
    };
    vec![
        (
            "status",
            "192.0.2.2",
            vec![node("there", "", &["192.0.2.2"])],
            with_node,
        ),
        (
            "own node",
            "192.0.2.1",
            vec![node("here", "", &["192.0.2.1"])],
            with_node,
        ),
        (
            "report",
            "10.9.0.1",
            vec![report(&["10.9.0.1", "fd09::1"])],
            with_node,
        ),
        (
            "report, IPv6",
            "fd09::1",
            vec![report(&["10.9.0.1", "fd09::1"])],
            with_node,
        ),
        (
            "its Service",
            "10.96.0.1",
            vec![service("default/kubernetes", "10.96.0.1")],
            with_api_server,
        ),
        (
            "its endpoint",
            "203.0.113.5",
            vec![endpoints("default/k", "kubernetes", "203.0.113.5")],
            with_api_server,
        ),
        ("its declaration", "203.0.113.6", vec![declared], with_api_server),
        ("its node", "192.0.2.3", master(), with_both),
        ("another address of its node", "10.9.0.1", master(), with_both),
        (
            "another Service",
            "10.96.0.10",
            vec![service("default/web", "10.96.0.10")],
            never,
        ),
        (
            "outside of a Service",
            "203.0.113.99",
            vec![service("default/web", "10.96.0.10")],
            always,
        ),
        (
            "another endpoint",
            "203.0.113.7",
            vec![endpoints("default/w", "web", "203.0.113.7")],
            always,
        ),
        ("a pod", "10.0.0.2", vec![], always),
    ]
}

/// Not every object of another makes a batch due. Returns whose connections are asked again.
fn tell(fixture: &mut Fixture, event: Event) -> Vec<(PodKey, Direction)> {
    fixture.tell(event);
    fixture.poll().map_or_else(Vec::new, |batch| batch.reevaluate)
}

#[test]
fn no_name_opens_a_node_the_api_server_or_a_service_unless_it_may() {
    for (what, address, entities, opens) in of_the_cluster() {
        for (node, row) in [false, true].into_iter().zip(opens) {
            for (api_server, expected) in [false, true].into_iter().zip(row) {
                let records = RecordSettings {
                    names_may_open: NamesMayOpen { node, api_server },
                    ..RecordSettings::default()
                };
                let said = format!("{what}, node {node}, API server {api_server}");
                let answer = |fixture: &mut Fixture| {
                    fixture.observe("10.0.0.1", "api.example.test", &[ip(address)], 600);
                };
                let mut before = with_records(records.clone(), &["api.example.test"]);
                answer(&mut before);
                assert!(
                    reaches(&before, "default/client", address),
                    "{said}: nobody knows whose it is"
                );
                let mut asked = Vec::new();
                for entity in &entities {
                    asked.extend(tell(&mut before, Event::Apply(entity.clone())));
                }
                assert_eq!(
                    reaches(&before, "default/client", address),
                    expected,
                    "{said}: the answer first"
                );
                assert_eq!(asked.is_empty(), expected, "{said}: what is open is asked again");
                let mut after = with_records(records, &["api.example.test"]);
                for entity in &entities {
                    tell(&mut after, Event::Apply(entity.clone()));
                }
                answer(&mut after);
                assert_eq!(
                    reaches(&after, "default/client", address),
                    expected,
                    "{said}: the object first"
                );
                assert_eq!(
                    after.compiler.is_protected(&key("default/client"), ip(address)),
                    !expected,
                    "{said}"
                );
                for entity in entities.iter().rev() {
                    tell(&mut after, Event::Delete(entity.key()));
                }
                assert!(
                    reaches(&after, "default/client", address),
                    "{said}: it is nobody's again"
                );
            }
        }
    }
}

#[test]
fn an_expired_record_keeps_no_connection_to_a_protected_address() {
    let mut fixture = with_records(RecordSettings::default(), &["api.example.test"]);
    fixture.observe("10.0.0.1", "api.example.test", &[ip("192.0.2.2")], 10);
    fixture.apply(node("there", "", &["192.0.2.2"]));
    fixture.sleep(41);
    assert_eq!(fixture.compiler.record_stats().protected, 0);
    fixture.apply(Entity::Policy(names_only(&["*.example.test"])));
    let open = Connection {
        pod: key("default/client"),
        direction: Direction::Egress,
        peer: ip("192.0.2.2"),
        peer_is_own_node: false,
        protocol: tcp(443),
    };
    fixture.decide_connection(&open);
    assert_eq!(fixture.memory.decide_open(&open, fixture.now).verdict, Deny);
}

/// Whether what the client opened to that address goes on when its rules are asked again; the oracle says the same.
fn goes_on(fixture: &Fixture, address: &str) -> bool {
    let open = Connection {
        pod: key("default/client"),
        direction: Direction::Egress,
        peer: ip(address),
        peer_is_own_node: false,
        protocol: tcp(443),
    };
    fixture.decide_connection(&open);
    fixture.memory.decide_open(&open, fixture.now).verdict == Allow
}

#[test]
fn an_expired_record_keeps_connections_only_to_addresses_outside_the_cluster() {
    type Step = fn(&mut Fixture);
    let take: Step = |fixture| fixture.tell(Event::Apply(node("there", "", &["192.0.2.2"])));
    let take_too: Step = |fixture| fixture.tell(Event::Apply(node("elsewhere", "", &["192.0.2.2"])));
    let give: Step = |fixture| fixture.tell(Event::Delete(node("there", "", &[]).key()));
    let give_too: Step = |fixture| fixture.tell(Event::Delete(node("elsewhere", "", &[]).key()));
    let end: Step = |fixture| fixture.sleep(41);
    let poll: Step = |fixture| drop(fixture.poll());
    let orders: [(&str, &[Step]); 7] = [
        ("taken, over", &[take, end]),
        ("taken, told, over", &[take, poll, end]),
        ("over, taken", &[end, take]),
        ("over, told, taken", &[end, poll, take]),
        ("taken by two", &[take, poll, end, poll, take_too, poll, give]),
        ("taken again", &[take, end, poll, give, take]),
        ("given and taken", &[take, poll, end, give, poll, take]),
    ];
    let allow = names_only(&["api.example.test"]);
    let deny = admin_policy("deny", 10, "app=client").egress(vec![deny(names(&["api.example.test"]))]);
    for (what, steps) in orders {
        for (policy, goes_on_by_name) in [(&allow, true), (&deny, false)] {
            let said = format!("{what}, by name {goes_on_by_name}");
            let mut fixture = with_policy(RecordSettings::default(), policy.clone());
            fixture.observe("10.0.0.1", "api.example.test", &[ip("192.0.2.2")], 10);
            assert_eq!(goes_on(&fixture, "192.0.2.2"), goes_on_by_name, "{said}");
            steps.iter().for_each(|step| step(&mut fixture));
            let asked = fixture.poll().map_or_else(Vec::new, |batch| batch.reevaluate);
            assert_eq!(goes_on(&fixture, "192.0.2.2"), !goes_on_by_name, "{said}: taken");
            if goes_on_by_name && what != "taken by two" && what != "taken, told, over" {
                assert_eq!(asked, [(key("default/client"), Direction::Egress)], "{said}");
            }
            give(&mut fixture);
            give_too(&mut fixture);
            fixture.poll();
            assert_eq!(
                goes_on(&fixture, "192.0.2.2"),
                goes_on_by_name,
                "{said}: given up"
            );
        }
    }
}

/// Where clouds answer with credentials of the node.
const METADATA_SERVICES: [&str; 7] = [
    "169.254.169.254",
    "fd00:ec2::254",
    "fd00:ec2::23",
    "168.63.129.16",
    "100.100.100.200",
    "192.0.0.192",
    "fd20:ce::254",
];

/// The same IPv4 address as IPv6 names it: mapped, and behind a NAT64 (RFC 6052).
fn forms(address: &str) -> Vec<String> {
    match ip(address) {
        std::net::IpAddr::V4(_) => vec![
            address.to_owned(),
            format!("::ffff:{address}"),
            format!("64:ff9b::{address}"),
        ],
        std::net::IpAddr::V6(_) => vec![address.to_owned()],
    }
}

/// Whether the client reaches an address that it is told for a name that it may ask.
fn is_opened(fixture: &mut Fixture, address: &str) -> bool {
    fixture.observe("10.0.0.1", "api.example.test", &[ip(address)], 600);
    let canonical = ip(address).to_canonical().to_string();
    reaches(fixture, "default/client", &canonical)
}

#[test]
fn no_name_opens_a_metadata_service_of_a_cloud_unless_it_is_configured() {
    for service in METADATA_SERVICES {
        for address in forms(service) {
            let mut fixture = with_records(RecordSettings::default(), &["api.example.test"]);
            assert!(!is_opened(&mut fixture, &address), "{address}");
            let configured = RecordSettings {
                protected: Vec::new(),
                ..RecordSettings::default()
            };
            let mut fixture = with_records(configured, &["api.example.test"]);
            assert!(is_opened(&mut fixture, &address), "{address}: configured");
        }
    }
    let neighbours = [
        "fd00:ec2::253",
        "fd00:ec2::24",
        "168.63.129.17",
        "100.100.100.201",
        "192.0.0.193",
        "fd20:ce::255",
        "64:ff9b::100.100.100.201",
        "64:ff9b:1::100.100.100.200",
    ];
    for address in neighbours {
        let mut fixture = with_records(RecordSettings::default(), &["api.example.test"]);
        assert!(is_opened(&mut fixture, address), "{address}: a neighbour");
    }
}

#[test]
fn no_name_opens_a_node_or_loopback_behind_a_nat64() {
    let mut fixture = with_records(RecordSettings::default(), &["api.example.test"]);
    assert!(!is_opened(&mut fixture, "64:ff9b::127.0.0.1"));
    assert!(is_opened(&mut fixture, "64:ff9b::192.0.2.2"));
    tell(&mut fixture, Event::Apply(node("there", "", &["192.0.2.2"])));
    assert!(!reaches(&fixture, "default/client", "64:ff9b::192.0.2.2"));
    assert!(is_opened(&mut fixture, "64:ff9b::192.0.2.3"));
    tell(&mut fixture, Event::Delete(node("there", "", &[]).key()));
    assert!(reaches(&fixture, "default/client", "64:ff9b::192.0.2.2"));
}

/// A NetworkPolicy exempts what a pod sends to itself; this denies all but the names.
fn nothing_but(list: &[&str]) -> Policy {
    let all = networks(&["0.0.0.0/0", "::/0"]);
    admin_policy("names", 10, "app=client").egress(vec![allow(names(list)), deny(all)])
}

#[test]
fn no_name_opens_the_asking_pods_own_addresses() {
    let mut fixture = with_policy(RecordSettings::default(), nothing_but(&["api.example.test"]));
    for address in ["10.0.0.1", "::ffff:10.0.0.1", "64:ff9b::10.0.0.1"] {
        assert!(!is_opened(&mut fixture, address), "{address}");
    }
    assert!(is_opened(&mut fixture, "10.0.0.2"), "another pod's");
    // The other pod may use what is not its own, though the first may not.
    fixture.observe("10.0.0.2", "api.example.test", &[ip("10.0.0.1")], 600);
    assert!(reaches(&fixture, "default/other", "10.0.0.1"));
    assert!(!reaches(&fixture, "default/client", "10.0.0.1"));
}

#[test]
fn an_address_that_the_pod_gets_later_is_closed_from_then_on() {
    let mut fixture = with_policy(RecordSettings::default(), nothing_but(&["api.example.test"]));
    assert!(is_opened(&mut fixture, "fd00::1"));
    let both = pod("default/client", "app=client", &["10.0.0.1", "fd00::1"]);
    tell(&mut fixture, Event::Apply(Entity::Pod(both)));
    assert!(!reaches(&fixture, "default/client", "fd00::1"));
    assert!(is_opened(&mut fixture, "fd00::2"));
}

#[test]
fn no_name_opens_what_the_node_holds_as_long_as_it_does() {
    let holds = |addresses: &[&str]| Event::NodeHolds(addresses.iter().map(|address| ip(address)).collect());
    for (opens, expected) in [(false, false), (true, true)] {
        let records = RecordSettings {
            names_may_open: NamesMayOpen {
                node: opens,
                api_server: false,
            },
            ..RecordSettings::default()
        };
        let mut fixture = with_records(records, &["api.example.test"]);
        fixture.tell(holds(&["10.244.1.1", "172.17.0.1"]));
        assert_eq!(is_opened(&mut fixture, "10.244.1.1"), expected);
        assert_eq!(is_opened(&mut fixture, "64:ff9b::10.244.1.1"), expected);
        assert!(is_opened(&mut fixture, "10.244.1.2"), "nobody's");
        // One goes, one stays, and one comes that a pod was told before.
        tell(&mut fixture, holds(&["172.17.0.1", "10.244.1.2"]));
        for (address, reached) in [
            ("10.244.1.1", true),
            ("10.244.1.2", expected),
            ("172.17.0.1", expected),
        ] {
            fixture.observe("10.0.0.1", "api.example.test", &[ip(address)], 600);
            assert_eq!(
                reaches(&fixture, "default/client", address),
                reached,
                "{address}, {opens}"
            );
        }
        // What a report has as well stays closed when the node does not hold it any more, and the other way round.
        let report = NodeAddressReport {
            node: "here".into(),
            addresses: vec![ip("10.244.1.2")],
        };
        tell(
            &mut fixture,
            Event::Apply(Entity::NodeAddressReport(report.clone())),
        );
        tell(&mut fixture, holds(&[]));
        assert_eq!(reaches(&fixture, "default/client", "10.244.1.2"), expected);
        assert!(reaches(&fixture, "default/client", "172.17.0.1"));
        tell(
            &mut fixture,
            Event::Delete(Entity::NodeAddressReport(report).key()),
        );
        assert!(reaches(&fixture, "default/client", "10.244.1.2"));
    }
}
