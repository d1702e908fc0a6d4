//! Whether pods that come and go leave something behind: each has a name, an address and a record that none had before.

use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use egret_benches::big::{Elsewhere, entities_of, pod};
use egret_benches::{START, compiler};
use egret_enforcer::backend::Backend;
use egret_enforcer::backend::memory::InMemory;
use egret_kernel::iptables::Flavour;
use egret_policies::compiler::Event;
use egret_policies::model::cluster::Entity;
use egret_shared::observation::{Observation, ObservedAddress};
use egret_shared::time::Timestamp;

use crate::meter::memory;
use crate::world::{self, Node};

/// One in so many changes is also made in the kernel.
const KERNEL_SHARE: usize = 50;

/// Behind all pods of the cluster, and 50,000 of them have an address.
const NEW: usize = 0x2000;

/// Prints the memory after each tenth of so many pod changes with a backend that has no kernel, and of a part of them
/// with `netfilter`.
pub(crate) fn measure(times: usize) -> anyhow::Result<()> {
    world::enter()?;
    println!("| pod changes | without a kernel MiB | pod changes | netfilter MiB |\n|---|---|---|---|");
    let without = without_a_kernel(times)?;
    let with = with_netfilter(times / KERNEL_SHARE)?;
    for (one, other) in without.iter().zip(&with) {
        println!("| {} | {:.1} | {} | {:.1} |", one.0, one.1, other.0, other.1);
    }
    Ok(())
}

fn without_a_kernel(times: usize) -> anyhow::Result<Vec<(usize, f64)>> {
    let mut compiler = compiler(Elsewhere::TARGET.entities()).in_sync();
    let mut backend = InMemory::default();
    backend.adopt(START)?;
    let mut pass = |events: Vec<Event>, now| {
        for event in events {
            compiler.handle(event, now);
        }
        compiler.handle_timeout(now);
        while let Some(batch) = compiler.poll_batch(now) {
            backend.apply(&batch, now);
        }
        Ok(())
    };
    pass(Vec::new(), START)?;
    churn(times, pass)
}

fn with_netfilter(times: usize) -> anyhow::Result<Vec<(usize, f64)>> {
    let mut node = Node::new(Flavour::Nft)?;
    let first = node.batches();
    node.apply(&first)?;
    churn(times, |events, now| {
        node.now = now;
        let batches: Vec<_> = events.into_iter().flat_map(|event| node.compile(event)).collect();
        node.apply(&batches)
    })
}

/// The memory after each tenth.
fn churn(
    times: usize,
    mut pass: impl FnMut(Vec<Event>, Timestamp) -> anyhow::Result<()>,
) -> anyhow::Result<Vec<(usize, f64)>> {
    let mut after = vec![(0, memory("VmRSS")?)];
    for number in 0..times / 2 {
        let now = START.after(Duration::from_millis(10 * u64::try_from(number)?));
        let pod = stranger(number);
        let key = pod.key();
        pass(vec![Event::Apply(pod), Event::Observed(told(number, now))], now)?;
        pass(vec![Event::Delete(key)], now)?;
        if (number + 1) % (times / 20).max(1) == 0 {
            after.push(((number + 1) * 2, memory("VmRSS")?));
        }
    }
    Ok(after)
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
