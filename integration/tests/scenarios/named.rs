//! The ways in which a pod's resolv.conf comes to name dnsd: docs/node-local-dns.md.

use std::net::SocketAddr;

use egret_integration::{
    Daemon, DaemonSpec, PodSpec, ProxyMode, Records, ServicePort, World, node, upstream,
};

use super::backend_override;
use super::deployment::{PATIENCE, QUICK, TestResult, eventually, ip, metrics, only_names, within};

/// The Service kube-dns.
const CLUSTER_DNS: &str = "10.96.0.10";

const NAME: &str = "api.example.test";

/// How a way is set up.
struct Way {
    what: &'static str,
    /// Where dnsd listens besides, and what else it is told.
    dnsd: &'static [&'static str],
    /// What the kubelet writes.
    resolv_conf: &'static str,
    /// Where kube-proxy leads who asks the Service: nowhere without one.
    endpoint: Option<Endpoint>,
}

#[derive(Clone, Copy)]
enum Endpoint {
    /// CoreDNS, as ever: dnsd answers before a packet would go there.
    ClusterDns,
    /// dnsd at the node's own address.
    Dnsd,
}

const WAYS: [Way; 5] = [
    Way {
        what: "the kubelet's clusterDNS is the local address",
        dnsd: &[],
        resolv_conf: "search default.svc.cluster.test svc.cluster.test cluster.test\n\
                      nameserver 169.254.20.10\noptions ndots:5\n",
        endpoint: None,
    },
    Way {
        what: "dnsPolicy None",
        dnsd: &[],
        resolv_conf: "nameserver fd00::20:10\nsearch example.test\noptions ndots:2 edns0\n",
        endpoint: None,
    },
    Way {
        what: "dnsd has the Service's address beside kube-proxy in iptables mode",
        dnsd: &[
            "--listen",
            "10.96.0.10:53",
            "--interface",
            "nodelocaldns",
            "--rules",
        ],
        resolv_conf: "nameserver 10.96.0.10\n",
        endpoint: Some(Endpoint::ClusterDns),
    },
    Way {
        what: "without that, pods ask the cluster DNS, and dnsd is none of it",
        dnsd: &[],
        resolv_conf: "nameserver 10.96.0.10\n",
        endpoint: Some(Endpoint::ClusterDns),
    },
    Way {
        what: "kube-proxy leads to dnsd on the node's own address",
        dnsd: &["--listen", "10.76.0.2:53"],
        resolv_conf: "nameserver 10.96.0.10\n",
        endpoint: Some(Endpoint::Dnsd),
    },
];

pub(super) fn each_way_to_name_dnsd_ends_in_the_pods_own_records(world: &mut World) -> TestResult {
    world.add(PodSpec::new("client"))?;
    world.add(PodSpec::new("other"))?;
    let policy = only_names(&[NAME]).replace(
        "169.254.20.10/32",
        "169.254.20.10/32, 10.96.0.10/32, 192.0.2.53/32, 10.76.0.2/32",
    );
    world.manifests().write("policy.yaml", &policy)?;
    world.upstream().set(NAME, Records::addresses(["203.0.113.7"]));
    for way in WAYS {
        let mut enforcer = world.start(
            world
                .enforcer(backend_override::packet_filter())
                .with(["--dns-address", CLUSTER_DNS]),
        )?;
        let modes: &[ProxyMode] = match way.endpoint {
            None | Some(Endpoint::ClusterDns) => &[ProxyMode::Iptables],
            Some(Endpoint::Dnsd) => &ProxyMode::ALL,
        };
        for mode in modes {
            let mut dnsd = start(world, &way, *mode)?;
            goes(world, &way, &dnsd)?;
            dnsd.terminate()?;
        }
        world.proxy(ProxyMode::Iptables, &[])?;
        enforcer.terminate()?;
        let cleanup = DaemonSpec::enforcer(0).binary.display().to_string();
        world.node().run_well(&[&cleanup, "cleanup"])?;
        drop(std::fs::remove_file(world.state()));
    }
    Ok(())
}

fn start(world: &World, way: &Way, mode: ProxyMode) -> Result<Daemon, Box<dyn std::error::Error>> {
    let endpoint = way.endpoint.map(|endpoint| match endpoint {
        Endpoint::ClusterDns => SocketAddr::new(upstream::ADDRESS.into(), 53),
        Endpoint::Dnsd => SocketAddr::new(node::ADDRESS.into(), 53),
    });
    let service: SocketAddr = format!("{CLUSTER_DNS}:53").parse()?;
    let services = endpoint.map(|endpoint| {
        [ServicePort::udp("dns"), ServicePort::tcp("dns-tcp")].map(|port| port.at(service).to(endpoint))
    });
    world.proxy(mode, services.as_ref().map_or(&[], |services| &services[..]))?;
    let dnsd = world.start(world.dnsd().with(way.dnsd.iter().copied()))?;
    let knows_interest = |(_, page): (u16, String)| page.contains("have interest in names");
    eventually("dnsd and the enforcer are joined", || {
        dnsd.get("/readyz").is_ok_and(knows_interest)
    });
    Ok(dnsd)
}

fn goes(world: &World, way: &Way, dnsd: &Daemon) -> TestResult {
    let pod = world.pod("client");
    pod.use_resolv_conf(way.resolv_conf)?;
    let by_dnsd = way.endpoint.is_none() || !way.what.starts_with("without");
    if way.dnsd.contains(&"--rules") {
        eventually("dnsd is alive to the kernel", || {
            world
                .node()
                .ipset_list()
                .is_ok_and(|sets| sets.contains(CLUSTER_DNS))
        });
    }
    for (protocol, transport) in [("+notcp", "udp"), ("+tcp", "tcp")] {
        let ask = || pod.run(&["dig", "+short", "+search", protocol, NAME]);
        let queries = || metrics(dnsd).sum("egret_dnsd_queries_total", &[("transport", transport)]);
        let output = ask()?;
        assert_eq!(output.stdout.trim(), "203.0.113.7", "{}: {output:?}", way.what);
        if by_dnsd {
            // A dnsd that had no turn for a second counts as dead, and the cluster DNS answers in its place.
            within(4 * PATIENCE, way.what, || ask().is_ok_and(|_| queries() > 0.0));
        } else {
            assert_eq!(queries(), 0.0, "{}", way.what);
        }
    }
    let reaches = |pod: &str| {
        world
            .pod(pod)
            .connect_tcp(SocketAddr::new(ip("203.0.113.7"), 7), QUICK)
    };
    assert_eq!(
        reaches("client").is_connected(),
        by_dnsd,
        "{}: the pod that asked",
        way.what
    );
    assert!(!reaches("other").is_connected(), "{}: one that did not", way.what);
    Ok(())
}
