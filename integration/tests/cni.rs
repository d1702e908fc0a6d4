//! The CNI plugin: a pod may send as its policies say from its first packet on, before its Pod object has addresses.

#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "a test that cannot go on fails there and then, and waits for real processes"
)]

use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use egret_integration::{Daemon, Outcome, Pod, PodSpec, Service, World};

type TestResult = Result<(), Box<dyn std::error::Error>>;

const ALLOWED: &str = "203.0.113.7:7";
const FORBIDDEN: &str = "203.0.113.8:7";
/// Shorter than the second after which the kernel repeats a SYN: what connects within it needed its first SYN alone.
const ONE_SYN: Duration = Duration::from_millis(700);
const SERVED: u16 = 8080;

/// Every pod may send to one address and to `server`, which takes connections of `late` alone.
const POLICIES: &str = r#"apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: one-address, namespace: default}
spec:
  podSelector: {}
  policyTypes: [Egress]
  egress:
  - to: [{ipBlock: {cidr: 203.0.113.7/32}}, {podSelector: {matchLabels: {app: server}}}]
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: from-late, namespace: default}
spec:
  podSelector: {matchLabels: {app: server}}
  policyTypes: [Ingress]
  ingress:
  - from: [{podSelector: {matchLabels: {app: late}}}]
"#;

fn world() -> Option<World> {
    let world = World::or_skip()?;
    world.manifests().write("policies.yaml", POLICIES).unwrap();
    let world = world.with(PodSpec::new("server")).unwrap();
    world.pod("server").serve(SERVED, Service::TcpEcho).unwrap();
    Some(world)
}

/// The enforcer, heard by the plugin.
fn enforcer(world: &World) -> Result<Daemon, Box<dyn std::error::Error>> {
    Ok(world.start(world.enforcer("netfilter"))?)
}

fn config(world: &World, more: &str) -> String {
    format!(
        r#""cniVersion": "1.0.0", "name": "pods", "type": "egret-cni", "socket": "{}"{more}"#,
        world.cni().display()
    )
}

/// What the plugin ptp returns.
fn result(pod: &Pod) -> String {
    let [v4, v6] = pod.addresses();
    format!(
        r#"{{"cniVersion": "1.0.0", "interfaces": [{{"name": "{host}"}}, {{"name": "eth0", "sandbox": "{netns}"}}],
        "ips": [{{"address": "{v4}/32", "interface": 1}}, {{"address": "{v6}/128", "interface": 1}}],
        "dns": {{"nameservers": ["169.254.20.10"]}}}}"#,
        host = pod.interface(),
        netns = netns(pod),
    )
}

fn netns(pod: &Pod) -> String {
    format!("/run/netns/{}", pod.netns_name())
}

/// Runs the plugin in the node, as a container runtime does. Returns whether it succeeded, and its output.
fn run(
    world: &World,
    command: &str,
    pod: &str,
    config: &str,
) -> Result<(bool, serde_json::Value), Box<dyn std::error::Error>> {
    let folder = std::env::var_os("EGRET_BIN_DIR").map_or_else(
        || {
            let here = std::env::current_exe().unwrap();
            here.ancestors().nth(2).unwrap().to_owned()
        },
        std::path::PathBuf::from,
    );
    run_program(world, &folder.join("egret-cni"), command, pod, config)
}

fn run_program(
    world: &World,
    plugin: &Path,
    command: &str,
    pod: &str,
    config: &str,
) -> Result<(bool, serde_json::Value), Box<dyn std::error::Error>> {
    let pod = world.pod(pod);
    let script = format!(
        "CNI_COMMAND={command} CNI_CONTAINERID=sandbox-of-{name} CNI_NETNS={netns} CNI_IFNAME=eth0 CNI_PATH=/usr/lib/cni \
         CNI_ARGS='IgnoreUnknown=1;K8S_POD_NAMESPACE={namespace};K8S_POD_NAME={name};K8S_POD_UID={uid}' \
         {plugin} <<'END'\n{{{config}}}\nEND\n",
        name = pod.name(),
        namespace = pod.namespace(),
        uid = pod.uid(),
        netns = netns(pod),
        plugin = plugin.display(),
    );
    let done = world.node().run(&["sh", "-c", &script])?;
    let output = match done.stdout.as_str() {
        "" => serde_json::Value::Null,
        text => serde_json::from_str(text)?,
    };
    Ok((done.success(), output))
}

