//! `enforcer controller` and the NodePolicyReports of enforcers, with a real API server.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails there and then")]
#![allow(
    clippy::disallowed_methods,
    reason = "tests measure how long real processes take"
)]

use std::{path::Path, time::Duration};

use egret_integration::{Daemon, DaemonSpec, Kubernetes, Lookup, RecordType, Records, World, within};
use serde_json::Value;

type TestResult = Result<(), Box<dyn std::error::Error>>;

const PATIENCE: Duration = Duration::from_secs(30);
/// A lease that nobody renews is another's after this, and a status is written.
const AFTER_A_KILL: Duration = Duration::from_secs(40);
const ADMIN: u16 = 9300;

/// Denies this address.
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

/// Annotations whose value nobody understands, on a kind with a status and one without.
const MISUNDERSTOOD: &str = "
apiVersion: policy.egret.dev/v1alpha1
kind: ClusterEgressFirewall
metadata: {name: misunderstood, annotations: {policy.egret.dev/enforcement: perhaps}}
spec: {rules: [{action: Deny, to: [{networks: [203.0.113.9/32]}]}]}
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: misunderstood, namespace: default, annotations: {policy.egret.dev/enforcement: perhaps}}
spec: {podSelector: {}}
";

/// Allows names of a zone.
const NAMES: &str = "
apiVersion: policy.egret.dev/v1alpha1
kind: ClusterEgressFirewall
metadata: {name: names}
spec:
  rules:
  - {name: names, action: Allow, to: [{domainNames: ['*.example.test']}]}
  - {name: others, action: Deny, to: [{networks: [203.0.113.0/24]}]}
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

    fn apply(&self, yaml: &str) -> TestResult {
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

    /// `KIND/NAME` of the objects that have an Event of this reason, sorted.
    fn events(&self, reason: &str) -> Vec<String> {
        let list = self.kubernetes.get(&self.world, &["events", "-A", "-o", "json"]);
        let list: Value = serde_json::from_str(&list.unwrap()).unwrap();
        let of_reason = |event: &&Value| event["reason"] == *reason;
        let object = |event: &Value| {
            let text = |field: &str| {
                event["involvedObject"][field]
                    .as_str()
                    .unwrap_or_default()
                    .to_owned()
            };
            format!("{}/{}", text("kind"), text("name"))
        };
        let events = list["items"].as_array().unwrap().iter();
        let mut objects: Vec<String> = events.filter(of_reason).map(object).collect();
        objects.sort();
        objects
    }

    /// Writes a condition as another controller does, and nothing else.
    fn add_condition_of_another(&self, kind: &str, name: &str) -> TestResult {
        let file = self.kubernetes.kubeconfig().with_file_name("other.yaml");
        let condition = "type: Ready, status: 'True', reason: Other, message: of another, \
                         lastTransitionTime: '2026-01-01T00:00:00Z'";
        let object = format!(
            "{{apiVersion: {kind}, metadata: {{name: {name}}}, status: {{conditions: [{{{condition}}}]}}}}"
        );
        std::fs::write(&file, object)?;
        let file = file.display().to_string();
        let apply = [
            "apply",
            "--server-side",
            "--subresource=status",
            "--field-manager=other",
            "-f",
        ];
        self.kubernetes
            .kubectl(&self.world, &[&apply[..], &[&file]].concat())
    }

    /// Who has the lease.
    fn holder(&self) -> Value {
        self.get("lease", "egret-controller")["spec"]["holderIdentity"].clone()
    }

    fn log(&self) -> String {
        self.controllers.iter().map(Daemon::log).collect()
    }
}

fn deploy(what: &str) -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy").join(what)
}

