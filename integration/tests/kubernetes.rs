//! The enforcer with `--source kube`, on packets, and a real API server.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails there and then")]
#![allow(
    clippy::disallowed_methods,
    reason = "tests measure how long real packets and processes take"
)]

use std::{
    fs,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    path::Path,
    time::{Duration, Instant},
};

use egret_integration::{
    Daemon, DaemonSpec, Kubernetes, Service, World, node, other_node, within, world::ENFORCER_ADMIN,
};

type TestResult = Result<(), Box<dyn std::error::Error>>;

const PATIENCE: Duration = Duration::from_secs(10);
/// A watch is tried again half a minute after many failures.
const AFTER_AN_OUTAGE: Duration = Duration::from_secs(75);
const QUICK: Duration = Duration::from_millis(300);
const SEVEN: &str = "203.0.113.7";
const EIGHT: &str = "203.0.113.8";

/// The pod `client` may send to this address and to no other.
fn only(address: &str) -> String {
    format!(
        "apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {{name: only, namespace: default}}
spec:
  podSelector: {{matchLabels: {{app: client}}}}
  policyTypes: [Egress]
  egress: [{{to: [{{ipBlock: {{cidr: {address}/32}}}}]}}]
"
    )
}

fn firewall(address: &str) -> String {
    format!(
        "apiVersion: policy.egret.dev/v1alpha1
kind: ClusterEgressFirewall
metadata: {{name: refused}}
spec:
  rules: [{{action: Deny, to: [{{networks: [{address}/32]}}]}}]
"
    )
}

struct Cluster {
    // In this order: what runs in the world ends before it does.
    enforcer: Daemon,
    kubernetes: Kubernetes,
    world: World,
}

impl Cluster {
    /// None where a world or an API server cannot be had, which is said.
    fn start() -> Option<Self> {
        let world = World::or_skip()?;
        let world = world.with_pod("client").unwrap().with_pod("other").unwrap();
        let kubernetes = Kubernetes::start(&world).unwrap()?;
        kubernetes.apply_world(&world).unwrap();
        let enforcer = world.start(kubernetes.enforcer(&world, "netfilter")).unwrap();
        Some(Self {
            enforcer,
            kubernetes,
            world,
        })
    }

    fn apply(&self, yaml: &str) -> TestResult {
        self.kubernetes.apply_text(&self.world, yaml)
    }

    fn delete(&self, what: &[&str]) -> TestResult {
        self.kubernetes
            .kubectl(&self.world, &[&["delete"][..], what].concat())
    }

    fn reaches(&self, pod: &str, address: &str) -> bool {
        let to = SocketAddr::new(address.parse::<IpAddr>().unwrap(), 7);
        self.world.pod(pod).connect_tcp(to, QUICK).is_connected()
    }

    /// Which of both addresses the pod `client` reaches.
    fn reached(&self) -> [bool; 2] {
        [SEVEN, EIGHT].map(|address| self.reaches("client", address))
    }

    /// Applies a policy when its kind is served, and waits until it is in force.
    #[track_caller]
    fn enforce(&self, patience: Duration, policy: &str, reached: [bool; 2]) {
        within(PATIENCE, "the kind is served", || self.apply(policy).is_ok());
        within(patience, "the policy is in force", || self.reached() == reached);
    }

    fn readyz(&self) -> (u16, String) {
        self.enforcer.get("/readyz").unwrap()
    }

    /// Ready, though its source is away.
    fn is_outdated(&self) -> bool {
        let (status, page) = self.readyz();
        status == 200 && page.contains("what the source said last is in force: the source cannot be read: ")
    }

    fn is_unreadable(&self) -> bool {
        let metrics = self.enforcer.metrics().unwrap();
        metrics.sum("egret_enforcer_source_unreadable", &[]) == 1.0
    }
}

