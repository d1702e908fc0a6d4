//! Interfaces, addresses, routes and news of them, against the kernel itself.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod common;

use common::{in_fresh_namespace, run};
use egret_kernel::links::{Address, InterfaceOrigin, LinkChanges, LinkMonitor, Links};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use std::net::IpAddr;
use std::os::fd::AsFd;

fn ip(arguments: &str) {
    run("ip", &arguments.split(' ').collect::<Vec<_>>());
}

/// A veth pair, one end with addresses and a default route behind a gateway.
fn uplink() {
    ip("link add up0 type veth peer name up1");
    ip("link set up0 up");
    ip("link set up1 up");
    ip("addr add 10.0.0.1/24 dev up0");
    ip("addr add fd00::1/64 dev up0 nodad");
    ip("route add default via 10.0.0.254");
    ip("route add default via fd00::fe dev up0");
    ip("route add unreachable 10.9.0.0/16");
    ip("route add blackhole 10.8.0.0/16");
    ip("route add unreachable fd09::/16");
}

#[test]
fn a_route_says_interface_gateway_and_whether_it_is_this_host() {
    in_fresh_namespace(|| {
        uplink();
        let mut links = Links::open().unwrap();
        let cases = [
            ("10.0.0.7", Some(("up0", false, None))),
            ("8.8.8.8", Some(("up0", false, Some("10.0.0.254")))),
            ("10.0.0.1", Some(("lo", true, None))),
            ("127.0.0.1", Some(("lo", true, None))),
            ("10.9.1.1", None),
            ("10.8.1.1", None),
            ("fd00::7", Some(("up0", false, None))),
            ("2001:db8::1", Some(("up0", false, Some("fd00::fe")))),
            ("fd00::1", Some(("lo", true, None))),
            ("fd09::1", None),
        ];
        for (to, expected) in cases {
            let route = links.route_to(to.parse().unwrap()).unwrap();
            let found = route
                .as_ref()
                .map(|route| (route.name.as_str(), route.is_local, route.gateway));
            let expected = expected
                .map(|(name, local, gateway)| (name, local, gateway.map(|g| g.parse::<IpAddr>().unwrap())));
            assert_eq!(found, expected, "{to}");
        }
    });
}

#[test]
fn without_any_route_an_address_is_nowhere() {
    in_fresh_namespace(|| {
        let mut links = Links::open().unwrap();
        for to in ["8.8.8.8", "2001:db8::1"] {
            assert_eq!(links.route_to(to.parse().unwrap()).unwrap(), None, "{to}");
        }
    });
}

#[test]
fn addresses_are_listed_with_their_interfaces() {
    in_fresh_namespace(|| {
        uplink();
        let mut links = Links::open().unwrap();
        let up0 = links.interface_by_name("up0").unwrap().unwrap().index;
        let addresses = links.addresses().unwrap();
        for (net, interface) in [
            ("10.0.0.1/24", up0),
            ("fd00::1/64", up0),
            ("127.0.0.1/8", 1),
            ("::1/128", 1),
        ] {
            let wanted = Address {
                net: net.parse().unwrap(),
                interface,
            };
            assert!(addresses.contains(&wanted), "{net} is not in {addresses:?}");
        }
    });
}

#[test]
fn an_interface_is_found_by_name_and_by_index_with_its_kind_and_bridge() {
    in_fresh_namespace(|| {
        uplink();
        ip("link add br0 type bridge");
        ip("link set up1 master br0");
        let mut links = Links::open().unwrap();
        let [bridge, port, lo] =
            ["br0", "up1", "lo"].map(|name| links.interface_by_name(name).unwrap().unwrap());
        assert_eq!(
            (bridge.kind.as_deref(), port.kind.as_deref(), lo.kind),
            (Some("bridge"), Some("veth"), None)
        );
        assert_eq!(port.master, Some(bridge.index));
        assert_eq!(
            port.link,
            links.interface_by_name("up0").unwrap().map(|other| other.index)
        );
        assert!(port.is_up && !bridge.is_up && port.mtu == 1500 && port.hardware.len() == 6);
        assert_eq!(links.interface_by_index(port.index).unwrap(), Some(port));
        assert_eq!(links.interfaces().unwrap().len(), 4);
        assert_eq!(links.interface_by_name("none0").unwrap(), None);
        assert_eq!(links.interface_by_index(4000).unwrap(), None);
    });
}

