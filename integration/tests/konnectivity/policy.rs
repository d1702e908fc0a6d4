//! Policies of the API server's connections, and the log of them.

use std::fs::{self, OpenOptions};
use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::Duration;

use serde_json::Value;
use tempfile::TempDir;

use super::pair::{Front, Pair, Program};
use super::process::{PATIENCE, free_port, within};
use super::targets::Target;
use super::{echo, pattern};

const CONNECTED: &str = "HTTP/1.1 200 Connection Established";

/// A pair with a folder of policies and an audit log.
pub(crate) struct Policed {
    pub(crate) pair: Pair,
    folder: TempDir,
}

impl Policed {
    /// A server whose folder has this policy, by its spec; without an agent.
    pub(crate) fn server(front: Front, spec: &str, further: &[&str]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("policies")).unwrap();
        fs::write(folder.path().join("policies/p.yaml"), policy(spec)).unwrap();
        let path = |name: &str| folder.path().join(name).display().to_string();
        let mut own = vec![format!("--egress-policy={}", path("policies"))];
        if !further.iter().any(|it| it.starts_with("--audit-log=")) {
            own.push(format!("--audit-log={}", path("audit.log")));
        }
        let further: Vec<&str> = own
            .iter()
            .map(String::as_str)
            .chain(further.iter().copied())
            .collect();
        let pair = Pair::server_at(Program::Ours, front, "127.0.0.1", free_port(), &further).unwrap();
        Self { pair, folder }
    }

    pub(crate) fn start(spec: &str) -> Self {
        Self::start_with(spec, &[])
    }

    pub(crate) fn start_with(spec: &str, further: &[&str]) -> Self {
        let mut policed = Self::server(Front::HttpConnectUds, spec, further);
        policed.pair.start_agent(Program::Ours, "").unwrap();
        policed.pair.wait_for_agents(1);
        policed
    }

    pub(crate) fn file(&self) -> PathBuf {
        self.folder.path().join("policies/p.yaml")
    }

    pub(crate) fn head(&self, address: &str) -> String {
        self.pair.connect(address).0
    }

    /// Those that are written so far.
    pub(crate) fn all_records(&self) -> Vec<Value> {
        let text = fs::read_to_string(self.folder.path().join("audit.log")).unwrap_or_default();
        let whole = text.rfind('\n').map_or("", |end| &text[..end]);
        whole
            .lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect()
    }

    /// All records, when there are as many.
    pub(crate) fn records(&self, count: usize) -> Vec<Value> {
        within("the records are written", || self.all_records().len() >= count);
        let records = self.all_records();
        assert_eq!(records.len(), count, "{records:#?}");
        records
    }
}

pub(crate) fn policy(spec: &str) -> String {
    format!(
        "apiVersion: policy.egret.dev/v1alpha1\nkind: APIServerEgressPolicy\nmetadata: {{name: p}}\nspec: {spec}\n"
    )
}

fn deny(network: &str) -> String {
    format!("{{rules: [{{name: no, action: Deny, to: [{{networks: [{network}]}}]}}]}}")
}

#[test]
fn what_a_policy_denies_is_refused_in_its_name_and_no_agent_is_asked() {
    let policed = Policed::start(&deny("127.0.0.2/32"));
    let target = Target::echo();
    let port = target.port();
    assert_eq!(
        policed.head(&format!("127.0.0.2:{port}")),
        format!(
            "HTTP/1.1 403 egress denied by APIServerEgressPolicy/p rule 0 (no): cluster -> 127.0.0.2:{port}"
        )
    );
    assert_eq!(policed.head(&target.address()), CONNECTED);
    let agent = "konnectivity_network_proxy_agent_dial_duration_seconds_count";
    within("the agent has dialled", || {
        policed.pair.agent_metric(agent) == Some(1.0)
    });
    let count = |action: &str, policy: &str, rule: &str| {
        let labels = format!("selection=\"cluster\",policy=\"{policy}\",rule=\"{rule}\",action=\"{action}\"");
        let name = format!("egret_konnectivity_policy_decisions_total{{{labels}}}");
        policed.pair.server_metric(&name)
    };
    assert_eq!(count("Deny", "APIServerEgressPolicy/p", "0"), Some(1.0));
    // Loopback is of the baseline, which is audited.
    assert_eq!(count("Audit", "APIServerEgressPolicy/baseline", "2"), Some(1.0));
}

