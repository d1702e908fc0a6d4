//! What it costs the backend `ebpf` to load its programs, and to put a pod under them: in this process, with the real compiler, in cgroups
//! and a network namespace of its own.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use egret_benches::{START, cluster, compiler};
use egret_enforcer::backend::Backend as _;
use egret_enforcer::backend::ebpf::{Behind, Ebpf, Options};
use egret_enforcer::backend::unknown_pods::Stance;
use egret_integration::cgroup2_root;
use egret_policies::api::manifest;
use egret_policies::compiler::{Compiler, Event, InSync};
use egret_policies::lower::lower;
use egret_policies::model::cluster::Entity;
use egret_policies::rules::Batch;
use nix::sched::{CloneFlags, unshare};

use crate::load::micros;

/// Of a node; one more is put under the programs in each round.
const PODS: usize = 110;
const NAMESPACES: usize = 20;
const POLICIES: usize = 1_000;

pub(crate) fn attach(rounds: usize) -> anyhow::Result<()> {
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            unshare(CloneFlags::CLONE_NEWNET)?;
            measure(rounds)
        });
        thread.join().expect("measuring does not panic")
    })
}

fn measure(rounds: usize) -> anyhow::Result<()> {
    let node = Node::make(rounds)?;
    let first = node.load()?.1;
    let mut again = Vec::with_capacity(rounds);
    for _ in 0..rounds {
        again.push(node.load()?.1);
    }
    let mut compiler = compiler(cluster(NAMESPACES, 0, 0, POLICIES)).in_sync();
    for number in 0..PODS {
        compiler.handle(Event::Apply(pod(number)), START);
    }
    let mut backend = node.load()?.0;
    let start = Instant::now();
    apply(&mut backend, &batches(&mut compiler))?;
    let all = start.elapsed();
    let mut one = Vec::with_capacity(rounds);
    for number in PODS..PODS + rounds {
        compiler.handle(Event::Apply(pod(number)), START);
        let batches = batches(&mut compiler);
        let start = Instant::now();
        apply(&mut backend, &batches)?;
        one.push(start.elapsed());
    }
    backend.remove_everything()?;
    println!("\n### until the programs judge a pod: {PODS} pods, {POLICIES} policies\n");
    println!("- load, with new maps: {:.1} ms", millis(first));
    let (median, most) = spread(again);
    println!(
        "- load, with maps that are there: median {:.1}, most {:.1} ms",
        millis(median),
        millis(most)
    );
    println!("- the first sync: {:.0} µs a pod", micros(all) / PODS as f64);
    let (median, most) = spread(one);
    println!(
        "- one more pod: median {:.0}, most {:.0} µs",
        micros(median),
        micros(most)
    );
    Ok(())
}

fn spread(mut times: Vec<Duration>) -> (Duration, Duration) {
    times.sort_unstable();
    (times[times.len() / 2], times[times.len() - 1])
}

fn millis(time: Duration) -> f64 {
    micros(time) / 1e3
}

fn batches(compiler: &mut Compiler<InSync>) -> Vec<Batch> {
    std::iter::from_fn(|| compiler.poll_batch(START)).collect()
}

fn apply(backend: &mut Ebpf, batches: &[Batch]) -> anyhow::Result<()> {
    ensure!(!batches.is_empty(), "a pod changes something");
    for batch in batches {
        let status = backend.apply(batch, START);
        ensure!(status.broken.is_none() && status.pending.is_empty(), "{status:?}");
    }
    Ok(())
}

fn uid(number: usize) -> String {
    format!("00000004-0000-4000-8000-{number:012x}")
}

fn pod(number: usize) -> Entity {
    let manifest = egret_benches::pod(number, NAMESPACES, true);
    let manifest = manifest.replace("labels:", &format!("uid: {}, labels:", uid(number)));
    let read = manifest::read(&manifest, "bench.yaml");
    let mut entities = read
        .documents
        .iter()
        .flat_map(|document| lower(&document.object).entities);
    entities.next().expect("a pod is an entity")
}

/// Cgroups and pins, which go with it.
struct Node {
    options: Options,
}

impl Node {
    fn make(more: usize) -> anyhow::Result<Self> {
        let name = format!("bench-attach-{}", std::process::id());
        let cgroup_root = cgroup2_root()?.join(&name);
        for number in 0..PODS + more {
            fs::create_dir_all(pods(&cgroup_root).join(format!("pod{}", uid(number))))?;
        }
        let pin_path = Path::new("/sys/fs/bpf").join(&name);
        Ok(Self {
            options: Options {
                cgroup_root,
                pin_path,
                unknown: Stance::DenyOncePolicies,
                events_per_second: Some(10),
                behind: Behind::Services,
            },
        })
    }

    /// A backend that has its programs, and how long that took.
    fn load(&self) -> anyhow::Result<(Ebpf, Duration)> {
        let mut backend = Ebpf::new(self.options.clone());
        let start = Instant::now();
        backend.adopt(START).context("load the programs")?;
        Ok((backend, start.elapsed()))
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        drop(Ebpf::new(self.options.clone()).remove_everything());
        let root = &self.options.cgroup_root;
        let pods = pods(root);
        for entry in fs::read_dir(&pods).into_iter().flatten().flatten() {
            drop(fs::remove_dir(entry.path()));
        }
        for directory in pods.ancestors().take(3) {
            drop(fs::remove_dir(directory));
        }
    }
}

fn pods(root: &Path) -> PathBuf {
    root.join("kubepods/burstable")
}
