//! Tracked flows, against the kernel itself. Flows are made by packets over `lo`, under a rule that turns tracking on.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod common;

use common::{in_fresh_namespace, run};
use egret_kernel::conntrack::{Conntrack, Flow, FlowFilter, ProtocolDetail};
use egret_kernel::{Family, Mark};
use nix::sys::socket::{
    AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, SockaddrStorage, sendto, socket,
};
use std::net::{IpAddr, SocketAddr, SocketAddrV4, SocketAddrV6, UdpSocket};
use std::num::NonZeroU32;
use std::os::fd::AsRawFd;

const ALICE: &str = "127.0.0.1";
const BOB: &str = "127.0.0.2";

fn mark(value: u32, mask: u32) -> Mark {
    Mark::new(value, NonZeroU32::new(mask).unwrap())
}

fn address(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn track() {
    for tables in ["iptables", "ip6tables"] {
        run(tables, &["-A", "OUTPUT", "-m", "conntrack", "--ctstate", "NEW"]);
    }
}

/// One packet to the port; the sockets live as long as the test wants the flow.
fn packet(from: &str, to: &str, port: u16) -> UdpSocket {
    let socket = UdpSocket::bind((address(from), 0)).unwrap();
    socket.send_to(b"x", (address(to), port)).unwrap();
    socket
}

/// An echo request, with a checksum for IPv4 (the kernel adds IPv6's).
fn ping(target: &str) {
    let (family, protocol, request, address) = match address(target) {
        IpAddr::V4(address) => {
            let to = SocketAddr::from(SocketAddrV4::new(address, 0));
            (
                AddressFamily::Inet,
                SockProtocol::Icmp,
                [8, 0, 0xf7, 0xf8, 0, 6, 0, 1],
                SockaddrStorage::from(to),
            )
        }
        IpAddr::V6(address) => {
            let to = SocketAddr::from(SocketAddrV6::new(address, 0, 0, 0));
            (
                AddressFamily::Inet6,
                SockProtocol::IcmpV6,
                [128, 0, 0, 0, 0, 6, 0, 1],
                SockaddrStorage::from(to),
            )
        }
    };
    let socket = socket(family, SockType::Raw, SockFlag::SOCK_CLOEXEC, protocol).unwrap();
    sendto(socket.as_raw_fd(), &request, &address, MsgFlags::empty()).unwrap();
}

fn ports(flows: &[Flow]) -> Vec<u16> {
    let mut ports: Vec<_> = flows
        .iter()
        .filter_map(|flow| flow.original.destination_port())
        .collect();
    ports.sort_unstable();
    ports
}

/// Somebody who listens, so that no ICMP error is mixed in.
fn listener(at: &str, port: u16) -> UdpSocket {
    UdpSocket::bind((address(at), port)).unwrap()
}

const NO_PORTS: [u16; 0] = [];

#[test]
fn flows_are_listed_by_who_began_and_by_who_answers() {
    in_fresh_namespace(|| {
        track();
        let _listeners = [(ALICE, 1000), (BOB, 1001), ("::1", 1002)].map(|(at, port)| listener(at, port));
        let _clients = [
            packet(ALICE, BOB, 1001),
            packet(BOB, ALICE, 1000),
            packet("::1", "::1", 1002),
        ];
        let mut conntrack = Conntrack::open().unwrap();
        let mut dump = |filter: FlowFilter| ports(&conntrack.dump(&filter).unwrap());
        assert_eq!(dump(FlowFilter::from_source(address(ALICE))), [1001]);
        assert_eq!(dump(FlowFilter::from_source(address(BOB))), [1000]);
        assert_eq!(dump(FlowFilter::answered_by(address(BOB))), [1001]);
        assert_eq!(dump(FlowFilter::from_source(address("10.0.0.1"))), NO_PORTS);
        assert_eq!(dump(FlowFilter::from_source(address("::1"))), [1002]);
        assert_eq!(dump(FlowFilter::answered_by(address("::1"))), [1002]);
        assert_eq!(dump(FlowFilter::from_source(address("fd00::1"))), NO_PORTS);
        assert_eq!(
            dump(FlowFilter {
                family: Some(Family::V6),
                ..FlowFilter::from_source(address(ALICE))
            }),
            NO_PORTS
        );
        assert_eq!(dump(FlowFilter::family(Family::V4)), [1000, 1001]);
        assert_eq!(dump(FlowFilter::family(Family::V6)), [1002]);
        assert_eq!(dump(FlowFilter::ALL), [1000, 1001, 1002]);
        let both = FlowFilter {
            reply_source: Some(address(BOB)),
            ..FlowFilter::from_source(address(ALICE))
        };
        assert_eq!(dump(both), [1001]);
        assert_eq!(
            dump(FlowFilter {
                reply_source: Some(address(ALICE)),
                ..both
            }),
            NO_PORTS
        );
        assert_eq!(conntrack.count().unwrap(), 3);
    });
}

#[test]
fn a_flow_shows_both_tuples_translation_and_whether_it_was_answered() {
    in_fresh_namespace(|| {
        run(
            "iptables",
            &[
                "-t",
                "nat",
                "-A",
                "OUTPUT",
                "-p",
                "udp",
                "--dport",
                "53",
                "-j",
                "DNAT",
                "--to",
                "127.0.0.2:5353",
            ],
        );
        let server = listener(BOB, 5353);
        let client = packet(ALICE, "127.0.0.9", 53);
        let mut conntrack = Conntrack::open().unwrap();
        let filter = FlowFilter::from_source(address(ALICE));
        let flow = conntrack.dump(&filter).unwrap().remove(0);
        assert_eq!(
            (flow.original.destination, flow.original.destination_port()),
            (address("127.0.0.9"), Some(53))
        );
        let client_port = client.local_addr().unwrap().port();
        assert_eq!(
            (flow.reply.source, flow.reply.detail),
            (
                address(BOB),
                ProtocolDetail::Ports {
                    source: 5353,
                    destination: client_port
                }
            )
        );
        assert_eq!(flow.original.protocol, 17);
        assert!(!flow.status.has_seen_reply() && flow.timeout.is_some_and(|seconds| seconds <= 30));
        let (_, from) = server.recv_from(&mut [0; 8]).unwrap();
        server.send_to(b"y", from).unwrap();
        assert!(conntrack.dump(&filter).unwrap()[0].status.has_seen_reply());
    });
}

#[test]
fn pings_are_flows_too_and_can_be_marked_and_deleted() {
    in_fresh_namespace(|| {
        track();
        let mut conntrack = Conntrack::open().unwrap();
        for (target, family) in [(ALICE, Family::V4), ("::1", Family::V6)] {
            ping(target);
            let flow = conntrack.dump(&FlowFilter::family(family)).unwrap().remove(0);
            assert!(
                matches!(
                    flow.original.detail,
                    ProtocolDetail::Icmp {
                        kind: 8 | 128,
                        code: 0,
                        ..
                    }
                ),
                "{flow:?}"
            );
            assert_eq!(conntrack.set_marks(&[(&flow, mark(5, 0xff))]).unwrap(), [true]);
            assert!(conntrack.delete(&flow).unwrap());
            assert_eq!(conntrack.dump(&FlowFilter::family(family)).unwrap(), []);
        }
    });
}

#[test]
fn a_mark_changes_only_the_bits_under_its_mask() {
    in_fresh_namespace(|| {
        track();
        let _listener = listener(BOB, 1000);
        let _client = packet(ALICE, BOB, 1000);
        let mut conntrack = Conntrack::open().unwrap();
        let filter = FlowFilter::from_source(address(ALICE));
        let flow = conntrack.dump(&filter).unwrap().remove(0);
        let steps = [
            (mark(0xabc, 0xfff), 0xabc),
            (mark(0x8000_0000, 0x8000_0000), 0x8000_0abc),
            (mark(0xffff_fff1, 0xf), 0x8000_0ab1),
            (mark(0, 0xff0), 0x8000_0001),
            (mark(7, u32::MAX), 7),
        ];
        for (mark, whole) in steps {
            assert_eq!(conntrack.set_marks(&[(&flow, mark)]).unwrap(), [true]);
            assert_eq!(conntrack.dump(&filter).unwrap()[0].mark, whole, "{mark:x?}");
        }
        assert_eq!(
            conntrack
                .dump(&FlowFilter {
                    mark: Some(mark(3, 3)),
                    ..filter
                })
                .unwrap()
                .len(),
            1
        );
        assert_eq!(
            conntrack
                .dump(&FlowFilter {
                    mark: Some(mark(1, 3)),
                    ..filter
                })
                .unwrap(),
            []
        );
    });
}

#[test]
fn a_flow_that_is_gone_can_be_neither_deleted_nor_marked_and_the_next_one_is() {
    in_fresh_namespace(|| {
        track();
        let _listener = listener(BOB, 1000);
        let _clients = [packet(ALICE, BOB, 1000), packet(ALICE, BOB, 1000)];
        let mut conntrack = Conntrack::open().unwrap();
        let filter = FlowFilter::from_source(address(ALICE));
        let [one, other] = conntrack.dump(&filter).unwrap().try_into().unwrap();
        assert!(conntrack.delete(&one).unwrap());
        assert!(!conntrack.delete(&one).unwrap());
        let marked = [(&one, mark(1, 1)), (&other, mark(2, 2))];
        assert_eq!(conntrack.set_marks(&marked).unwrap(), [false, true]);
        let left = conntrack.dump(&filter).unwrap();
        assert_eq!(
            (left.len(), left[0].original, left[0].mark),
            (1, other.original, 2)
        );
    });
}

#[test]
fn flushing_by_mark_takes_both_families_and_leaves_the_others() {
    in_fresh_namespace(|| {
        track();
        let _listeners = [(BOB, 1000), (BOB, 1001), ("::1", 1002)].map(|(at, port)| listener(at, port));
        let _clients = [
            packet(ALICE, BOB, 1000),
            packet(ALICE, BOB, 1001),
            packet("::1", "::1", 1002),
        ];
        let mut conntrack = Conntrack::open().unwrap();
        for family in Family::ALL {
            for flow in conntrack.dump(&FlowFilter::family(family)).unwrap() {
                let generation = if flow.original.destination_port() == Some(1001) {
                    6
                } else {
                    5
                };
                assert_eq!(
                    conntrack.set_marks(&[(&flow, mark(generation, 0xfff))]).unwrap(),
                    [true]
                );
            }
        }
        conntrack.flush_mark(mark(5, 0xfff)).unwrap();
        let left = Family::ALL.map(|family| ports(&conntrack.dump(&FlowFilter::family(family)).unwrap()));
        assert_eq!(left, [vec![1001], vec![]]);
    });
}

#[test]
fn thousands_of_flows_are_listed_whole() {
    in_fresh_namespace(|| {
        track();
        let _listener = listener(BOB, 9);
        let socket = UdpSocket::bind((address(ALICE), 0)).unwrap();
        for port in 10_000..13_000 {
            socket.send_to(b"x", (address(BOB), port)).unwrap_or(0);
        }
        let flows = Conntrack::open()
            .unwrap()
            .dump(&FlowFilter::from_source(address(ALICE)))
            .unwrap();
        let udp: Vec<_> = flows
            .into_iter()
            .filter(|flow| flow.original.protocol == 17)
            .collect();
        assert_eq!(ports(&udp), (10_000..13_000).collect::<Vec<u16>>());
    });
}
