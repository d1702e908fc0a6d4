//! Packets that rules hand to user space, against the kernel itself, over `lo`.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod common;

use common::{in_fresh_namespace, run};
use egret_kernel::Family;
use egret_kernel::iptables::{ChainName, Flavour, IpTables};
use egret_kernel::nflog::{BindError, Listener, LoggedPacket};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use std::net::UdpSocket;
use std::os::fd::AsFd;

const GROUP: u16 = 9254;

/// Waits until something comes; nothing after three seconds.
fn read(listener: &mut Listener) -> (Vec<LoggedPacket>, u64) {
    let mut waits = [PollFd::new(listener.as_fd(), PollFlags::POLLIN)];
    poll(&mut waits, PollTimeout::from(3000_u16)).unwrap();
    let told = listener.read().unwrap();
    (told.packets, told.lost)
}

/// What goes to port 9 is told, and lost behind that.
fn deny_port_9(flavour: Flavour, family: Family) -> IpTables {
    let tables = IpTables::new(flavour, family);
    let rules = format!(
        "*filter\n:TELL - [0:0]\n-A TELL -m limit --limit 10/sec --limit-burst 20 -j NFLOG --nflog-prefix abcdef --nflog-group {GROUP}\n\
         -A TELL -j DROP\n-A OUTPUT -p udp --dport 9 -j TELL\nCOMMIT\n"
    );
    tables.restore(&rules).unwrap();
    tables
}

#[test]
fn a_denied_packet_is_told_with_its_rule_and_interface_in_both_flavours_and_families() {
    in_fresh_namespace(|| {
        for flavour in [Flavour::Nft, Flavour::Legacy] {
            let mut listener = Listener::bind(GROUP).unwrap();
            for (family, from) in [(Family::V4, "127.0.0.1"), (Family::V6, "::1")] {
                let tables = deny_port_9(flavour, family);
                let socket = UdpSocket::bind((from, 0)).unwrap();
                // The packet is lost on the way out: the kernel may say so.
                drop(socket.send_to(b"hello", (from, 9)));
                let (packets, lost) = read(&mut listener);
                assert_eq!((packets.len(), lost), (1, 0), "{flavour:?} {family:?}");
                let packet = &packets[0];
                assert_eq!((packet.family, packet.prefix.as_str()), (family, "abcdef"));
                assert_eq!((packet.input, packet.output), (None, Some(1)), "lo is always 1");
                let version = packet.packet[0] >> 4;
                assert_eq!(version, if family == Family::V4 { 4 } else { 6 });
                assert!(packet.packet.ends_with(b"hello"));
                let chain = ChainName::new("TELL").unwrap();
                assert_eq!(tables.count_chain(&chain).unwrap(), Some(vec![1, 1]));
                assert_eq!(
                    tables.count_chain(&ChainName::new("NONE").unwrap()).unwrap(),
                    None
                );
                tables
                    .restore("*filter\n:OUTPUT ACCEPT [0:0]\n-F OUTPUT\n-F TELL\n-X TELL\nCOMMIT\n")
                    .unwrap();
            }
        }
    });
}

#[test]
fn a_group_of_another_listener_is_taken_until_that_one_ends() {
    in_fresh_namespace(|| {
        let first = Listener::bind(GROUP).unwrap();
        let second = Listener::bind(GROUP);
        assert!(
            matches!(second, Err(BindError::Taken { group: GROUP })),
            "{second:?}"
        );
        assert!(Listener::bind(GROUP + 1).is_ok(), "another group is free");
        drop(first);
        // The kernel lets a group go some time after its socket.
        let mut again = Listener::bind(GROUP);
        for _ in 0..10_000 {
            if again.is_ok() {
                break;
            }
            std::thread::yield_now();
            again = Listener::bind(GROUP);
        }
        again.unwrap();
    });
}

/// Nobody reads while more is told than the kernel keeps.
#[test]
fn what_the_kernel_could_not_keep_is_counted() {
    in_fresh_namespace(|| {
        run(
            "iptables-nft",
            &[
                "-A",
                "OUTPUT",
                "-p",
                "udp",
                "--dport",
                "9",
                "-j",
                "NFLOG",
                "--nflog-group",
                "9254",
            ],
        );
        let mut listener = Listener::bind(GROUP).unwrap();
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let sent = 60_000_u64;
        for _ in 0..sent {
            drop(socket.send_to(&[0; 100], "127.0.0.1:9"));
        }
        let (mut told, mut lost) = (0, 0);
        // The last is told with the next number, and so are those that were lost before it.
        for _ in 0..1000 {
            drop(socket.send_to(&[0; 100], "127.0.0.1:9"));
            let (packets, missed) = read(&mut listener);
            told += packets.len() as u64;
            lost += missed;
            if lost > 0 {
                break;
            }
        }
        assert!(lost > 0 && told > 1000, "{told} told, {lost} lost");
    });
}