fn add(
    world: &World,
    pod: &str,
    more: &str,
) -> Result<(bool, serde_json::Value), Box<dyn std::error::Error>> {
    let previous = format!(r#"{more}, "prevResult": {}"#, result(world.pod(pod)));
    run(world, "ADD", pod, &config(world, &previous))
}

fn add_well(world: &World, pod: &str) -> TestResult {
    let (is_done, output) = add(world, pod, "")?;
    assert!(is_done, "{output}");
    Ok(())
}

fn reach(world: &World, to: &str) -> Outcome {
    world.pod("late").connect_tcp(to.parse().unwrap(), ONE_SYN)
}

#[track_caller]
fn assert_judged(world: &World) {
    let outcome = reach(world, ALLOWED);
    assert!(
        outcome.is_connected(),
        "the first SYN to an allowed address: {outcome:?}"
    );
    let outcome = reach(world, FORBIDDEN);
    assert!(
        matches!(outcome, Outcome::TimedOut),
        "a SYN to a denied address: {outcome:?}"
    );
}

#[track_caller]
fn assert_closed(world: &World) {
    for to in [ALLOWED, FORBIDDEN] {
        let outcome = reach(world, to);
        assert!(matches!(outcome, Outcome::TimedOut), "{to}: {outcome:?}");
    }
}

fn kept(world: &World) -> usize {
    let folder = egret_shared::cni::network_folder(&world.cni());
    std::fs::read_dir(folder).map_or(0, Iterator::count)
}

#[test]
fn a_pods_first_packet_after_add_is_judged_by_its_policies() -> TestResult {
    let Some(world) = world() else { return Ok(()) };
    let world = world.with(PodSpec::new("late").without_status())?;
    let _enforcer = enforcer(&world)?;
    assert_closed(&world);
    let (is_done, output) = add(&world, "late", "")?;
    // The policy of the other pod that names this one is in force as well.
    let to_server = SocketAddr::new(world.pod("server").address(), SERVED);
    let outcome = world.pod("late").connect_tcp(to_server, ONE_SYN);
    assert_judged(&world);
    assert!(outcome.is_connected(), "the first SYN to the server: {outcome:?}");
    let expected: serde_json::Value = serde_json::from_str(&result(world.pod("late")))?;
    assert_eq!((is_done, output), (true, expected));

    let previous = format!(r#", "prevResult": {}"#, result(world.pod("late")));
    let (is_in_force, output) = run(&world, "CHECK", "late", &config(&world, &previous))?;
    assert!(is_in_force, "{output}");
    for _again in 0..2 {
        let (is_done, output) = run(&world, "DEL", "late", &config(&world, ""))?;
        assert_eq!((is_done, output), (true, serde_json::Value::Null));
    }
    assert_eq!(kept(&world), 0);
    assert_closed(&world);
    let (is_in_force, output) = run(&world, "CHECK", "late", &config(&world, &previous))?;
    assert!(!is_in_force && output["code"] == 100, "{output}");
    Ok(())
}

/// Its mirror has another UID than the one that the runtime says.
#[test]
fn a_static_pod_starts_when_its_rules_are_in_force() -> TestResult {
    let Some(world) = world() else { return Ok(()) };
    let world = world.with(PodSpec::new("late").without_status().mirrored())?;
    let _enforcer = enforcer(&world)?;
    add_well(&world, "late")?;
    assert_judged(&world);
    Ok(())
}

/// As with plugins whose agent writes the routes: what the plugin returns says where the pod is.
#[test]
fn a_pod_is_behind_the_interface_of_its_link_whatever_the_routes_say() -> TestResult {
    let Some(world) = world() else { return Ok(()) };
    let world = world.with(PodSpec::new("late").without_status())?;
    let _enforcer = enforcer(&world)?;
    let route = |verb: &str| -> TestResult {
        for address in world.pod("late").addresses() {
            let (family, to) = (if address.is_ipv4() { "-4" } else { "-6" }, address.to_string());
            let link = world.pod("late").interface();
            world
                .node()
                .run_well(&["ip", family, "route", verb, &to, "dev", link])?;
        }
        Ok(())
    };
    route("del")?;
    add_well(&world, "late")?;
    route("add")?;
    assert_judged(&world);
    Ok(())
}

#[test]
fn add_waits_for_the_pod_object() -> TestResult {
    let Some(world) = world() else { return Ok(()) };
    let world = world.with(PodSpec::new("late").without_status().unannounced())?;
    let enforcer = enforcer(&world)?;
    let (is_done, output) = add(&world, "late", r#", "waitSeconds": 1"#)?;
    assert!(!is_done && output["code"] == 11, "{output}");
    let reason = output["msg"].as_str().unwrap_or_default();
    assert!(reason.contains("the source has no Pod default/late"), "{reason}");
    assert_eq!(kept(&world), 0);
    std::thread::scope(|scope| {
        let added = scope.spawn(|| add_well(&world, "late").map_err(|error| error.to_string()));
        while kept(&world) == 0 {
            std::thread::sleep(Duration::from_millis(5));
        }
        world.announce("late").map_err(|error| error.to_string())?;
        added.join().unwrap()
    })?;
    assert_judged(&world);
    let metrics = enforcer.metrics()?;
    for outcome in ["ready", "not-ready"] {
        let labels = [("command", "add"), ("outcome", outcome)];
        assert_eq!(
            metrics.sum("egret_enforcer_cni_requests_total", &labels),
            1.0,
            "{outcome}"
        );
    }
    Ok(())
}

#[test]
fn a_pod_whose_enforcer_is_away_does_not_start_unless_the_configuration_says_so() -> TestResult {
    let Some(world) = world() else { return Ok(()) };
    let world = world.with(PodSpec::new("late").without_status())?;
    let mut enforcer = enforcer(&world)?;
    enforcer.kill()?;
    let (is_done, output) = add(&world, "late", r#", "waitSeconds": 1"#)?;
    assert!(!is_done && output["code"] == 11, "{output}");
    assert_eq!(kept(&world), 0);
    let (is_ready, output) = run(&world, "STATUS", "late", &config(&world, ""))?;
    assert!(!is_ready && output["code"] == 50, "{output}");
    // It starts closed, by the rules that the enforcer left, and is known to the next one.
    let (is_done, output) = add(&world, "late", r#", "waitSeconds": 1, "onUnknownPod": "start""#)?;
    assert!(is_done && output["ips"].is_array(), "{output}");
    assert_closed(&world);
    enforcer.restart()?;
    enforcer.wait_until_ready()?;
    assert_judged(&world);
    Ok(())
}

#[test]
fn add_outlasts_a_restart_of_the_enforcer() -> TestResult {
    let Some(world) = world() else { return Ok(()) };
    let world = world.with(PodSpec::new("late").without_status())?;
    let mut enforcer = enforcer(&world)?;
    enforcer.kill()?;
    std::thread::scope(|scope| {
        let wait = r#", "waitSeconds": 60"#;
        let added = scope.spawn(|| add(&world, "late", wait).map_err(|error| error.to_string()));
        while kept(&world) == 0 {
            std::thread::sleep(Duration::from_millis(5));
        }
        enforcer.restart().map_err(|error| error.to_string())?;
        let (is_done, output) = added.join().unwrap()?;
        assert!(is_done, "{output}");
        Ok::<_, String>(())
    })?;
    assert_judged(&world);
    Ok(())
}

#[test]
fn an_enforcer_that_restarts_knows_the_networks_of_now() -> TestResult {
    let Some(world) = world() else { return Ok(()) };
    let world = world.with(PodSpec::new("late").without_status())?;
    let mut enforcer = enforcer(&world)?;
    add_well(&world, "late")?;
    enforcer.kill()?;
    assert_judged(&world);
    enforcer.restart()?;
    enforcer.wait_until_ready()?;
    assert_judged(&world);
    enforcer.kill()?;
    let (is_done, _) = run(&world, "DEL", "late", &config(&world, ""))?;
    assert!(is_done);
    enforcer.restart()?;
    enforcer.wait_until_ready()?;
    assert_closed(&world);
    Ok(())
}

/// While an enforcer listens they stay.
#[test]
fn cleanup_removes_the_sockets_and_networks_of_an_enforcer_that_has_ended() -> TestResult {
    let Some(world) = world() else { return Ok(()) };
    let world = world.with(PodSpec::new("late").without_status())?;
    let mut enforcer = enforcer(&world)?;
    add_well(&world, "late")?;
    let (binary, link, cni) = (
        enforcer.spec().binary.display().to_string(),
        world.link().display().to_string(),
        world.cni().display().to_string(),
    );
    let networks = egret_shared::cni::network_folder(&world.cni());
    let clean = || {
        let files = [
            "--state",
            "",
            "--state-objects",
            "",
            "--link",
            &link,
            "--cni",
            &cni,
        ];
        world
            .node()
            .run_well(&[&[&*binary, "cleanup"][..], &files].concat())
    };
    let are_there = || [world.link().exists(), world.cni().exists(), networks.exists()];
    clean()?;
    assert_eq!(are_there(), [true; 3]);
    enforcer.terminate()?;
    assert_eq!(are_there(), [true; 3]);
    clean()?;
    assert_eq!(are_there(), [false; 3]);
    Ok(())
}

#[test]
fn only_root_may_report_pods() -> TestResult {
    use std::os::unix::fs::PermissionsExt;
    let Some(world) = world() else { return Ok(()) };
    let enforcer = enforcer(&world)?;
    let mode = |path: &Path| std::fs::metadata(path).map(|found| found.permissions().mode() & 0o777);
    assert_eq!(mode(&world.cni())?, 0o600);
    // Whatever somebody made of the mode.
    std::fs::set_permissions(world.files(), std::fs::Permissions::from_mode(0o755))?;
    std::fs::set_permissions(world.cni(), std::fs::Permissions::from_mode(0o666))?;
    let path = world.cni().display().to_string();
    let ask = [
        "curl",
        "-s",
        "--http0.9",
        "--max-time",
        "5",
        "--unix-socket",
        &path,
        "http://enforcer/",
    ];
    let as_root = world.node().run(&ask)?;
    assert!(
        as_root.stdout.contains("the request is not understood"),
        "{as_root:?}"
    );
    let nobody = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"];
    let as_nobody = world.node().run(&[&nobody[..], &ask].concat())?;
    assert_eq!(as_nobody.stdout, "", "{as_nobody:?}");
    let log = enforcer.log();
    assert!(log.contains("user 65534 asks, and only root may"), "{log}");
    Ok(())
}

/// The plugins of containernetworking-plugins, and behind them ours, as libcni calls them: each gets the result of the one
/// before, and DEL goes backwards.
#[test]
fn a_pod_of_the_reference_plugins_is_judged_from_its_first_packet_on() -> TestResult {
    let reference = Path::new("/usr/lib/cni");
    if !reference.join("bridge").exists() {
        eprintln!("*** NOT TESTED: the package containernetworking-plugins is not installed ***");
        return Ok(());
    }
    for (plugin, subnet, more) in [
        ("ptp", "10.77.200.0/24", ""),
        (
            "bridge",
            "10.78.200.0/24",
            r#""bridge": "cni0", "isGateway": true, "#,
        ),
    ] {
        let Some(world) = world() else { return Ok(()) };
        let world = world.with(PodSpec::new("late").without_status())?;
        let late = world.pod("late");
        // The namespace of a new sandbox is empty.
        let unplug = ["ip", "link", "delete", late.interface()];
        world.node().run_well(&unplug)?;
        let _enforcer = enforcer(&world)?;
        let first = format!(
            r#""cniVersion": "1.0.0", "name": "pods", "type": "{plugin}", {more}"ipam": {{"type": "host-local", "subnet": "{subnet}",
            "dataDir": "{}", "routes": [{{"dst": "0.0.0.0/0"}}]}}"#,
            world.files().join("ipam").display()
        );
        let program = reference.join(plugin);
        let (is_done, result) = run_program(&world, &program, "ADD", "late", &first)?;
        assert!(is_done, "{result}");
        let ours = config(&world, &format!(r#", "prevResult": {result}"#));
        let (is_done, passed_on) = run(&world, "ADD", "late", &ours)?;
        let allowed = reach(&world, ALLOWED);
        assert!(is_done && passed_on == result, "{plugin}: {passed_on}");
        assert!(allowed.is_connected(), "{plugin}: {allowed:?}");
        assert_judged(&world);
        let (is_in_force, output) = run(&world, "CHECK", "late", &ours)?;
        assert!(is_in_force, "{plugin}: {output}");
        let (is_done, output) = run(&world, "DEL", "late", &ours)?;
        assert!(is_done, "{plugin}: {output}");
        assert_closed(&world);
        let (is_done, output) = run_program(&world, &program, "DEL", "late", &first)?;
        assert!(is_done, "{plugin}: {output}");
    }
    Ok(())
}
