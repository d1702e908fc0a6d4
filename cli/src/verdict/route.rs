//! From a probe to the connections that it asks about: addresses and ports, as the packets will have them.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::num::NonZeroU16;
use std::sync::Arc;

use egret_policies::model::Direction;
use egret_policies::model::cluster::PodLife;
use egret_shared::name::DnsName;
use egret_shared::net::{Family, Transport};
use egret_shared::pod::PodKey;
use egret_shared::time::Timestamp;

use super::input::{Destination, Probe, ProbeProtocol, Source};
use crate::cluster::{Cluster, PodMember, ServiceRoute};

mod origin;
mod unjudgeable;

pub use unjudgeable::Unjudgeable;

use origin::ProbeSource;

/// One connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProbeConnection {
    /// Its source.
    pub source: IpAddr,
    /// Its destination, behind any Service.
    pub destination: IpAddr,
    /// Its protocol and port there; none for ICMP.
    pub port: Option<(Transport, NonZeroU16)>,
    /// Whether a Service led to the destination: then a pod that meets itself is judged all the same.
    pub is_forwarded: bool,
    /// The node that takes the connection for a Service, where it is another one than the source's.
    pub taken_by: Option<NodeEntry>,
}

/// Where a connection to a NodePort enters another node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeEntry {
    /// The address of the node: what the policies of the source see.
    pub address: IpAddr,
    /// The NodePort.
    pub port: NonZeroU16,
    /// The source as the policies of the destination see it. A node masks who it sends to another one.
    pub seen_source: IpAddr,
}

impl ProbeConnection {
    /// The connection as the policies of a direction see it.
    #[must_use]
    pub fn seen(&self, direction: Direction) -> Self {
        let Some(entry) = self.taken_by else {
            return self.clone();
        };
        match direction {
            Direction::Egress => Self {
                destination: entry.address,
                port: self.port.map(|(transport, _)| (transport, entry.port)),
                is_forwarded: false,
                taken_by: None,
                ..*self
            },
            Direction::Ingress => Self {
                source: entry.seen_source,
                taken_by: None,
                ..*self
            },
        }
    }
}

/// What a probe asks about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Route {
    /// One connection.
    Direct(ProbeConnection),
    /// One for each endpoint of a Service; there may be none.
    Endpoints(Vec<ProbeConnection>),
    /// What comes of each address that the source was told.
    Addresses(Vec<NameTarget>),
}

/// What comes of an address that the source was told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NameTarget {
    /// The address.
    pub told: IpAddr,
    /// The connection, or what keeps the source from using the address. There are several for the address of
    /// a Service with several endpoints.
    pub connection: Result<ProbeConnection, Unjudgeable>,
}

/// What each pod was told for each name, and until when it counts.
pub type ObservedRecords = BTreeMap<(PodKey, DnsName), BTreeMap<IpAddr, Timestamp>>;

/// Finds the connections of probes.
#[derive(Clone, Copy, Debug)]
pub struct Router<'a> {
    /// Who there is.
    pub cluster: &'a Cluster,
    /// What pods were told.
    pub told: &'a ObservedRecords,
}

type EndpointPort = Option<(Transport, NonZeroU16)>;

