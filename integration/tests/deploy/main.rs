//! What of `deploy` an operator applies: rendered by the real Helm and kubectl, admitted by a real API server, its arguments read by the real
//! programs, and its roles compared with what the programs ask.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails there and then")]
#![allow(
    clippy::disallowed_methods,
    reason = "tests measure how long real packets and processes take"
)]

mod roles;

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    process::{Command, Output},
    time::Duration,
};

use egret_integration::{DaemonSpec, Kubernetes, Peer, World, kubernetes};
use serde_json::Value;

type Failure = Box<dyn std::error::Error>;
type TestResult = Result<(), Failure>;
/// Of what, and the objects.
type Rendering = (String, String);

const PATIENCE: Duration = Duration::from_secs(30);
const CONTROLLER_ADMIN: u16 = 9255;
/// The controller writes a status at most once in 5 s.
const STATUS_INTERVAL: Duration = Duration::from_secs(6);
/// The release is beside the namespace that the chart makes.
const RELEASE: [&str; 4] = ["egret", "CHART", "--namespace", "kube-system"];
const OVERLAYS: [&str; 7] = [
    "audit",
    "cleanup",
    "ebpf",
    "intercept",
    "kernel-answers",
    "node-local-dns",
    "node-local-dns-ipvs",
];
/// What of `konnectivity` is given to an API server.
const KONNECTIVITY: [&str; 3] = ["proxy-agent", "proxy-server", "rbac"];
/// Each value of values.yaml at least once other than its default, with what the objects then say.
const VALUES: [(&str, &[&str]); 23] = [
    (
        "",
        &["ghcr.io/egret-project/egret:0.1.0", "--dns-address=10.96.0.10"],
    ),
    (
        "image.repository=registry.example:5000/egret,image.tag=1.2.3,image.pullPolicy=Always,image.pullSecrets={pull}",
        &[
            "registry.example:5000/egret:1.2.3",
            "imagePullPolicy: Always",
            "name: pull",
        ],
    ),
    (
        "image.digest=sha256:0000000000000000000000000000000000000000000000000000000000000000",
        &["egret@sha256:0000000000000000000000000000000000000000000000000000000000000000"],
    ),
    (
        "nodeSelector.kubernetes\\.io/os=linux",
        &["kubernetes.io/os: linux"],
    ),
    ("tolerations=null", &["kind: DaemonSet"]),
    (
        "dns.address=169.254.25.10,dns.clusterIP=10.96.0.53,dns.domain=corp.example",
        &[
            "bind 169.254.25.10 10.96.0.53",
            "corp.example:53",
            "--dns-address=169.254.25.10",
            "--dns-address=10.96.0.53",
        ],
    ),
    (
        "dns.clusterIP=10.96.0.53\\,fd00:10:96::35",
        &[
            "bind 169.254.20.10 10.96.0.53 fd00:10:96::35\n",
            "- 169.254.20.10,10.96.0.53,fd00:10:96::35\n",
            "- --dns-address=10.96.0.53\n",
            "- --dns-address=fd00:10:96::35\n",
        ],
    ),
    ("dns.kubeProxy=nftables", &["bind 169.254.20.10 10.96.0.10"]),
    (
        "dns.kubeProxy=ipvs",
        &["bind 169.254.20.10\n", "- 169.254.20.10\n"],
    ),
    (
        "dns.address=fd00:a9fe::a,dns.kubeProxy=ipvs",
        &[
            "bind fd00:a9fe::a\n",
            "health [fd00:a9fe::a]:8080 {",
            "host: fd00:a9fe::a\n",
            "- --dns-address=fd00:a9fe::a\n",
        ],
    ),
    ("enforcer.backend=ebpf", &["--backend=ebpf", "path: /sys/fs/bpf"]),
    ("enforcer.backend=nftables", &["--backend=nftables"]),
    ("enforcer.backend=netfilter", &["--backend=netfilter"]),
    (
        "enforcer.enforcement=audit,enforcer.onUnknownPod=allow,enforcer.maxUnavailable=1",
        &[
            "--enforcement=audit",
            "--on-unknown-pod=allow",
            "maxUnavailable: 1",
        ],
    ),
    (
        "cni.enabled=true,cni.confDir=/etc/other/net.d,cni.binDir=/opt/other/bin",
        &["- install", "path: /etc/other/net.d", "path: /opt/other/bin"],
    ),
    (
        "cni.enabled=true,cni.onUnknownPod=start",
        &["- install", "- --on-unknown-pod=start"],
    ),
    (
        "enforcer.extraArgs={--deny-action=reject},enforcer.resources.limits.memory=500Mi,dnsd.resources.limits.memory=200Mi",
        &["--deny-action=reject", "memory: 500Mi", "memory: 200Mi"],
    ),
    (
        "dnsd.intercept=true,dnsd.config.stallDeadline=500ms",
        &["enabled: true", "stallDeadline: 500ms", "checksum/config"],
    ),
    (
        "dnsd.kernelAnswers=true,dnsd.config.host.syncInterval=30s",
        &[
            "kernelAnswers: /sys/fs/bpf/egret-dns",
            "syncInterval: 30s",
            "- BPF",
        ],
    ),
    (
        "metrics.enabled=true,metrics.serviceMonitor.enabled=true,metrics.serviceMonitor.labels.release=prometheus",
        &[
            "--admin=$(HOST_IP):9254",
            "kind: ServiceMonitor",
            "release: prometheus",
        ],
    ),
    (
        "konnectivity.enabled=true,konnectivity.servers={192.0.2.11,192.0.2.12},konnectivity.port=8443,\
         konnectivity.agent.extraArgs={--allow-destinations=127.0.0.0/8},konnectivity.agent.resources.limits.memory=50Mi,\
         konnectivity.server.extraArgs={--agent-identifier-binding=enforce},konnectivity.server.policies.p\\.yaml=kind",
        &[
            "--proxy-server-host=192.0.2.11,192.0.2.12",
            "--proxy-server-port=8443",
            "--allow-destinations=127.0.0.0/8",
            "memory: 50Mi",
            "--server-count=2",
            "--agent-port=8443",
            "--agent-identifier-binding=enforce",
            "node-role.kubernetes.io/control-plane",
            "mountPath: /etc/kubernetes/konnectivity/policies",
            "p.yaml: kind",
        ],
    ),
    (
        "konnectivity.enabled=true,konnectivity.servers={proxy.example},konnectivity.server.enabled=false",
        &["--proxy-server-host=proxy.example"],
    ),
    (
        "dnsd.enabled=false,crds.keep=false,metrics.enabled=true,metrics.ipv6=true",
        &["--admin=[$(HOST_IP)]:9254"],
    ),
];

