//! Where a Service leads: its endpoints, with their ports.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::num::NonZeroU16;

use egret_policies::model::cluster::{EndpointSlice, PodLife, Service, ServicePort, TargetPort};
use egret_shared::net::{Family, Transport};
use egret_shared::pod::PodKey;

use super::{Cluster, PodMember};

/// What a connection to a Service's port becomes.
#[derive(Clone, Debug)]
pub struct ServiceRoute<'a> {
    service: &'a Service,
    port: &'a ServicePort,
}

/// An address and port to which a Service sends connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Endpoint {
    /// The address.
    pub address: IpAddr,
    /// The port there.
    pub port: NonZeroU16,
}

/// A Service has no such port.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("service {service} has no port {transport}/{port}; it has {offered}")]
pub struct UnknownPort {
    service: PodKey,
    transport: Transport,
    port: NonZeroU16,
    offered: String,
}

impl Cluster {
    /// A Service by its key.
    #[must_use]
    pub fn service(&self, key: &PodKey) -> Option<&Service> {
        self.services.get(key)
    }

    /// The Services to which the cluster gave an address.
    #[must_use]
    pub fn services_at(&self, address: IpAddr) -> Vec<PodKey> {
        let address = address.to_canonical();
        let services = self.service_addresses.get(&address).into_iter().flatten();
        let has = |key: &&PodKey| {
            let service = self.services.get(*key);
            service.is_some_and(|it| it.addresses.iter().any(|one| one.to_canonical() == address))
        };
        services.filter(has).cloned().collect()
    }

    /// The Service that has an address, of the cluster or outside, and serves a port there.
    #[must_use]
    pub fn forward_at(
        &self,
        address: IpAddr,
        transport: Transport,
        port: NonZeroU16,
    ) -> Option<ServiceRoute<'_>> {
        let services = self.service_addresses.get(&address)?.iter();
        services
            .filter_map(|key| self.services.get(key))
            .find_map(|service| ServiceRoute::new(service, transport, port).ok())
    }

    /// The Service that takes connections at a port of every node.
    #[must_use]
    pub fn forward_at_node(&self, transport: Transport, port: NonZeroU16) -> Option<ServiceRoute<'_>> {
        self.services.values().find_map(|service| {
            let at_node = |of: &&ServicePort| of.transport == transport && of.node_port == Some(port);
            let port = service.ports.iter().find(at_node)?;
            Some(ServiceRoute { service, port })
        })
    }

    /// The endpoints of a family: those that EndpointSlices call ready; where the Service has no slice at
    /// all, the running, ready pods that its selector selects.
    #[must_use]
    pub fn endpoints(&self, forward: &ServiceRoute<'_>, family: Family) -> BTreeSet<Endpoint> {
        let mut endpoints = match self.slices.get(&forward.service.key) {
            Some(slices) => slices.iter().flat_map(|slice| forward.in_slice(slice)).collect(),
            None => self.selected_endpoints(forward, family),
        };
        endpoints.retain(|endpoint| Family::of(endpoint.address) == family);
        endpoints
    }

    fn selected_endpoints(&self, forward: &ServiceRoute<'_>, family: Family) -> BTreeSet<Endpoint> {
        let namespace = forward.service.key.namespace();
        self.pods
            .range(PodKey::new(namespace, "")..)
            .map(|(_, member)| member)
            .take_while(|member| member.pod.key.namespace() == namespace)
            .filter(|member| forward.service.selects(member))
            .filter_map(|member| {
                let mut addresses = self.addresses(member).into_iter();
                let address = addresses.find(|address| Family::of(*address) == family)?;
                let port = forward.port_at(member)?;
                Some(Endpoint { address, port })
            })
            .collect()
    }
}

trait SelectsPods {
    fn selects(&self, member: &PodMember) -> bool;
}

impl SelectsPods for Service {
    /// An empty selector selects nothing here, as with none: the endpoints are somebody else's to write.
    fn selects(&self, member: &PodMember) -> bool {
        let Some(selector) = self
            .selector
            .as_ref()
            .filter(|selector| selector.iter().next().is_some())
        else {
            return false;
        };
        member.is_ready
            && member.pod.life == PodLife::Live
            && selector
                .iter()
                .all(|(label, value)| member.pod.labels.get(label) == Some(value))
    }
}

impl<'a> ServiceRoute<'a> {
    /// What a connection to this port of the Service becomes.
    ///
    /// # Errors
    /// The Service has no such port.
    pub fn new(service: &'a Service, transport: Transport, port: NonZeroU16) -> Result<Self, UnknownPort> {
        let found = service
            .ports
            .iter()
            .find(|offered| offered.transport == transport && offered.number == port);
        match found {
            Some(port) => Ok(Self { service, port }),
            None => Err(UnknownPort {
                service: service.key.clone(),
                transport,
                port,
                offered: offered(service),
            }),
        }
    }

    /// The Service.
    #[must_use]
    pub const fn service(&self) -> &'a PodKey {
        &self.service.key
    }

    /// The protocol.
    #[must_use]
    pub const fn transport(&self) -> Transport {
        self.port.transport
    }

    /// What a slice says of this port: slices name ports as the Service does.
    fn in_slice<'b>(&self, slice: &'b EndpointSlice) -> impl Iterator<Item = Endpoint> + use<'b> {
        let name = written(self.port.name.as_deref());
        let number = slice
            .ports
            .iter()
            .find(|(of, transport, _)| written(of.as_deref()) == name && *transport == self.port.transport)
            .map(|(_, _, number)| *number);
        slice.addresses.iter().filter_map(move |address| {
            Some(Endpoint {
                address: address.to_canonical(),
                port: number?,
            })
        })
    }

    /// The target port at a pod; a pod that does not serve a named one is no endpoint.
    fn port_at(&self, member: &PodMember) -> Option<NonZeroU16> {
        match &self.port.target {
            TargetPort::Number(number) => Some(*number),
            TargetPort::Name(name) => member
                .pod
                .ports
                .iter()
                .find(|port| port.name == *name && port.transport == self.port.transport)
                .map(|port| port.number),
        }
    }
}

/// In both kinds of object a port without a name may be written as one with an empty name.
fn written(name: Option<&str>) -> &str {
    name.unwrap_or("")
}

fn offered(service: &Service) -> String {
    if service.ports.is_empty() {
        return "none".to_owned();
    }
    let ports: Vec<_> = service
        .ports
        .iter()
        .map(|port| format!("{}/{}", port.transport, port.number))
        .collect();
    ports.join(", ")
}
