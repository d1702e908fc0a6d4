//! Fast paths that the kernel has, found on its links; and namespaces behind links.

#![allow(unsafe_code, reason = "programs are loaded by bpf(2)")]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod common;

use std::collections::BTreeSet;
use std::os::fd::{AsFd as _, FromRawFd as _, OwnedFd};
use std::time::Duration;

use common::{in_fresh_namespace, run};
use egret_kernel::Family;
use egret_kernel::bridges::{BridgeNfCalls, Bridges};
use egret_kernel::fast_paths::{FastPaths, Kind};
use egret_kernel::links::Links;
use egret_kernel::namespaces::{self, LOOPBACK, Namespaces};
use nix::errno::Errno;

fn ip(arguments: &str) {
    run("ip", &arguments.split(' ').collect::<Vec<_>>());
}

fn tc(arguments: &str) {
    run("tc", &arguments.split(' ').collect::<Vec<_>>());
}

/// What is found on `veth0`: kinds and names.
fn found() -> Vec<(Kind, String)> {
    let index = Links::open()
        .unwrap()
        .interface_by_name("veth0")
        .unwrap()
        .unwrap()
        .index;
    let paths = FastPaths::open().unwrap().on(index, "veth0").unwrap();
    paths.into_iter().map(|path| (path.kind, path.name)).collect()
}

fn veth() {
    ip("link add veth0 type veth peer name veth1");
}

#[test]
fn filters_of_tc_are_found_at_both_ends_of_a_link_and_none_where_there_are_none() {
    in_fresh_namespace(|| {
        veth();
        assert_eq!(found(), []);
        tc("qdisc add dev veth0 clsact");
        assert_eq!(found(), []);
        run(
            "tc",
            &[
                "filter",
                "add",
                "dev",
                "veth0",
                "egress",
                "bpf",
                "bytecode",
                "1,6 0 0 4294967295",
            ],
        );
        assert_eq!(found(), [(Kind::Tc, "bpf".to_owned())]);
        tc("filter add dev veth0 ingress u32 match u32 0 0");
        let both = BTreeSet::from_iter(found());
        let of = |name: &str| (Kind::Tc, name.to_owned());
        assert_eq!(both, BTreeSet::from([of("bpf"), of("u32")]));
    });
}

/// `r0 = value; exit`.
fn program(kind: u32, value: i32) -> OwnedFd {
    #[repr(C)]
    struct Load {
        kind: u32,
        instructions: u32,
        code: u64,
        license: u64,
        log_level: u32,
        log_size: u32,
        log: u64,
        version: u32,
        flags: u32,
    }
    const BPF_PROG_LOAD: i64 = 5;
    let [a, b, c, d] = value.to_le_bytes();
    let code: [u8; 16] = [0xb7, 0, 0, 0, a, b, c, d, 0x95, 0, 0, 0, 0, 0, 0, 0];
    let license = c"GPL";
    let load = Load {
        kind,
        instructions: 2,
        code: code.as_ptr().expose_provenance() as u64,
        license: license.as_ptr().expose_provenance() as u64,
        log_level: 0,
        log_size: 0,
        log: 0,
        version: 0,
        flags: 0,
    };
    let file = bpf(BPF_PROG_LOAD, &load);
    // SAFETY: the kernel has just given this descriptor to us alone.
    unsafe { OwnedFd::from_raw_fd(file) }
}

fn bpf<T>(command: i64, attributes: &T) -> i32 {
    // SAFETY: the kernel reads as many bytes as `T` has, and what they point to lives in the caller.
    let result = unsafe {
        nix::libc::syscall(
            nix::libc::SYS_bpf,
            command,
            &raw const *attributes,
            size_of::<T>(),
        )
    };
    i32::try_from(Errno::result(result).unwrap()).unwrap()
}

/// Lives as long as the descriptor that is returned.
fn link(program: &OwnedFd, interface: u32, place: u32) -> OwnedFd {
    use std::os::fd::AsRawFd as _;
    #[repr(C)]
    struct Create {
        program: u32,
        interface: u32,
        place: u32,
        flags: u32,
        rest: [u64; 4],
    }
    const BPF_LINK_CREATE: i64 = 28;
    let create = Create {
        program: u32::try_from(program.as_raw_fd()).unwrap(),
        interface,
        place,
        flags: 0,
        rest: [0; 4],
    };
    let file = bpf(BPF_LINK_CREATE, &create);
    // SAFETY: the kernel has just given this descriptor to us alone.
    unsafe { OwnedFd::from_raw_fd(file) }
}