fn deploy() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy")
}

/// Runs helm; none where it cannot be built, which is said.
fn helm(verb: &str, arguments: &[&str]) -> Result<Option<Output>, Failure> {
    let Some(helm) = Peer::HELM.build()? else {
        return Ok(None);
    };
    let chart = deploy().join("helm/egret").display().to_string();
    let arguments = arguments
        .iter()
        .map(|argument| if *argument == "CHART" { &chart } else { *argument });
    Ok(Some(Command::new(helm).arg(verb).args(arguments).output()?))
}

fn template(values: &str) -> Result<Option<String>, Failure> {
    let Some(output) = helm("template", &[&RELEASE[..], &["--set", values]].concat())? else {
        return Ok(None);
    };
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{values}: {stderr}");
    Ok(Some(String::from_utf8(output.stdout)?))
}

/// As `kubectl kustomize`, which `kubectl apply -k` runs.
fn kustomize(folder: &str) -> Result<Option<String>, Failure> {
    let Some(kubectl) = Peer::KUBECTL.build()? else {
        return Ok(None);
    };
    let folder = deploy().join("kustomize").join(folder);
    let output = Command::new(kubectl).arg("kustomize").arg(folder).output()?;
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(Some(String::from_utf8(output.stdout)?))
}

/// Everything that is rendered, with what it was rendered of; none where a tool cannot be built.
fn renderings() -> Result<Option<Vec<Rendering>>, Failure> {
    let mut all = Vec::new();
    for values in VALUES
        .map(|(values, _)| values)
        .into_iter()
        .chain(["cleanup=true", "cleanup=true,cni.enabled=true"])
    {
        let Some(text) = template(values)? else {
            return Ok(None);
        };
        all.push((format!("chart {values}"), text));
    }
    for folder in OVERLAYS
        .map(|overlay| format!("overlays/{overlay}"))
        .into_iter()
        .chain(["base".to_owned()])
    {
        let Some(text) = kustomize(&folder)? else {
            return Ok(None);
        };
        all.push((folder, text));
    }
    for file in KONNECTIVITY {
        let path = format!("konnectivity/{file}.yaml");
        all.push((path.clone(), fs::read_to_string(deploy().join(path))?));
    }
    Ok(Some(all))
}