#[test]
fn each_address_of_a_name_is_judged_before_one_is_dialled() {
    let allow = "{action: Allow, to: [{networks: [127.0.0.0/8]}]}";
    let policed = Policed::start(&format!("{{rules: [{allow}]}}"));
    let port = Target::echo().port();
    assert_eq!(policed.head(&format!("localhost:{port}")), CONNECTED);
    let opened = &policed.records(2)[0];
    assert_eq!(opened["destination"], format!("localhost:{port}"));
    assert!(
        opened["addresses"]
            .as_array()
            .unwrap()
            .contains(&"127.0.0.1".into()),
        "{opened}"
    );
    fs::write(policed.file(), policy(&deny("127.0.0.1/32"))).unwrap();
    within("the policy is in force", || {
        policed.head(&format!("localhost:{port}")).contains("403")
    });
    let head = policed.head(&format!("nowhere.invalid:{port}"));
    assert_eq!(
        head,
        "HTTP/1.1 502 dial tcp: lookup nowhere.invalid: no such host"
    );
}

#[test]
fn a_connection_is_recorded_when_it_is_opened_and_when_it_is_closed() {
    let policed = Policed::start("{rules: [{name: mine, action: Allow, to: [{networks: [127.0.0.0/8]}]}]}");
    let target = Target::echo();
    let (_, stream) = policed.pair.connect(&target.address());
    let mut stream = stream.unwrap();
    assert_eq!(echo(&mut stream, b"four"), b"four");
    drop(stream);
    assert!(policed.head(&Target::closed()).contains("502"));
    let records = policed.records(3);
    let [opened, closed, failed] = &records[..] else {
        panic!("{records:#?}");
    };
    for record in [opened, closed] {
        assert_eq!(record["destination"], target.address());
        assert_eq!(record["selection"], "cluster");
        assert_eq!(record["class"], "external");
        assert_eq!(record["client"], format!("uid {}", nix::unistd::Uid::current()));
        assert_eq!(record["rule"]["policy"], "APIServerEgressPolicy/p");
        assert_eq!(record["rule"]["name"], "mine");
        assert_eq!(record["connection"], opened["connection"]);
        assert!(
            record["agent"].as_str().is_some_and(|agent| !agent.is_empty()),
            "{record}"
        );
    }
    assert_eq!(
        (&opened["event"], &opened["result"]),
        (&"open".into(), &"connected".into())
    );
    assert_eq!(
        (&closed["event"], &closed["cause"]),
        (&"close".into(), &"closed by the client".into())
    );
    assert_eq!(
        (&closed["octetsSent"], &closed["octetsReceived"]),
        (&4.into(), &4.into())
    );
    assert_eq!(
        (&failed["event"], &failed["result"]),
        (&"open".into(), &"failed".into())
    );
    assert!(failed["error"].as_str().unwrap().contains("connection refused"));
}

#[test]
fn a_log_that_was_rotated_is_opened_again() {
    let policed = Policed::start("{rules: [{action: Allow, to: [{networks: [127.0.0.0/8]}]}]}");
    let log = policed.folder.path().join("audit.log");
    assert!(policed.head(&Target::closed()).contains("502"));
    policed.records(1);
    let rotated = policed.folder.path().join("audit.log.1");
    fs::rename(&log, &rotated).unwrap();
    assert!(policed.head(&Target::closed()).contains("502"));
    assert_eq!(policed.records(1)[0]["connection"], 2);
    assert_eq!(fs::read_to_string(rotated).unwrap().lines().count(), 1);
    // Another one is there already, as logrotate makes it.
    fs::rename(&log, policed.folder.path().join("audit.log.2")).unwrap();
    fs::write(&log, "").unwrap();
    assert!(policed.head(&Target::closed()).contains("502"));
    assert_eq!(policed.records(1)[0]["connection"], 3);
}

