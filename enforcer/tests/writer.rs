//! Two enforcers in one network namespace, as programs: one writes, the other waits.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on says where")]
#![allow(clippy::disallowed_methods, reason = "it waits for processes, by their clock")]

use std::fs::Permissions;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

mod node_world;

use node_world::in_fresh_namespace;

const POD: &str = "
apiVersion: v1
kind: Pod
metadata: {name: a, namespace: default, labels: {app: a}}
spec: {nodeName: node-a}
status: {podIP: 10.0.0.1, podIPs: [{ip: 10.0.0.1}]}
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: closed, namespace: default}
spec: {podSelector: {}, policyTypes: [Egress]}
";

/// An enforcer; killed with SIGKILL when dropped.
struct Enforcer {
    process: Child,
    admin: u16,
}

impl Enforcer {
    /// Starts one with sockets and files of its own, for the objects in `manifest`.
    fn start(folder: &Path, name: &str, manifest: &str, admin: u16) -> Self {
        let own = folder.join(name);
        std::fs::create_dir_all(own.join("source")).unwrap();
        std::fs::set_permissions(&own, Permissions::from_mode(0o700)).unwrap();
        std::fs::write(own.join("source/objects.yaml"), manifest).unwrap();
        let path = |file: &str| own.join(file).display().to_string();
        let process = Command::new(env!("CARGO_BIN_EXE_enforcer"))
            .args(["--node", "node-a", "--iptables", "nft", "--cni", ""])
            .args(["--source", &format!("dir:{}", path("source"))])
            .args(["--link", &path("link.sock"), "--state", &path("state")])
            .args(["--state-objects", &path("objects")])
            .args(["--admin", &format!("127.0.0.1:{admin}")])
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        Self { process, admin }
    }