fn objects(text: &str) -> Vec<Value> {
    let all: Vec<Value> = serde_saphyr::from_multiple(text).unwrap();
    all.into_iter().filter(|object| !object.is_null()).collect()
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

fn items(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

fn strings(value: &Value) -> Vec<&str> {
    items(value).iter().map(text).collect()
}

/// Init containers first.
fn containers(objects: &[Value]) -> Vec<&Value> {
    let pods = objects.iter().map(|object| &object["spec"]["template"]["spec"]);
    let own = objects
        .iter()
        .filter(|object| object["kind"] == "Pod")
        .map(|object| &object["spec"]);
    pods.chain(own)
        .flat_map(|pod| {
            items(&pod["initContainers"])
                .iter()
                .chain(items(&pod["containers"]))
        })
        .collect()
}

#[test]
fn every_value_changes_what_it_says() -> TestResult {
    for (values, expected) in VALUES {
        let Some(rendered) = template(values)? else {
            return Ok(());
        };
        for part in expected {
            assert!(rendered.contains(part), "{values}: {part} is not in\n{rendered}");
        }
    }
    let ipvs = template("dns.kubeProxy=ipvs")?.unwrap();
    assert!(
        !ipvs.contains("10.96.0.10"),
        "dnsd does not take kube-proxy's address:\n{ipvs}"
    );
    let agents = template(
        "konnectivity.enabled=true,konnectivity.servers={proxy.example},konnectivity.server.enabled=false",
    );
    assert!(
        !agents?.unwrap().contains("/usr/bin/proxy-server"),
        "the servers are elsewhere"
    );
    let without = template("dnsd.enabled=false,crds.install=false")?.unwrap();
    assert!(!without.contains("egret-dnsd") && !without.contains("CustomResourceDefinition"));
    Ok(())
}

#[test]
fn helm_finds_nothing_wrong_with_the_chart() -> TestResult {
    if let Some(output) = helm("lint", &["CHART", "--strict"])? {
        assert!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stdout)
        );
    }
    Ok(())
}

#[test]
fn a_wrong_value_is_refused_by_its_name() -> TestResult {
    for (values, named) in [
        ("dns.kubeProxy=userspace", "iptables"),
        ("dns.address=nowhere", "/dns/address"),
        ("dns.clusterIP=nowhere", "/dns/clusterIP"),
        ("enforcer.backend=memory", "/enforcer/backend"),
        ("enforcer.enforcment=audit", "enforcment"),
        ("enforcer.extraArgs={deny-action}", "/enforcer/extraArgs/0"),
        ("enforcer.maxUnavailable=0", "/enforcer/maxUnavailable"),
        ("image.digest=latest", "/image/digest"),
        ("metrics.serviceMonitor.enabled=true", "/metrics/enabled"),
        ("konnectivity.enabled=true", "/konnectivity/servers"),
        ("konnectivity.servers={a,b c}", "/konnectivity/servers/1"),
        ("dnsd=true", "/dnsd"),
        ("dnsd.kernelAnswers=/sys/fs/bpf", "/dnsd/kernelAnswers"),
        ("cni.onUnknownPod=allow", "/cni/onUnknownPod"),
    ] {
        let Some(output) = helm("template", &[&RELEASE[..], &["--set", values]].concat())? else {
            return Ok(());
        };
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success(), "{values} is accepted");
        assert!(
            stderr.contains("schema") && stderr.contains(named),
            "{values}: {stderr}"
        );
    }
    Ok(())
}

