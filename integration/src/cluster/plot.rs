//! What is shown on the cluster, chapter by chapter.

use std::net::IpAddr;

use crate::demo::Stop;

use super::{
    Cluster, Failure, backends, konnectivity,
    node::Node,
    node_local_dns,
    objects::{ALLOWED, REFUSED, dns_and_clients, policy},
    outages, plugin,
    story::{Story, WORKLOADS, all_say, diagnose},
    uninstall::{self, Traces},
    upgrade,
};

/// Whether everything was as expected. With `keep` the chart stays installed.
pub(super) fn play(cluster: &mut Cluster, keep: bool, stop: &Stop) -> Result<bool, Failure> {
    let mut story = Story::of(cluster, stop);
    story
        .tell(keep)
        .map_err(|error| diagnose(&story.kubectl, &error))?;
    Ok(story.is_as_expected())
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