#[test]
fn a_policy_of_the_api_is_in_force_as_long_as_it_is_there() -> TestResult {
    let Some(cluster) = Cluster::start() else {
        return Ok(());
    };
    assert_eq!(cluster.reached(), [true, true]);
    cluster.apply(&only(SEVEN))?;
    within(PATIENCE, "the policy is in force", || {
        cluster.reached() == [true, false]
    });
    assert!(cluster.reaches("other", EIGHT));
    cluster.apply(&only(EIGHT))?;
    within(PATIENCE, "the change is in force", || {
        cluster.reached() == [false, true]
    });
    cluster.delete(&["networkpolicy", "only"])?;
    within(PATIENCE, "nothing is refused", || {
        cluster.reached() == [true, true]
    });
    Ok(())
}

#[test]
fn verdicts_stay_while_the_api_server_is_away_and_catch_up_when_it_is_back() -> TestResult {
    let Some(mut cluster) = Cluster::start() else {
        return Ok(());
    };
    cluster.apply(&only(SEVEN))?;
    within(PATIENCE, "the policy is in force", || {
        cluster.reached() == [true, false]
    });
    cluster.kubernetes.kill()?;
    within(PATIENCE, "it is said", || cluster.is_outdated());
    assert!(cluster.is_unreadable());
    assert_eq!(cluster.reached(), [true, false]);
    let failures = cluster
        .enforcer
        .metrics()?
        .sum("egret_enforcer_source_watch_failures_total", &[]);
    assert!(failures > 0.0);

    // An enforcer that starts meanwhile finds the rules, and leaves them.
    cluster.enforcer.kill()?;
    cluster.enforcer = cluster.world.launch(cluster.enforcer.spec().clone())?;
    within(PATIENCE, "it says what it waits for", || {
        cluster
            .enforcer
            .get("/readyz")
            .is_ok_and(|(status, page)| status == 503 && page.contains("not in sync"))
    });
    assert_eq!(cluster.reached(), [true, false]);

    // Changed and deleted as soon as the API server is back, before the enforcer has noticed.
    cluster.kubernetes.restart(&cluster.world)?;
    cluster.apply(&only(EIGHT))?;
    within(AFTER_AN_OUTAGE, "the change is in force", || {
        cluster.reached() == [false, true]
    });
    cluster.kubernetes.kill()?;
    within(PATIENCE, "it is said", || cluster.is_outdated());
    cluster.kubernetes.restart(&cluster.world)?;
    cluster.delete(&["networkpolicy", "only"])?;
    within(AFTER_AN_OUTAGE, "what was deleted is not in force", || {
        cluster.reached() == [true, true]
    });
    within(AFTER_AN_OUTAGE, "it is known to be up to date", || {
        !cluster.is_outdated() && !cluster.is_unreadable()
    });
    assert!(cluster.readyz().1.starts_with("ready"));
    Ok(())
}

/// The API server stays, and can neither read nor write.
#[test]
fn verdicts_stay_while_etcd_is_away_and_catch_up_when_it_is_back() -> TestResult {
    let Some(mut cluster) = Cluster::start() else {
        return Ok(());
    };
    cluster.apply(&only(SEVEN))?;
    within(PATIENCE, "the policy is in force", || {
        cluster.reached() == [true, false]
    });
    cluster.kubernetes.kill_etcd()?;
    let write = [
        "label",
        "--overwrite",
        "--request-timeout=2s",
        "namespace",
        "default",
        "a=b",
    ];
    within(PATIENCE, "nothing can be written", || {
        cluster.kubernetes.kubectl(&cluster.world, &write).is_err()
    });
    assert_eq!(cluster.reached(), [true, false]);
    // An enforcer that starts meanwhile finds the rules, whatever the API server still has in its cache.
    cluster.enforcer.kill()?;
    cluster.enforcer = cluster.world.launch(cluster.enforcer.spec().clone())?;
    within(PATIENCE, "it answers", || {
        cluster.enforcer.get("/healthz").is_ok()
    });
    assert_eq!(cluster.reached(), [true, false]);

    cluster.kubernetes.restart_etcd(&cluster.world)?;
    cluster.apply(&only(EIGHT))?;
    within(AFTER_AN_OUTAGE, "the change is in force", || {
        cluster.reached() == [false, true]
    });
    within(AFTER_AN_OUTAGE, "it is known to be up to date", || {
        !cluster.is_outdated() && cluster.readyz().1.starts_with("ready")
    });
    Ok(())
}