/// The chart has no second copy of the base, and adds what Helm asks for.
#[test]
fn the_chart_with_its_defaults_is_the_base() -> TestResult {
    let (Some(chart), Some(base)) = (template("")?, kustomize("base")?) else {
        return Ok(());
    };
    let [chart, base] = [chart, base].map(|text| {
        let mut objects = objects(&text);
        for object in &mut objects {
            let metadata = object["metadata"].as_object_mut().unwrap();
            metadata.remove("annotations");
            if let Some(labels) = metadata.get_mut("labels").and_then(Value::as_object_mut) {
                labels.retain(|name, _| {
                    !name.starts_with("helm.sh/")
                        && name != "app.kubernetes.io/managed-by"
                        && name != "app.kubernetes.io/instance"
                });
                if labels.is_empty() {
                    metadata.remove("labels");
                }
            }
            for group in ["initContainers", "containers"] {
                for container in object["spec"]["template"]["spec"][group]
                    .as_array_mut()
                    .into_iter()
                    .flatten()
                {
                    container.as_object_mut().unwrap().remove("imagePullPolicy");
                }
            }
        }
        let mut lines: Vec<String> = objects.iter().map(ToString::to_string).collect();
        lines.sort();
        lines
    });
    assert_eq!(chart, base);
    Ok(())
}

#[test]
fn the_overlays_of_node_local_dns_are_its_manifest_filled_in() -> TestResult {
    let read = |path: &str| fs::read_to_string(deploy().join(path));
    let manifest = read("node-local-dns/node-local-dns.yaml")?;
    let objects = manifest.split_once("apiVersion").unwrap().1;
    let filled = format!("apiVersion{objects}")
        .replace("__PILLAR__LOCAL__DNS__", "169.254.20.10")
        .replace("__PILLAR__DNS__DOMAIN__", "cluster.local");
    assert_eq!(
        read("kustomize/overlays/node-local-dns/node-local-dns.yaml")?,
        filled.replace("__PILLAR__DNS__SERVER__", "10.96.0.10"),
        "make manifests"
    );
    assert_eq!(
        read("kustomize/overlays/node-local-dns-ipvs/node-local-dns.yaml")?,
        filled
            .replace(" __PILLAR__DNS__SERVER__", "")
            .replace(",__PILLAR__DNS__SERVER__", ""),
        "make manifests"
    );
    Ok(())
}

#[test]
fn the_image_of_all_manifests_is_that_of_this_version() -> TestResult {
    let Some(all) = renderings()? else {
        return Ok(());
    };
    let image = format!("ghcr.io/egret-project/egret:{}", env!("CARGO_PKG_VERSION"));
    for (of, rendered) in all.iter().filter(|(of, _)| !of.contains("image.")) {
        let objects = objects(rendered);
        assert!(
            containers(&objects)
                .iter()
                .all(|container| container["image"] == image.as_str()),
            "{of}"
        );
    }
    let chart = fs::read_to_string(deploy().join("helm/egret/Chart.yaml"))?;
    let version = env!("CARGO_PKG_VERSION");
    assert!(chart.contains(&format!("\nversion: {version}\nappVersion: {version}\n")));
    Ok(())
}

/// Programs of the backend ebpf outlive it in the BPF file system of the host, and judge on until the backend that follows removes them.
#[test]
fn every_backend_reaches_what_another_one_pinned() -> TestResult {
    let Some(all) = renderings()? else {
        return Ok(());
    };
    let mut enforcers = 0;
    for (of, rendered) in &all {
        for object in objects(rendered) {
            if object["kind"] != "DaemonSet" || object["metadata"]["name"] != "egret-enforcer" {
                continue;
            }
            let pod = &object["spec"]["template"]["spec"];
            let is_host = |volume: &&Value| volume["hostPath"]["path"] == "/sys/fs/bpf";
            let volumes: Vec<&Value> = items(&pod["volumes"]).iter().filter(is_host).collect();
            assert_eq!(volumes.len(), 1, "{of}");
            let is_mount = |mount: &Value| {
                mount["name"] == volumes[0]["name"]
                    && mount["mountPath"] == "/sys/fs/bpf"
                    && mount["readOnly"].is_null()
            };
            // The init container of a cleanup, else the enforcer itself.
            let containers = items(&pod["initContainers"])
                .iter()
                .chain(items(&pod["containers"]));
            let mut writers = containers.filter(|container| container["command"][0] == "/usr/bin/enforcer");
            let writer = writers.next().ok_or("no enforcer")?;
            assert!(items(&writer["volumeMounts"]).iter().any(is_mount), "{of}");
            enforcers += 1;
        }
    }
    assert!(enforcers > 20, "{enforcers}");
    Ok(())
}

