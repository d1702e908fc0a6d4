//! A node with 110 pods whose policies have names: all that asks, asks from a pod, over its veth pair, with the
//! enforcer's rules in force and without conntrack for DNS, as node-local-dns sets it up.

use std::fs::File;
use std::net::{SocketAddr, UdpSocket};

use anyhow::{Context as _, ensure};
use egret_integration::node::DNS;
use egret_integration::{Pod, PodSpec, World};
use nix::sched::{CloneFlags, setns};
use nix::sys::socket::{setsockopt, sockopt};

/// As large as that of dnsd's sockets.
pub(crate) const BUFFER: usize = 4 << 20;

/// Pods of a node.
pub(crate) const PODS: usize = 110;
/// Pods that ask, where it is not said otherwise.
pub(crate) const ASKING: usize = 16;
/// A pod that no policy with names selects.
const PLAIN: &str = "plain";

/// The node.
#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) world: World,
}

impl Node {
    pub(crate) fn new() -> anyhow::Result<Self> {
        let mut world = World::new()?.with(PodSpec::new(PLAIN))?;
        for number in 1..PODS {
            world.add(PodSpec::new(&name(number)).labelled("names", "yes"))?;
        }
        world.manifests().write("policy.yaml", POLICY)?;
        for (chain, end) in [("PREROUTING", "-d"), ("OUTPUT", "-s")] {
            let address = DNS.to_string();
            let rule = [
                "-t", "raw", "-A", chain, end, &address, "-p", "udp", "-j", "NOTRACK",
            ];
            let argv: Vec<&str> = std::iter::once("iptables").chain(rule).collect();
            world.node().run_well(&argv)?;
        }
        Ok(Self { world })
    }

    /// A socket in each of so many pods whose policies have names.
    pub(crate) fn sockets(&self, to: SocketAddr, pods: usize) -> anyhow::Result<Vec<UdpSocket>> {
        ensure!(pods < PODS, "{pods} pods of {PODS} cannot ask: one has no names");
        (1..=pods)
            .map(|number| socket(self.world.pod(&name(number)), to))
            .collect()
    }

    /// So many sockets in the pod that no policy with names selects.
    pub(crate) fn plain_sockets(&self, to: SocketAddr, count: usize) -> anyhow::Result<Vec<UdpSocket>> {
        (0..count).map(|_| socket(self.world.pod(PLAIN), to)).collect()
    }

    /// So many sockets in one pod whose policy has names.
    pub(crate) fn named_sockets(&self, to: SocketAddr, count: usize) -> anyhow::Result<Vec<UdpSocket>> {
        (0..count).map(|_| socket(self.world.pod(&name(1)), to)).collect()
    }
}

fn name(number: usize) -> String {
    format!("p{number}")
}

fn socket(pod: &Pod, to: SocketAddr) -> anyhow::Result<UdpSocket> {
    let socket = pod.udp_socket(to)?;
    socket.set_nonblocking(true)?;
    // What comes while the machine does something else is not lost.
    setsockopt(&socket, sockopt::RcvBufForce, &BUFFER)?;
    Ok(socket)
}

/// A socket belongs to the namespace in which it was made, not to that of the thread that uses it.
pub(crate) fn within_node<T: Send>(
    world: &World,
    make: impl FnOnce() -> std::io::Result<T> + Send,
) -> anyhow::Result<T> {
    let node = File::open(format!("/run/netns/{}", world.node().namespace()))?;
    let make = move || {
        setns(node, CloneFlags::CLONE_NEWNET)?;
        make()
    };
    let made = std::thread::scope(|scope| scope.spawn(make).join());
    made.expect("making a socket does not panic")
        .context("a socket of the node")
}

const POLICY: &str = "apiVersion: policy.networking.k8s.io/v1alpha2
kind: ClusterNetworkPolicy
metadata: {name: names}
spec:
  tier: Admin
  priority: 10
  subject:
    pods:
      namespaceSelector: {}
      podSelector: {matchLabels: {names: \"yes\"}}
  egress:
  - action: Accept
    to:
    - domainNames: [\"*.hit.example.test\", \"*.held.example.test\", big.example.test]
  - action: Deny
    to:
    - networks: [198.18.0.0/15]
";