/// After a boot without a network, or with an API server that is away for long: the kernel holds nothing.
#[test]
fn what_the_api_server_said_last_is_in_force_at_a_start_without_it() -> TestResult {
    let Some(mut cluster) = Cluster::start() else {
        return Ok(());
    };
    cluster.apply(&only(SEVEN))?;
    within(PATIENCE, "the policy is in force", || {
        cluster.reached() == [true, false]
    });
    let spec = cluster.enforcer.spec().clone();
    within(PATIENCE, "it is kept", || {
        let kept = fs::read(cluster.world.state_objects()).unwrap_or_default();
        String::from_utf8_lossy(&kept).contains("networkpolicies/default/only")
    });
    cluster.enforcer.terminate()?;
    cluster.kubernetes.kill()?;
    let enforcer = spec.binary.display().to_string();
    let cleanup = [enforcer.as_str(), "cleanup", "--state", "", "--state-objects", ""];
    cluster.world.node().run_well(&cleanup)?;
    assert_eq!(cluster.reached(), [true, true]);
    cluster.enforcer = cluster.world.launch(spec)?;
    within(PATIENCE, "it says what it runs on", || {
        let readyz = cluster.enforcer.get("/readyz");
        readyz.is_ok_and(|(_, page)| page.contains("running on what was known at"))
    });
    within(PATIENCE, "what was known is in force", || {
        cluster.reached() == [true, false]
    });
    cluster.kubernetes.restart(&cluster.world)?;
    cluster.delete(&["networkpolicy", "only"])?;
    within(AFTER_AN_OUTAGE, "what was deleted is not in force", || {
        cluster.reached() == [true, true]
    });
    Ok(())
}

#[test]
fn a_kind_is_watched_from_when_its_definition_comes_until_that_goes() -> TestResult {
    let Some(cluster) = Cluster::start() else {
        return Ok(());
    };
    let definitions = Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/crds");
    cluster.kubernetes.apply(&cluster.world, &definitions)?;
    cluster.enforce(PATIENCE, &firewall(SEVEN), [false, true]);
    cluster.delete(&["crd", "clusteregressfirewalls.policy.egret.dev"])?;
    within(PATIENCE, "nothing is refused", || {
        cluster.reached() == [true, true]
    });
    cluster.kubernetes.apply(&cluster.world, &definitions)?;
    cluster.enforce(PATIENCE, &firewall(EIGHT), [true, false]);
    Ok(())
}

/// The newer version is not known here: its objects are closed, though they are those that opened something before.
#[test]
fn a_kind_is_followed_from_one_version_to_another_and_back() -> TestResult {
    let Some(cluster) = Cluster::start() else {
        return Ok(());
    };
    let file = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../deploy/crds/clusteregressfirewalls.policy.egret.dev.yaml");
    let mut definition: serde_json::Value = serde_saphyr::from_str(&fs::read_to_string(file)?)?;
    let mut serve = |older: bool, newer: bool| {
        let versions = definition["spec"]["versions"].as_array_mut().unwrap();
        versions.truncate(1);
        let mut copy = versions[0].clone();
        versions[0]["served"] = older.into();
        copy["name"] = "v1alpha2".into();
        copy["storage"] = false.into();
        copy["served"] = newer.into();
        versions.push(copy);
        cluster.apply(&definition.to_string())
    };
    serve(true, false)?;
    cluster.enforce(PATIENCE, &firewall(SEVEN), [false, true]);
    serve(false, true)?;
    within(PATIENCE, "what is not known is closed", || {
        cluster.reached() == [false, false]
    });
    // Nothing breaks the watch of the version that is served all the time.
    serve(true, true)?;
    within(PATIENCE, "the version that is known is watched", || {
        cluster.reached() == [false, true]
    });
    let log = cluster.enforcer.log();
    assert!(log.contains("ClusterEgressFirewall/refused"), "{log}");
    Ok(())
}