/// A restart ends connections and loses records: a node that is only busy must not bring one about.
#[test]
fn a_busy_node_restarts_nothing() -> TestResult {
    let Some(all) = renderings()? else {
        return Ok(());
    };
    let mut probes = 0;
    for (of, rendered) in &all {
        for container in containers(&objects(rendered)) {
            for kind in ["livenessProbe", "readinessProbe"] {
                let probe = &container[kind];
                if probe.is_null() {
                    continue;
                }
                let seconds = probe["timeoutSeconds"].as_u64().unwrap_or(1);
                assert!(seconds >= 5, "{of}: {kind} of {}: {probe}", container["name"]);
                probes += 1;
            }
        }
    }
    assert!(probes > 30, "{probes}");
    Ok(())
}

/// Behind their arguments is one that is wrong: a program that complains of no other has understood them.
#[test]
fn the_programs_understand_their_arguments() -> TestResult {
    let Some(all) = renderings()? else {
        return Ok(());
    };
    let mut asked = 0;
    for (of, rendered) in &all {
        for container in containers(&objects(rendered)) {
            let program = DaemonSpec::enforcer(0).binary.with_file_name(
                text(&container["command"][0])
                    .strip_prefix("/usr/bin/")
                    .unwrap_or_else(|| panic!("{of}: {container} names no program of the image")),
            );
            let name = program.file_name().unwrap().display().to_string();
            let mut arguments = strings(&container["args"]);
            let (wrong, complaint) = match (name.as_str(), arguments[0]) {
                ("enforcer", "cleanup" | "controller") => {
                    ("--nothing-of-this-name", "--nothing-of-this-name")
                }
                ("enforcer", _) => ("--config=/nothing/here.yaml", "/nothing/here.yaml"),
                ("egret-cni", "install" | "uninstall") => {
                    ("--nothing-of-this-name", "--nothing-of-this-name")
                }
                ("dnsd", "node-cache") => ("-nothing-of-this-name", "nothing-of-this-name"),
                ("proxy-server" | "proxy-agent", _) => ("--nothing-of-this-name", "--nothing-of-this-name"),
                _ => continue,
            };
            // As clap has it, and as upstream's have it.
            let refused = if name.starts_with("proxy-") { 2 } else { 64 };
            arguments.push(wrong);
            let output = Command::new(&program)
                .args(
                    arguments
                        .iter()
                        .map(|argument| argument.replace("$(HOST_IP)", "192.0.2.1"))
                        .map(|argument| argument.replace("[192.0.2.1]", "[2001:db8::1]")),
                )
                .output()?;
            let stderr = String::from_utf8_lossy(&output.stderr);
            assert_eq!(
                output.status.code(),
                Some(refused),
                "{of}: {name} {arguments:?}: {stderr}"
            );
            assert!(stderr.contains(complaint), "{of}: {name} {arguments:?}: {stderr}");
            asked += 1;
        }
    }
    assert!(asked > 30, "{asked}");
    Ok(())
}

#[test]
fn dnsd_reads_the_corefiles() -> TestResult {
    let Some(all) = renderings()? else {
        return Ok(());
    };
    let folder = tempfile::tempdir()?;
    let corefile = folder.path().join("Corefile");
    for (of, rendered) in &all {
        for map in objects(rendered)
            .iter()
            .filter(|object| object["kind"] == "ConfigMap" && !object["data"]["Corefile"].is_null())
        {
            let filled = text(&map["data"]["Corefile"])
                .replace("__PILLAR__CLUSTER__DNS__", "10.96.104.4")
                .replace("__PILLAR__UPSTREAM__SERVERS__", "/etc/resolv.conf");
            fs::write(&corefile, filled)?;
            let output = Command::new(DaemonSpec::dnsd(0).binary)
                .arg("check")
                .arg(&corefile)
                .output()?;
            assert!(
                output.status.success(),
                "{of}: {}",
                String::from_utf8_lossy(&output.stderr)
            );
        }
    }
    Ok(())
}

