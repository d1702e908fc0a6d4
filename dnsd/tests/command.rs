//! The program as people run it: usage, configuration, start, reload, stop.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::process::{Child, ChildStderr, Command, Output, Stdio};
use std::time::{Duration, Instant};

use clap::CommandFactory;
use egret_dnsd::command::CommandLine;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

const USAGE: Option<i32> = Some(64);
/// How long each answer is held where no enforcer was ever there, from a moment after the start of the process.
const FIRST_WAIT: Duration = Duration::from_secs(2);

fn run(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_dnsd"))
        .args(arguments)
        .output()
        .unwrap()
}

/// A file that goes when the test does.
struct File(PathBuf);

impl File {
    fn with(name: &str, text: &str) -> Self {
        let path = std::env::temp_dir().join(format!("egret-dnsd-{name}-{}.yaml", std::process::id()));
        std::fs::write(&path, text).unwrap();
        Self(path)
    }

    fn path(&self) -> &str {
        self.0.to_str().unwrap()
    }
}

impl Drop for File {
    fn drop(&mut self) {
        drop(std::fs::remove_file(&self.0));
    }
}

#[test]
fn help_and_version_are_no_errors() {
    for option in ["--help", "--version"] {
        assert_eq!(run(&[option]).status.code(), Some(0), "{option}");
    }
}

#[test]
fn plugins_are_listed_as_by_node_cache() {
    let output = run(&["node-cache", "-plugins"]);
    assert_eq!(output.status.code(), Some(0));
    let listed = String::from_utf8(output.stdout).unwrap();
    let expected = "bind bufsize cache debug dns64 errors forward health hosts loadbalance log loop pprof \
                    prometheus reload rewrite template timeouts tls trace whoami";
    let lines: String = expected.split(' ').map(|name| format!("dns.{name}\n")).collect();
    assert_eq!(listed, lines);
}

#[test]
fn wrong_usage_exits_with_64_and_names_the_error() {
    let listen = ["--listen", "127.0.0.1:0"];
    let both = ["--listen", "127.0.0.1:0", "--upstream", "192.0.2.53:53"];
    let with = |before: &[&'static str], more: &[&'static str]| [before, more].concat();
    for (arguments, said) in [
        (vec![], "listen is missing"),
        (listen.to_vec(), "upstreams is missing"),
        (vec!["--listen", "localhost"], "--listen"),
        (with(&both, &["--on-stall", "wait"]), "release, servfail, drop"),
        (
            with(&both, &["--stall-deadline", "5s"]),
            "stallDeadline: 5s is not accepted; 1ms to 4s is",
        ),
        (
            with(&both, &["--threads", "17"]),
            "threads: 17 is not accepted; 1 to 16 is",
        ),
        (with(&both, &["--stall-deadline", "200"]), "ms, s, m or h"),
        (
            with(&both, &["--try-timeout", "9s"]),
            "tryTimeout is above totalTimeout",
        ),
        (with(&both, &["--nonsense"]), "--nonsense"),
        (
            with(&both, &["--config", "/nonexistent.yaml"]),
            "/nonexistent.yaml",
        ),
    ] {
        let output = run(&arguments);
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), USAGE, "{arguments:?}: {stderr}");
        assert!(stderr.contains(said), "{arguments:?}: {stderr}");
    }
}

#[test]
fn an_unknown_or_wrong_field_is_refused_with_line_and_column() {
    for (text, said) in [
        (
            "listen: [\"127.0.0.1:0\"]\nonstall: drop\n",
            ["onstall", "line 2"],
        ),
        (
            "listen: [\"127.0.0.1:0\"]\nonStall: wait\n",
            ["release", "line 2"],
        ),
        ("\nstallDeadline: 3\n", ["\"200ms\"", "line 2"]),
    ] {
        let file = File::with("wrong", text);
        let output = run(&["--config", file.path()]);
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), USAGE, "{text:?}: {stderr}");
        assert!(
            said.iter().all(|said| stderr.contains(said)),
            "{text:?}: {stderr}"
        );
        assert!(stderr.contains(file.path()), "{stderr}");
    }
}

/// A running dnsd.
struct Running {
    child: Child,
    log: BufReader<ChildStderr>,
}

impl Running {
    fn start(file: &File) -> Self {
        Self::with(&["--config", file.path()])
    }

    fn with(arguments: &[&str]) -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_dnsd"))
            .args(arguments)
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let log = BufReader::new(child.stderr.take().unwrap());
        Self { child, log }
    }

    /// Reads the log up to the first line that has this.
    fn line(&mut self, wanted: &str) -> String {
        let mut seen = String::new();
        loop {
            let mut line = String::new();
            let length = self.log.read_line(&mut line).unwrap();
            assert!(length > 0, "{wanted:?} was not logged, but: {seen}");
            if line.contains(wanted) {
                return line;
            }
            seen.push_str(&line);
        }
    }

    fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.child.id().try_into().unwrap()), signal).unwrap();
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