/// Extension API servers that are away: one of another group, and one that serves another version of ours.
#[test]
fn an_api_service_that_is_broken_leaves_the_others_alone() -> TestResult {
    let Some(cluster) = Cluster::start() else {
        return Ok(());
    };
    for (version, group) in [("v1", "broken.example"), ("v1", "policy.egret.dev")] {
        cluster.apply(&format!(
            "apiVersion: apiregistration.k8s.io/v1
kind: APIService
metadata: {{name: {version}.{group}}}
spec:
  group: {group}
  version: {version}
  groupPriorityMinimum: 1000
  versionPriority: 1
  insecureSkipTLSVerify: true
  service: {{namespace: default, name: none}}
"
        ))?;
    }
    let definitions = Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/crds");
    cluster.kubernetes.apply(&cluster.world, &definitions)?;
    cluster.enforce(PATIENCE, &firewall(SEVEN), [false, true]);
    let said = "it is not known what is served of a group";
    assert!(
        cluster.enforcer.log().contains(said),
        "{}",
        cluster.enforcer.log()
    );
    cluster.delete(&["crd", "clusteregressfirewalls.policy.egret.dev"])?;
    // The API server deletes the objects before the definition.
    within(PATIENCE, "nothing is refused", || {
        cluster.reached() == [true, true]
    });
    cluster.kubernetes.apply(&cluster.world, &definitions)?;
    cluster.enforce(AFTER_AN_OUTAGE, &firewall(EIGHT), [true, false]);
    Ok(())
}

/// The other node has a network namespace of its own, from which it reaches the API server by a proxy.
#[test]
fn an_address_of_a_node_is_reported_by_the_api_to_the_others() -> TestResult {
    const LATER: Ipv4Addr = Ipv4Addr::new(10, 76, 2, 4);
    const ELSE: u16 = 8080;
    let Some(cluster) = Cluster::start() else {
        return Ok(());
    };
    let definitions = Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/crds");
    cluster.kubernetes.apply(&cluster.world, &definitions)?;
    within(PATIENCE, "the kind is served", || {
        cluster.apply(&firewall("192.0.2.1")).is_ok()
    });
    let nodes = "apiVersion: policy.egret.dev/v1alpha1
kind: ClusterEgressFirewall
metadata: {name: refused}
spec:
  rules: [{action: Deny, to: [{nodes: {}}]}]
";
    cluster.apply(nodes)?;
    let elsewhere = cluster.world.lay_other_node()?;
    elsewhere.serve(ELSE, Service::TcpEcho)?;
    let (_proxy, kubeconfig) = cluster.kubernetes.proxy_for_other_node(&cluster.world)?;
    let spec = elsewhere.enforcer(&cluster.world);
    let mut there = elsewhere.launch(cluster.kubernetes.by(spec, &kubeconfig))?;
    there.wait_until_ready()?;
    let reported = || {
        let asked = [
            "get",
            "nodeaddressreport",
            other_node::NAME,
            "-o",
            "jsonpath={.addresses[*].ip}",
        ];
        let answer = cluster.kubernetes.ask(&cluster.world, &asked).unwrap();
        answer.stdout.contains(&LATER.to_string())
    };
    let is_open = || {
        let to = SocketAddr::new(LATER.into(), ELSE);
        cluster.world.pod("client").connect_tcp(to, QUICK).is_connected()
    };
    elsewhere.address("add", LATER)?;
    within(PATIENCE, "it is reported", reported);
    within(PATIENCE, "it is refused", || !is_open());
    let written = || there.log().matches("reported the addresses of this node").count();
    // A list that was made before the first report has it written once more.
    within(PATIENCE, "it says that it has written", || written() >= 2);

    // What was deleted comes back.
    let before = written();
    cluster.delete(&["nodeaddressreport", other_node::NAME])?;
    within(PATIENCE, "it is reported anew", reported);
    within(PATIENCE, "it says that it has written", || written() > before);
    let before = written();
    elsewhere.address("del", LATER)?;
    within(PATIENCE, "it is taken back", || !reported());
    within(PATIENCE, "it says that it has written", || written() > before);

    // A report of somebody else stays.
    let theirs = format!(
        "{{apiVersion: policy.egret.dev/v1alpha1, kind: NodeAddressReport, metadata: {{name: {}}}, addresses: [{{ip: 198.51.100.1}}]}}",
        other_node::NAME
    );
    let path = cluster.world.files().join("theirs.yaml");
    fs::write(&path, theirs)?;
    let path = path.display().to_string();
    let take = ["apply", "--server-side", "--force-conflicts", "-f", &path];
    cluster.kubernetes.kubectl(&cluster.world, &take)?;
    elsewhere.address("add", LATER)?;
    within(PATIENCE, "it says that it does not write", || {
        there.log().contains("are not reported")
    });
    assert!(!reported());
    Ok(())
}

