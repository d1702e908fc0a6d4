//! What is shown on the cluster, chapter by chapter.

use std::{net::IpAddr, path::PathBuf, time::Duration};

use crate::{
    Metrics,
    demo::{Mood, Screen, Stop},
};

use super::{
    Cluster, Failure, NODES, backends, image, konnectivity,
    kubectl::Kubectl,
    network::Network,
    node::Node,
    node_local_dns,
    objects::{ALLOWED, REFUSED, dns_and_clients, policy},
    outages, plugin,
    traffic::{Seen, Traffic},
    uninstall::{self, Traces},
    until, upgrade,
};

/// In the source of a build.
pub(super) const CHART: &str = "deploy/helm/egret";
/// That of the other build.
pub(super) const OTHER_CHART: &str = "other/deploy/helm/egret";
/// Egret's workloads, each with its namespace.
pub(super) const WORKLOADS: [(&str, &str); 4] = [
    ("egret-system", "daemonset/egret-enforcer"),
    ("kube-system", "daemonset/egret-dnsd"),
    ("egret-system", "deployment/egret-controller"),
    konnectivity::AGENTS,
];
const STEP_WITHIN: Duration = Duration::from_secs(60);
pub(super) const ROLLED_OUT_WITHIN: Duration = Duration::from_secs(180);

/// The cluster while it is shown.
pub(super) struct Story<'a> {
    pub(super) cluster: &'a mut Cluster,
    pub(super) kubectl: Kubectl,
    pub(super) screen: Screen,
    pub(super) stop: &'a Stop,
    all_as_expected: bool,
}

/// Whether everything was as expected. With `keep` the chart stays installed.
pub(super) fn play(cluster: &mut Cluster, keep: bool, stop: &Stop) -> Result<bool, Failure> {
    let mut story = Story {
        kubectl: cluster.kubectl(),
        screen: cluster.screen,
        cluster,
        stop,
        all_as_expected: true,
    };
    story
        .tell(keep)
        .map_err(|error| diagnose(&story.kubectl, &error))?;
    Ok(story.all_as_expected)
}

