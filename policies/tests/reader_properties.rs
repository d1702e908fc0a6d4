//! What holds for every text and every network.

#![allow(clippy::unwrap_used, reason = "a test that cannot read its own table fails")]

use egret_policies::api::manifest::read;
use egret_policies::api::{Kind, UnknownFields};
use egret_policies::diagnostic::Severity;
use egret_policies::lower::{lower, lower_as};
use egret_policies::model::cluster::Entity;
use egret_policies::model::subtract;
use egret_shared::net::IpNet;
use proptest::prelude::*;

const EXAMPLES: [&str; 2] = [
    "apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: p, labels: {a: b}}
spec:
  podSelector: {matchLabels: {app: web}, matchExpressions: [{key: a, operator: In, values: [b]}]}
  policyTypes: [Ingress, Egress]
  ingress:
  - from:
    - ipBlock: {cidr: 10.0.0.0/8, except: [10.1.0.0/16]}
    - {podSelector: {}, namespaceSelector: {}}
    ports: [{port: 80, endPort: 90}, {port: web, protocol: UDP}]
",
    "apiVersion: policy.networking.k8s.io/v1alpha2
kind: ClusterNetworkPolicy
metadata: {name: p}
spec:
  tier: Admin
  priority: 5
  subject: {pods: {podSelector: {matchLabels: {app: web}}}}
  egress:
  - {name: a, action: Accept, to: [{domainNames: ['*.x.io']}], protocols: [{tcp: {destinationPort: {number: 443}}}]}
  - {action: Deny, to: [{networks: [0.0.0.0/0]}, {nodes: {}}]}
",
];

/// An example with some characters cut, repeated or replaced: nearly right, as people write.
fn damaged() -> impl Strategy<Value = String> {
    let edits = prop::collection::vec(
        (
            any::<prop::sample::Index>(),
            0..8usize,
            "[a-z:{}\\[\\],\\-&*!|>'\" \n\t0-9]{0,4}",
        ),
        1..6,
    );
    (prop::sample::select(&EXAMPLES[..]), edits).prop_map(|(example, edits)| {
        let mut text = example.to_owned();
        for (place, length, with) in edits {
            let from = place.index(text.len());
            let to = (from + length).min(text.len());
            text.replace_range(from..to, &with);
        }
        text
    })
}

fn read_and_lower(text: &str) {
    for document in read(text, "f").documents {
        let lowered = lower(&document.object);
        assert!(!lowered.entities.is_empty(), "every object means something");
        for diagnostic in &lowered.diagnostics {
            assert!(!diagnostic.enforced.is_empty(), "{diagnostic}");
            assert!(!diagnostic.to_string().contains('\n'), "{diagnostic}");
        }
        let stored = lower_as(&document.object, UnknownFields::AsStored);
        assert_eq!(stored.entities.len(), lowered.entities.len());
        if let (Kind::Policy(_), Entity::Policy(policy)) = (document.object.kind, &lowered.entities[0]) {
            assert_eq!(policy.id.name, document.object.metadata.name);
        }
    }
}

fn network(family: bool) -> impl Strategy<Value = IpNet> {
    // Few bits differ, so that networks meet.
    let (base, bits, most) = if family {
        (0x0a00_0000_u128, 32, 32_u8)
    } else {
        (0xfd << 120, 128, 128)
    };
    (0..=0xfff_u128, 0..=most).prop_map(move |(low, length)| {
        let value = base | (low << (bits - 20)) | low;
        let address = if family {
            std::net::IpAddr::from(u32::try_from(value & 0xffff_ffff).unwrap().to_be_bytes())
        } else {
            std::net::IpAddr::from(value.to_be_bytes())
        };
        IpNet::new(address, length).unwrap().trunc()
    })
}

proptest! {
    #[test]
    fn any_text_is_read_without_a_panic(text in "\\PC{0,200}|[a-z:{}\\[\\],&*!|>'\"#%@`?~ \n\t0-9-]{0,300}") {
        read_and_lower(&text);
    }

    #[test]
    fn a_damaged_policy_is_lowered_without_a_panic(text in damaged()) {
        read_and_lower(&text);
    }

    /// An ipBlock matches exactly the addresses of its network that no exception has.
    #[test]
    fn what_is_left_is_the_difference(
        (whole, exceptions) in any::<bool>().prop_flat_map(|family| (network(family), prop::collection::vec(network(family), 0..6)))
    ) {
        let left = subtract(whole, &exceptions);
        let edges = |net: &IpNet| [net.network(), net.broadcast()];
        let mut samples: Vec<_> = std::iter::once(&whole).chain(&exceptions).chain(&left).flat_map(edges).collect();
        samples.extend(samples.clone().into_iter().flat_map(neighbours));
        for address in samples {
            let expected = whole.contains(&address) && !exceptions.iter().any(|net| net.contains(&address));
            let count = left.iter().filter(|net| net.contains(&address)).count();
            prop_assert_eq!(count, usize::from(expected), "{} of {} without {:?}: {:?}", address, whole, exceptions, left);
        }
    }
}

fn neighbours(address: std::net::IpAddr) -> Vec<std::net::IpAddr> {
    match address {
        std::net::IpAddr::V4(address) => {
            let number = u32::from(address);
            [number.wrapping_sub(1), number.wrapping_add(1)]
                .map(|number| std::net::IpAddr::V4(number.into()))
                .to_vec()
        }
        std::net::IpAddr::V6(address) => {
            let number = u128::from(address);
            [number.wrapping_sub(1), number.wrapping_add(1)]
                .map(|number| std::net::IpAddr::V6(number.into()))
                .to_vec()
        }
    }
}

/// A rule that loses a field to a typing error never allows more than it did.
#[test]
fn any_misspelt_field_of_a_spec_is_an_error() {
    for example in EXAMPLES {
        let spec_at = example.find("spec:").unwrap() + "spec:".len();
        let fields = [
            "podSelector",
            "matchLabels",
            "matchExpressions",
            "operator",
            "policyTypes",
            "ingress",
            "from",
            "ipBlock",
            "except",
            "namespaceSelector",
            "ports",
            "endPort",
            "protocol",
            "tier",
            "priority",
            "subject",
            "pods",
            "egress",
            "action",
            "to:",
            "domainNames",
            "protocols",
            "tcp",
            "destinationPort",
            "number",
            "networks",
            "nodes",
        ];
        for field in fields {
            let Some(at) = example[spec_at..].find(field) else {
                continue;
            };
            let mut text = example.to_owned();
            text.insert(spec_at + at + 1, 'x');
            let manifest = read(&text, "f");
            let lowered = lower(&manifest.documents[0].object);
            let errors = lowered
                .diagnostics
                .iter()
                .filter(|diagnostic| diagnostic.severity == Severity::Error);
            assert!(errors.count() > 0, "{field}\n{text}");
        }
    }
}
