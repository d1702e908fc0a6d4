//! What an API server refuses of Egret's own kinds: a real one has the definitions, and is asked for each object
//! without storing it.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails there and then")]

use std::fs;
use std::path::Path;
use std::time::Duration;

use egret_integration::{Kubernetes, Output, World, within};
use serde_json::{Value, json};

type TestResult = Result<(), Box<dyn std::error::Error>>;

const PATIENCE: Duration = Duration::from_secs(10);

/// An object that is to be refused, and what the server says.
type Refused = (Value, &'static str);

fn object(kind: &str, spec: Value) -> Value {
    json!({ "apiVersion": "policy.egret.dev/v1alpha1", "kind": kind, "spec": spec })
}

fn firewall(spec: Value) -> Value {
    object("ClusterEgressFirewall", spec)
}

/// A firewall with one rule that denies these destinations.
fn deny(to: Value) -> Value {
    firewall(json!({ "rules": [{ "action": "Deny", "to": to }] }))
}

fn allow(to: Value) -> Value {
    firewall(json!({ "rules": [{ "action": "Allow", "to": to }] }))
}

/// A firewall with one rule over these protocols.
fn protocols(protocols: Value) -> Value {
    let to = json!([{ "networks": ["203.0.113.0/24"] }]);
    firewall(json!({ "rules": [{ "action": "Deny", "to": to, "protocols": protocols }] }))
}

fn selector(requirement: Value) -> Value {
    deny(json!([{ "nodes": { "selector": { "matchExpressions": [requirement] } } }]))
}

fn many<T>(count: usize, one: impl Fn(usize) -> T) -> Vec<T> {
    (0..count).map(one).collect()
}

fn network(number: usize) -> String {
    format!("10.{}.{}.0/24", number / 256, number % 256)
}

fn refused() -> Vec<Refused> {
    let somewhere = json!([{ "networks": ["203.0.113.0/24"] }]);
    let rule = json!({ "action": "Deny", "to": somewhere });
    let named = json!({ "name": "twice", "action": "Deny", "to": somewhere });
    let one_of_to = "exactly one of networks, nodes, apiServer, external, domainNames";
    let only_allow = "domainNames and additionalNames only with action Allow";
    let a_range = |start: u32, end: u32| json!([{ "tcp": { "destinationPort": { "range": { "start": start, "end": end } } } }]);
    let values = "In and NotIn need values, Exists and DoesNotExist have none";
    vec![
        (
            firewall(json!({ "priority": -1, "rules": [rule] })),
            "spec.priority",
        ),
        (
            firewall(json!({ "priority": 1001, "rules": [rule] })),
            "spec.priority",
        ),
        (firewall(json!({})), "spec.rules"),
        (firewall(json!({ "rules": [] })), "spec.rules"),
        (
            firewall(json!({ "rules": many(101, |_| rule.clone()) })),
            "spec.rules",
        ),
        (
            firewall(json!({ "rules": [named, named] })),
            "names of rules must be unique",
        ),
        (
            firewall(json!({ "rules": [{ "action": "Drop", "to": somewhere }] })),
            "spec.rules[0].action",
        ),
        (
            firewall(json!({ "rules": [{ "to": somewhere }] })),
            "spec.rules[0].action",
        ),
        (
            firewall(json!({ "rules": [{ "action": "Deny" }] })),
            "spec.rules[0].to",
        ),
        (
            firewall(json!({ "rules": [rule], "services": { "exposure": "Open" } })),
            "spec.services.exposure",
        ),
        (deny(json!([])), "spec.rules[0].to"),
        (
            deny(json!(many(51, |_| json!({ "external": {} })))),
            "spec.rules[0].to",
        ),
        (deny(json!([{}])), "spec.rules[0].to[0]"),
        (deny(json!([{ "external": {}, "nodes": {} }])), one_of_to),
        (
            deny(json!([{ "external": { "not": 1 } }])),
            "spec.rules[0].to[0].external",
        ),
        (deny(json!([{ "networks": [] }])), "spec.rules[0].to[0].networks"),
        (
            deny(json!([{ "networks": many(101, network) }])),
            "spec.rules[0].to[0].networks",
        ),
        (
            deny(json!([{ "networks": ["10.0.0.0/8", "10.0.0.0/8"] }])),
            "spec.rules[0].to[0].networks[1]",
        ),
        (
            deny(json!([{ "networks": ["10.0.0.1"] }])),
            "a network such as 10.0.0.0/8 or fd00::/8",
        ),
        (
            deny(json!([{ "networks": ["10.0.0.0/33"] }])),
            "a network such as 10.0.0.0/8 or fd00::/8",
        ),
        (
            deny(json!([{ "networks": [""] }])),
            "a network such as 10.0.0.0/8 or fd00::/8",
        ),
        (
            deny(json!([{ "nodes": { "addresses": "Some" } }])),
            "spec.rules[0].to[0].nodes.addresses",
        ),
        (selector(json!({ "key": "zone", "operator": "In" })), values),
        (
            selector(json!({ "key": "zone", "operator": "Exists", "values": ["a"] })),
            values,
        ),
        (
            selector(json!({ "key": "zone", "operator": "Gt", "values": ["1"] })),
            "matchExpressions[0].operator",
        ),
        (
            selector(json!({ "key": "-", "operator": "Exists" })),
            "matchExpressions[0].key",
        ),
        (deny(json!([{ "domainNames": ["www.example.com"] }])), only_allow),
        (
            deny(json!([{ "apiServer": { "additionalNames": ["api.example.com"] } }])),
            only_allow,
        ),
        (
            allow(json!([{ "domainNames": [] }])),
            "spec.rules[0].to[0].domainNames",
        ),
        (
            allow(json!([{ "domainNames": many(26, |number| format!("{number}.example.com")) }])),
            "spec.rules[0].to[0].domainNames",
        ),
        (
            allow(json!([{ "domainNames": ["localhost"] }])),
            "spec.rules[0].to[0].domainNames[0]",
        ),
        (
            allow(json!([{ "domainNames": ["a.*.example.com"] }])),
            "spec.rules[0].to[0].domainNames[0]",
        ),
        (
            allow(json!([{ "domainNames": ["*example.com"] }])),
            "spec.rules[0].to[0].domainNames[0]",
        ),
        (
            allow(json!([{ "domainNames": ["*"] }])),
            "spec.rules[0].to[0].domainNames[0]",
        ),
        (
            deny(json!([{ "apiServer": { "additionalAddresses": ["api"] } }])),
            "an IPv4 or IPv6 address",
        ),
        (
            deny(
                json!([{ "apiServer": { "additionalAddresses": many(33, |number| format!("192.0.2.{number}")) } }]),
            ),
            "additionalAddresses",
        ),
        (
            allow(json!([{ "apiServer": { "additionalNames": [] } }])),
            "additionalNames",
        ),
        (protocols(json!([])), "spec.rules[0].protocols"),
        (protocols(json!([{}])), "spec.rules[0].protocols[0]"),
        (
            protocols(json!([{ "tcp": {}, "udp": {} }])),
            "exactly one of tcp, udp, sctp, icmp",
        ),
        (
            protocols(json!([{ "icmp": { "type": 8 } }])),
            "spec.rules[0].protocols[0].icmp",
        ),
        (
            protocols(json!([{ "tcp": { "destinationPort": {} } }])),
            "destinationPort",
        ),
        (
            protocols(json!([{ "tcp": { "destinationPort": { "number": 0 } } }])),
            "destinationPort.number",
        ),
        (
            protocols(json!([{ "tcp": { "destinationPort": { "number": 65536 } } }])),
            "destinationPort.number",
        ),
        (
            protocols(
                json!([{ "tcp": { "destinationPort": { "number": 1, "range": { "start": 1, "end": 2 } } } }]),
            ),
            "exactly one of number, range",
        ),
        (protocols(a_range(8080, 80)), "start must not be above end"),
        (
            object("APIServerAddresses", json!({ "addresses": ["2001:db8::/32"] })),
            "an IPv4 or IPv6 address",
        ),
        (object("APIServerAddresses", json!({})), "spec.addresses"),
    ]
}

fn admitted() -> Vec<Value> {
    let far = json!([
        { "networks": many(100, network) },
        { "networks": ["2001:db8::/32", "0.0.0.0/0"] },
        { "nodes": { "addresses": "Reported", "selector": { "matchExpressions": [{ "key": "zone", "operator": "NotIn", "values": ["a"] }] } } },
        { "apiServer": { "additionalAddresses": ["192.0.2.1", "2001:db8::1"] } },
        { "external": {} },
    ]);
    let names = json!([{ "domainNames": ["www.example.com", "*.example.org."] }, { "apiServer": { "additionalNames": ["api.example.com"] } }]);
    let ports = json!([
        { "tcp": {} }, { "icmp": {} },
        { "udp": { "destinationPort": { "number": 53 } } },
        { "sctp": { "destinationPort": { "range": { "start": 80, "end": 80 } } } },
    ]);
    vec![
        deny(far.clone()),
        allow(names.clone()),
        firewall(json!({
            "priority": 1000,
            "services": { "exposure": "Ignore" },
            "rules": [
                { "name": "names", "action": "Allow", "to": names, "protocols": ports },
                { "name": "far", "action": "Deny", "to": far },
                { "action": "Deny", "to": [{ "external": {} }] },
            ],
        })),
        object(
            "APIServerAddresses",
            json!({ "addresses": ["192.0.2.1", "2001:db8::1"] }),
        ),
    ]
}

/// Asks for all of them, each for itself, so that a message is about one object; in one call, as the client takes long to start.
/// It prints the names of those that were admitted.
fn create(
    kubernetes: &Kubernetes,
    world: &World,
    objects: Vec<Value>,
) -> Result<Output, Box<dyn std::error::Error>> {
    let named = objects.into_iter().enumerate().map(|(number, mut object)| {
        object["metadata"] = json!({ "name": format!("object-{number}") });
        object
    });
    let list = json!({ "apiVersion": "v1", "kind": "List", "items": named.collect::<Vec<_>>() });
    let path = world.manifests().folder().join("asked.json");
    fs::write(&path, list.to_string())?;
    let path = path.display().to_string();
    let only_asks = ["create", "--validate=false", "--dry-run=server"];
    let arguments = [&only_asks[..], &["-o", "name", "-f", &path]].concat();
    Ok(kubernetes.ask(world, &arguments)?)
}

#[test]
fn what_our_kinds_cannot_say_is_refused_by_the_api_server_itself() -> TestResult {
    let Some(world) = World::or_skip() else {
        return Ok(());
    };
    let Some(kubernetes) = Kubernetes::start(&world)? else {
        return Ok(());
    };
    let definitions = Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/crds");
    kubernetes.apply(&world, &definitions)?;
    let count = admitted().len();
    within(PATIENCE, "the kinds are served", || {
        let output = create(&kubernetes, &world, admitted());
        output.is_ok_and(|output| output.stdout.lines().count() == count)
    });

    let (objects, messages): (Vec<Value>, Vec<&str>) = refused().into_iter().unzip();
    let output = create(&kubernetes, &world, objects.clone())?;
    let said = output.stderr;
    for (number, (object, message)) in objects.iter().zip(messages).enumerate() {
        let about = format!("\"object-{number}\" is invalid: ");
        let own = said.split_once(&about).map(|(_, behind)| behind);
        let own = own.map(|behind| behind.split(" is invalid: ").next().unwrap_or(behind));
        assert!(
            own.is_some_and(|own| own.contains(message)),
            "{object}\nwant: {message}\nis: {own:?}\nof: {said}"
        );
    }
    assert_eq!(output.stdout, "");
    Ok(())
}
