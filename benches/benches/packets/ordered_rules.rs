//! What the ordered rules say that are measured.

use serde_json::{Value, json};

/// Rules of ClusterNetworkPolicies, one each, none of which is about the server but the last, which accepts it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ordered {
    pub(crate) shape: Shape,
    pub(crate) rules: usize,
}

/// What rules say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shape {
    /// Deny two networks each.
    Denies,
    /// Accept and Deny a network in turn.
    InTurn,
    /// Deny a network at a port each.
    Ports,
    /// Accept, Deny and Pass; networks, with and without a port, and pods.
    Mixed,
    /// The same with a name in every hundredth rule.
    Names,
}

impl Shape {
    /// With a word that chooses it on the command line, and a title.
    pub(crate) const ALL: [(Self, &'static str, &'static str); 5] = [
        (Self::Denies, "denies", "Deny of two networks each"),
        (Self::InTurn, "turns", "Accept and Deny in turn"),
        (Self::Ports, "ports", "Deny with a port each"),
        (
            Self::Mixed,
            "mixed",
            "Accept, Deny and Pass; networks, ports and pods",
        ),
        (Self::Names, "names", "the same, with a name in every 100th rule"),
    ];

    fn rule(self, number: usize) -> Value {
        let turn = |actions: &[&'static str]| actions[number % actions.len()];
        let network =
            |high: usize| format!("100.{}.{}.0/26", 64 + number % 10_000 / 200, number % 200 + high);
        match self {
            Self::Denies => deny_all(
                "Deny",
                &[network(0), format!("198.18.{}.{}/32", number / 200, number % 200)],
            ),
            Self::InTurn => deny_all(turn(&["Accept", "Deny"]), &[network(0)]),
            Self::Ports => {
                let mut rule = deny_all("Deny", &[network(0)]);
                rule["protocols"] = tcp(number);
                rule
            }
            Self::Names if number % 100 == 99 => json!({
                "name": "named", "action": "Accept",
                "to": [{"domainNames": [format!("www{number}.example.com")]}],
            }),
            Self::Mixed | Self::Names => {
                let action = turn(&["Accept", "Deny", "Pass", "Deny", "Accept", "Pass", "Deny"]);
                let mut rule = deny_all(action, &[network(0)]);
                match number % 5 {
                    0 => rule["protocols"] = tcp(number % 6),
                    1 => rule["to"] = pods(&format!("n{}", number % 100), &format!("a{}", number % 10)),
                    _ => {}
                }
                rule
            }
        }
    }
}

fn deny_all(action: &str, networks: &[String]) -> Value {
    json!({"name": "rule", "action": action, "to": [{"networks": networks}]})
}

fn pods(namespace: &str, app: &str) -> Value {
    let namespaces = json!({"matchLabels": {"kubernetes.io/metadata.name": namespace}});
    json!([{"pods": {"namespaceSelector": namespaces, "podSelector": {"matchLabels": {"app": app}}}}])
}

fn tcp(number: usize) -> Value {
    json!([{"tcp": {"destinationPort": {"number": 10_000 + number}}}])
}

impl Ordered {
    pub(crate) fn policies(self) -> impl Iterator<Item = Value> {
        let Self { shape, rules } = self;
        let last = rules - 1;
        (0..rules).map(move |number| {
            let rule = match number == last {
                true => json!({"name": "server", "action": "Accept", "to": pods("m-servers", "server")}),
                false => shape.rule(number),
            };
            json!({
                "apiVersion": "policy.networking.k8s.io/v1alpha2", "kind": "ClusterNetworkPolicy",
                "metadata": {"name": format!("c{number:05}"), "uid": format!("00000009-0000-4000-8000-{number:012x}")},
                "spec": {
                    "tier": "Admin", "priority": number / 10,
                    "subject": {"namespaces": {"matchLabels": {"role": "clients"}}},
                    "egress": [rule],
                },
            })
        })
    }
}
