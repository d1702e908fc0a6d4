//! Signals during the start. Each run has a network namespace of its own, which takes root.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]
#![allow(clippy::disallowed_methods, reason = "it waits for processes, by their clock")]

#[path = "support/fresh.rs"]
mod fresh;

use std::fs::{self, File, OpenOptions};
use std::io::Write as _;
use std::net::UdpSocket;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use egret_dnsd::config::host_setup::{Fallback, HostSetup, RuleSettings};
use egret_dnsd::host::node_cache::kernel::Rules;
use egret_dnsd::host::node_cache::reconciler::{PreparedHost, SetupErrors};
use fresh::{enter_fresh_namespace, in_a_thread, run};
use nix::sys::signal::{Signal, kill};
use nix::sys::stat::Mode;
use nix::unistd::{Pid, mkfifo};
use socket2::{Domain, SockAddr, Socket, Type};

const ADDRESS: &str = "169.254.20.10";
/// As nobody is told another name.
const INTERFACE: &str = "nodelocaldns";
const WITHIN: Duration = Duration::from_secs(40);

/// A Corefile that answers with this address.
fn corefile(answer: &str) -> String {
    format!(
        ".:53 {{\n bind {ADDRESS}\n template IN A {{\n answer \"{{{{ .Name }}}} 60 IN A {answer}\"\n }}\n}}\n"
    )
}

#[test]
fn a_reload_signal_during_the_start_is_not_lost() {
    in_fresh_namespace("reload", |folder| {
        mkfifo(&folder.join("Corefile"), Mode::S_IRUSR | Mode::S_IWUSR).unwrap();
        let mut dnsd = Dnsd::start(folder);
        let mut first = dnsd.reads();
        for signal in [Signal::SIGUSR1, Signal::SIGHUP, Signal::SIGUSR1] {
            dnsd.signal(signal);
        }
        put(folder, &corefile("192.0.2.2"));
        first.write_all(corefile("192.0.2.1").as_bytes()).unwrap();
        drop(first);
        dnsd.wait("it answers as the file says now", |_| {
            ask() == Some([192, 0, 2, 2])
        });
        dnsd.signal(Signal::SIGTERM);
        assert!(dnsd.end().success());
    });
}

#[test]
fn a_stop_signal_while_the_corefile_is_read_ends_dnsd_at_once() {
    in_fresh_namespace("stop", |folder| {
        mkfifo(&folder.join("Corefile"), Mode::S_IRUSR | Mode::S_IWUSR).unwrap();
        let mut dnsd = Dnsd::start(folder);
        let never_written = dnsd.reads();
        dnsd.signal(Signal::SIGTERM);
        assert!(dnsd.end().success());
        assert!(!is_set_up());
        drop(never_written);
    });
}

#[test]
fn a_stop_signal_before_it_serves_leaves_nothing_behind() {
    in_fresh_namespace("half", |folder| {
        put(folder, &corefile("192.0.2.1"));
        // Who answers, as it seems, and gives nothing.
        let silent = Socket::new(Domain::UNIX, Type::SEQPACKET, None).unwrap();
        silent
            .bind(&SockAddr::unix(folder.join("handover.sock")).unwrap())
            .unwrap();
        silent.listen(1).unwrap();
        let mut dnsd = Dnsd::start(folder);
        let _asked = silent.accept().unwrap();
        assert!(has_interface(), "the interface is made before anybody is asked");
        dnsd.signal(Signal::SIGTERM);
        assert!(dnsd.end().success());
        assert!(!is_set_up());
    });
}

#[test]
fn a_start_that_fails_leaves_no_interface() {
    in_fresh_namespace("fails", |folder| {
        put(folder, &corefile("192.0.2.1"));
        let _port = UdpSocket::bind("0.0.0.0:53").unwrap();
        for was_there in [false, true] {
            if was_there {
                run(&format!("ip link add {INTERFACE} type veth peer name other"));
            }
            let mut dnsd = Dnsd::start(folder);
            assert!(!dnsd.end().success());
            assert!(dnsd.log().contains("added"), "{}", dnsd.log());
            assert_eq!(has_interface(), was_there, "{}", dnsd.log());
        }
    });
}