/// As `kubectl apply -k` does; nothing runs the DaemonSets here, so the enforcer is started with the rights of its service account and the
/// capabilities of its container: it needs no others.
#[test]
fn the_kustomization_is_admitted_and_grants_the_enforcer_what_it_needs() -> TestResult {
    let Some(cluster) = Cluster::start() else {
        return Ok(());
    };
    let base = Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/kustomize/base");
    let kustomization = base.display().to_string();
    let kubectl = |arguments: &[&str]| cluster.kubernetes.kubectl(&cluster.world, arguments);
    kubectl(&["create", "-f", &base.join("namespace.yaml").display().to_string()])?;
    // What nobody knows is refused, not dropped.
    let strictly = [
        "apply",
        "--server-side",
        "--validate=strict",
        "-k",
        &kustomization,
    ];
    kubectl(&[&strictly[..], &["--force-conflicts", "--dry-run=server"]].concat())?;
    kubectl(&[&strictly[..], &["--force-conflicts"]].concat())?;

    let mut enforcer = cluster.enforcer;
    enforcer.kill()?;
    let account =
        cluster
            .kubernetes
            .kubeconfig_of(&cluster.world, "egret-system", "egret-enforcer", node::NAME)?;
    let mut spec = enforcer.spec().clone();
    *spec.arguments.last_mut().expect("the kubeconfig is last") = account.display().to_string();
    let only = capabilities(&base.join("enforcer.yaml"))
        .join(",+")
        .to_lowercase();
    let before = [
        format!("--bounding-set=-all,+{only}"),
        spec.binary.display().to_string(),
    ];
    spec.arguments.splice(0..0, before);
    spec.binary = "setpriv".into();
    let enforcer = cluster.world.start(spec)?;
    cluster.kubernetes.apply_text(&cluster.world, &firewall(SEVEN))?;
    let is_refused = || {
        let to = SocketAddr::new(SEVEN.parse::<IpAddr>().unwrap(), 7);
        !cluster.world.pod("client").connect_tcp(to, QUICK).is_connected()
    };
    within(PATIENCE, "the policy is in force", is_refused);
    within(PATIENCE, "its rights suffice for its report", || {
        enforcer.log().contains("reported the addresses of this node")
    });
    // Kinds that were just defined may have to be asked for again: "storage is (re)initializing".
    assert!(!enforcer.log().contains("forbidden"), "{}", enforcer.log());
    Ok(())
}

/// What the enforcer's container is given.
fn capabilities(daemon_set: &Path) -> Vec<String> {
    let read: serde_json::Value = serde_saphyr::from_str(&fs::read_to_string(daemon_set).unwrap()).unwrap();
    let container = &read["spec"]["template"]["spec"]["containers"][0];
    let added = container["securityContext"]["capabilities"]["add"]
        .as_array()
        .unwrap();
    added
        .iter()
        .map(|name| name.as_str().unwrap().to_owned())
        .collect()
}

#[test]
fn the_definitions_of_the_kustomization_are_those_of_deploy_crds() -> TestResult {
    let deploy = Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy");
    let kinds = [
        "apiserveraddresses",
        "clusteregressfirewalls",
        "nodeaddressreports",
        "nodepolicyreports",
    ];
    let files = kinds
        .map(|kind| fs::read_to_string(deploy.join(format!("crds/{kind}.policy.egret.dev.yaml"))).unwrap());
    assert_eq!(
        fs::read_to_string(deploy.join("kustomize/base/crds.yaml"))?,
        files.join("---\n")
    );
    Ok(())
}

