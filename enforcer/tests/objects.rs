//! A start without the source: what it said last counts. With the program itself, killed as the kernel kills.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on says where")]
#![allow(
    clippy::disallowed_methods,
    reason = "a real process is waited for, for a real time"
)]

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use egret_enforcer::state::{BootId, ManifestTexts, ObjectFile};

const PODS: &str = "
{apiVersion: v1, kind: Namespace, metadata: {name: default}}
---
{apiVersion: v1, kind: Node, metadata: {name: n}, status: {addresses: [{type: InternalIP, address: 192.0.2.1}]}}
---
apiVersion: v1
kind: Pod
metadata: {name: a, namespace: default, labels: {app: a}, uid: a-1}
spec: {nodeName: n}
status: {podIP: 10.0.0.1, podIPs: [{ip: 10.0.0.1}]}
";

fn policy(name: &str, network: &str) -> String {
    format!(
        "
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {{name: {name}, namespace: default}}
spec:
  podSelector: {{matchLabels: {{app: a}}}}
  policyTypes: [Egress]
  egress: [{{to: [{{ipBlock: {{cidr: {network}}}}}]}}]
"
    )
}

/// A folder of manifests, a file of objects, and the enforcer.
struct Setting {
    root: PathBuf,
    admin: SocketAddr,
    enforcer: Child,
}

impl Setting {
    fn new(name: &str) -> Self {
        let root = std::env::temp_dir().join(format!("egret-objects-{name}-{}", std::process::id()));
        drop(std::fs::remove_dir_all(&root));
        std::fs::create_dir_all(root.join("m")).unwrap();
        std::fs::write(root.join("m/pods.yaml"), PODS).unwrap();
        std::fs::write(root.join("m/one.yaml"), policy("one", "198.51.100.0/24")).unwrap();
        std::fs::write(root.join("m/two.yaml"), policy("two", "203.0.113.0/24")).unwrap();
        let admin = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let enforcer = start(&root, admin);
        Self {
            root,
            admin,
            enforcer,
        }
    }

    /// Whose first life is over: it has kept two policies, was killed, and its folder is gone.
    fn killed_without_source(name: &str) -> (Self, String) {
        let mut setting = Self::new(name);
        setting.wait("/readyz", |text| text.contains("ready: 1 pods"));
        let rules = setting.get("/rules");
        assert!(
            rules.contains("198.51.100.0/24") && rules.contains("203.0.113.0/24"),
            "{rules}"
        );
        setting.wait_for(|setting| setting.objects().exists());
        setting.kill();
        std::fs::rename(setting.root.join("m"), setting.root.join("gone")).unwrap();
        (setting, rules)
    }

    fn objects(&self) -> PathBuf {
        self.root.join("objects")
    }

    fn kill(&mut self) {
        self.enforcer.kill().unwrap();
        self.enforcer.wait().unwrap();
    }

    fn start(&mut self) {
        self.enforcer = start(&self.root, self.admin);
    }

    /// Empty while nobody answers.
    fn get(&self, path: &str) -> String {
        let mut text = String::new();
        let asked = TcpStream::connect(self.admin).and_then(|mut stream| {
            write!(
                stream,
                "GET {path} HTTP/1.1\r\nHost: e\r\nConnection: close\r\n\r\n"
            )?;
            stream.read_to_string(&mut text)
        });
        match asked {
            Ok(_) => text
                .split_once("\r\n\r\n")
                .map_or_else(String::new, |(_, body)| body.to_owned()),
            Err(_nobody) => String::new(),
        }
    }

