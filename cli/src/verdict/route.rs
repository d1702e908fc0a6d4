//! From a probe to the connections that it asks about: addresses and ports, as the packets will have them.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::num::NonZeroU16;
use std::sync::Arc;

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
                origin
                    .connect(&probe.to.to_string(), &addresses, port)
                    .map(Route::Direct)
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
        let forward = port
            .filter(|_| !origin.is_before_services)
            .filter(|_| !self.cluster.is_asked_for_names(address, port))
            .and_then(|(transport, number)| {
                let own = self.cluster.forward_at(address, transport, number);
                own.or_else(|| self.forward_at_node(origin, address, transport, number))
            });
        match forward {
            Some(forward) => self.route_to_endpoints(origin, &forward),
            None => origin
                .connect(&address.to_string(), &[address], port)
                .map(Route::Direct),
        }
    }

    /// A node rewrites what comes to it, so a pod meets the Service at its own node; what it sends to another one leaves
    /// as it is.
    fn forward_at_node(
        &self,
        origin: &ProbeSource,
        address: IpAddr,
        transport: Transport,
        port: NonZeroU16,
    ) -> Option<ServiceRoute<'_>> {
        let source = origin.pod.as_ref().and_then(|key| self.cluster.member(key));
        let is_rewritten = match source.filter(|member| member.is_policed()) {
            Some(member) => self.cluster.is_own_node(&member.pod, address),
            None => self.cluster.nodes_at(address).is_some(),
        };
        is_rewritten
            .then(|| self.cluster.forward_at_node(transport, port))
            .flatten()
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