/// The permits are in one BPF file system, the host's, where dnsd looks for them and the enforcer expects them.
#[test]
fn both_daemons_have_what_answers_of_the_kernel_need() -> TestResult {
    let chart = template("dnsd.kernelAnswers=true")?;
    let with_programs = template("dnsd.kernelAnswers=true,enforcer.backend=both")?;
    let overlay = kustomize("overlays/kernel-answers")?;
    let (Some(chart), Some(with_programs), Some(overlay)) = (chart, with_programs, overlay) else {
        return Ok(());
    };
    for (of, rendered) in [("chart", chart), ("both", with_programs), ("overlay", overlay)] {
        let objects = objects(&rendered);
        let named = |kind: &str, name: &str| {
            let is_it = |object: &&Value| object["kind"] == kind && object["metadata"]["name"] == name;
            objects
                .iter()
                .find(is_it)
                .unwrap_or_else(|| panic!("{of}: no {name}"))
        };
        for name in ["egret-enforcer", "egret-dnsd"] {
            let pod = &named("DaemonSet", name)["spec"]["template"]["spec"];
            let is_host = |volume: &&Value| volume["hostPath"]["path"] == "/sys/fs/bpf";
            let volumes: Vec<&Value> = items(&pod["volumes"]).iter().filter(is_host).collect();
            assert_eq!(volumes.len(), 1, "{of}: {name}");
            let is_mount = |mount: &&Value| mount["name"] == volumes[0]["name"];
            let mounts: Vec<&Value> = items(&pod["containers"][0]["volumeMounts"])
                .iter()
                .filter(is_mount)
                .collect();
            assert_eq!(mounts.len(), 1, "{of}: {name}");
            assert_eq!(mounts[0]["mountPath"], "/sys/fs/bpf", "{of}: {name}");
            assert!(mounts[0]["readOnly"].is_null(), "{of}: {name}");
            let added = strings(&pod["containers"][0]["securityContext"]["capabilities"]["add"]);
            let needed: &[&str] = match name {
                "egret-dnsd" => &["BPF", "NET_ADMIN"],
                _ => &["SYS_ADMIN"],
            };
            assert!(
                needed.iter().all(|one| added.contains(one)),
                "{of}: {name} {added:?}"
            );
        }
        let config: Value =
            serde_saphyr::from_str(text(&named("ConfigMap", "egret-dnsd")["data"]["dnsd.yaml"]))?;
        // The enforcer's default of bpfPins is /sys/fs/bpf/egret.
        assert_eq!(config["host"]["kernelAnswers"], "/sys/fs/bpf/egret-dns", "{of}");
        assert_eq!(config["link"], "/run/egret/link.sock", "{of}");
    }
    Ok(())
}

struct Cluster {
    kubernetes: Kubernetes,
    world: World,
}

impl Cluster {
    /// With the kinds that Egret watches and the namespace; none where something cannot be had, which is said.
    fn start() -> Option<Self> {
        let world = World::or_skip()?;
        let kubernetes = Kubernetes::start_audited(&world).unwrap()?;
        for definition in kubernetes::network_policy_api()
            .unwrap()
            .into_iter()
            .chain([kubernetes::service_monitor().unwrap()])
        {
            let path = definition.display().to_string();
            // Too large for the annotation that `kubectl apply` would leave.
            kubernetes.kubectl(&world, &["create", "-f", &path]).unwrap();
        }
        kubernetes
            .kubectl(
                &world,
                &[
                    "create",
                    "-f",
                    &deploy()
                        .join("kustomize/base/namespace.yaml")
                        .display()
                        .to_string(),
                ],
            )
            .unwrap();
        Some(Self { kubernetes, world })
    }

    /// What nobody knows is refused, not dropped.
    fn apply(&self, rendered: &str, more: &[&str]) -> TestResult {
        let path = self.world.files().join("rendered.yaml");
        fs::write(&path, rendered)?;
        let path = path.display().to_string();
        let apply = [
            "apply",
            "--server-side",
            "--force-conflicts",
            "--validate=strict",
            "-f",
            &path,
        ];
        self.kubernetes.kubectl(&self.world, &[&apply[..], more].concat())
    }
}

