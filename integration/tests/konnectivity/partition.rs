//! An API server that has no way to the nodes, and nodes that have one to the server of the pair alone (KEP-1281, test plan): each side is a network
//! namespace, and what the API server asks for is in the other one.

use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;

use nix::sched::{CloneFlags, setns};

/// The control plane's address on the one network that both have.
pub(crate) const CONTROL_PLANE: &str = "192.0.2.1";
/// A node's, and addresses of Services: the control plane has no route to them.
pub(crate) const NODE: &str = "198.51.100.5";
pub(crate) const WEBHOOK: &str = "10.96.0.50";
pub(crate) const AGGREGATED: &str = "10.96.0.51";

/// A namespace of the control plane and one of the nodes. They end with this.
pub(crate) struct Partition {
    pub(crate) control_plane: Namespace,
    pub(crate) nodes: Namespace,
}

pub(crate) struct Namespace(String);

impl Partition {
    pub(crate) fn new() -> Self {
        static LAST: AtomicU32 = AtomicU32::new(0);
        let number = LAST.fetch_add(1, Ordering::Relaxed);
        let namespace = |role: &str| {
            let name = format!("konn{}-{number}-{role}", std::process::id());
            run("ip", &["netns", "add", &name]);
            Namespace(name)
        };
        let (control_plane, nodes) = (namespace("cp"), namespace("nodes"));
        control_plane.ip("link set lo up");
        nodes.ip("link set lo up");
        control_plane.ip(&format!("link add way type veth peer name way netns {}", nodes.0));
        control_plane.ip(&format!("address add {CONTROL_PLANE}/24 dev way"));
        nodes.ip("address add 192.0.2.2/24 dev way");
        control_plane.ip("link set way up");
        nodes.ip("link set way up");
        for address in [NODE, WEBHOOK, AGGREGATED] {
            nodes.ip(&format!("address add {address}/32 dev lo"));
        }
        Self { control_plane, nodes }
    }
}

impl Namespace {
    pub(crate) fn name(&self) -> &str {
        &self.0
    }

    fn ip(&self, words: &str) {
        let words: Vec<&str> = ["-n", &self.0].into_iter().chain(words.split(' ')).collect();
        run("ip", &words);
    }

    /// Runs a program inside.
    pub(crate) fn run(&self, program: &str, words: &str) {
        let inside = ["netns", "exec", &self.0, program];
        run(
            "ip",
            &inside.into_iter().chain(words.split(' ')).collect::<Vec<_>>(),
        );
    }

    /// What is listened on inside stays there, and so do threads that are started.
    pub(crate) fn within<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        let namespace = std::fs::File::open(Path::new("/run/netns").join(&self.0)).unwrap();
        thread::scope(|scope| {
            let work = scope.spawn(|| {
                setns(namespace, CloneFlags::CLONE_NEWNET).unwrap();
                work()
            });
            work.join().unwrap()
        })
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        let deleted = Command::new("ip").args(["netns", "delete", &self.0]).status();
        if !deleted.is_ok_and(|status| status.success()) {
            eprintln!("the network namespace {} is left", self.0);
        }
    }
}

fn run(program: &str, words: &[&str]) {
    let output = Command::new(program).args(words).output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program} {words:?}: {stderr}");
}

pub(crate) fn address(host: &str, port: u16) -> SocketAddr {
    SocketAddr::new(host.parse().unwrap(), port)
}
