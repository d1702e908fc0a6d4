//! The cluster that manifests describe, and the rules of its pods.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use egret_policies::compiler::{Compiler, DnsStandIn, Event, NodeScope, Settings, Syncing};
use egret_policies::model::cluster::Entity;
use egret_shared::pod::PodKey;
use egret_shared::time::Timestamp;

use crate::cluster::{Cluster, UsedAddresses, selection};

use super::Manifests;

/// The time at which everything is compiled: no time passes.
pub const NOW: Timestamp = Timestamp::from_millis(0);

impl Manifests {
    /// The pods that need an address and have none. Those of a node's network have the node's.
    #[must_use]
    pub fn pods_without_address(&self) -> BTreeSet<PodKey> {
        let members = self.members.values();
        members
            .filter(|member| member.is_policed() && member.pod.addresses.is_empty())
            .map(|member| member.pod.key.clone())
            .collect()
    }

    /// The addresses and networks that mean something in the manifests.
    #[must_use]
    pub fn used_addresses(&self, dns: &DnsStandIn) -> UsedAddresses {
        let pods = self.members.values().flat_map(|member| &member.pod.addresses);
        let nodes = self.nodes.iter().flat_map(|node| &node.addresses);
        let services = self.services.iter();
        let services =
            services.flat_map(|service| service.addresses.iter().chain(&service.external_addresses));
        let slices = self.slices.iter().flat_map(|slice| &slice.addresses);
        let of_nodes = self.nodes.iter().flat_map(|node| node.pod_networks.clone());
        let of_policies = self.policies.iter().flat_map(selection::networks);
        UsedAddresses {
            addresses: pods
                .chain(nodes)
                .chain(services)
                .chain(slices)
                .chain(&dns.addresses)
                .copied()
                .collect(),
            networks: of_nodes.chain(of_policies).collect(),
        }
    }

    /// Gives made-up addresses to pods that have none.
    pub fn give_addresses(&mut self, made_up: &BTreeMap<PodKey, IpAddr>) {
        for key in self.pods_without_address() {
            if let (Some(member), Some(address)) = (self.members.get_mut(&key), made_up.get(&key)) {
                member.pod.addresses = vec![*address];
                member.is_made_up = true;
            }
        }
    }

    /// Who has which address.
    #[must_use]
    pub fn cluster(&self, dns: DnsStandIn) -> Cluster {
        Cluster::new(
            self.members.values().cloned().collect(),
            self.nodes.clone(),
            self.services.clone(),
            self.slices.clone(),
        )
        .with_reports(self.reports())
        .with_dns(dns)
    }

    /// A compiler that knows every object.
    #[must_use]
    pub fn compiler(&self, dns: &DnsStandIn) -> Compiler<Syncing> {
        let mut compiler = Compiler::new(Settings {
            dns: dns.clone(),
            ..Settings::for_scope(NodeScope::All)
        });
        for entity in self.entities() {
            compiler.handle(Event::Apply(entity), NOW);
        }
        compiler
    }

    fn entities(&self) -> impl Iterator<Item = Entity> {
        let namespaces = self.namespaces.iter().cloned().map(Entity::Namespace);
        let nodes = self.nodes.iter().cloned().map(Entity::Node);
        let policies = self.policies.iter().cloned().map(Entity::Policy);
        let pods = self.members.values();
        let pods = pods.map(|member| Entity::Pod(member.pod.clone()));
        let services = self.services.iter().cloned().map(Entity::Service);
        let slices = self.slices.iter().cloned().map(Entity::EndpointSlice);
        let addresses = services.chain(slices).chain(self.address_reports.iter().cloned());
        namespaces
            .chain(nodes)
            .chain(addresses)
            .chain(policies)
            .chain(pods)
    }
}
