//! What happens where the kernel does not take the programs of eBPF, or lacks what they need.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on says where")]

use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, Stdio};

use egret_enforcer::backend::Backend;
use egret_enforcer::backend::both::Both;
use egret_enforcer::backend::ebpf::Behind;
use egret_enforcer::backend::memory::InMemory;
use egret_policies::rules::{DefaultAction, Member, PeerMatch, SetKind, Tier};
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, unshare};

#[path = "ebpf_world/mod.rs"]
#[allow(dead_code, reason = "the other tests use all of it")]
mod ebpf_world;

use ebpf_world::{Answer, World, allow, batch, egress, tier};

/// What a process of [`without`] lacks.
const LACKS: &str = "EGRET_TEST_LACKS";
/// The name of its world.
const LACKING: &str = "lacking";
/// Where its answer begins.
const SAYS: &str = "=> ";

/// The return value of such a program may be 0 or 1.
const REFUSED: (&str, &str) = (
    "return verdict(ctx, v4(ctx->user_ip4)) ? 1 : 0;",
    "return verdict(ctx, v4(ctx->user_ip4)) + 5;",
);

#[test]
fn a_program_that_the_verifier_refuses_is_told_in_its_words_and_what_is_in_force_stays() {
    let Some(world) = World::new("refused") else {
        return;
    };
    let Some(object) = world.build(REFUSED) else {
        return;
    };
    let mut pod = world.pod("client");
    let mut backend = world.backend();
    let mut first = batch(1);
    let set = ebpf_world::set("open");
    first.create(
        set,
        SetKind::Addresses,
        [Member::Address("198.18.2.10".parse().unwrap())],
    );
    let open = allow(PeerMatch::In(set), Some(8080));
    first.rules(
        &pod,
        egress(vec![tier(Tier::NetworkPolicy, vec![open], DefaultAction::Deny)]),
    );
    world.settled(&backend.apply(&first.batch, world.now()));
    drop(backend);

    let mut refused = world.unread().with_programs(object.clone());
    let said = refused.adopt(world.now()).unwrap_err().to_string();
    assert!(said.contains("the kernel refuses egret_connect4"), "{said}");
    assert!(
        said.contains("R0"),
        "the register that the verifier names: {said}"
    );
    assert!(said.lines().count() < 10, "the end of the log alone: {said}");
    assert!(!refused.dump().contains("programmed"), "{}", refused.dump());
    assert_eq!(pod.ask("tcp 198.18.2.10:8080"), Answer::Ok);
    assert_eq!(pod.ask("tcp 198.18.2.11:8080"), Answer::NotPermitted);

    let mut both = Both::new(
        Box::new(InMemory::default()),
        world.unread().with_programs(object),
    );
    both.adopt(world.now()).unwrap();
    assert!(both.apply(&first.batch, world.now()).broken.is_none());
    let dump = both.dump();
    assert!(
        dump.contains("the eBPF programs do not run: load the eBPF programs"),
        "{dump}"
    );
    drop(both);
    let last = world.unread();
    world.end(last, [pod]);
}

#[test]
fn without_btf_sockets_are_judged_and_services_by_their_own_address() {
    let Some(said) = without("btf") else { return };
    assert!(said.contains("in force: true"), "{said}");
    assert!(
        said.contains("not done: a Service is judged by its own address"),
        "{said}"
    );
    assert!(said.contains("not done: services.exposure"), "{said}");
    let with = without("nothing").unwrap();
    assert!(
        !with.contains("not done: a Service is judged by its own address,"),
        "{with}"
    );
}

#[test]
fn without_cgroup_version_2_nothing_is_judged_and_that_is_an_error() {
    let Some(said) = without("cgroup2") else { return };
    assert!(said.contains("find the tree of cgroups"), "{said}");
    assert!(said.contains("cgroup2"), "{said}");
}

/// What the backend says in a process whose mounts lack something.
fn without(what: &str) -> Option<String> {
    // It says loudly where this cannot be tested.
    let world = World::new(&format!("without-{what}"))?;
    let mut child = Command::new(std::env::current_exe().unwrap());
    child.args(["process_that_lacks", "--exact", "--ignored", "--nocapture"]);
    child.env(LACKS, what);
    #[allow(unsafe_code, reason = "mounts of its own, before it is a program")]
    // SAFETY: between fork and exec only system calls are made.
    unsafe {
        child.pre_exec(|| Ok(unshare(CloneFlags::CLONE_NEWNS | CloneFlags::CLONE_NEWNET)?));
    }
    child.stdout(Stdio::piped()).stderr(Stdio::piped());
    let child = child.spawn().unwrap();
    let process = child.id();
    let output = child.wait_with_output().unwrap();
    world.remove_other(process, LACKING);
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success(),
        "{text}\n{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let (_, said) = text.split_once(SAYS).expect("it answers");
    Some(said.to_owned())
}

#[test]
#[ignore = "the process of other tests"]
fn process_that_lacks() {
    let what = std::env::var(LACKS).unwrap();
    let none = None::<&Path>;
    mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none).unwrap();
    let world = World::new(LACKING).unwrap().behind(Behind::Services);
    match what.as_str() {
        "btf" => mount(
            Some("none"),
            "/sys/kernel/btf",
            Some("tmpfs"),
            MsFlags::empty(),
            none,
        )
        .unwrap(),
        "cgroup2" => {
            let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap();
            let words = mounts.lines().map(|line| line.split(' ').collect::<Vec<_>>());
            for mount in words.filter(|words| words[2] == "cgroup2") {
                umount2(mount[1], MntFlags::MNT_DETACH).unwrap();
            }
        }
        _ => {}
    }
    let mut backend = world.unread();
    match backend.adopt(world.now()) {
        Ok(()) => {
            let status = backend.apply(&batch(1).batch, world.now());
            println!("{SAYS}in force: {}\n{}", status.broken.is_none(), backend.dump());
        }
        Err(error) => println!("{SAYS}{error}"),
    }
    backend.remove_everything().unwrap();
}