#[test]
fn a_firewall_says_what_it_comes_to_and_the_status_is_written_once() -> TestResult {
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

/// The node of the world has an enforcer; another has none.
#[test]
fn nodes_are_counted_when_their_enforcer_has_realized_a_policy() -> TestResult {
    let Some(mut cluster) = Cluster::start() else {
        return Ok(());
    };
    cluster.start_controller();
    let enforcer = cluster
        .world
        .start(cluster.kubernetes.enforcer(&cluster.world, "memory"))?;
    cluster.apply(&firewall("seven", "203.0.113.7"))?;
    within(PATIENCE, "the node says so", || {
        cluster.condition("cef", "seven", "Programmed") == "True Programmed: 1/1 nodes"
    });
    let report = cluster.get("nodepolicyreport", "node-1");
    assert_eq!(
        report["metadata"]["ownerReferences"][0]["kind"], "Node",
        "{report}"
    );
    cluster.apply("{apiVersion: v1, kind: Node, metadata: {name: node-9}}")?;
    within(PATIENCE, "the other node is counted", || {
        cluster.condition("cef", "seven", "Programmed") == "False Pending: 1/2 nodes"
    });
    cluster
        .kubernetes
        .kubectl(&cluster.world, &["delete", "node", "node-9"])?;
    within(PATIENCE, "it is gone", || {
        cluster.condition("cef", "seven", "Programmed") == "True Programmed: 1/1 nodes"
    });
    // Statuses that were written lead to one more report; then both are at rest.
    std::thread::sleep(Duration::from_secs(15));
    let versions = || {
        [("cef", "seven"), ("nodepolicyreport", "node-1")]
            .map(|(kind, name)| cluster.get(kind, name)["metadata"]["resourceVersion"].clone())
    };
    let at_rest = versions();
    std::thread::sleep(Duration::from_secs(15));
    assert_eq!(versions(), at_rest, "{}", cluster.log());
    // What is not understood is no more in force than it is accepted, and of a kind without a status there is an Event.
    cluster.apply(MISUNDERSTOOD)?;
    within(PATIENCE, "the node names both", || {
        let report = cluster.get("nodepolicyreport", "node-1");
        report["exceptions"][0]["code"] == "EG0126" && report["exceptions"][1]["namespace"] == "default"
            || report["exceptions"][0]["namespace"] == "default"
                && report["exceptions"][1]["code"] == "EG0126"
    });
    within(PATIENCE, "it is not accepted", || {
        let accepted = cluster.condition("cef", "misunderstood", "Accepted");
        accepted.starts_with("False Invalid: ") && accepted.contains("EG0126")
    });
    assert_eq!(
        cluster.condition("cef", "misunderstood", "Programmed"),
        "False Pending: 0/1 nodes"
    );
    within(PATIENCE, "there are Events of both", || {
        let events = cluster.events("InvalidEnforcement");
        events
            == [
                "ClusterEgressFirewall/misunderstood",
                "NetworkPolicy/misunderstood",
            ]
    });
    // A policy that comes while the enforcer is away is in force nowhere; one whose status alone changes still is.
    drop(enforcer);
    cluster.add_condition_of_another("policy.egret.dev/v1alpha1, kind: ClusterEgressFirewall", "seven")?;
    cluster.apply(&firewall("eight", "203.0.113.8"))?;
    within(PATIENCE, "it is not counted", || {
        cluster.condition("cef", "eight", "Programmed") == "False Pending: 0/1 nodes"
    });
    assert_eq!(
        cluster.condition("cef", "seven", "Programmed"),
        "True Programmed: 1/1 nodes"
    );
    Ok(())
}

/// The report names what was there; the enforcer of now knows no object of any kind of policy.
#[test]
fn a_report_is_written_anew_where_no_policy_is_left() -> TestResult {
    let Some(mut cluster) = Cluster::start() else {
        return Ok(());
    };
    cluster.start_controller();
    let start = |cluster: &Cluster| {
        let enforcer = cluster.kubernetes.enforcer(&cluster.world, "memory");
        cluster.world.start(enforcer)
    };
    let enforcer = start(&cluster)?;
    cluster.apply(&firewall("seven", "203.0.113.7"))?;
    within(PATIENCE, "the node has realized it", || {
        cluster.condition("cef", "seven", "Programmed") == "True Programmed: 1/1 nodes"
    });
    cluster.apply(MISUNDERSTOOD)?;
    let report = || cluster.get("nodepolicyreport", "node-1");
    within(PATIENCE, "the node names what it closes", || {
        report()["exceptions"].is_array()
    });
    drop(enforcer);
    for object in ["cef/seven", "cef/misunderstood", "networkpolicy/misunderstood"] {
        cluster.kubernetes.kubectl(&cluster.world, &["delete", object])?;
    }
    let _enforcer = start(&cluster)?;
    within(PATIENCE, "the node names nothing", || {
        let report = report();
        report.is_object() && report["exceptions"].is_null() && report["realized"].is_null()
    });
    Ok(())
}

/// One node has an enforcer; of the other there is a report from before it was made anew under its name.
#[test]
fn the_startup_taint_goes_when_the_enforcer_of_that_very_node_has_policy_in_force() -> TestResult {
    const TAINT: &str = "policy.egret.dev/enforcer-not-ready";
    let Some(mut cluster) = Cluster::start() else {
        return Ok(());
    };
    cluster.apply("{apiVersion: v1, kind: Node, metadata: {name: node-9}}")?;
    for node in ["node-1", "node-9"] {
        let own = ["NoSchedule", "NoExecute"].map(|effect| format!("{TAINT}=:{effect}"));
        let taint = [
            "taint",
            "node",
            node,
            &own[0],
            &own[1],
            "example.test/other=x:NoSchedule",
        ];
        cluster.kubernetes.kubectl(&cluster.world, &taint)?;
    }
    let is_tainted = |cluster: &Cluster, node: &str| -> bool {
        let node = cluster.get("node", node);
        let taints = node["spec"]["taints"].as_array().unwrap();
        let has = |key: &str| taints.iter().any(|taint| taint["key"] == *key);
        assert!(has("example.test/other"), "{node}");
        has(TAINT)
    };
    cluster.start_controller();
    cluster.apply(&firewall("seven", "203.0.113.7"))?;
    within(PATIENCE, "the controller writes", || {
        cluster.condition("cef", "seven", "Programmed") == "False Pending: 0/2 nodes"
    });
    assert!(is_tainted(&cluster, "node-1"), "{}", cluster.log());

    let enforcer = cluster.kubernetes.enforcer(&cluster.world, "memory");
    let _enforcer = cluster.world.start(enforcer)?;
    within(PATIENCE, "the node with an enforcer has no taint of ours", || {
        !is_tainted(&cluster, "node-1")
    });
    let programmed = |cluster: &Cluster| cluster.condition("cef", "seven", "Programmed");
    within(PATIENCE, "the node counts", || {
        programmed(&cluster) == "False Pending: 1/2 nodes"
    });
    let versions = cluster.get("nodepolicyreport", "node-1")["realized"].to_string();
    let report = |uid: &str, limits: &str| {
        format!(
            "{{apiVersion: policy.egret.dev/v1alpha1, kind: NodePolicyReport, metadata: {{name: node-9, \
             ownerReferences: [{{apiVersion: v1, kind: Node, name: node-9, uid: {uid}}}]}}, realized: {versions}, limits: {limits}}}"
        )
    };
    cluster.apply(&report("00000000-0000-4000-8000-000000000000", "[names]"))?;
    within(PATIENCE, "the old report is known", || {
        cluster.events("LimitReached") == ["NodePolicyReport/node-9"]
    });
    // Were it counted, the status would say so now, or when it may be written again.
    std::thread::sleep(Duration::from_secs(6));
    assert_eq!(programmed(&cluster), "False Pending: 1/2 nodes");
    assert!(is_tainted(&cluster, "node-9"), "{}", cluster.log());
    let node = cluster.get("node", "node-9");
    cluster.apply(&report(node["metadata"]["uid"].as_str().unwrap(), "[]"))?;
    within(PATIENCE, "the other has none", || !is_tainted(&cluster, "node-9"));
    within(PATIENCE, "it counts as well", || {
        programmed(&cluster) == "True Programmed: 2/2 nodes"
    });
    Ok(())
}

#[test]
fn a_limit_that_a_node_has_reached_is_in_its_report_and_an_event() -> TestResult {
    let Some(mut cluster) = Cluster::start() else {
        return Ok(());
    };
    cluster.start_controller();
    let enforcer = cluster.kubernetes.enforcer(&cluster.world, "memory");
    let _enforcer = cluster.world.start(enforcer.with(["--names-per-pod", "1"]))?;
    let _dnsd = cluster.world.start(cluster.world.dnsd())?;
    cluster.apply(NAMES)?;
    let names = ["one.example.test", "two.example.test"];
    for name in names {
        let upstream = cluster.world.upstream();
        upstream.set(name, Records::addresses(["203.0.113.7"]));
    }
    let limits = || cluster.get("nodepolicyreport", "node-1")["limits"].clone();
    within(PATIENCE, "the node has realized the policy", || {
        cluster.condition("cef", "names", "Programmed") == "True Programmed: 1/1 nodes"
    });
    assert_eq!(limits(), Value::Null);
    within(PATIENCE, "the node says so", || {
        for name in names {
            let answer = cluster
                .world
                .pod("client")
                .look_up(&Lookup::of(name, RecordType::A));
            assert!(answer.is_ok(), "{name} is answered");
        }
        let limits = limits();
        limits[0]
            .as_str()
            .is_some_and(|limit| limit.contains("namesPerPod"))
    });
    within(PATIENCE, "there is an Event", || {
        cluster.events("LimitReached") == ["NodePolicyReport/node-1"]
    });
    Ok(())
}

#[test]
fn cluster_policies_have_conditions_beside_those_of_others_and_what_is_wrong_is_an_event() -> TestResult {
    let Some(mut cluster) = Cluster::start() else {
        return Ok(());
    };
    for definition in egret_integration::kubernetes::network_policy_api()? {
        cluster.kubernetes.apply(&cluster.world, &definition)?;
    }
    cluster.start_controller();
    within(PATIENCE, "the kind is served", || {
        cluster.apply(&cluster_policy("one", 7)).is_ok()
    });
    within(PATIENCE, "it is accepted", || {
        cluster.condition("clusternetworkpolicy", "one", "Accepted")
            == "True Accepted: everything is understood"
    });
    let kind = "policy.networking.k8s.io/v1alpha2, kind: ClusterNetworkPolicy";
    cluster.add_condition_of_another(kind, "one")?;

    cluster.apply(&cluster_policy("two", 7))?;
    for name in ["one", "two"] {
        within(PATIENCE, "the equal priority is a condition", || {
            let accepted = cluster.condition("clusternetworkpolicy", name, "Accepted");
            accepted.starts_with("True Warning: ") && accepted.contains("spec.priority")
        });
    }
    assert_eq!(
        cluster.condition("clusternetworkpolicy", "one", "Ready"),
        "True Other: of another"
    );
    let both = ["ClusterNetworkPolicy/one", "ClusterNetworkPolicy/two"];
    within(PATIENCE, "each has an Event", || {
        cluster.events("EqualPriority") == both
    });

    cluster.apply(&cluster_policy("two", 8))?;
    within(PATIENCE, "both are accepted", || {
        let accepted = |name| cluster.condition("clusternetworkpolicy", name, "Accepted");
        ["one", "two"]
            .iter()
            .all(|name| accepted(name) == "True Accepted: everything is understood")
    });
    assert_eq!(cluster.events("EqualPriority"), both);
    Ok(())
}

#[test]
fn another_replica_writes_when_the_leader_is_killed_or_stopped() -> TestResult {
    let Some(mut cluster) = Cluster::start() else {
        return Ok(());
    };
    cluster.start_controller();
    cluster.start_controller();
    within(PATIENCE, "one is the leader", || cluster.leaders().len() == 1);
    cluster.apply(&firewall("before", "203.0.113.7"))?;
    let is_accepted = |cluster: &Cluster, name: &str| {
        cluster.condition("cef", name, "Accepted") == "True Accepted: everything is understood"
    };
    within(PATIENCE, "it is accepted", || is_accepted(&cluster, "before"));

    let leader = cluster.leaders()[0];
    cluster.controllers[leader].kill()?;
    cluster.apply(&firewall("killed", "203.0.113.7"))?;
    within(AFTER_A_KILL, "the other writes", || {
        is_accepted(&cluster, "killed")
    });
    assert_eq!(cluster.leaders(), [1 - leader]);

    let spec = cluster.controllers[leader].spec().clone();
    cluster.controllers[leader] = cluster.world.start(spec)?;
    // Only one waits: the lease is not taken from who renews it.
    std::thread::sleep(Duration::from_secs(15));
    assert_eq!(cluster.leaders(), [1 - leader]);

    let before = cluster.holder();
    let other = 1 - leader;
    // What is stopped as a whole neither renews nor writes, and knows when it goes on that it is the leader no more.
    cluster.controllers[other].stop()?;
    within(AFTER_A_KILL, "the lease is taken", || cluster.holder() != before);
    cluster.controllers[other].cont()?;
    assert_eq!(cluster.leaders(), [leader]);
    cluster.apply(&firewall("paused", "203.0.113.7"))?;
    within(PATIENCE, "it is accepted", || is_accepted(&cluster, "paused"));

    let before = cluster.holder();
    let status = cluster.controllers[leader].terminate()?;
    assert!(status.success(), "{status}");
    // It is free, or another's, as soon as it has ended.
    assert_ne!(cluster.holder(), before);
    cluster.apply(&firewall("stopped", "203.0.113.7"))?;
    within(PATIENCE, "the other writes", || is_accepted(&cluster, "stopped"));
    assert_eq!(cluster.leaders(), [other]);
    Ok(())
}

/// As `kubectl apply -k` does; nothing runs the Deployment here.
#[test]
fn the_kustomization_grants_the_controller_and_the_node_what_they_need() -> TestResult {
    let Some(mut cluster) = Cluster::start() else {
        return Ok(());
    };
    let base = deploy("kustomize/base");
    let path = |file: &str| base.join(file).display().to_string();
    let kubectl = |arguments: &[&str]| cluster.kubernetes.kubectl(&cluster.world, arguments);
    kubectl(&["create", "-f", &path("namespace.yaml")])?;
    let apply = [
        "apply",
        "--server-side",
        "--validate=strict",
        "--force-conflicts",
        "-k",
    ];
    kubectl(&[&apply[..], &[&base.display().to_string()]].concat())?;
    let account = |name: &str| {
        cluster.kubernetes.kubeconfig_of(
            &cluster.world,
            "egret-system",
            name,
            egret_integration::node::NAME,
        )
    };
    let (controller, node) = (account("egret-controller")?, account("egret-enforcer")?);

    let with = |mut spec: DaemonSpec, kubeconfig: &Path| {
        *spec.arguments.last_mut().expect("the kubeconfig is last") = kubeconfig.display().to_string();
        spec
    };
    let spec = with(cluster.kubernetes.controller(ADMIN), &controller);
    let controller = cluster.world.start(spec)?;
    let enforcer = cluster
        .world
        .start(with(cluster.kubernetes.enforcer(&cluster.world, "memory"), &node))?;
    cluster.controllers.push(controller);
    cluster.apply(&firewall("seven", "203.0.113.7"))?;
    within(PATIENCE, "the node says so", || {
        cluster.condition("cef", "seven", "Programmed") == "True Programmed: 1/1 nodes"
    });
    // It accepts a name that the API server does, and that nodes cannot read: a warning or an error is an Event.
    cluster.apply(&firewall("local", "fe80::1").replace("/32", "/128"))?;
    within(PATIENCE, "an Event is written", || {
        let metrics = cluster.controllers[0].metrics().unwrap();
        metrics.sum("egret_controller_events_total", &[]) >= 1.0
    });
    let metrics = cluster.controllers[0].metrics()?;
    for refused in [
        "status_failures",
        "status_conflicts",
        "events_dropped",
        "lease_failures",
    ] {
        let name = format!("egret_controller_{refused}_total");
        assert_eq!(metrics.sum(&name, &[]), 0.0, "{name}\n{}", cluster.log());
    }
    drop(enforcer);
    Ok(())
}