impl Story<'_> {
    fn tell(&mut self, keep: bool) -> Result<(), Failure> {
        self.start_dns()?;
        // kube-proxy has written the rules of the cluster DNS.
        self.more_traffic(&self.traffic(false)?, 100)?;
        let before = Traces::of(&self.cluster.nodes)?;
        node_local_dns::play(self)?;
        konnectivity::without_agents(self)?;
        self.install()?;
        konnectivity::play(self)?;
        self.apply_policy()?;
        plugin::play(self)?;
        self.show_status()?;
        outages::play(self)?;
        upgrade::play(self)?;
        backends::netfilter(self)?;
        backends::ebpf_and_back(self)?;
        self.delete_policy()?;
        if keep {
            return Ok(());
        }
        backends::ebpf(self)?;
        uninstall::play(self, &before)
    }

    fn start_dns(&mut self) -> Result<(), Failure> {
        self.screen.heading("The cluster DNS and a client");
        self.kubectl.apply(&dns_and_clients(self.cluster.network))?;
        self.roll_out(&[
            ("kube-system", "deployment/coredns"),
            ("shop", "deployment/client"),
        ])?;
        self.show_pods()
    }

    fn install(&mut self) -> Result<(), Failure> {
        self.screen.heading("The chart");
        self.helm(&format!(
            "install egret deploy/helm/egret --namespace kube-system --set cni.enabled=true --set dns.address={} --set {}",
            self.cluster.network.local_dns(),
            konnectivity::values(self.cluster.network)
        ))?;
        self.roll_out(&WORKLOADS)?;
        for node in &self.cluster.nodes {
            if !node.chains_egret()? {
                return Err("egret-cni is not in the network configuration of a node".into());
            }
        }
        self.show_pods()
    }

    fn apply_policy(&mut self) -> Result<(), Failure> {
        let network = self.cluster.network;
        self.step("Without a policy both names are reached", |kubectl| {
            Ok(all_say(kubectl, network, ALLOWED, "hello")? && all_say(kubectl, network, REFUSED, "hello")?)
        })?;
        self.screen.typed("$ kubectl", "apply -f one-name.yaml");
        self.kubectl.apply(&policy(network))?;
        self.step("With the policy the other name is refused", |kubectl| {
            all_say(kubectl, network, REFUSED, "refused")
        })?;
        self.step("The allowed name is reached", |kubectl| {
            all_say(kubectl, network, ALLOWED, "hello")
        })
    }

    fn show_status(&mut self) -> Result<(), Failure> {
        self.step(
            "The status says that the policy is accepted and programmed",
            |kubectl| {
                let conditions = kubectl.get(&[
                    "clusteregressfirewall",
                    "one-name",
                    "-o",
                    "jsonpath={range .status.conditions[*]}{.type}={.status} {end}",
                ])?;
                let is_true = |condition: &str| {
                    conditions
                        .split(' ')
                        .any(|seen| seen == format!("{condition}=True"))
                };
                if is_true("Accepted") && is_true("Programmed") {
                    Ok(true)
                } else {
                    Err(conditions.into())
                }
            },
        )?;
        let nodes = self.cluster.nodes.iter().map(Node::addresses).collect::<Vec<_>>();
        self.step(
            "The report of each node names its addresses of each family",
            |kubectl| {
                let columns = "jsonpath={range .items[*]}{.addresses[*].ip}{'\\n'}{end}";
                let reports = kubectl.get(&["nodeaddressreports", "-o", columns])?;
                let names = |(report, addresses): (&str, &Vec<IpAddr>)| {
                    let reported = report.split(' ').collect::<Vec<_>>();
                    addresses
                        .iter()
                        .all(|address| reported.contains(&&*address.to_string()))
                };
                if reports.lines().count() == nodes.len() && reports.lines().zip(&nodes).all(names) {
                    Ok(true)
                } else {
                    Err(reports.into())
                }
            },
        )?;
        self.screen.typed("$ kubectl", "get clusteregressfirewalls");
        self.screen.plain(&self.kubectl.get(&["clusteregressfirewalls"])?);
        Ok(())
    }

    fn delete_policy(&mut self) -> Result<(), Failure> {
        self.screen
            .typed("$ kubectl", "delete clusteregressfirewall one-name");
        self.kubectl
            .run(&["delete", "clusteregressfirewall", "one-name"])?;
        let network = self.cluster.network;
        self.step("Without it the other name is reached again", |kubectl| {
            all_say(kubectl, network, REFUSED, "hello")
        })
    }

    fn show_pods(&self) -> Result<(), Failure> {
        self.screen.plain(&self.kubectl.get(&["pods", "-A"])?);
        Ok(())
    }
}

// === What chapters use ===