/// The log is a pipe that nobody reads: what waits for it is bounded, and no connection waits.
#[test]
fn a_log_that_takes_nothing_stops_no_connection_and_what_is_dropped_is_counted() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("pipe");
    nix::unistd::mkfifo(&path, nix::sys::stat::Mode::S_IRWXU).unwrap();
    // Also for writing: so it opens without a writer.
    let mut pipe = OpenOptions::new().read(true).write(true).open(&path).unwrap();
    let log = format!("--audit-log={}", path.display());
    let policed = Policed::start_with(&deny("127.0.0.2/32"), &[&log]);
    let dropped = || {
        let name = "egret_konnectivity_audit_records_dropped_total";
        policed.pair.server_metric(name).unwrap_or(0.0)
    };
    let denied = |count: usize| {
        for _ in 0..count {
            assert!(policed.head("127.0.0.2:80").contains("403"));
        }
    };
    // More than the queue, the pipe and a buffer take.
    let mut asked = 0;
    within("records are dropped", || {
        denied(500);
        asked += 500;
        dropped() > 0.0
    });
    assert!(asked > 4096, "{asked} records are more than wait");
    assert_eq!(policed.head(&Target::echo().address()), CONNECTED);
    // What waited is written when somebody reads, and what comes then.
    let reader = std::thread::spawn(move || {
        let mut text = String::new();
        let mut buffer = [0; 64 << 10];
        while !text.contains("127.0.0.3:80") {
            let length = pipe.read(&mut buffer).unwrap();
            text.push_str(&String::from_utf8_lossy(&buffer[..length]));
        }
        text
    });
    within("there is room again", || {
        let before = dropped();
        drop(policed.head("127.0.0.3:80"));
        dropped() <= before
    });
    let text = reader.join().unwrap();
    assert!(text.lines().count() > 4096, "{} lines", text.lines().count());
}

#[test]
fn a_file_that_is_not_understood_changes_nothing_that_is_in_force() {
    let policed = Policed::start(&deny("127.0.0.2/32"));
    let port = Target::echo().port();
    let failures = |count| {
        let name = "egret_konnectivity_policy_reload_failures_total";
        within("it is read", || policed.pair.server_metric(name) == Some(count));
    };
    let is_in_force = || {
        assert!(
            policed
                .head(&format!("127.0.0.2:{port}"))
                .contains("403 egress denied by")
        );
        assert_eq!(policed.head(&format!("127.0.0.1:{port}")), CONNECTED);
    };
    fs::write(policed.file(), "kind: [").unwrap();
    failures(1.0);
    is_in_force();
    fs::write(
        policed.file(),
        policy("{rules: [{action: Allow, too: [{networks: [127.0.0.0/8]}]}]}"),
    )
    .unwrap();
    failures(2.0);
    is_in_force();
    fs::write(
        policed.file(),
        policy("{rules: [{action: Deny, to: [{external: {}}]}]}"),
    )
    .unwrap();
    failures(3.0);
    is_in_force();
    // Nor does it end what is open.
    let (_, stream) = policed.pair.connect(&format!("127.0.0.1:{port}"));
    let mut stream = stream.unwrap();
    fs::write(policed.file(), "kind: [").unwrap();
    failures(4.0);
    assert_eq!(echo(&mut stream, b"goes on"), b"goes on");
}

/// The other end is closed, as is the client's: `false` where it goes on.
pub(crate) fn is_closed(stream: &mut UnixStream) -> bool {
    stream.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
    matches!(stream.read(&mut [0; 16]), Ok(0))
}

