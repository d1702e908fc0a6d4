//! `enforcer controller` and the NodePolicyReports of enforcers, with a real API server.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails there and then")]
#![allow(
    clippy::disallowed_methods,
    reason = "tests measure how long real processes take"
)]

use std::{
    path::Path,
    time::{Duration, Instant},
};

use egret_integration::{Daemon, DaemonSpec, Kubernetes, World};
use serde_json::Value;

type Told = Result<(), Box<dyn std::error::Error>>;

const PATIENCE: Duration = Duration::from_secs(30);
/// A lease that nobody renews is another's after this, and a status is written.
const AFTER_A_KILL: Duration = Duration::from_secs(40);
const ADMIN: u16 = 9300;

/// An intranet and the metadata address; `{}` is the address that is denied as well.
fn firewall(name: &str, address: &str) -> String {
    format!(
        "apiVersion: policy.egret.dev/v1alpha1
kind: ClusterEgressFirewall
metadata: {{name: {name}}}
spec:
  priority: 7
  rules: [{{name: denied, action: Deny, to: [{{networks: [{address}/32]}}]}}]
"
    )
}

fn cluster_policy(name: &str, priority: u32) -> String {
    format!(
        "apiVersion: policy.networking.k8s.io/v1alpha2
kind: ClusterNetworkPolicy
metadata: {{name: {name}}}
spec:
  tier: Admin
  priority: {priority}
  subject: {{namespaces: {{}}}}
  egress: [{{name: none, action: Deny, to: [{{networks: [192.0.2.0/24]}}]}}]
"
    )
}

/// A Service with an endpoint outside the cluster.
const SERVICE: &str = "
apiVersion: v1
kind: Service
metadata: {name: outside, namespace: default}
spec: {ports: [{port: 80}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: outside-1, namespace: default, labels: {kubernetes.io/service-name: outside}}
addressType: IPv4
endpoints: [{addresses: [203.0.113.7]}]
ports: [{port: 8080, protocol: TCP}]
";

struct Cluster {
    // In this order: what runs in the world ends before it does.
    controllers: Vec<Daemon>,
    kubernetes: Kubernetes,
    world: World,
}

impl Cluster {
    /// None where a world or an API server cannot be had, which is said.
    fn start() -> Option<Self> {
        let world = World::or_skip()?.with_pod("client").unwrap();
        let kubernetes = Kubernetes::start(&world).unwrap()?;
        kubernetes.apply(&world, &deploy("crds")).unwrap();
        kubernetes.apply_world(&world).unwrap();
        Some(Self {
            controllers: Vec::new(),
            kubernetes,
            world,
        })
    }

    fn start_controller(&mut self) {
        let number = u16::try_from(self.controllers.len()).unwrap();
        let spec = self.kubernetes.controller(ADMIN + number);
        let daemon = self.world.start(spec).unwrap();
        self.controllers.push(daemon);
    }

    fn apply(&self, yaml: &str) -> Told {
        self.kubernetes.apply_text(&self.world, yaml)
    }

    /// An object as the API server has it; null where it has none.
    fn get(&self, kind: &str, name: &str) -> Value {
        let read = self.kubernetes.get(&self.world, &[kind, name, "-o", "json"]);
        read.map_or(Value::Null, |json| serde_json::from_str(&json).unwrap())
    }

    /// `status: message` of a condition.
    fn condition(&self, kind: &str, name: &str, r#type: &str) -> String {
        let object = self.get(kind, name);
        let conditions = object["status"]["conditions"]
            .as_array()
            .cloned()
            .unwrap_or_default();
        let found = conditions.iter().find(|condition| condition["type"] == *r#type);
        found.map_or_else(String::new, |condition| {
            let text = |field: &str| condition[field].as_str().unwrap_or_default().to_owned();
            format!("{} {}: {}", text("status"), text("reason"), text("message"))
        })
    }

    fn leaders(&self) -> Vec<usize> {
        let leads = |daemon: &Daemon| {
            let page = daemon
                .get("/readyz")
                .map_or_else(|_| String::new(), |(_, page)| page);
            page.contains("this replica is the leader")
        };
        let running = self.controllers.iter().enumerate();
        running
            .filter(|(_, daemon)| leads(daemon))
            .map(|(index, _)| index)
            .collect()
    }

    fn log(&self) -> String {
        self.controllers.iter().map(Daemon::log).collect()
    }
}

fn deploy(what: &str) -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy").join(what)
}

#[track_caller]
fn within(patience: Duration, what: &str, mut is_so: impl FnMut() -> bool) -> Duration {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < patience, "not within {patience:?}: {what}");
        std::thread::sleep(Duration::from_millis(100));
    }
    begun.elapsed()
}

#[test]
fn a_firewall_says_what_it_comes_to_and_the_status_is_written_once() -> Told {
    let Some(mut cluster) = Cluster::start() else {
        return Ok(());
    };
    cluster.start_controller();
    cluster.apply(SERVICE)?;
    cluster.apply(&firewall("seven", "203.0.113.7"))?;
    within(PATIENCE, "it is accepted", || {
        cluster.condition("cef", "seven", "Accepted") == "True Accepted: everything is understood"
    });
    within(PATIENCE, "the Service is found", || {
        cluster.get("cef", "seven")["status"]["rejectedServices"][0]["name"] == "outside"
    });
    let object = cluster.get("cef", "seven");
    let status = &object["status"];
    assert_eq!(status["observedGeneration"], object["metadata"]["generation"]);
    assert_eq!(status["resolvedRules"][0]["cidrs"][0], "203.0.113.7/32");
    assert_eq!(status["rejectedServices"][0]["endpoint"], "203.0.113.7");
    assert_eq!(
        cluster.condition("cef", "seven", "Resolved"),
        "True Resolved: every destination is known"
    );
    assert_eq!(
        cluster.condition("cef", "seven", "Programmed"),
        "False Pending: 0/1 nodes"
    );
    // It is at rest: what it wrote comes back to it, and is not written again.
    let version = object["metadata"]["resourceVersion"].clone();
    std::thread::sleep(Duration::from_secs(12));
    assert_eq!(
        cluster.get("cef", "seven")["metadata"]["resourceVersion"],
        version
    );
    let columns = cluster.kubernetes.get(&cluster.world, &["cef", "seven"])?;
    assert!(columns.contains("0/1 nodes"), "{columns}");
    Ok(())
}