#[test]
fn the_monitor_is_silent_until_something_changes_and_then_says_what() {
    in_fresh_namespace(|| {
        let mut monitor = LinkMonitor::open().unwrap();
        let nothing = LinkChanges {
            links: false,
            addresses: false,
            routes: false,
            overrun: false,
        };
        monitor.drain().unwrap();
        assert_eq!(monitor.drain().unwrap(), nothing);
        ip("link add up0 type veth peer name up1");
        assert_eq!(
            news(&mut monitor),
            LinkChanges {
                links: true,
                ..nothing
            }
        );
        ip("addr add 10.0.0.1/24 dev up0");
        let added = news(&mut monitor);
        assert!(added.addresses && !added.links && !added.overrun, "{added:?}");
        ip("link set up0 up");
        monitor.drain().unwrap();
        ip("route add 10.5.0.0/16 dev up0");
        assert!(news(&mut monitor).routes);
        ip("link del up0");
        assert!(news(&mut monitor).links);
    });
}

/// The change was made before this is called, so its news has arrived: the descriptor must be readable at once.
fn news(monitor: &mut LinkMonitor) -> LinkChanges {
    let mut polled = [PollFd::new(monitor.as_fd(), PollFlags::POLLIN)];
    assert_eq!(
        poll(&mut polled, PollTimeout::from(5000u16)).expect("the descriptor is open"),
        1,
        "no news within five seconds"
    );
    monitor.drain().expect("the monitor is open")
}

#[test]
fn more_events_than_the_socket_holds_are_an_overrun() {
    in_fresh_namespace(|| {
        let mut monitor = LinkMonitor::open().unwrap();
        let commands: String = (0..2000)
            .map(|n| format!("addr add 10.1.{}.{}/32 dev lo\n", n / 250, n % 250))
            .collect();
        let path = format!("/run/batch-{}", std::process::id());
        std::fs::write(&path, commands).unwrap();
        run("ip", &["-batch", &path]);
        let changes = monitor.drain().unwrap();
        assert!(changes.overrun && changes.any(), "{changes:?}");
        assert!(!monitor.drain().unwrap().overrun);
    });
}

#[test]
fn an_interface_holds_addresses_of_this_host_until_it_is_removed() {
    in_fresh_namespace(|| {
        let mut links = Links::open().unwrap();
        let addresses: Vec<IpAddr> = ["169.254.20.10", "10.96.0.10", "fd00::20:10"]
            .map(|text| text.parse().unwrap())
            .to_vec();
        let is_local = |links: &mut Links| -> Vec<bool> {
            let route = |address| {
                links
                    .route_to(address)
                    .unwrap()
                    .is_some_and(|route| route.is_local)
            };
            addresses.iter().copied().map(route).collect()
        };
        let (made, by) = links.ensure_local("nodelocaldns").unwrap();
        assert_eq!((by, made.is_up), (InterfaceOrigin::Now, false));
        assert_eq!(is_local(&mut links), [false; 3]);
        links.bring_up(made.index).unwrap();
        for address in &addresses {
            assert!(links.ensure_address(made.index, *address).unwrap(), "{address}");
            assert!(
                !links.ensure_address(made.index, *address).unwrap(),
                "{address} again"
            );
        }
        // The kernel makes an IPv6 address local by a task of its own.
        let mut looks = 0;
        while is_local(&mut links) != [true; 3] {
            looks += 1;
            assert!(looks < 100_000, "{:?}", is_local(&mut links));
            std::thread::yield_now();
        }
        let (found, by) = links.ensure_local("nodelocaldns").unwrap();
        assert_eq!(
            (by, found.index, found.is_up),
            (InterfaceOrigin::Before, made.index, true)
        );
        assert!(links.remove("nodelocaldns").unwrap());
        assert!(!links.remove("nodelocaldns").unwrap());
        assert_eq!(is_local(&mut links), [false; 3]);
    });
}