#[test]
fn open_connections_are_judged_again_when_a_policy_changes() {
    let policed = Policed::start("{rules: [{name: all, action: Allow, to: [{networks: [127.0.0.0/8]}]}]}");
    let (target, collected) = (Target::echo(), Target::collect());
    let open = |host: &str, port| policed.pair.connect(&format!("{host}:{port}")).1.unwrap();
    let mut one = open("127.0.0.1", target.port());
    let mut two = open("127.0.0.2", target.port());
    let mut named = open("localhost", target.port());
    let mut sending = open("127.0.0.2", collected.port());
    // Of a reader that reads nothing much is on its way.
    let source = Target::answer_and_close(pattern(32 << 20));
    let mut stuck = open("127.0.0.2", source.port());
    stuck.write_all(b"?").unwrap();
    sending.write_all(b"before").unwrap();
    for stream in [&mut one, &mut two, &mut named] {
        assert_eq!(echo(stream, b"hello"), b"hello");
    }
    fs::write(policed.file(), policy(&deny("127.0.0.2/32"))).unwrap();
    within("what is denied now is closed", || is_closed(&mut two));
    assert_eq!(
        collected.collected(),
        b"before",
        "its destination sees the end, too"
    );
    let agent = "konnectivity_network_proxy_agent_open_endpoint_connections";
    within("the agent has none but the others", || {
        policed.pair.agent_metric(agent) == Some(2.0)
    });
    for stream in [&mut one, &mut named] {
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        assert_eq!(echo(stream, b"goes on"), b"goes on");
    }
    let text = format!(
        "egress ended by APIServerEgressPolicy/p rule 0 (no): cluster -> 127.0.0.2:{}",
        target.port()
    );
    within("it is recorded", || {
        policed
            .all_records()
            .iter()
            .any(|it| it["cause"] == text.as_str())
    });
    let records = policed.all_records();
    let record = records.iter().find(|it| it["cause"] == text.as_str()).unwrap();
    assert_eq!(record["event"], "close");
    assert_eq!(record["rule"]["name"], "all", "what allowed it");
    assert_eq!(record["endedBy"]["policy"], "APIServerEgressPolicy/p");
    assert_eq!(record["endedBy"]["name"], "no");
    let ended = "egret_konnectivity_policy_ended_total\
                 {selection=\"cluster\",policy=\"APIServerEgressPolicy/p\",rule=\"0\"}";
    assert_eq!(policed.pair.server_metric(ended), Some(3.0));
    // By name: the address that it has is denied.
    fs::write(policed.file(), policy(&deny("127.0.0.1/32, '::1/128'"))).unwrap();
    within("they are closed", || is_closed(&mut one) && is_closed(&mut named));
}

/// Each of many that come, stay and go while policies change is refused or ended, or was allowed by the last one.
#[test]
fn no_connection_outlives_the_policy_that_allowed_it() {
    let policed = Policed::start(&deny("127.0.0.2/32"));
    let target = Target::echo();
    for round in 0..6 {
        let (denied, allowed) = if round % 2 == 0 {
            ("127.0.0.1", "127.0.0.2")
        } else {
            ("127.0.0.2", "127.0.0.1")
        };
        let mut streams = Vec::new();
        fs::write(policed.file(), policy(&deny(&format!("{denied}/32")))).unwrap();
        within("the policy is in force", || {
            let (head, stream) = policed.pair.connect(&format!("{denied}:{}", target.port()));
            streams.extend(stream);
            head.contains("403")
        });
        for mut stream in streams {
            within("it ends", || is_closed(&mut stream));
        }
        assert_eq!(policed.head(&format!("{allowed}:{}", target.port())), CONNECTED);
    }
}

#[test]
fn an_open_connection_counts_for_the_rule_that_allows_it_now() {
    let rule = |name: &str, most| {
        format!(
            "{{name: {name}, action: Allow, to: [{{networks: [127.0.0.0/8]}}], limits: {{connections: {most}}}}}"
        )
    };
    let policed = Policed::start(&format!("{{rules: [{}]}}", rule("a", 2)));
    let target = Target::echo();
    let (_, mut first) = policed.pair.connect(&target.address());
    let (_, second) = policed.pair.connect(&target.address());
    // The rule has another place, and allows one less: two are open, and stay.
    let before = "{action: Deny, to: [{networks: [10.0.0.0/8]}]}";
    fs::write(
        policed.file(),
        policy(&format!("{{rules: [{before}, {}]}}", rule("b", 1))),
    )
    .unwrap();
    let full = "rule 1 (b): 1 connections are open";
    within("it is in force", || {
        policed.head(&target.address()).contains(full)
    });
    assert_eq!(echo(first.as_mut().unwrap(), b"stays"), b"stays");
    drop(second);
    within("one is gone", || {
        let open = "konnectivity_network_proxy_server_established_connections";
        policed.pair.server_metric(open) == Some(1.0)
    });
    assert!(policed.head(&target.address()).contains(full));
    drop(first);
    within("there is room", || policed.head(&target.address()) == CONNECTED);
}

