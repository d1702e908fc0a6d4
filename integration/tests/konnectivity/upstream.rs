//! Upstream's own tests of an agent, and its test client, with our programs.

use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};

use egret_integration::{Peer, daemon};

use super::pair::{Front, Pair, Program};
use super::targets::Target;

/// A network where nothing answers but loopback: one of the tests dials an address that must not. Names are those of /etc/hosts alone.
const ALONE: &str = r#"set -e
ip link set lo up
ip link add name way type veth peer name void
ip address add 192.0.2.1/24 dev way
ip link set way up
ip link set void up
ip neighbour add 192.0.2.2 lladdr 02:00:00:00:00:02 dev way
ip route add default via 192.0.2.2
mount --bind nsswitch.conf /etc/nsswitch.conf
exec "$@"
"#;
/// Those of v0.36.0 but [`CANCELLED`].
const TESTS: usize = 25;
/// It wants its own client to notice a cancelled request before it notices the end of the tunnel, which ends at the same time. On two
/// processors with work the client of v0.36.0 notices the end first once in twenty times, with upstream's agent as with ours.
const CANCELLED: &str = "^TestProxyHandle_TunnelContextCancelled_GRPC$";
const REQUESTS: usize = 10_000;
/// The client makes all of its requests at once.
const AT_ONCE: usize = 200;

#[test]
fn upstreams_tests_of_an_agent_pass_with_ours() {
    let Some(run) = run(&["-test.skip", CANCELLED]) else {
        return;
    };
    assert_eq!(run.failed(), Vec::<&str>::new(), "{}", end(&run.log));
    assert!(run.status.success(), "{}", end(&run.log));
    assert_eq!(run.passed().len(), TESTS, "{:#?}", run.passed());
}

#[test]
fn upstreams_test_of_a_cancelled_tunnel_passes_with_ours_where_its_client_is_in_time() {
    let Some(run) = run(&["-test.run", CANCELLED, "-test.count", "5"]) else {
        return;
    };
    assert_ne!(run.passed(), Vec::<&str>::new(), "{}", end(&run.log));
}

struct Run {
    status: ExitStatus,
    log: String,
}

impl Run {
    fn passed(&self) -> Vec<&str> {
        self.lines("--- PASS: ")
    }

    fn failed(&self) -> Vec<&str> {
        self.lines("--- FAIL: ")
    }

    fn lines(&self, start: &str) -> Vec<&str> {
        self.log.lines().filter(|line| line.starts_with(start)).collect()
    }
}

/// Upstream's tests with our agent; `None` where they cannot be built.
fn run(which: &[&str]) -> Option<Run> {
    let tests = Peer::KONNECTIVITY_TESTS.build().unwrap()?;
    let folder = tempfile::tempdir().unwrap();
    let agent = folder.path().join("agent");
    let ours = daemon::binary("proxy-agent").unwrap().canonicalize().unwrap();
    // Targets of the tests are on loopback and on every address.
    let script = format!(
        "#!/bin/sh\nexec {} \"$@\" --allow-destinations=127.0.0.0/8,::1/128,0.0.0.0/32,::/128\n",
        ours.display()
    );
    fs::write(&agent, script).unwrap();
    fs::set_permissions(&agent, fs::Permissions::from_mode(0o755)).unwrap();
    fs::write(folder.path().join("nsswitch.conf"), "hosts: files\n").unwrap();
    let log = folder.path().join("log");
    let output = File::create(&log).unwrap();
    let status = Command::new("unshare")
        // What the tests leave when they are cut off ends with them.
        .args([
            "--net",
            "--mount",
            "--pid",
            "--fork",
            "--kill-child",
            "--mount-proc",
        ])
        .args(["sh", "-c", ALONE, "sh"])
        .arg(tests.canonicalize().unwrap())
        .arg("-agent-path")
        .arg(&agent)
        .args(["-test.v", "-test.timeout=600s"])
        .args(which)
        .current_dir(folder.path())
        .env("TMPDIR", folder.path())
        .stdin(Stdio::null())
        .stdout(output.try_clone().unwrap())
        .stderr(output)
        .status()
        .unwrap();
    Some(Run {
        status,
        log: fs::read_to_string(&log).unwrap(),
    })
}

#[test]
fn upstreams_test_client_makes_10_000_requests_without_an_error() {
    let Some(client) = Peer::KONNECTIVITY_CLIENT.build().unwrap() else {
        return;
    };
    let target = Target::http(b"It works!".to_vec());
    for front in [Front::GrpcUds, Front::HttpConnectUds] {
        let pair = Pair::start(Program::Ours, Program::Ours, front).unwrap();
        for _ in 0..REQUESTS / AT_ONCE {
            requests(&client, &pair, front, target.port());
        }
        let dials = pair.server_metric("konnectivity_network_proxy_server_dial_duration_seconds_count");
        assert_eq!(dials, Some(REQUESTS as f64), "{front:?}");
        let open = "konnectivity_network_proxy_server_established_connections";
        super::within("nothing is left", || pair.server_metric(open) == Some(0.0));
    }
}

fn requests(client: &Path, pair: &Pair, front: Front, port: u16) {
    let mode = match front {
        Front::GrpcUds => "grpc",
        Front::HttpConnectUds | Front::HttpConnectTls => "http-connect",
    };
    let output = Command::new(client)
        .args([
            "--proxy-host=",
            "--proxy-port=0",
            "--request-host=127.0.0.1",
            "-v=0",
        ])
        .args([
            format!("--mode={mode}"),
            format!("--proxy-uds={}", pair.socket().display()),
            format!("--request-port={port}"),
            format!("--test-requests={AT_ONCE}"),
        ])
        // It takes any signal for the wish to end, also that by which Go's scheduler interrupts it.
        .env("GODEBUG", "asyncpreemptoff=1")
        .output()
        .unwrap();
    let log = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{front:?}: {}", end(&log));
}

fn end(log: &str) -> String {
    let lines: Vec<_> = log.lines().collect();
    lines[lines.len().saturating_sub(60)..].join("\n")
}
