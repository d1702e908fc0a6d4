//! Who may read what on the admin listeners: everything on the node itself; from elsewhere the state and the metrics alone, and
//! nothing where the listener is on loopback.

#![allow(clippy::unwrap_used, reason = "a test says what it expects")]

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use egret_integration::{Daemon, DaemonSpec, Pod, PodSpec, Service, World};

type TestResult = Result<(), Box<dyn std::error::Error>>;

const V4: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
const V6: IpAddr = IpAddr::V6(Ipv6Addr::LOCALHOST);

/// Pages that name pods and policies.
const DETAILS: [&str; 2] = ["/records", "/rules"];
/// Pages that probes and Prometheus ask for.
const STATE: [&str; 3] = ["/healthz", "/readyz", "/metrics"];

/// The same daemon with its admin listener elsewhere.
fn at(mut spec: DaemonSpec, ip: IpAddr) -> DaemonSpec {
    let address = SocketAddr::new(ip, spec.admin.port());
    let place = spec.arguments.iter().position(|it| it == "--admin").unwrap();
    spec.arguments[place + 1] = address.to_string();
    if !ip.is_unspecified() {
        spec.admin = address;
    }
    spec
}

fn url(ip: IpAddr, daemon: &Daemon, path: &str) -> String {
    format!("http://{}{path}", SocketAddr::new(ip, daemon.spec().admin.port()))
}

/// The status of a page, as a program in the pod sees it; 000 without an answer.
fn from_pod(pod: &Pod, url: &str) -> String {
    let page = pod.run(&[
        "curl",
        "-gs",
        "-m",
        "2",
        "-o",
        "/dev/null",
        "-w",
        "%{http_code}",
        url,
    ]);
    page.unwrap().stdout
}

fn on_node(world: &World, url: &str) -> String {
    let page = world.node().run(&[
        "curl",
        "-gs",
        "-m",
        "5",
        "-o",
        "/dev/null",
        "-w",
        "%{http_code}",
        url,
    ]);
    page.unwrap().stdout
}

/// The node answers for 127.0.0.0/8 to whoever asks (as kube-proxy and portmap set it), and the pod sends it there.
fn lead_loopback_out_of_the_pod(world: &World, pod: &Pod) {
    for interface in ["all", pod.interface()] {
        world
            .node()
            .sysctl(&format!("ipv4/conf/{interface}/route_localnet"), "1")
            .unwrap();
    }
    let script = "set -e
        for it in /proc/sys/net/ipv4/conf/*/route_localnet; do echo 1 > $it; done
        dev=$(ip -o route get 203.0.113.7 | sed 's/.* dev \\([^ ]*\\) .*/\\1/')
        via=$(ip -o route get 203.0.113.7 | sed -n 's/.* via \\([^ ]*\\) .*/via \\1/p')
        src=$(ip -o route get 203.0.113.7 | sed 's/.* src \\([^ ]*\\) .*/\\1/')
        ip address del 127.0.0.1/8 dev lo
        ip route add 127.0.0.0/8 $via dev $dev src $src onlink
        ip address del ::1/128 dev lo
        via6=$(ip -o -6 route get 2001:db8::7 | sed -n 's/.* via \\([^ ]*\\) .*/via \\1/p')
        ip -6 route add ::1 $via6 dev $dev";
    let led = pod.run(&["sh", "-c", script]).unwrap();
    assert!(led.success(), "{led:?}");
}

#[test]
fn a_listener_on_loopback_answers_the_node_and_no_pod() -> TestResult {
    let Some(mut world) = World::or_skip() else {
        return Ok(());
    };
    world.add(PodSpec::new("client"))?;
    for ip in [V4, V6] {
        let daemons = [
            world.start(at(world.enforcer("netfilter"), ip))?,
            world.start(at(world.dnsd(), ip))?,
        ];
        let pod = world.pod("client");
        if ip == V4 {
            lead_loopback_out_of_the_pod(&world, pod);
            // The way is open: what listens everywhere is reached by it.
            world.serve_on_node(8099, Service::Http)?;
            assert_eq!(from_pod(pod, "http://127.0.0.1:8099/"), "200");
        }
        for daemon in &daemons {
            // Over IPv6 the kernel itself lets nobody else in (`ip6_rcv_core`).
            let paths = if ip == V4 { &STATE[..] } else { &STATE[..1] };
            for path in paths {
                assert_eq!(
                    on_node(&world, &url(ip, daemon, path)),
                    "200",
                    "{path} on the node"
                );
                assert_eq!(from_pod(pod, &url(ip, daemon, path)), "000", "{path} in the pod");
            }
        }
        for path in DETAILS {
            assert_eq!(on_node(&world, &url(ip, &daemons[0], path)), "200", "{path}");
        }
    }
    world.assert_nothing_left();
    Ok(())
}

