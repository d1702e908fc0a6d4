//! What happens to a big cluster, again and again: each change as the events of its rounds.

use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use egret_policies::compiler::Event;
use egret_policies::model::cluster::Entity;
use egret_shared::observation::{Observation, ObservedAddress};
use egret_shared::time::Timestamp;

use super::{
    GATEWAY, LOCAL, NAMESPACES_ELSEWHERE, NAMESPACES_HERE, address_of, entities_of, namespace, node, pod,
    policy,
};

/// A change, as the event of its n-th time.
pub struct Change {
    /// In words.
    pub what: &'static str,
    /// How often it is worth measuring.
    pub rounds: usize,
    /// The event of a round, at a moment.
    pub event: Box<dyn FnMut(usize, Timestamp) -> Event>,
}

impl std::fmt::Debug for Change {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Change")
            .field("what", &self.what)
            .finish_non_exhaustive()
    }
}

/// One of two forms in turn.
fn turns(what: &'static str, rounds: usize, forms: [Entity; 2]) -> Change {
    Change {
        what,
        rounds,
        event: Box::new(move |round, _| Event::Apply(forms[round % 2].clone())),
    }
}

fn one(text: &str) -> Entity {
    entities_of(text).swap_remove(0)
}

fn relabelled(text: &str, label: (&str, &str)) -> [Entity; 2] {
    let before = one(text);
    let mut after = before.clone();
    match &mut after {
        Entity::Pod(pod) => pod.labels.set(label.0, label.1),
        Entity::Namespace(namespace) => namespace.labels.set(label.0, label.1),
        other => panic!("{other:?} is not relabelled here"),
    }
    [after, before]
}

/// Other policies select the pod then.
#[must_use]
pub fn label_here() -> Change {
    turns(
        "a label of a pod of this node",
        2_000,
        relabelled(&pod(7, 7, 0), ("app", "a3")),
    )
}

/// Nobody here asks for it.
#[must_use]
pub fn label_elsewhere() -> Change {
    let pod = pod(1_001, NAMESPACES_HERE + 1, 0);
    turns(
        "a label of a pod elsewhere",
        5_000,
        relabelled(&pod, ("version", "v9")),
    )
}

/// It is in a few sets that policies of this node have.
#[must_use]
pub fn label_of_a_peer() -> Change {
    let pod = pod(1_001, NAMESPACES_HERE + 1, 0);
    turns(
        "a label of a pod elsewhere that is a peer of some",
        500,
        relabelled(&pod, ("app", "none")),
    )
}

/// 317 sets with it change.
#[must_use]
pub fn label_of_the_gateway() -> Change {
    turns(
        "a label of a pod that is in the peers of all policies",
        500,
        relabelled(GATEWAY, ("role", "none")),
    )
}

/// The set of what belongs to the cluster changes with it.
#[must_use]
pub fn network_of_a_node() -> Change {
    let text = node(7);
    let more = text.replace("podCIDRs: [", "podCIDRs: [10.200.0.0/24, ");
    turns(
        "a network of pods of a node elsewhere",
        500,
        [one(&more), one(&text)],
    )
}

/// Administrators select it.
#[must_use]
pub fn label_of_a_namespace() -> Change {
    turns(
        "a label of a namespace with ten pods",
        500,
        relabelled(&namespace(7), ("team", "t5")),
    )
}

fn with_port(text: &str) -> [Entity; 2] {
    [one(&text.replace("port: 5432", "port: 5433")), one(text)]
}

/// Of two pods.
#[must_use]
pub fn policy_here() -> Change {
    turns(
        "a NetworkPolicy that selects pods of this node",
        2_000,
        with_port(&policy(7, 9)),
    )
}

/// Of no pod here.
#[must_use]
pub fn policy_elsewhere() -> Change {
    let policy = policy(NAMESPACES_HERE + NAMESPACES_ELSEWHERE / 2, 1);
    turns("a NetworkPolicy elsewhere", 5_000, with_port(&policy))
}

/// The rules of each pod.
#[must_use]
pub fn policy_of_all_pods() -> Change {
    let form = |port: u16| {
        one(&format!(
            "apiVersion: policy.networking.k8s.io/v1alpha2\nkind: ClusterNetworkPolicy\nmetadata: {{name: everybody}}\n\
             spec:\n  tier: Admin\n  priority: 50\n  subject: {{namespaces: {{}}}}\n  egress:\n  \
             - action: Deny\n    to: [{{networks: [203.0.113.0/24]}}]\n    \
             protocols: [{{tcp: {{destinationPort: {{number: {port}}}}}}}]\n"
        ))
    };
    turns(
        "a policy that selects all 110 pods of this node",
        500,
        [form(80), form(81)],
    )
}

/// It goes first.
#[must_use]
pub fn pod_comes_and_goes() -> Change {
    let pod = one(&pod(7, 7, 0));
    Change {
        what: "a pod of this node comes or goes",
        rounds: 1_000,
        event: Box::new(move |round, _| {
            if round % 2 == 0 {
                Event::Delete(pod.key())
            } else {
                Event::Apply(pod.clone())
            }
        }),
    }
}

/// For 44 members.
#[must_use]
pub fn new_answer() -> Change {
    let mut next = u32::from(Ipv4Addr::new(100, 64, 0, 0));
    Change {
        what: "an answer with 4 new addresses, for a name that 11 policies of the pod have",
        rounds: 10_000,
        event: Box::new(move |round, now| {
            next += 4;
            Event::Observed(answer(round, "cdn", next, now))
        }),
    }
}

/// For 1,100 members.
#[must_use]
pub fn long_answer() -> Change {
    let mut next = u32::from(Ipv4Addr::new(100, 112, 0, 0));
    Change {
        what: "an answer with 100 new addresses, for a name that 11 policies of the pod have",
        rounds: 500,
        event: Box::new(move |round, now| {
            next += 100;
            let first = answer(round, "cdn", next, now);
            let more = (1..25).flat_map(|part| answer(round, "cdn", next + part * 4, now).addresses);
            let addresses = first.addresses.iter().copied().chain(more).collect();
            Event::Observed(Observation { addresses, ..first })
        }),
    }
}

/// For 4 members.
#[must_use]
pub fn answer_for_one_policy() -> Change {
    let mut next = u32::from(Ipv4Addr::new(100, 96, 0, 0));
    Change {
        what: "an answer with 4 new addresses, for a name that one policy has",
        rounds: 10_000,
        event: Box::new(move |round, now| {
            next += 4;
            Event::Observed(answer(round, "fw", next, now))
        }),
    }
}

/// Members that live longer.
#[must_use]
pub fn known_answer() -> Change {
    let first = u32::from(Ipv4Addr::new(100, 127, 0, 0));
    Change {
        what: "the same 4 addresses again, with a later end",
        rounds: 10_000,
        event: Box::new(move |_, now| Event::Observed(answer(8, "cdn", first, now))),
    }
}

/// Told to one pod after the other, for 50 names.
fn answer(round: usize, zone: &str, first: u32, now: Timestamp) -> Observation {
    let address = |offset| ObservedAddress {
        address: IpAddr::V4(Ipv4Addr::from(first + offset)),
        expires: now.after(Duration::from_secs(30)),
    };
    Observation {
        client: address_of(round % LOCAL),
        question: format!("img{}.{zone}{}.example.test", round / LOCAL % 10, round % 5)
            .parse()
            .expect("a name"),
        chain: Vec::new(),
        addresses: (0..4).map(address).collect(),
    }
}