/// Whoever is told to end before it has looked at the rules removes those of a life before, which was killed.
#[test]
fn rules_of_a_killed_process_are_removed_by_the_next() {
    in_fresh_namespace("left", |_| {
        let settings = RuleSettings {
            local_ips: vec![ADDRESS.parse().unwrap()],
            dns_port: 53,
            health_port: 8080,
            fallback: Fallback::None,
            intercept: None,
        };
        for _ in 0..5 {
            let left = Rules::new(settings.clone()).unwrap();
            assert!(left.ensure(&[], |_, _| {}).unwrap() > 0);
            let setup = HostSetup {
                interface: Some(INTERFACE.to_owned()),
                rules: true,
                settings: settings.clone(),
                sync_interval: WITHIN,
                skips_teardown: false,
            };
            let prepared = PreparedHost::new(setup, None, SetupErrors::default());
            prepared.keep(|| {}, |_| {}).unwrap().tear_down();
            assert!(!is_set_up());
        }
    });
}

fn in_fresh_namespace(name: &str, work: impl FnOnce(&Path) + Send) {
    let folder = std::env::temp_dir().join(format!("egret-starting-{}-{name}", std::process::id()));
    fs::create_dir_all(&folder).unwrap();
    let _done = in_a_thread(|| {
        enter_fresh_namespace().unwrap();
        work(&folder);
    });
    fs::remove_dir_all(&folder).unwrap();
}

/// Who reads meanwhile has the old file or the new one.
fn put(folder: &Path, text: &str) {
    fs::write(folder.join("Corefile.put"), text).unwrap();
    fs::rename(folder.join("Corefile.put"), folder.join("Corefile")).unwrap();
}

fn has_interface() -> bool {
    run("ip -o link show").contains(&format!(" {INTERFACE}"))
}

fn is_set_up() -> bool {
    has_interface() || run("iptables-save").contains("NodeLocal") || !run("ipset list -n").is_empty()
}

/// The address of a name, as dnsd tells it.
fn ask() -> Option<[u8; 4]> {
    let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
    socket.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
    let query = b"\x12\x34\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00\x04here\x04test\x00\x00\x01\x00\x01";
    socket.send_to(query, (ADDRESS, 53)).ok()?;
    let mut reply = [0; 512];
    let length = socket.recv(&mut reply).ok()?;
    reply[..length].last_chunk().copied()
}

struct Dnsd {
    folder: PathBuf,
    child: Child,
}

impl Dnsd {
    fn start(folder: &Path) -> Self {
        let own = "host: {fallback: none, handover: FOLDER/handover.sock}\nlink: FOLDER/link.sock\n";
        let own = own.replace("FOLDER", folder.to_str().unwrap());
        fs::write(folder.join("own.yaml"), own).unwrap();
        let flags = "node-cache -localip 169.254.20.10 -conf Corefile -basecorefile none -config own.yaml";
        let log = File::create(folder.join("log")).unwrap();
        let child = Command::new(env!("CARGO_BIN_EXE_dnsd"))
            .args(flags.split(' '))
            .current_dir(folder)
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .unwrap();
        Self {
            folder: folder.to_owned(),
            child,
        }
    }

    /// Waits until it has opened its Corefile, which is a pipe: this writes it.
    fn reads(&mut self) -> File {
        let mut options = OpenOptions::new();
        options.write(true).custom_flags(libc::O_NONBLOCK);
        let mut opened = None;
        self.wait("it reads its Corefile", |dnsd| {
            opened = options.open(dnsd.folder.join("Corefile")).ok();
            opened.is_some()
        });
        opened.unwrap()
    }

    fn signal(&self, signal: Signal) {
        let id = i32::try_from(self.child.id()).unwrap();
        kill(Pid::from_raw(id), signal).unwrap();
    }

    fn wait(&mut self, what: &str, mut is_so: impl FnMut(&Self) -> bool) {
        let begun = Instant::now();
        while !is_so(self) {
            let ended = self.child.try_wait().unwrap();
            assert!(
                ended.is_none() && begun.elapsed() < WITHIN,
                "not seen: {what}: {ended:?}: {}",
                self.log()
            );
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    fn end(&mut self) -> ExitStatus {
        let begun = Instant::now();
        loop {
            if let Some(ended) = self.child.try_wait().unwrap() {
                return ended;
            }
            assert!(begun.elapsed() < WITHIN, "it does not end: {}", self.log());
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    fn log(&self) -> String {
        fs::read_to_string(self.folder.join("log")).unwrap()
    }
}

impl Drop for Dnsd {
    fn drop(&mut self) {
        if let Ok(None) = self.child.try_wait() {
            self.child.kill().unwrap();
            self.child.wait().unwrap();
        }
    }
}
