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

use egret_enforcer::state::{ManifestTexts, ObjectFile};

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
    let of = |name: &str| root.join(name).display().to_string();
    let log = std::fs::File::create(root.join("log")).unwrap();
    Command::new(env!("CARGO_BIN_EXE_enforcer"))
        .args([
            "--node",
            "n",
            "--backend",
            "memory",
            "--admin",
            &admin.to_string(),
        ])
        .args(["--source", &format!("dir:{}", of("m")), "--link", &of("link")])
        .args(["--state", &of("state"), "--state-objects", &of("objects")])
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
