//! Promise P-4: compiling 1,000 policies for 100 local pods, and what one change costs afterwards.

use std::hint::black_box;

use criterion::{BatchSize, Criterion, criterion_group, criterion_main};
use egret_benches::{START, cluster, compiler, pod};
use egret_policies::api::manifest;
use egret_policies::compiler::Event;
use egret_policies::lower::lower;
use egret_policies::model::cluster::Entity;
use egret_shared::observation::{Observation, ObservedAddress};
use egret_shared::time::Timestamp;

const NAMESPACES: usize = 20;

fn first_compile(criterion: &mut Criterion) {
    let entities = cluster(NAMESPACES, 1_000, 100, 1_000);
    criterion.bench_function("compile/first: 1000 policies, 1000 pods, 100 local", |bencher| {
        bencher.iter_batched(
            || entities.clone(),
            |entities| black_box(compiler(entities).in_sync().poll_batch(START)),
            BatchSize::LargeInput,
        );
    });
}

fn one_label_change(criterion: &mut Criterion) {
    let mut compiler = compiler(cluster(NAMESPACES, 1_000, 100, 1_000)).in_sync();
    compiler.poll_batch(START);
    // Pod 500 is on another node: what changes is who is in which set.
    let forms = [relabelled(500, "a1"), relabelled(500, "a2")];
    let mut turn = 0;
    criterion.bench_function("compile/one label of a remote pod", |bencher| {
        bencher.iter(|| {
            turn += 1;
            compiler.handle(Event::Apply(forms[turn % 2].clone()), START);
            black_box(compiler.poll_batch(START))
        });
    });
}

fn one_answer(criterion: &mut Criterion) {
    let mut compiler = compiler(cluster(NAMESPACES, 1_000, 100, 1_000)).in_sync();
    compiler.poll_batch(START);
    let mut now = START.as_millis();
    criterion.bench_function("compile/one answer with 4 addresses", |bencher| {
        bencher.iter(|| {
            now += 1;
            let now = Timestamp::from_millis(now);
            compiler.handle(Event::Observed(answer(now)), now);
            black_box(compiler.poll_batch(now))
        });
    });
}

fn answer(now: Timestamp) -> Observation {
    let expires = now.after(std::time::Duration::from_secs(30));
    let address = |last: u8| ObservedAddress {
        address: [203, 0, 113, last].into(),
        expires,
    };
    Observation {
        client: [10, 0, 0, 1].into(),
        question: "img.cdn.example.test".parse().expect("a name"),
        chain: Vec::new(),
        addresses: (1..5).map(address).collect(),
    }
}

fn relabelled(number: usize, app: &str) -> Entity {
    let text =
        pod(number, NAMESPACES, false).replace(&format!("app: a{}}}", number % 50), &format!("app: {app}}}"));
    let read = manifest::read(&text, "pod.yaml");
    lower(&read.documents[0].object).entities.swap_remove(0)
}

criterion_group! {
    name = benches;
    config = Criterion::default().sample_size(20);
    targets = first_compile, one_label_change, one_answer
}
criterion_main!(benches);
