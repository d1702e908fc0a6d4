//! What one change costs after the first compilation, from the event to its last batch.

use std::net::{IpAddr, Ipv4Addr};
use std::time::{Duration, Instant};

use egret_benches::big::{
    Elsewhere, GATEWAY, LOCAL, NAMESPACES_ELSEWHERE, NAMESPACES_HERE, address_of, entities_of, namespace,
    pod, policy,
};
use egret_benches::{START, compiler};
use egret_policies::compiler::{Compiler, Event, InSync};
use egret_policies::model::cluster::Entity;
use egret_policies::rules::Batch;
use egret_shared::observation::{Observation, ObservedAddress};
use egret_shared::time::Timestamp;

use crate::meter::{Times, cpu};

/// A change, as the event of its n-th time.
struct Change {
    what: &'static str,
    rounds: usize,
    event: Box<dyn FnMut(usize, Timestamp) -> Event>,
}

/// The node, after its first batch.
struct Node {
    compiler: Compiler<InSync>,
    now: Timestamp,
}

/// What the rounds of one change gave.
#[derive(Default)]
struct Outcome {
    cpu: Times,
    wall: Times,
    pods: usize,
    members: usize,
}

/// Every kind of change in one cluster, or those with one of some words.
pub(crate) fn table(elsewhere: Elsewhere, words: &[&str]) {
    let mut node = Node::new(elsewhere);
    println!("| change | CPU µs p50 | p99 | max | wall µs p99 | pods with new rules | members changed |");
    println!("|---|---|---|---|---|---|---|");
    let is_asked = |change: &Change| words.is_empty() || words.iter().any(|word| change.what.contains(word));
    for mut change in changes().filter(is_asked) {
        let outcome = node.measure(&mut change);
        println!(
            "| {} | {:.1} | {:.1} | {:.1} | {:.1} | {} | {} |",
            change.what,
            outcome.cpu.percentile(50),
            outcome.cpu.percentile(99),
            outcome.cpu.percentile(100),
            outcome.wall.percentile(99),
            outcome.pods,
            outcome.members,
        );
    }
}

/// Changes of this node's own, with more and more of what does not concern it.
pub(crate) fn flatness() {
    let target = Elsewhere::TARGET;
    let mut sizes = Vec::new();
    sizes.extend([1_000, 3_000, 10_000].map(|policies| Elsewhere { policies, ..target }));
    sizes.extend([1_000, 5_000, 20_000].map(|pods| Elsewhere { pods, ..target }));
    let names: Vec<&str> = flat_changes().map(|change| change.what).collect();
    println!("CPU µs, p50:\n");
    println!("| policies elsewhere | pods elsewhere | {} |", names.join(" | "));
    println!("|---|---|{}", "---|".repeat(names.len()));
    for size in sizes {
        let mut node = Node::new(size);
        let times =
            flat_changes().map(|mut change| format!("{:.1}", node.measure(&mut change).cpu.percentile(50)));
        println!(
            "| {} | {} | {} |",
            size.policies,
            size.pods,
            times.collect::<Vec<_>>().join(" | ")
        );
    }
}

fn flat_changes() -> impl Iterator<Item = Change> {
    [
        label_here(),
        policy_here(),
        answer_for_one_policy(),
        policy_elsewhere(),
        label_elsewhere(),
    ]
    .into_iter()
}

impl Node {
    fn new(elsewhere: Elsewhere) -> Self {
        let mut compiler = compiler(elsewhere.entities()).in_sync();
        while compiler.poll_batch(START).is_some() {}
        Self { compiler, now: START }
    }

    fn measure(&mut self, change: &mut Change) -> Outcome {
        let mut outcome = Outcome::default();
        // The first round brings about what the others change back and forth.
        for round in 0..=change.rounds {
            self.now = self.now.after(Duration::from_millis(1));
            let event = (change.event)(round, self.now);
            let (wall, used) = (Instant::now(), cpu());
            self.compiler.handle(event, self.now);
            let batches: Vec<Batch> = std::iter::from_fn(|| self.compiler.poll_batch(self.now)).collect();
            let (used, wall) = (cpu() - used, wall.elapsed());
            if round > 0 {
                outcome.cpu.note(used);
                outcome.wall.note(wall);
                outcome.pods = batches.iter().map(|batch| batch.rules_replaced.len()).sum();
                let members = batches.iter().flat_map(|batch| &batch.members_changed);
                outcome.members = members.map(|set| set.added.len() + set.removed.len()).sum();
            }
        }
        outcome
    }
}

fn changes() -> impl Iterator<Item = Change> {
    [
        label_here(),
        label_elsewhere(),
        label_of_the_gateway(),
        label_of_a_namespace(),
        policy_here(),
        policy_elsewhere(),
        policy_of_all_pods(),
        pod_comes_and_goes(),
        answer_for_one_policy(),
        new_answer(),
        known_answer(),
    ]
    .into_iter()
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

fn label_here() -> Change {
    turns(
        "a label of a pod of this node",
        2_000,
        relabelled(&pod(7, 7, 0), ("app", "a3")),
    )
}

fn label_elsewhere() -> Change {
    let pod = pod(1_001, NAMESPACES_HERE + 1, 0);
    turns(
        "a label of a pod elsewhere",
        5_000,
        relabelled(&pod, ("version", "v9")),
    )
}

fn label_of_the_gateway() -> Change {
    turns(
        "a label of a pod that is in the peers of all policies",
        500,
        relabelled(GATEWAY, ("role", "none")),
    )
}

fn label_of_a_namespace() -> Change {
    turns(
        "a label of a namespace with ten pods",
        500,
        relabelled(&namespace(7), ("team", "t5")),
    )
}

fn with_port(text: &str) -> [Entity; 2] {
    [one(&text.replace("port: 5432", "port: 5433")), one(text)]
}

fn policy_here() -> Change {
    turns(
        "a NetworkPolicy that selects pods of this node",
        2_000,
        with_port(&policy(7, 9)),
    )
}

fn policy_elsewhere() -> Change {
    let policy = policy(NAMESPACES_HERE + NAMESPACES_ELSEWHERE / 2, 1);
    turns("a NetworkPolicy elsewhere", 5_000, with_port(&policy))
}

fn policy_of_all_pods() -> Change {
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

fn pod_comes_and_goes() -> Change {
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

fn new_answer() -> Change {
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

fn answer_for_one_policy() -> Change {
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

fn known_answer() -> Change {
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