    /// The answer of `/readyz`, with its headers; empty while nobody listens.
    fn readiness(&self) -> String {
        let mut answer = String::new();
        if let Ok(mut stream) = TcpStream::connect(("127.0.0.1", self.admin)) {
            stream
                .write_all(b"GET /readyz HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
                .unwrap();
            stream.read_to_string(&mut answer).unwrap();
        }
        answer
    }

    fn becomes(&self, status: &str, text: &str) {
        let begun = Instant::now();
        loop {
            let answer = self.readiness();
            if answer.starts_with(status) && answer.contains(text) {
                return;
            }
            assert!(begun.elapsed() < Duration::from_secs(20), "not {text}: {answer}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    fn kill(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }
}

impl Drop for Enforcer {
    fn drop(&mut self) {
        // It may have ended already.
        drop(self.process.kill());
        drop(self.process.wait());
    }
}

/// What the kernel holds, without counters and remarks.
fn rules() -> String {
    let saved = Command::new("iptables-nft-save").output().unwrap();
    String::from_utf8_lossy(&saved.stdout)
        .lines()
        .filter(|line| line.starts_with("-A"))
        .map(|line| line.to_owned() + "\n")
        .collect()
}

/// With the pod's interface.
fn on_a_node(test: impl FnOnce() + Send + 'static) {
    in_fresh_namespace(|| {
        ip("link add veth-a type veth peer name eth-a");
        ip("link set veth-a up");
        ip("link set eth-a up");
        ip("route add 10.0.0.1 dev veth-a");
        test();
    });
}

fn ip(arguments: &str) {
    let status = Command::new("ip").args(arguments.split(' ')).status().unwrap();
    assert!(status.success(), "ip {arguments}");
}

#[test]
fn a_second_enforcer_waits_says_for_whom_and_takes_over_when_the_first_is_killed() {
    on_a_node(|| {
        let folder = tempfile::tempdir().unwrap();
        let mut first = Enforcer::start(folder.path(), "first", POD, 9254);
        first.becomes("HTTP/1.1 200", "ready: 1 pods");
        let before = rules();
        assert!(
            before.contains("10.0.0.1") || before.contains("EGRET"),
            "{before}"
        );

        let second = Enforcer::start(folder.path(), "second", "", 9255);
        let standby = format!("standby: process {} enforces here", first.process.id());
        second.becomes("HTTP/1.1 200", &standby);
        // Longer than the second needs to start and write.
        std::thread::sleep(Duration::from_secs(1));
        assert_eq!(rules(), before, "the first one's rules stay");

        first.kill();
        second.becomes("HTTP/1.1 200", "ready: 0 pods");
        assert_ne!(rules(), before, "the second one writes");
    });
}

#[test]
fn a_second_enforcer_with_the_same_admin_address_takes_it_over_too() {
    on_a_node(|| {
        let folder = tempfile::tempdir().unwrap();
        let mut first = Enforcer::start(folder.path(), "first", POD, 9254);
        first.becomes("HTTP/1.1 200", "ready: 1 pods");
        let second = Enforcer::start(folder.path(), "second", "", 9254);
        // It has tried to bind by then; the first one answers on.
        std::thread::sleep(Duration::from_secs(1));
        second.becomes("HTTP/1.1 200", "ready: 1 pods");
        first.kill();
        second.becomes("HTTP/1.1 200", "ready: 0 pods");
    });
}

#[test]
fn an_enforcer_that_waits_ends_when_it_is_told_to() {
    on_a_node(|| {
        let folder = tempfile::tempdir().unwrap();
        let first = Enforcer::start(folder.path(), "first", POD, 9254);
        first.becomes("HTTP/1.1 200", "ready: 1 pods");
        let mut second = Enforcer::start(folder.path(), "second", "", 9255);
        second.becomes("HTTP/1.1 200", "standby: ");
        let pid = nix::unistd::Pid::from_raw(second.process.id().try_into().unwrap());
        nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGTERM).unwrap();
        assert!(second.process.wait().unwrap().success());
        first.becomes("HTTP/1.1 200", "ready: 1 pods");
    });
}

#[test]
fn an_enforcer_that_waits_says_what_the_holder_says_of_itself() {
    on_a_node(|| {
        let folder = tempfile::tempdir().unwrap();
        let first = Enforcer::start(folder.path(), "first", POD, 9254);
        first.becomes("HTTP/1.1 200", "ready: 1 pods");
        let second = Enforcer::start(folder.path(), "second", POD, 9255);
        second.becomes("HTTP/1.1 200", "standby: ");
        // Nobody knows behind which interface the second pod sits.
        let unplaced = POD
            .replace("10.0.0.1", "10.0.0.2")
            .replace("name: a,", "name: b,");
        let path = folder.path().join("first/source/more.yaml");
        std::fs::write(path, unplaced.split("---").next().unwrap()).unwrap();
        first.becomes("HTTP/1.1 503", "");
        // It is to be replaced all the same.
        let states = first.readiness();
        let reason = states.lines().last().unwrap();
        second.becomes("HTTP/1.1 200", reason);
    });
}

/// Any process may lock the namespace.
#[test]
fn a_lock_that_is_not_an_enforcers_keeps_none_from_writing() {
    on_a_node(|| {
        let folder = tempfile::tempdir().unwrap();
        let namespace = std::fs::File::open("/proc/thread-self/ns/net").unwrap();
        namespace.lock().unwrap();
        let first = Enforcer::start(folder.path(), "first", POD, 9254);
        first.becomes("HTTP/1.1 200", "ready: 1 pods");
        let second = Enforcer::start(folder.path(), "second", "", 9255);
        second.becomes("HTTP/1.1 200", "enforces here");
        drop(namespace);
        // It would have written by then.
        std::thread::sleep(Duration::from_secs(1));
        second.becomes("HTTP/1.1 200", "enforces here");
        first.becomes("HTTP/1.1 200", "ready: 1 pods");
    });
}

#[test]
fn an_enforcer_that_waits_for_a_process_that_is_none_is_not_ready() {
    on_a_node(|| {
        let folder = tempfile::tempdir().unwrap();
        // A privileged process has what an enforcer has, and for a while the name at which one answers.
        let group = egret_kernel::nflog::Listener::bind(65_043).unwrap();
        let waiting = Enforcer::start(folder.path(), "waiting", POD, 9255);
        waiting.becomes("HTTP/1.1 503", "does not prove that it is an enforcer");
        let name = SocketAddr::from_abstract_name("egret-enforcer").unwrap();
        let somebody = UnixListener::bind_addr(&name).unwrap();
        let answering = std::thread::spawn(move || {
            let mut asked = somebody.accept().unwrap().0;
            asked.write_all(b"welcome").unwrap();
        });
        waiting.becomes("HTTP/1.1 503", "its answer is not that of an enforcer");
        answering.join().unwrap();
        assert!(!rules().contains("EGRET"));
        drop(group);
        waiting.becomes("HTTP/1.1 200", "ready: 1 pods");
    });
}