    fn wait_for(&self, is_so: impl Fn(&Self) -> bool) {
        let begun = Instant::now();
        while !is_so(self) {
            let log = std::fs::read_to_string(self.root.join("log")).unwrap();
            assert!(begun.elapsed() < Duration::from_secs(20), "{log}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    fn wait(&self, path: &str, is_so: impl Fn(&str) -> bool) {
        self.wait_for(|setting| is_so(&setting.get(path)));
    }
}

impl Drop for Setting {
    fn drop(&mut self) {
        self.kill();
        drop(std::fs::remove_dir_all(&self.root));
    }
}

fn start(root: &Path, admin: SocketAddr) -> Child {
    let command = Command::new("env");
    run(command, root, admin, &root.join("objects"))
}

/// Runs the enforcer by a command whose last arguments are it.
fn run(mut command: Command, root: &Path, admin: SocketAddr, objects: &Path) -> Child {
    let of = |name: &str| root.join(name).display().to_string();
    let log = std::fs::File::create(root.join("log")).unwrap();
    command
        .arg(env!("CARGO_BIN_EXE_enforcer"))
        .args([
            "--node",
            "n",
            "--backend",
            "memory",
            "--admin",
            &admin.to_string(),
        ])
        .args(["--source", &format!("dir:{}", of("m")), "--link", &of("link")])
        .args([
            "--state",
            &of("state"),
            "--state-objects",
            &objects.display().to_string(),
        ])
        .stdout(Stdio::null())
        .stderr(log)
        .spawn()
        .unwrap()
}

#[test]
fn without_the_source_what_it_said_last_counts_until_it_answers() {
    let (mut setting, rules) = Setting::killed_without_source("gone");
    setting.start();
    setting.wait("/readyz", |text| text.contains("running on what was known at 2"));
    let readyz = setting.get("/readyz");
    assert!(
        readyz.contains(&setting.root.join("m").display().to_string()),
        "{readyz}"
    );
    assert_eq!(setting.get("/rules"), rules);
    assert!(
        setting
            .get("/metrics")
            .contains("egret_enforcer_source_recalled 1")
    );
    std::fs::remove_file(setting.root.join("gone/two.yaml")).unwrap();
    std::fs::rename(setting.root.join("gone"), setting.root.join("m")).unwrap();
    setting.wait("/readyz", |text| text.contains("ready: 1 pods"));
    let rules = setting.get("/rules");
    assert!(
        rules.contains("198.51.100.0/24") && !rules.contains("203.0.113.0/24"),
        "{rules}"
    );
    assert!(
        setting
            .get("/metrics")
            .contains("egret_enforcer_source_recalled 0")
    );
}

#[test]
fn a_damaged_file_is_counted_and_nothing_of_it_counts() {
    let (mut setting, _rules) = Setting::killed_without_source("damaged");
    let mut octets = std::fs::read(setting.objects()).unwrap();
    *octets.last_mut().unwrap() ^= 1;
    std::fs::write(setting.objects(), octets).unwrap();
    setting.start();
    setting.wait("/readyz", |text| text.contains("the source is not in sync"));
    let counted = "egret_enforcer_state_file_problems_total{reason=\"damaged\"} 1";
    assert!(
        setting.get("/metrics").contains(counted),
        "{}",
        setting.get("/metrics")
    );
    std::fs::rename(setting.root.join("gone"), setting.root.join("m")).unwrap();
    setting.wait("/readyz", |text| text.contains("ready: 1 pods"));
}

#[test]
fn a_file_that_is_spoiled_while_the_enforcer_is_away_says_what_it_said() {
    let (mut setting, rules) = Setting::killed_without_source("spoiled");
    std::fs::write(setting.root.join("gone/one.yaml"), "{{{").unwrap();
    std::fs::rename(setting.root.join("gone"), setting.root.join("m")).unwrap();
    setting.start();
    setting.wait("/readyz", |text| text.contains("kept as it was"));
    assert_eq!(setting.get("/rules"), rules);
}

/// Nobody knows who has the address of a pod of then.
#[test]
fn after_a_boot_the_addresses_that_pods_had_are_closed_until_the_source_answers() {
    let (mut setting, rules) = Setting::killed_without_source("boot");
    let other = "00000000-0000-4000-8000-000000000000".parse().unwrap();
    let file = ObjectFile::new(&setting.objects(), &setting.root.join("m"), other);
    let texts: ManifestTexts = ["pods.yaml", "one.yaml"]
        .map(|name| {
            let text = std::fs::read(setting.root.join("gone").join(name)).unwrap();
            (setting.root.join("m").join(name), vec![Arc::from(text)])
        })
        .into();
    file.write(&texts, 951_782_400).unwrap();
    setting.start();
    setting.wait("/readyz", |text| {
        text.contains("running on what was known at 2000-02-29T00:00:00Z, before a boot, and closed")
    });
    let closed = setting.get("/rules");
    assert!(closed.contains("pods_of_another_boot"), "{closed}");
    std::fs::rename(setting.root.join("gone"), setting.root.join("m")).unwrap();
    setting.wait("/readyz", |text| text.contains("ready: 1 pods"));
    assert_eq!(setting.get("/rules"), rules);
}

/// The policies are added one after the other, so each moment's are the first of them.
#[test]
fn a_kill_at_any_moment_leaves_what_the_source_said_at_one_moment() {
    let (mut setting, _rules) = Setting::killed_without_source("moments");
    std::fs::rename(setting.root.join("gone"), setting.root.join("m")).unwrap();
    let boot = BootId::read().unwrap();
    let file = ObjectFile::new(&setting.objects(), &setting.root.join("m"), boot);
    let (mut added, mut kept_before) = (0, 3);
    for life in 0..6_u64 {
        setting.start();
        setting.wait("/readyz", |text| text.contains("ready: 1 pods"));
        for _ in 0..4 {
            let name = format!("p{added}");
            let text = policy(&name, &format!("192.0.2.{added}/32"));
            std::fs::write(setting.root.join(&name), text).unwrap();
            std::fs::rename(
                setting.root.join(&name),
                setting.root.join(format!("m/{name}.yaml")),
            )
            .unwrap();
            added += 1;
            std::thread::sleep(Duration::from_millis(60 + 40 * life));
        }
        std::thread::sleep(Duration::from_millis(370 * life));
        setting.kill();
        let kept = file.read().unwrap().unwrap().texts;
        let first = (0..added).take_while(|number| {
            let path = setting.root.join(format!("m/p{number}.yaml"));
            kept.contains_key(&path)
        });
        assert_eq!(kept.len(), 3 + first.count(), "life {life}: {:?}", kept.keys());
        assert!(kept.len() >= kept_before, "life {life}: {:?}", kept.keys());
        kept_before = kept.len();
    }
    assert!(
        kept_before > 3 + 12,
        "{kept_before}: what changed while it ran is kept"
    );
}

/// A disk of 256 KiB of its own, and the enforcer with it.
#[test]
fn a_full_disk_is_counted_and_the_file_says_what_it_said_until_there_is_space() {
    if !nix::unistd::geteuid().is_root() {
        println!("NOT TESTED: a file system is mounted by root alone");
        return;
    }
    let (mut setting, _rules) = Setting::killed_without_source("full");
    std::fs::rename(setting.root.join("gone"), setting.root.join("m")).unwrap();
    std::fs::create_dir(setting.root.join("disk")).unwrap();
    let large = |name: &str, network: &str| {
        let text = policy(name, network) + "# " + &"x".repeat(50_000) + "\n";
        std::fs::write(setting.root.join("new"), text).unwrap();
        std::fs::rename(setting.root.join("new"), setting.root.join("m/large.yaml")).unwrap();
    };
    large("large", "192.0.2.1/32");
    let disk = setting.root.join("disk");
    let fill = format!(
        "head -c 300000 /dev/zero > {0}/filler 2>/dev/null",
        disk.display()
    );
    let script = format!(
        "mount -t tmpfs -o size=256k tmpfs {0} && {{ {fill}; exec \"$@\"; }}",
        disk.display()
    );
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", &script, "sh"]);
    setting.enforcer = run(command, &setting.root, setting.admin, &disk.join("objects"));
    let inside = |name: &str| {
        let root = PathBuf::from(format!("/proc/{}/root", setting.enforcer.id()));
        root.join(disk.strip_prefix("/").unwrap()).join(name)
    };
    let file = ObjectFile::new(
        &inside("objects"),
        &setting.root.join("m"),
        BootId::read().unwrap(),
    );
    let kept = || {
        let kept = file.read().unwrap().map(|kept| kept.texts)?;
        let large = &kept[&setting.root.join("m/large.yaml")];
        Some(String::from_utf8(large[0].to_vec()).unwrap())
    };
    let unwritten = |text: &str| {
        let line = text
            .lines()
            .find(|line| line.starts_with("egret_enforcer_state_file_problems_total{reason=\"unwritten\"}"));
        line.and_then(|line| line.rsplit(' ').next()?.parse::<u32>().ok())
            .unwrap_or(0)
    };
    setting.wait("/readyz", |text| text.contains("ready: 1 pods"));
    setting.wait("/metrics", |text| unwritten(text) >= 1);
    assert_eq!(kept(), None);
    std::fs::remove_file(inside("filler")).unwrap();
    setting.wait_for(|_| kept().is_some_and(|text| text.contains("192.0.2.1/32")));

    let zeros = std::fs::write(inside("filler"), vec![0; 300_000]);
    assert_eq!(zeros.unwrap_err().kind(), std::io::ErrorKind::StorageFull);
    let before = unwritten(&setting.get("/metrics"));
    large("large", "192.0.2.2/32");
    setting.wait("/metrics", |text| unwritten(text) > before);
    assert!(kept().unwrap().contains("192.0.2.1/32"), "what it said before");
    std::fs::remove_file(inside("filler")).unwrap();
    setting.wait_for(|_| kept().is_some_and(|text| text.contains("192.0.2.2/32")));
    let log = std::fs::read_to_string(setting.root.join("log")).unwrap();
    for said in [
        "the file of objects stays as it is",
        "the file of objects is written again",
    ] {
        let lines: Vec<&str> = log.lines().filter(|line| line.contains(said)).collect();
        assert_eq!(lines.len(), 2, "{log}");
        assert!(lines[0].contains("disk/objects"), "{log}");
    }
}
