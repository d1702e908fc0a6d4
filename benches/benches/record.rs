//! Promise P-3: one record into the kernel. In a network namespace of its own; needs root.

use std::num::NonZeroU32;

use criterion::{Criterion, criterion_group, criterion_main};
use egret_kernel::Family;
use egret_kernel::ipset::{IpSets, Kind, Member, SetEntry, SetSpec};
use nix::sched::{CloneFlags, unshare};

const NAME: &str = "egret-bench-4";

fn one_record(criterion: &mut Criterion) {
    if let Err(error) = unshare(CloneFlags::CLONE_NEWNET) {
        println!("NOT MEASURED: a network namespace cannot be made ({error}); run as root");
        return;
    }
    let mut sets = IpSets::open().expect("a netlink socket");
    let spec = SetSpec {
        timeout: Some(0),
        hashsize: 131_072,
        maxelem: 1_000_000,
        ..SetSpec::new(NAME, Kind::HashIp, Family::V4)
    };
    sets.create(&spec).expect("a set");
    let mut next = 0x0a00_0000_u32;
    criterion.bench_function("record/one new address", |bencher| {
        bencher.iter(|| sets.add(NAME, &[entry(&mut next)]).expect("there is room"));
    });
    criterion.bench_function("record/100 new addresses of one answer", |bencher| {
        bencher.iter(|| {
            let entries: Vec<SetEntry> = (0..100).map(|_| entry(&mut next)).collect();
            sets.add(NAME, &entries).expect("there is room");
        });
    });
}

/// One of 500,000 addresses in turn: the set does not overflow however long the bench runs.
fn entry(next: &mut u32) -> SetEntry {
    *next = 0x0a00_0000 + (*next + 1 - 0x0a00_0000) % 500_000;
    let lifetime = NonZeroU32::new(300).expect("300 is not 0");
    SetEntry::living(Member::Address(std::net::Ipv4Addr::from(*next).into()), lifetime)
}

criterion_group!(benches, one_record);
criterion_main!(benches);