#[test]
fn programs_of_xdp_and_tcx_are_found() {
    const SCHED_CLS: u32 = 3;
    const XDP: u32 = 6;
    const AT_TCX_EGRESS: u32 = 47;
    const AT_XDP: u32 = 37;
    in_fresh_namespace(|| {
        veth();
        let index = Links::open()
            .unwrap()
            .interface_by_name("veth0")
            .unwrap()
            .unwrap()
            .index;
        let kinds = || found().into_iter().map(|(kind, _)| kind).collect::<Vec<_>>();
        let (next, pass) = (program(SCHED_CLS, -1), program(XDP, 2));
        let one = link(&next, index, AT_TCX_EGRESS);
        assert_eq!(kinds(), [Kind::Tcx]);
        let other = link(&pass, index, AT_XDP);
        assert_eq!(kinds(), [Kind::Tcx, Kind::Xdp]);
        drop((one, other));
        // A child that another test is just starting has these descriptors, too, until it is another program.
        for _ in 0..1_000 {
            if !kinds().is_empty() {
                std::thread::sleep(Duration::from_millis(10));
            }
        }
        assert_eq!(kinds(), []);
    });
}

#[test]
fn flowtables_can_be_asked_for() {
    in_fresh_namespace(|| {
        assert_eq!(FastPaths::open().unwrap().flowtables().unwrap(), []);
        veth();
        let made = std::process::Command::new("nft")
            .arg("add table inet t; add flowtable inet t fast { hook ingress priority 0; devices = { veth0, veth1 }; }")
            .output();
        if made.is_ok_and(|made| made.status.success()) {
            let found = FastPaths::open().unwrap().flowtables().unwrap();
            let found: Vec<_> = found.iter().map(ToString::to_string).collect();
            assert_eq!(found, ["the flowtable t fast (veth0, veth1)"]);
        } else {
            eprintln!(
                "*** NOT TESTED: no nft, or no flowtables in this kernel (CONFIG_NF_FLOW_TABLE): only the bytes of a listing are ***"
            );
        }
    });
}

#[test]
fn one_bridge_is_set_and_no_other() {
    in_fresh_namespace(|| {
        ip("link add br0 type bridge");
        ip("link add br1 type bridge");
        let mut links = Links::open().unwrap();
        let mut index = |name: &str| links.interface_by_name(name).unwrap().unwrap().index;
        let (br0, br1, lo) = (index("br0"), index("br1"), index("lo"));
        let mut bridges = Bridges::open().unwrap();
        let calls = |v4, v6| Some(BridgeNfCalls { v4, v6 });
        assert_eq!(bridges.calls(br0).unwrap(), calls(false, false));
        bridges.call(br0, Family::V4, true).unwrap();
        assert_eq!(bridges.calls(br0).unwrap(), calls(true, false));
        bridges.call(br0, Family::V6, true).unwrap();
        assert_eq!(bridges.calls(br0).unwrap(), calls(true, true));
        bridges.call(br0, Family::V4, false).unwrap();
        assert_eq!(bridges.calls(br0).unwrap(), calls(false, true));
        assert_eq!(bridges.calls(br1).unwrap(), calls(false, false));
        assert_eq!(bridges.calls(lo).unwrap(), None);
        assert_eq!(bridges.calls(999).unwrap(), None);
    });
}

#[test]
fn a_namespace_behind_a_link_is_found_by_its_id() {
    in_fresh_namespace(|| {
        ip("netns add behind");
        ip("link add veth0 type veth peer name eth0 netns behind");
        ip("link add uplink type veth peer name far");
        ip("link set uplink up");
        ip("link add link uplink name net1 netns behind type macvlan mode bridge");
        ip("-n behind addr add 10.9.0.1/24 dev eth0");
        ip("-n behind addr add fd09::1/64 dev eth0 nodad");
        let mut links = Links::open().unwrap();
        let outside = links.interface_by_name("veth0").unwrap().unwrap();
        let number = outside.link_namespace.unwrap();
        let mut inside = Namespaces::open().unwrap();
        let interfaces = inside.interfaces(number).unwrap();
        let named = |name: &str| interfaces.iter().find(|one| one.name == name).unwrap();
        assert_eq!(named("lo").index, LOOPBACK);
        assert_eq!(Some(named("eth0").index), outside.link);
        let net1 = named("net1");
        let uplink = links.interface_by_name("uplink").unwrap().unwrap().index;
        assert_eq!((net1.kind.as_deref(), net1.link), (Some("macvlan"), Some(uplink)));
        let addresses = inside.addresses(number).unwrap();
        let of_eth0: Vec<_> = addresses
            .iter()
            .filter(|address| address.interface == named("eth0").index)
            .map(|address| address.net.to_string())
            .collect();
        assert!(of_eth0.contains(&"10.9.0.1/24".to_owned()) && of_eth0.contains(&"fd09::1/64".to_owned()));
        assert!(
            links
                .addresses()
                .unwrap()
                .iter()
                .all(|address| address.net.addr().to_string() != "10.9.0.1")
        );

        let files = namespaces::find(&mut links, BTreeSet::from([number]));
        let within = namespaces::within(files[&number].as_fd(), || {
            Links::open()
                .unwrap()
                .interface_by_name("net1")
                .unwrap()
                .is_some()
        });
        assert_eq!(within, Ok(true));
        assert!(links.interface_by_name("net1").unwrap().is_none());
        ip("netns delete behind");
    });
}
