//! Pods with more than one interface, and what leads packets past the rules.

use std::fs;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt as _;

use egret_integration::{Daemon, DaemonSpec, Pod, PodSpec, SecondInterface, World};

use super::backend_override;
use super::deployment::{Deployment, QUICK, Setup, TestResult, eventually, metrics};

/// In the network that a second interface leads to.
const SECOND: [&str; 2] = ["198.18.0.9:7", "[2001:db8:2::9]:7"];
/// Denied by the firewalls below.
const SECOND_DENIED: [&str; 2] = ["198.18.0.66:7", "[2001:db8:2::66]:7"];

const NOTHING: &str = "apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: nothing, namespace: default}
spec:
  podSelector: {}
  policyTypes: [Egress, Ingress]
";

const ONE_OF_EACH_ALONE: &str = "apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: one-of-each, namespace: default}
spec:
  podSelector: {}
  policyTypes: [Egress, Ingress]
  egress:
  - to: [{ipBlock: {cidr: 198.18.0.9/32}}, {ipBlock: {cidr: '2001:db8:2::9/128'}}]
";

fn firewall(denied: &str) -> String {
    format!(
        "apiVersion: policy.egret.dev/v1alpha1
kind: ClusterEgressFirewall
metadata: {{name: restricted}}
spec:
  services: {{exposure: Ignore}}
  rules:
  - name: restricted
    action: Deny
    to:
    - networks: [{denied}]
"
    )
}

const ONE_OF_EACH: &str = "198.18.0.66/32, '2001:db8:2::66/128'";

fn at(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

impl Deployment<'_> {
    fn can_reach(&self, to: &str) -> bool {
        self.pod("client").connect_tcp(at(to), QUICK).is_connected()
    }

    #[track_caller]
    fn assert_reached(&self, to: [&str; 2]) {
        for to in to {
            assert!(self.can_reach(to), "{to}");
        }
    }

    #[track_caller]
    fn assert_closed(&self, to: [&str; 2]) {
        for to in to {
            assert!(!self.can_reach(to), "{to}");
        }
    }

    #[track_caller]
    fn told_of(&self, enforcer: &Daemon, what: &str) {
        eventually(what, || {
            enforcer.get("/readyz").is_ok_and(|(_, text)| text.contains(what))
        });
    }
}

/// What is the enforcer's in the pod's own namespace.
fn rules_inside(pod: &Pod) -> String {
    let all = pod
        .run(&[
            "sh",
            "-c",
            "iptables-save; ip6tables-save; ipset list -n; nft list table inet egret-pod || true",
        ])
        .unwrap();
    let lines = all
        .stdout
        .lines()
        .filter(|line| line.to_lowercase().contains("egret"));
    lines.collect::<Vec<_>>().join("\n")
}

/// all interfaces that lead into a pod's namespace are its, whatever its status says of addresses.
pub(super) fn a_second_cable_of_a_pod_is_judged_as_the_first(world: &mut World) -> TestResult {
    let client = PodSpec::new("client").with_second(SecondInterface::Veth);
    let deployment = Setup::of(ONE_OF_EACH_ALONE).instead([client]).deploy(world)?;
    deployment.assert_reached(SECOND);
    deployment.assert_closed(SECOND_DENIED);
    let inwards = deployment.pod("client").second_addresses().unwrap();
    deployment
        .pod("client")
        .serve(8081, egret_integration::Service::TcpEcho)?;
    for address in inwards {
        let outcome = deployment
            .world
            .client_outside()
            .connect_tcp(SocketAddr::new(address, 8081), QUICK);
        assert!(!outcome.is_connected(), "{address}: {outcome:?}");
    }
    Ok(())
}