impl Story<'_> {
    /// Looks until it is so, for a minute.
    pub(super) fn step(
        &mut self,
        title: &str,
        mut is_so: impl FnMut(&Kubectl) -> Result<bool, Failure>,
    ) -> Result<(), Failure> {
        self.screen.heading(title);
        let kubectl = self.kubectl.clone();
        match until(self.stop, title, STEP_WITHIN, || is_so(&kubectl)) {
            Ok(()) => self.screen.coloured(Mood::Good, "seen"),
            Err(error) if self.stop.was_asked() => return Err(error),
            Err(error) => {
                self.all_as_expected = false;
                self.screen
                    .coloured(Mood::Bad, &diagnose(&self.kubectl, &error).to_string());
            }
        }
        Ok(())
    }

    /// What was seen, and whether it is as it has to be.
    pub(super) fn conclude(&mut self, is_as_expected: bool, seen: &str) {
        self.all_as_expected &= is_as_expected;
        self.screen.coloured(Mood::of(is_as_expected), seen);
    }

    pub(super) fn roll_out(&self, all: &[(&str, &str)]) -> Result<(), Failure> {
        let names = all.iter().map(|(_, name)| *name).collect::<Vec<_>>().join(", ");
        until(
            self.stop,
            &format!("{names} are ready"),
            ROLLED_OUT_WITHIN,
            || {
                Ok(all.iter().all(|(namespace, name)| {
                    self.kubectl
                        .run(&["-n", namespace, "rollout", "status", name, "--timeout=2s"])
                        .is_ok()
                }))
            },
        )
    }

    /// Runs helm with arguments that spaces part, [`CHART`] and [`OTHER_CHART`] among them, and shows them.
    pub(super) fn helm(&self, arguments: &str) -> Result<(), Failure> {
        self.screen.typed("$ helm", arguments);
        let other = image::other_source().map(|source| format!("{}/{CHART}", source.display()));
        let arguments = arguments.split(' ').map(|word| match word {
            CHART => concat!(env!("CARGO_MANIFEST_DIR"), "/../deploy/helm/egret"),
            OTHER_CHART => other.as_deref().unwrap_or_default(),
            word => word,
        });
        self.kubectl.helm(&arguments.collect::<Vec<_>>())?;
        Ok(())
    }

    /// Traffic of all clients; `judges` as for [`Traffic::start`].
    pub(super) fn traffic(&self, judges: bool) -> Result<Traffic, Failure> {
        Traffic::start(&self.client_namespaces()?, self.cluster.network, judges)
    }

    /// Waits until this much more was answered, and as many connections have ended as it judges.
    pub(super) fn more_traffic(&self, traffic: &Traffic, queries: usize) -> Result<Seen, Failure> {
        let before = traffic.seen().answered;
        until(self.stop, "queries are answered", STEP_WITHIN, || {
            Ok(traffic.seen().answered >= before + queries)
        })?;
        Ok(traffic.seen())
    }

    fn client_namespaces(&self) -> Result<Vec<PathBuf>, Failure> {
        let pods = self.kubectl.get(&[
            "pods",
            "-n",
            "shop",
            "-l",
            "app=client",
            "-o",
            "jsonpath={.items[*].status.podIP}",
        ])?;
        let nodes = &self.cluster.nodes;
        let namespace = |address: &str| nodes.iter().find_map(|node| node.pod_netns(address));
        pods.split_whitespace()
            .map(|address| namespace(address).ok_or_else(|| format!("no namespace has {address}").into()))
            .collect()
    }
}

/// The enforcer's metrics on a node.
pub(super) fn metrics_of(node: &Node) -> Result<Metrics, Failure> {
    let text = node.get("http://127.0.0.1:9254/metrics")?;
    Ok(Metrics::parse(&text)?)
}

/// Whether all clients, one on each node, say this of the page by each family: `hello` when they get it, else `refused`.
pub(super) fn all_say(
    kubectl: &Kubectl,
    network: Network,
    name: &str,
    expected: &str,
) -> Result<bool, Failure> {
    let pods = kubectl.get(&[
        "pods",
        "-n",
        "shop",
        "-l",
        "app=client",
        "-o",
        "jsonpath={.items[*].metadata.name}",
    ])?;
    let pods = pods.split_whitespace().collect::<Vec<_>>();
    // The resolver of the C library is not in a static program.
    let script = format!(
        "for address in $(nslookup {name} | busybox awk '/^Address: / {{ print $2 }}'); do \
         case $address in *:*) address=[$address];; esac; \
         busybox timeout 3 wget -q -O - http://$address/ 2>/dev/null || echo refused; done"
    );
    for pod in &pods {
        let said = kubectl.run(&["exec", "-n", "shop", pod, "--", "sh", "-c", &script])?;
        if !said.lines().eq(network.alike(expected)) {
            return Err(format!("{pod} says {} of {name}", said.trim()).into());
        }
    }
    Ok(pods.len() == NODES.len())
}

/// With what Kubernetes says of its pods.
pub(super) fn diagnose(kubectl: &Kubectl, error: &Failure) -> Failure {
    let said = |arguments: &[&str]| kubectl.run(arguments).unwrap_or_else(|error| error.to_string());
    let pods = said(&["get", "pods", "-A", "-o", "wide"]);
    let events = said(&["get", "events", "-A", "--sort-by=.lastTimestamp"]);
    format!("{error}\n{pods}\n{events}").into()
}
