//! The cluster while it is shown, and what its chapters use.

use std::{path::PathBuf, time::Duration};

use crate::{
    Metrics,
    demo::{Mood, Screen, Stop},
};

use super::{
    Cluster, Failure, NODES, image,
    kubectl::Kubectl,
    network::Network,
    node::Node,
    traffic::{Seen, Traffic},
    until,
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
    ("kube-system", "daemonset/konnectivity-agent"),
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

impl<'a> Story<'a> {
    pub(super) fn of(cluster: &'a mut Cluster, stop: &'a Stop) -> Self {
        Self {
            kubectl: cluster.kubectl(),
            screen: cluster.screen,
            cluster,
            stop,
            all_as_expected: true,
        }
    }

    /// Whether everything was so far.
    pub(super) const fn is_as_expected(&self) -> bool {
        self.all_as_expected
    }

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