#[test]
fn on_other_addresses_details_are_served_to_the_node_alone() -> TestResult {
    let Some(mut world) = World::or_skip() else {
        return Ok(());
    };
    world.add(PodSpec::new("client"))?;
    let pod = world.pod("client");
    for (listens, loopback, family) in [
        (IpAddr::V4(Ipv4Addr::UNSPECIFIED), V4, 0),
        (IpAddr::V6(Ipv6Addr::UNSPECIFIED), V6, 1),
        // A listener for both families knows the arrival of the other one as well: each wildcard is one.
        (IpAddr::V6(Ipv6Addr::UNSPECIFIED), V4, 0),
        (IpAddr::V4(Ipv4Addr::UNSPECIFIED), V6, 1),
    ] {
        let daemon = world.start(at(world.enforcer("netfilter"), listens))?;
        let node = world.node().addresses()[family];
        for path in STATE {
            for url in [url(loopback, &daemon, path), url(node, &daemon, path)] {
                assert_eq!(on_node(&world, &url), "200", "{url} on the node");
            }
            let url = url(node, &daemon, path);
            assert_eq!(from_pod(pod, &url), "200", "{url} in the pod");
        }
        for path in DETAILS {
            // By whatever address: a probe of the kubelet comes from the node's own.
            for url in [url(loopback, &daemon, path), url(node, &daemon, path)] {
                assert_eq!(on_node(&world, &url), "200", "{url} on the node");
            }
            let url = url(node, &daemon, path);
            assert_eq!(from_pod(pod, &url), "403", "{url} in the pod");
            let said = pod.run(&["curl", "-gs", "-m", "2", &url])?.stdout;
            assert!(said.contains("from the node itself"), "{said:?}");
        }
    }
    world.assert_nothing_left();
    Ok(())
}

#[test]
fn a_pod_with_a_link_local_address_of_the_node_is_not_the_node() -> TestResult {
    let Some(mut world) = World::or_skip() else {
        return Ok(());
    };
    world.add(PodSpec::new("client"))?;
    let pod = world.pod("client");
    let daemon = world.start(at(world.enforcer("netfilter"), Ipv6Addr::UNSPECIFIED.into()))?;
    let port = daemon.spec().admin.port();
    // The node has it on an interface of its own, and the pod on its one.
    world.node().run_well(&[
        "ip",
        "link",
        "add",
        "other",
        "type",
        "veth",
        "peer",
        "name",
        "other-end",
    ])?;
    world
        .node()
        .run_well(&["ip", "address", "add", "fe80::77/64", "dev", "other", "nodad"])?;
    world.node().run_well(&["ip", "link", "set", "other", "up"])?;
    let veth = pod.interface();
    world
        .node()
        .run_well(&["ip", "address", "add", "fe80::78/64", "dev", veth, "nodad"])?;
    let added = pod.run(&["ip", "address", "add", "fe80::77/64", "dev", "eth0", "nodad"])?;
    assert!(added.success(), "{added:?}");
    let get = |path: &str, address: &str, interface: &str| {
        format!(
            "import socket\nscope = socket.if_nametoindex('{interface}')\n\
             s = socket.socket(socket.AF_INET6)\ns.settimeout(2)\ns.bind(('fe80::77', 0, 0, scope))\n\
             s.connect(('{address}', {port}, 0, scope))\ns.sendall(b'GET {path} HTTP/1.0\\r\\n\\r\\n')\n\
             print(s.recv(12).decode())"
        )
    };
    let in_pod = |path: &str| {
        pod.run(&["python3", "-c", &get(path, "fe80::78", "eth0")])
            .unwrap()
    };
    let said = in_pod("/healthz");
    assert_eq!(said.stdout, "HTTP/1.0 200\n", "it is reached: {said:?}");
    assert_eq!(in_pod("/rules").stdout, "HTTP/1.0 403\n");
    // From the node the same address, on its own interface, is the node.
    let own = get("/rules", "fe80::77", "other");
    let said = world.node().run(&["python3", "-c", &own])?;
    assert_eq!(said.stdout, "HTTP/1.0 200\n", "{said:?}");
    drop(daemon);
    world.assert_nothing_left();
    Ok(())
}

#[test]
fn idle_connections_block_no_request() -> TestResult {
    const SILENT: usize = 400;
    let Some(mut world) = World::or_skip() else {
        return Ok(());
    };
    world.add(PodSpec::new("client"))?;
    let pod = world.pod("client");
    let everywhere = IpAddr::V4(Ipv4Addr::UNSPECIFIED);
    for spec in [
        at(world.enforcer("netfilter"), everywhere),
        at(world.dnsd(), everywhere),
    ] {
        let daemon = world.start(spec)?;
        let before = open_files(&daemon);
        let node = world.node().addresses()[0];
        let port = daemon.spec().admin.port();
        // They begin a request and never end it, and stay for as long as the pod's program does.
        let script = format!(
            "import socket\nheld = []\nfor _ in range({SILENT}):\n s = socket.create_connection(('{node}', {port}))\n \
             s.sendall(b'GET /metrics HTTP/1.1\\r\\nX: ')\n held.append(s)\n\
             import urllib.request\nprint(urllib.request.urlopen('http://{node}:{port}/healthz').status)"
        );
        let asked = pod.run(&["python3", "-c", &script])?;
        assert_eq!(asked.stdout, "200\n", "{asked:?}");
        let mut most = 0;
        std::thread::scope(|scope| {
            let held = scope.spawn(|| {
                let script = format!("{script}\nimport time; time.sleep(1)");
                pod.run(&["python3", "-c", &script]).unwrap()
            });
            while !held.is_finished() {
                most = most.max(open_files(&daemon));
                assert_eq!(on_node(&world, &url(V4, &daemon, "/readyz")), "200");
            }
            assert_eq!(held.join().unwrap().stdout, "200\n");
        });
        // 64 from the node, 64 from elsewhere, and one that is taken.
        assert!(most < before + 140, "{most} files are open, {before} were");
    }
    world.assert_nothing_left();
    Ok(())
}

fn open_files(daemon: &Daemon) -> usize {
    std::fs::read_dir(format!("/proc/{}/fd", daemon.pid()))
        .unwrap()
        .count()
}