/// The dir source reads what the API server has stored, as it gives it out: the same objects, though one source is sent lists and changes and
/// leaves out what policy does not depend on.
#[test]
fn both_sources_make_the_same_rules_of_the_same_objects() -> TestResult {
    let Some(world) = World::or_skip() else {
        return Ok(());
    };
    let Some(kubernetes) = Kubernetes::start(&world)? else {
        return Ok(());
    };
    let deploy = Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy");
    kubernetes.apply(&world, &deploy.join("crds"))?;
    for definition in egret_integration::kubernetes::network_policy_api()? {
        kubernetes.apply(&world, &definition)?;
    }
    let kube = world.start(kubernetes.enforcer(&world, "memory"))?;

    let examples = world.files().join("examples");
    copy_manifests(&deploy.join("examples"), &examples)?;
    let cluster = examples.join("cluster/cluster.yaml").display().to_string();
    kubernetes.kubectl(&world, &["apply", "-f", &cluster])?;
    // The last of it, an EndpointSlice, has no status, which kubectl says.
    drop(kubernetes.kubectl(&world, &["replace", "--subresource=status", "-f", &cluster]));
    // Some are refused, as those that show what is wrong with them; what is misspelt elsewhere is dropped.
    let all = examples.display().to_string();
    let refused = kubernetes.kubectl(&world, &["apply", "--validate=false", "-R", "-f", &all]);
    let stored = assert_same_rules(&world, &kubernetes, &kube, "all")?;
    let policies = stored.matches("Policy\"").count() + stored.matches("\"ClusterEgressFirewall\"").count();
    assert!(policies > 25, "{policies} policies are stored: {refused:?}");

    for kind in [
        "clusternetworkpolicies",
        "clusteregressfirewalls",
        "services",
        "pods",
    ] {
        let delete = [
            "delete",
            kind,
            "--all",
            "-A",
            "--wait=false",
            "--grace-period=0",
            "--force",
        ];
        kubernetes.kubectl(&world, &delete)?;
        assert_same_rules(&world, &kubernetes, &kube, kind)?;
    }
    Ok(())
}

/// Pods of the examples have containers without images, which an API server refuses.
fn copy_manifests(from: &Path, to: &Path) -> std::io::Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let (path, copy) = (entry.path(), to.join(entry.file_name()));
        if path.is_dir() {
            copy_manifests(&path, &copy)?;
        } else if path.extension().is_some_and(|extension| extension == "yaml") {
            let text = fs::read_to_string(&path)?;
            let text = text.replace(
                "containers: [{name: ",
                "containers: [{image: none.example/none, name: ",
            );
            fs::write(
                copy,
                text.replace(
                    "    - name: dns\n      ports",
                    "    - name: dns\n      image: none.example/none\n      ports",
                ),
            )?;
        }
    }
    Ok(())
}

/// What is stored.
fn assert_same_rules(
    world: &World,
    kubernetes: &Kubernetes,
    kube: &Daemon,
    what: &str,
) -> Result<String, Box<dyn std::error::Error>> {
    let folder = world.files().join(format!("stored-{what}"));
    fs::create_dir_all(&folder)?;
    let stored = kubernetes.stored(world)?;
    fs::write(folder.join("all.json"), &stored)?;
    let own = |name: &str| folder.join(name).display().to_string();
    let spec = DaemonSpec::enforcer(ENFORCER_ADMIN + 100)
        .with(["--source".to_owned(), format!("dir:{}", folder.display())])
        .with([
            "--node",
            node::NAME,
            "--backend",
            "memory",
            "--state",
            "",
            "--state-objects",
            "",
        ])
        .with(["--link".to_owned(), own("link")]);
    let dir = world.start(spec)?;
    let rules = |daemon: &Daemon| daemon.get("/rules").unwrap().1;
    let expected = rules(&dir);
    assert!(
        what == "pods" || expected.lines().count() > 10,
        "{what}: {expected}"
    );
    let begun = Instant::now();
    while rules(kube) != expected {
        if begun.elapsed() > PATIENCE {
            let found = rules(kube);
            let lines = |text: &str, other: &str| -> Vec<String> {
                text.lines()
                    .filter(|line| !other.contains(line))
                    .map(ToOwned::to_owned)
                    .collect()
            };
            panic!(
                "{what}: dir alone: {:#?}\nkube alone: {:#?}\n{}",
                lines(&expected, &found),
                lines(&found, &expected),
                dir.log()
            );
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    Ok(stored)
}