/// rules inside the pod, for ClusterEgressFirewall alone; that nothing else holds there is told.
pub(super) fn a_cluster_firewall_holds_on_an_interface_that_leads_past_the_node(
    world: &mut World,
) -> TestResult {
    let client = PodSpec::new("client").with_second(SecondInterface::Macvlan);
    let deployment = Setup::of(firewall(ONE_OF_EACH))
        .instead([client])
        .enforcer(&["--resync", "1s"])
        .deploy(world)?;
    deployment.told_of(
        &deployment.enforcer,
        "the interface net1 (macvlan) of pod default/client leads past the node, and ClusterEgressFirewall alone is enforced there",
    );
    assert_eq!(
        metrics(&deployment.enforcer).sum("egret_enforcer_unjudged", &[("kind", "interface")]),
        1.0
    );
    deployment.assert_reached(SECOND);
    deployment.assert_closed(SECOND_DENIED);

    // What somebody in the pod removes is put back when the kernel is read again.
    let client = deployment.pod("client");
    match backend_override::packet_filter() {
        "nftables" => drop(client.run(&["nft", "flush chain inet egret-pod OUTPUT"])?),
        _ => {
            for program in ["iptables", "ip6tables"] {
                client.run(&[program, "-F", "OUTPUT"])?;
            }
        }
    }
    eventually("the rules are there again", || {
        SECOND_DENIED.iter().all(|to| !deployment.can_reach(to))
    });

    // A change counts for what is open as well.
    let mut open = client.connect_tcp(at(SECOND[0]), QUICK).connection();
    open.echo_within(QUICK)?;
    deployment
        .world
        .manifests()
        .write("policy.yaml", &firewall("198.18.0.0/15, '2001:db8:2::/48'"))?;
    eventually("the firewall is in force", || {
        SECOND.iter().all(|to| !deployment.can_reach(to))
    });
    assert!(open.echo_within(QUICK).is_err());

    deployment.world.manifests().remove("policy.yaml")?;
    eventually("it is gone", || {
        SECOND_DENIED.iter().all(|to| deployment.can_reach(to))
    });
    assert_eq!(rules_inside(client), "");

    // Cleanup finds what a life left that was killed.
    deployment
        .world
        .manifests()
        .write("policy.yaml", &firewall(ONE_OF_EACH))?;
    eventually("the firewall is back", || {
        SECOND_DENIED.iter().all(|to| !deployment.can_reach(to))
    });
    assert_ne!(rules_inside(client), "");
    let binary = deployment.enforcer.spec().binary.display().to_string();
    drop(deployment);
    let clean = [binary.as_str(), "cleanup", "--state", "", "--state-objects", ""];
    world.node().run_well(&clean)?;
    assert_eq!(rules_inside(world.pod("client")), "");
    Ok(())
}

/// What cannot be done inside the pod makes it pending; what the node does for it is done.
pub(super) fn who_may_not_enter_a_pod_says_so_and_does_the_rest(world: &mut World) -> TestResult {
    world.add(PodSpec::new("client").with_second(SecondInterface::Macvlan))?;
    let denied = format!("203.0.113.66/32, {ONE_OF_EACH}");
    world.manifests().write("policy.yaml", &firewall(&denied))?;
    let spec = world.enforcer(backend_override::packet_filter());
    let weak = world.files().join("weak-enforcer");
    let lines = format!(
        "#!/bin/sh\nexec setpriv --bounding-set -sys_admin {} \"$@\"\n",
        spec.binary.display()
    );
    fs::write(&weak, lines)?;
    fs::set_permissions(&weak, fs::Permissions::from_mode(0o755))?;
    let enforcer = world.launch(DaemonSpec { binary: weak, ..spec })?;
    let reason = "pod default/client is pending in its own namespace: its network namespace cannot be entered without CAP_SYS_ADMIN";
    eventually("it is pending", || {
        let answer = enforcer.get("/readyz");
        answer.is_ok_and(|(code, text)| code == 503 && text.contains(reason))
    });
    let reaches = |to| world.pod("client").connect_tcp(at(to), QUICK).is_connected();
    assert!(!reaches("203.0.113.66:7") && reaches("203.0.113.7:7"));
    assert!(reaches(SECOND_DENIED[0]), "nobody is there who could refuse it");
    Ok(())
}

pub(super) fn a_filter_on_a_pods_link_is_told_and_counted(world: &mut World) -> TestResult {
    let deployment = Setup::of(NOTHING).deploy(world)?;
    let count = |kind| metrics(&deployment.enforcer).sum("egret_enforcer_fast_paths", &[("kind", kind)]);
    assert_eq!(count("tc"), 0.0);
    let interface = deployment.pod("client").interface().to_owned();
    let node = deployment.world.node();
    node.run_well(&["tc", "qdisc", "add", "dev", &interface, "clsact"])?;
    let filter = [
        "tc", "filter", "add", "dev", &interface, "ingress", "u32", "match", "u32", "0", "0",
    ];
    node.run_well(&filter)?;
    // News of links come, those of filters do not.
    node.run_well(&["ip", "link", "set", &interface, "txqueuelen", "500"])?;
    eventually("the filter is counted", || count("tc") == 1.0);
    deployment.told_of(
        &deployment.enforcer,
        &format!("the tc filter u32 on {interface} may lead packets of pods past the rules"),
    );
    assert!(
        deployment.enforcer.log().contains("the tc filter u32"),
        "it is logged"
    );
    node.run_well(&["tc", "qdisc", "delete", "dev", &interface, "clsact"])?;
    node.run_well(&["ip", "link", "set", &interface, "txqueuelen", "1000"])?;
    eventually("it is gone", || count("tc") == 0.0);
    Ok(())
}