impl Router<'_> {
    /// The connections of a probe.
    ///
    /// # Errors
    /// Why there are none that could be judged.
    pub fn route(&self, probe: &Probe) -> Result<Route, Unjudgeable> {
        let origin = self.origin(probe)?;
        let port = match probe.protocol {
            ProbeProtocol::Transport(transport, port) => Some((transport, port)),
            ProbeProtocol::Icmp { .. } => None,
        };
        match &probe.to {
            Destination::Service(key) if origin.is_before_services => {
                let service = self.cluster.service(key);
                let service = service.ok_or_else(|| Unjudgeable::UnknownService(key.clone()))?;
                origin
                    .connect(&probe.to.to_string(), &service.addresses, port)
                    .map(Route::Direct)
            }
            Destination::Pod(key) => {
                let addresses = self.addresses_of_pod(key)?;
                origin
                    .connect(&key.to_string(), &addresses, port)
                    .map(Route::Direct)
            }
            Destination::Address(address) => self.route_to_address(&origin, *address, port),
            Destination::Service(key) => self.route_to_service(&origin, key, port),
            Destination::Node(name) => {
                let addresses = self.addresses_of_node(name)?;
                let connection = origin.connect(&probe.to.to_string(), &addresses, port)?;
                self.route_to_address(&origin, connection.destination, port)
            }
            Destination::Name(name) => self.route_to_name(&origin, probe, name, port),
        }
    }

    fn origin(&self, probe: &Probe) -> Result<ProbeSource, Unjudgeable> {
        let is_before_services = matches!(probe.from, Source::ApiServer(_));
        let (pod, mut addresses) = match &probe.from {
            Source::ApiServer(selection) => (Some(selection.key()), selection.pod().addresses),
            Source::Pod(key) => (Some(key.clone()), self.addresses_of_pod(key)?),
            Source::Address(address) => {
                let pod = self.cluster.pod_at(*address).map(|member| member.pod.key.clone());
                (pod, vec![*address])
            }
            Source::Node(name) => (None, self.addresses_of_node(name)?),
        };
        addresses.retain(|address| probe.family.is_none_or(|family| family == Family::of(*address)));
        Ok(ProbeSource {
            written: probe.from.to_string(),
            pod,
            addresses,
            is_before_services,
        })
    }

    fn addresses_of_pod(&self, key: &PodKey) -> Result<Vec<IpAddr>, Unjudgeable> {
        let member = self
            .cluster
            .member(key)
            .ok_or_else(|| Unjudgeable::UnknownPod(key.clone()))?;
        if member.pod.life == PodLife::Terminal {
            return Err(Unjudgeable::EndedPod(key.clone()));
        }
        let addresses = self.cluster.addresses(member);
        if addresses.is_empty() {
            return Err(without_address(member));
        }
        Ok(addresses)
    }

    fn addresses_of_node(&self, name: &Arc<str>) -> Result<Vec<IpAddr>, Unjudgeable> {
        let addresses = self
            .cluster
            .addresses_of_node(name)
            .ok_or_else(|| Unjudgeable::UnknownNode(Arc::clone(name)))?;
        if addresses.is_empty() {
            return Err(Unjudgeable::NodeWithoutAddress(Arc::clone(name)));
        }
        Ok(addresses)
    }

    /// An address that a Service has is rewritten on the way, and policies see what it became.
    fn route_to_address(
        &self,
        origin: &ProbeSource,
        address: IpAddr,
        port: EndpointPort,
    ) -> Result<Route, Unjudgeable> {
        let direct = origin.connect(&address.to_string(), &[address], port)?;
        let rewritten = port
            .filter(|_| !origin.is_before_services)
            .filter(|_| !self.cluster.is_asked_for_names(address, port));
        let Some((transport, number)) = rewritten else {
            return Ok(Route::Direct(direct));
        };
        let origin = origin.connecting_from(direct.source);
        if let Some(forward) = self.cluster.forward_at(address, transport, number) {
            return self.route_to_endpoints(&origin, &forward);
        }
        let at_node = self.cluster.forward_at_node(transport, number);
        let is_node = self.cluster.nodes_at(address).is_some() || self.cluster.is_dnsd(address);
        match at_node.filter(|_| is_node) {
            Some(forward) => {
                let route = self.route_to_endpoints(&origin, &forward)?;
                Ok(self.taken_by_node(route, address, number))
            }
            None => Ok(Route::Direct(direct)),
        }
    }

    /// A node rewrites what comes to it, so a pod meets the Service at its own node. What it sends to another one leaves
    /// as it is, and becomes the Service's there.
    fn taken_by_node(&self, route: Route, node: IpAddr, port: NonZeroU16) -> Route {
        let Route::Endpoints(connections) = route else {
            return route;
        };
        let enter = |connection: ProbeConnection| ProbeConnection {
            taken_by: self.entry(&connection, node, port),
            ..connection
        };
        Route::Endpoints(connections.into_iter().map(enter).collect())
    }

    fn entry(&self, connection: &ProbeConnection, node: IpAddr, port: NonZeroU16) -> Option<NodeEntry> {
        let is_on_node = |address: IpAddr| match self.cluster.pod_at(address) {
            Some(member) => self.cluster.is_own_node(&member.pod, node),
            None => self.cluster.is_one_node(address, node),
        };
        (!is_on_node(connection.source)).then(|| NodeEntry {
            address: node,
            port,
            seen_source: if is_on_node(connection.destination) {
                connection.source
            } else {
                node
            },
        })
    }

    fn route_to_service(
        &self,
        origin: &ProbeSource,
        key: &PodKey,
        port: EndpointPort,
    ) -> Result<Route, Unjudgeable> {
        let service = self
            .cluster
            .service(key)
            .ok_or_else(|| Unjudgeable::UnknownService(key.clone()))?;
        let (transport, number) = port.ok_or(Unjudgeable::IcmpToService)?;
        self.route_to_endpoints(origin, &ServiceRoute::new(service, transport, number)?)
    }

    /// The first family of the source in which there are endpoints.
    fn route_to_endpoints(
        &self,
        origin: &ProbeSource,
        forward: &ServiceRoute<'_>,
    ) -> Result<Route, Unjudgeable> {
        for source in &origin.addresses {
            let endpoints = self.cluster.endpoints(forward, Family::of(*source));
            if !endpoints.is_empty() {
                let connect = |endpoint: crate::cluster::Endpoint| ProbeConnection {
                    source: *source,
                    destination: endpoint.address,
                    port: Some((forward.transport(), endpoint.port)),
                    is_forwarded: true,
                    taken_by: None,
                };
                return Ok(Route::Endpoints(endpoints.into_iter().map(connect).collect()));
            }
        }
        let is_served = |family: &Family| !self.cluster.endpoints(forward, *family).is_empty();
        let families: BTreeSet<Family> = Family::ALL.into_iter().filter(is_served).collect();
        if families.is_empty() {
            return Ok(Route::Endpoints(Vec::new()));
        }
        Err(origin.no_common_family(format!("service {}", forward.service()), families))
    }

    fn route_to_name(
        &self,
        origin: &ProbeSource,
        probe: &Probe,
        name: &DnsName,
        port: EndpointPort,
    ) -> Result<Route, Unjudgeable> {
        let pod = match (&origin.pod, &probe.from) {
            (Some(pod), _) | (None, Source::Pod(pod)) => pod.clone(),
            (None, Source::Address(_) | Source::Node(_) | Source::ApiServer(_)) => {
                return Err(Unjudgeable::NoResolver(probe.from.to_string()));
            }
        };
        let key = (pod, name.clone());
        let Some(addresses) = self.told.get(&key) else {
            let (pod, name) = key;
            return Err(Unjudgeable::NoRecord { pod, name });
        };
        let now = probe.moment();
        let live = addresses.iter().filter(|(_, until)| **until > now);
        let live: Vec<&IpAddr> = live.map(|(address, _)| address).collect();
        if live.is_empty() {
            let ((pod, name), at) = (key, probe.at);
            return Err(Unjudgeable::ExpiredRecords { pod, name, at });
        }
        let is_asked = |address: &&IpAddr| probe.family.is_none_or(|family| family == Family::of(**address));
        let asked = live.into_iter().filter(is_asked);
        Ok(Route::Addresses(
            asked
                .flat_map(|address| self.reach(origin, *address, port))
                .collect(),
        ))
    }

    fn reach(&self, origin: &ProbeSource, told: IpAddr, port: EndpointPort) -> Vec<NameTarget> {
        let connections = match self.route_to_address(origin, told, port) {
            Ok(Route::Direct(connection)) => vec![Ok(connection)],
            Ok(Route::Endpoints(connections)) if connections.is_empty() => {
                vec![Err(Unjudgeable::NoEndpoints)]
            }
            Ok(Route::Endpoints(connections)) => connections.into_iter().map(Ok).collect(),
            Ok(Route::Addresses(reached)) => return reached,
            Err(unjudgeable) => vec![Err(unjudgeable)],
        };
        connections
            .into_iter()
            .map(|connection| NameTarget { told, connection })
            .collect()
    }
}

fn without_address(member: &PodMember) -> Unjudgeable {
    let key = member.pod.key.clone();
    if member.pod.host_network {
        Unjudgeable::NoAddress(key)
    } else {
        Unjudgeable::LostAddress(key)
    }
}