#[test]
fn everything_rendered_is_admitted() -> TestResult {
    let Some(all) = renderings()? else {
        return Ok(());
    };
    let Some(cluster) = Cluster::start() else {
        return Ok(());
    };
    for (of, rendered) in &all {
        cluster
            .apply(rendered, &["--dry-run=server"])
            .map_err(|refused| format!("{of}: {refused}"))?;
    }
    let wrong = kustomize("base")?
        .unwrap()
        .replace("hostNetwork: true", "hostNetwrk: true");
    let refused = cluster
        .apply(&wrong, &["--dry-run=server"])
        .unwrap_err()
        .to_string();
    assert!(refused.contains("hostNetwrk"), "{refused}");
    Ok(())
}

/// The public manifest declares ports, which two instances on a node could not both have.
#[test]
fn the_overlay_takes_the_place_of_an_add_on_that_was_applied_before() -> TestResult {
    let (Some(overlay), Some(cluster)) = (kustomize("overlays/node-local-dns")?, Cluster::start()) else {
        return Ok(());
    };
    let add_on = fs::read_to_string(deploy().join("kustomize/overlays/node-local-dns/node-local-dns.yaml"))?
        .replace(
            "ghcr.io/egret-project/egret:0.1.0",
            "registry.k8s.io/dns/k8s-dns-node-cache:1.26.4",
        )
        .replace("        command: [/usr/bin/dnsd]\n", "")
        .replace("\"node-cache\", ", "")
        .replace("maxSurge: 1", "maxSurge: 0")
        .replace("maxUnavailable: 0", "maxUnavailable: 10%")
        .replace(
            "        resources:\n",
            "        ports: [{containerPort: 53, name: dns, protocol: UDP}]\n        resources:\n",
        );
    cluster.kubernetes.apply_text(&cluster.world, &add_on)?;
    let ask = |path: &str| {
        let output = format!("jsonpath={{.spec.template.spec.containers[0].{path}}}");
        let daemon_set = [
            "get",
            "daemonset",
            "node-local-dns",
            "-n",
            "kube-system",
            "-o",
            &output,
        ];
        cluster.kubernetes.asked(&cluster.world, &daemon_set)
    };
    assert!(ask("ports")?.contains("53"));
    cluster.apply(&overlay, &[])?;
    assert_eq!(ask("ports")?, "");
    assert_eq!(ask("image")?, "ghcr.io/egret-project/egret:0.1.0");
    let daemon_sets = ["get", "daemonset", "-A", "-o", "name"];
    let names = cluster.kubernetes.asked(&cluster.world, &daemon_sets)?;
    assert_eq!(
        names,
        "daemonset.apps/egret-enforcer\ndaemonset.apps/node-local-dns\n"
    );
    Ok(())
}

/// With its default, where that is a word; `none` and the like are for what is empty.
#[test]
fn the_page_has_a_line_for_each_value() -> TestResult {
    let values: Value =
        serde_saphyr::from_str(&fs::read_to_string(deploy().join("helm/egret/values.yaml"))?)?;
    let page = fs::read_to_string(deploy().join("../docs/install.md"))?;
    let mut named = BTreeSet::new();
    for line in page.lines().filter_map(|line| line.strip_prefix("| `")) {
        if let Some((name, rest)) = line.split_once("` | ") {
            named.insert((name.to_owned(), rest.to_owned()));
        }
    }
    let mut count = 0;
    let mut open = vec![(String::new(), &values)];
    while let Some((path, value)) = open.pop() {
        let fields = value
            .as_object()
            .filter(|fields| !fields.is_empty() && !path.ends_with("resources"));
        if let Some(fields) = fields {
            for (name, value) in fields {
                open.push((format!("{path}.{name}").trim_start_matches('.').to_owned(), value));
            }
            continue;
        }
        let default = match value {
            Value::String(word) if !word.is_empty() => format!("`{word}` |"),
            Value::Bool(word) => format!("`{word}` |"),
            _ => String::new(),
        };
        let has_line = named
            .iter()
            .any(|(name, rest)| *name == path && rest.starts_with(&default));
        assert!(has_line, "{path} with {default} is not in docs/install.md");
        count += 1;
    }
    assert!(count > 20, "{count}");
    Ok(())
}