#[test]
fn without_a_policy_that_can_be_read_at_the_start_everything_is_refused() {
    let policed = Policed::start("{rules: [}");
    let target = Target::echo();
    let head = policed.head(&target.address());
    assert!(
        head.starts_with("HTTP/1.1 403 egress denied, no policy can be read: "),
        "{head}"
    );
    fs::write(policed.file(), policy(&deny("127.0.0.2/32"))).unwrap();
    within("the policy is in force", || {
        policed.head(&target.address()) == CONNECTED
    });
}

#[test]
fn a_rule_limits_what_the_connections_that_it_allows_use() {
    let rule = |limits: &str, network: &str| {
        format!("{{action: Allow, to: [{{networks: [{network}]}}], limits: {{{limits}}}}}")
    };
    let rules = [
        rule("connections: 1", "127.0.0.1/32"),
        rule("octets: 1000000", "127.0.0.2/32"),
        rule("seconds: 1", "127.0.0.3/32"),
    ];
    let policed = Policed::start(&format!("{{rules: [{}]}}", rules.join(", ")));
    let port = Target::echo().port();
    let (_, first) = policed.pair.connect(&format!("127.0.0.1:{port}"));
    let head = policed.head(&format!("127.0.0.1:{port}"));
    let expected = "HTTP/1.1 403 egress denied by APIServerEgressPolicy/p rule 0: 1 connections are open:";
    assert!(head.starts_with(expected), "{head}");
    drop(first);
    within("there is room again", || {
        policed.head(&format!("127.0.0.1:{port}")) == CONNECTED
    });

    let source = Target::answer_and_close(vec![7; 8 << 20]);
    let (_, stream) = policed.pair.connect(&format!("127.0.0.2:{}", source.port()));
    let mut stream = stream.unwrap();
    stream.write_all(b"?").unwrap();
    let mut read = Vec::new();
    stream.read_to_end(&mut read).unwrap();
    assert!(
        (500_000..2_000_000).contains(&read.len()),
        "{} octets",
        read.len()
    );

    let (_, stream) = policed.pair.connect(&format!("127.0.0.3:{port}"));
    let mut stream = stream.unwrap();
    assert_eq!(echo(&mut stream, b"in time"), b"in time");
    assert_eq!(stream.read(&mut [0; 1]).unwrap(), 0, "it ends by itself");
}

#[test]
fn the_baseline_refuses_where_it_is_told_to() {
    let policed = Policed::start_with(
        "{rules: [{action: Allow, to: [{networks: [127.0.0.1/32]}]}]}",
        &["--egress-baseline=deny"],
    );
    let port = Target::echo().port();
    let head = policed.head("169.254.169.254:80");
    let expected = "HTTP/1.1 403 egress denied by APIServerEgressPolicy/baseline rule 0 (link-local):";
    assert!(head.starts_with(expected), "{head}");
    assert!(
        policed
            .head(&format!("127.0.0.2:{port}"))
            .contains("baseline rule 2 (loopback)")
    );
    assert_eq!(policed.head(&format!("127.0.0.1:{port}")), CONNECTED);
}

#[test]
fn each_front_end_asks_for_its_own_selection() {
    let spec = "{selections: [controlplane], rules: [{action: Deny, to: [{networks: [127.0.0.1/32]}]}]}";
    let further = [
        "--frontend=selection=controlplane,mode=http-connect,uds=controlplane.sock",
        "--frontend=selection=etcd,mode=grpc,uds=etcd.sock",
    ];
    let policed = Policed::start_with(spec, &further);
    let target = Target::echo();
    assert_eq!(policed.head(&target.address()), CONNECTED);
    let (head, _) = policed.pair.connect_at("controlplane.sock", &target.address());
    assert!(
        head.ends_with(&format!("controlplane -> {}", target.address())),
        "{head}"
    );
    assert!(std::path::Path::new(&policed.pair.file("etcd.sock")).exists());
}
