//! Whether pods that come and go leave something behind: each has a name, an address and a record that none had before.

use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use egret_benches::big::{Elsewhere, GATEWAY, NAMESPACES_HERE, entities_of, namespace, pod, policy};
use egret_benches::ruleset::Ruleset;
use egret_benches::{START, compiler};
use egret_kernel::iptables::Flavour;
use egret_policies::compiler::Event;
use egret_policies::model::cluster::Entity;
use egret_shared::observation::{Observation, ObservedAddress};
use egret_shared::time::Timestamp;

use crate::meter::{in_use, memory, of_kernel, own};
use crate::world::{self, Node};

/// One in so many changes is also made in the kernel.
const KERNEL_SHARE: usize = 50;

/// Behind all pods of the cluster, and 50,000 of them have an address.
const NEW: usize = 0x2000;

/// Prints the memory after each tenth of so many pod changes with a compiler alone, and of a part of them with
/// `netfilter`.
pub(crate) fn measure(times: usize) -> anyhow::Result<()> {
    world::enter()?;
    println!("{HEAD}");
    with_a_compiler(times)?;
    with_netfilter(times / KERNEL_SHARE, Node::new(Ruleset::Netfilter(Flavour::Nft))?)
}

/// The same with `netfilter` alone, all of them in the kernel, on a node whose rules cost little: a policy for each namespace.
pub(crate) fn measure_in_the_kernel(times: usize) -> anyhow::Result<()> {
    world::enter()?;
    println!("{HEAD}");
    with_netfilter(times, Node::of(small(), Ruleset::Netfilter(Flavour::Nft))?)
}

const HEAD: &str = "| | pod changes | MiB | in use | own CPU of a change, ms | of the kernel's memory what is not given back by itself, MiB: slab, of each processor |\n|---|---|---|---|---|---|";

const NAMES: &str = "apiVersion: policy.networking.k8s.io/v1alpha2\nkind: ClusterNetworkPolicy\nmetadata: {name: names}\n\
spec: {tier: Admin, priority: 5, subject: {namespaces: {}}, egress: [{name: names, action: Accept, to: [{domainNames: [\"*.example.test\"]}]}]}\n";

/// Namespaces with a policy each, and a pod in some of them.
fn small() -> impl Iterator<Item = Entity> {
    const ABOUT_ALL_PODS: usize = 9;
    const PODS: usize = 5;
    let namespaces = (0..NAMESPACES_HERE).map(namespace);
    let policies = (0..NAMESPACES_HERE).map(|number| policy(number, ABOUT_ALL_PODS));
    let pods = (0..PODS).map(|number| pod(number, number, 0));
    let others = [GATEWAY, NAMES].map(str::to_owned);
    let all = namespaces.chain(policies).chain(pods).chain(others);
    all.flat_map(|text| entities_of(&text))
}

fn with_a_compiler(times: usize) -> anyhow::Result<()> {
    let mut compiler = compiler(Elsewhere::TARGET.entities()).in_sync();
    let mut pass = |events: Vec<Event>, now| {
        for event in events {
            compiler.handle(event, now);
        }
        compiler.handle_timeout(now);
        while compiler.poll_batch(now).is_some() {}
        compiler.poll_interests();
        Ok(())
    };
    pass(Vec::new(), START)?;
    churn("compiler", times, pass)
}

fn with_netfilter(times: usize, mut node: Node) -> anyhow::Result<()> {
    let first = node.batches();
    node.apply(&first)?;
    drop(first);
    churn("netfilter", times, |events, now| {
        node.now = now;
        let batches: Vec<_> = events.into_iter().flat_map(|event| node.compile(event)).collect();
        node.apply(&batches)
    })
}

/// Prints the memory after each tenth.
fn churn(
    what: &str,
    times: usize,
    mut pass: impl FnMut(Vec<Event>, Timestamp) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let occupied = || anyhow::Ok(format!("{:.2} | {}", memory("VmRSS")?, in_use()));
    println!("| {what} | 0 | {} | | {} |", occupied()?, of_kernel()?);
    let mut used = Duration::ZERO;
    for number in 0..times / 2 {
        let now = START.after(Duration::from_millis(10 * u64::try_from(number)?));
        let pod = stranger(number);
        let key = pod.key();
        let before = own();
        pass(vec![Event::Apply(pod), Event::Observed(told(number, now))], now)?;
        pass(vec![Event::Delete(key)], now)?;
        used += own() - before;
        if (number + 1) % (times / 20).max(1) == 0 {
            let changes = (number + 1) * 2;
            let each = used.as_secs_f64() * 1e3 / f64::from(u32::try_from(changes)?);
            println!(
                "| {what} | {changes} | {} | {each:.2} | {} |",
                occupied()?,
                of_kernel()?
            );
        }
    }
    Ok(())
}

/// A pod of this node that never was.
fn stranger(number: usize) -> Entity {
    let elsewhere = pod(NEW + number, number % 100, number % 10);
    let (before, behind) = elsewhere.split_once("nodeName: ").expect("a pod has a node");
    let (_, behind) = behind.split_once('\n').expect("the line ends");
    entities_of(&format!("{before}nodeName: here\n{behind}")).swap_remove(0)
}

fn told(number: usize, now: Timestamp) -> Observation {
    let number = u32::try_from(NEW + number).expect("there are not so many");
    let [_, high, middle, low] = number.to_be_bytes();
    let address = ObservedAddress {
        address: IpAddr::V4(Ipv4Addr::from(u32::from(Ipv4Addr::new(100, 0, 0, 0)) + number)),
        expires: now.after(Duration::from_secs(30)),
    };
    Observation {
        client: [10, 64 + high, middle, low].into(),
        question: format!("x{number}.cdn1.example.test").parse().expect("a name"),
        chain: Vec::new(),
        addresses: vec![address],
    }
}