fn get(address: SocketAddr, path: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    write!(
        stream,
        "GET {path} HTTP/1.1\r\nHost: dnsd\r\nConnection: close\r\n\r\n"
    )
    .unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

/// The value of a field of a log line in JSON.
fn field(line: &str, name: &str) -> String {
    let (_, rest) = line.split_once(&format!("\"{name}\":\"")).unwrap();
    rest.split('"').next().unwrap().to_owned()
}

fn settings(more: &str) -> String {
    format!(
        "listen: [\"127.0.0.1:0\"]\nupstreams: [\"127.0.0.1:1\"]\nlink: /nonexistent/link.sock\nadmin: \"127.0.0.1:0\"\n{more}"
    )
}

#[test]
fn it_logs_ready_reloads_and_stops_cleanly() {
    let file = File::with("running", &settings(""));
    #[allow(
        clippy::disallowed_methods,
        reason = "a process is waited for, for a real time"
    )]
    let started = Instant::now();
    let mut dnsd = Running::start(&file);
    let admin = field(&dnsd.line("\"listening\""), "admin").parse().unwrap();
    assert!(get(admin, "/healthz").starts_with("HTTP/1.1 200"));
    dnsd.line("\"ready\"");
    let early = get(admin, "/readyz");
    if started.elapsed() < FIRST_WAIT {
        assert!(early.contains("first interest"), "{early}");
    }
    std::thread::sleep(FIRST_WAIT);
    let late = get(admin, "/readyz");
    assert!(late.contains("no enforcer was ever there"), "{late}");
    std::fs::write(&file.0, settings("onStall: drop\ncacheSize: 1MiB\nthreads: 2\n")).unwrap();
    dnsd.signal(Signal::SIGHUP);
    assert!(dnsd.line("need a restart").contains(r#"cacheSize\", \"threads"#));
    dnsd.line("was read again");
    std::fs::write(&file.0, settings("onStall: wait\n")).unwrap();
    dnsd.signal(Signal::SIGHUP);
    assert!(dnsd.line("stays as it is").contains("line 5"));
    dnsd.signal(Signal::SIGTERM);
    dnsd.line("\"stopped\"");
    assert_eq!(dnsd.child.wait().unwrap().code(), Some(0));
}

/// A port that nobody listens on at this moment.
fn free_port() -> u16 {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap().port()
}

#[test]
fn a_corefile_is_reloaded_by_signal_and_by_interval() {
    let [port, metrics, health, other] = std::array::from_fn(|_| free_port());
    let corefile = |health: u16, more: &str| {
        format!(
            ".:{port} {{\n bind 127.0.0.1\n prometheus 127.0.0.1:{metrics}\n health 127.0.0.1:{health}\n reload 2s 1s\n whoami\n {more}\n}}\n"
        )
    };
    let file = File::with("corefile", &corefile(health, ""));
    let mut dnsd = Running::with(&[
        "--corefile",
        file.path(),
        "--admin",
        "127.0.0.1:0",
        "--link",
        "/nonexistent/link.sock",
    ]);
    dnsd.line("\"ready\"");
    let at = |port: u16| SocketAddr::from(([127, 0, 0, 1], port));
    assert!(get(at(health), "/health").ends_with("\r\n\r\nOK"));
    let page = get(at(metrics), "/metrics");
    let enabled = format!(
        "coredns_plugin_enabled{{server=\"dns://127.0.0.1:{port}\",zone=\".\",view=\"\",name=\"whoami\"}} 1"
    );
    assert!(page.contains(&enabled), "{page}");
    std::fs::write(&file.0, corefile(health, "nonsense")).unwrap();
    dnsd.signal(Signal::SIGUSR1);
    let line = dnsd.line("stays as it is");
    assert!(line.contains(&format!("{}:7:2", file.path())), "{line}");
    assert!(get(at(metrics), "/metrics").contains("\ncoredns_reload_failed_total 1\n"));
    std::fs::write(&file.0, corefile(other, "")).unwrap();
    dnsd.line("was read again");
    assert!(get(at(other), "/health").starts_with("HTTP/1.1 200"));
    assert!(TcpStream::connect(at(health)).is_err(), "the old one is closed");
}

#[test]
fn an_address_in_use_is_named() {
    let taken = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let output = run(&[
        "--listen",
        &address,
        "--upstream",
        "127.0.0.1:1",
        "--admin",
        "127.0.0.1:0",
    ]);
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains(&address));
}

#[test]
fn every_option_every_field_and_every_metric_is_documented() {
    let page = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/dnsd.md")).unwrap();
    let command = CommandLine::command();
    let options: Vec<&str> = command.get_arguments().filter_map(clap::Arg::get_long).collect();
    assert!(options.len() > 20);
    for option in options {
        assert!(
            page.contains(&format!("`--{option}`")),
            "--{option} is not in docs/dnsd.md"
        );
    }
    let file = File::with("documented", &settings(""));
    let mut dnsd = Running::start(&file);
    let admin = field(&dnsd.line("\"listening\""), "admin").parse().unwrap();
    let metrics = get(admin, "/metrics");
    let names: Vec<&str> = metrics
        .lines()
        .filter_map(|line| line.strip_prefix("# HELP ")?.split(' ').next())
        .collect();
    assert!(names.len() > 25, "{metrics}");
    for name in names {
        assert!(
            page.contains(&format!("`{name}")),
            "{name} is not in docs/dnsd.md"
        );
    }
}

#[test]
fn the_example_configuration_is_accepted() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../deploy/config/dnsd.yaml");
    let written = egret_shared::rt::config::load::<egret_dnsd::config::RawConfig>(path.as_ref()).unwrap();
    written.validate().unwrap();
}
