//! Services and their endpoints.

use std::net::IpAddr;
use std::num::NonZeroU16;
use std::sync::Arc;

use egret_shared::net::Transport;
use egret_shared::pod::PodKey;

use super::pod::{list, optional_text};
use super::{network, port};
use crate::api::{Field, Notes, Object, Refused, labels};
use crate::diagnostic::Code;
use crate::model::cluster::{EndpointSlice, Service, ServicePort, TargetPort};

const SERVICE_NAME: &str = "kubernetes.io/service-name";

/// A Service.
pub(super) fn lower(object: &Object, notes: &mut Notes) -> Service {
    let spec = Field::root(&object.body).get("spec");
    let mut service = Service {
        key: key(object),
        selector: None,
        addresses: Vec::new(),
        external_addresses: Vec::new(),
        ports: Vec::new(),
    };
    let Some(spec) = spec else {
        return service;
    };
    if optional_text(&spec, "type", notes).as_deref() == Some("ExternalName") {
        return service; // a name and nothing else: its other fields mean nothing
    }
    let selector = spec.get("selector");
    // An empty selector selects nothing: endpoints of its own.
    service.selector = selector
        .and_then(|field| labels(Some(&field), notes).ok())
        .filter(|labels| labels.iter().next().is_some());
    service.addresses = cluster_addresses(&spec, notes);
    service.external_addresses = external_addresses(object, &spec, notes);
    for item in list(&spec, "ports", notes) {
        service.ports.extend(service_port(&item, notes));
    }
    service
}

fn cluster_addresses(spec: &Field<'_>, notes: &mut Notes) -> Vec<IpAddr> {
    let one = spec.get("clusterIP");
    let all = one.into_iter().chain(list(spec, "clusterIPs", notes));
    // "None" is a headless Service, "" one that has no address yet.
    let written: Vec<_> = all
        .filter(|field| !matches!(field.text(notes), Ok("None" | "")))
        .collect();
    network::addresses(written, notes)
}

/// A load balancer of mode Proxy speaks to nodes for itself: packets to its address are not the Service's
/// (`ipMode`, KEP-1860).
fn external_addresses(object: &Object, spec: &Field<'_>, notes: &mut Notes) -> Vec<IpAddr> {
    let balancer = Field::root(&object.body)
        .get("status")
        .and_then(|status| status.get("loadBalancer"));
    let points = balancer.map_or_else(Vec::new, |balancer| list(&balancer, "ingress", notes));
    let points: Vec<_> = points
        .iter()
        .filter(|point| optional_text(point, "ipMode", notes).as_deref() != Some("Proxy"))
        .filter_map(|point| point.get("ip"))
        .collect();
    let written = list(spec, "externalIPs", notes).into_iter().chain(points);
    network::addresses(written, notes)
}

fn service_port(item: &Field<'_>, notes: &mut Notes) -> Option<ServicePort> {
    let read = numbered(item, notes);
    let (transport, number) = match read {
        Ok(Some(read)) => read,
        Ok(None) | Err(Refused) => return None,
    };
    let target = match item.get("targetPort") {
        None => TargetPort::Number(number),
        Some(field) => match (field.maybe_integer(), port::port_number(&field)) {
            (_, Some(target)) => TargetPort::Number(target),
            // 0 is stored where nothing was written: the same number as the Service's.
            (Some(0), None) => TargetPort::Number(number),
            (Some(_), None) => return refuse(&field, notes),
            (None, None) => match field.text(notes) {
                Ok(name) => TargetPort::Name(name.into()),
                Err(Refused) => return None,
            },
        },
    };
    let name = optional_text(item, "name", notes);
    Some(ServicePort {
        name,
        transport,
        number,
        node_port: item.get("nodePort").and_then(|field| port::port_number(&field)),
        target,
    })
}

/// Protocol and number of a port; nothing where no number is written.
fn numbered(item: &Field<'_>, notes: &mut Notes) -> Result<Option<(Transport, NonZeroU16)>, Refused> {
    let Some(field) = item.get("port") else {
        return Ok(None);
    };
    let transport = item
        .get("protocol")
        .map_or(Ok(Some(Transport::Tcp)), |field| port::transport(&field, notes))?;
    match (transport, port::port_number(&field)) {
        (Some(transport), Some(number)) => Ok(Some((transport, number))),
        (None, _) | (_, None) => {
            refuse::<()>(item, notes);
            Err(Refused)
        }
    }
}

fn refuse<T>(field: &Field<'_>, notes: &mut Notes) -> Option<T> {
    let accepted = "a port from 1 to 65535, and TCP, UDP or SCTP";
    field.tell(
        Code::InvalidObjectPort,
        field.describe(),
        accepted,
        "the port is left out",
        notes,
    );
    None
}

/// An EndpointSlice.
pub(super) fn lower_slice(object: &Object, notes: &mut Notes) -> EndpointSlice {
    let root = Field::root(&object.body);
    EndpointSlice {
        key: key(object),
        service: object.metadata.labels.get(SERVICE_NAME).map(Arc::from),
        addresses: ready_addresses(&root, notes),
        ports: slice_ports(&root, notes),
    }
}

fn ready_addresses(slice: &Field<'_>, notes: &mut Notes) -> Vec<IpAddr> {
    if optional_text(slice, "addressType", notes).as_deref() == Some("FQDN") {
        return Vec::new(); // names, deprecated
    }
    let endpoints = list(slice, "endpoints", notes);
    let ready = endpoints
        .iter()
        .filter(|endpoint| is_ready(endpoint, notes))
        .collect::<Vec<_>>();
    let addresses = ready
        .into_iter()
        .flat_map(|endpoint| list(endpoint, "addresses", notes));
    let addresses = addresses.collect::<Vec<_>>();
    network::addresses(addresses, notes)
}

/// Unknown is ready (`EndpointConditions` of discovery.k8s.io/v1).
fn is_ready(endpoint: &Field<'_>, notes: &mut Notes) -> bool {
    let ready = endpoint
        .get("conditions")
        .and_then(|conditions| conditions.get("ready"));
    ready.is_none_or(|ready| ready.boolean(notes).unwrap_or(true))
}

fn slice_ports(slice: &Field<'_>, notes: &mut Notes) -> Vec<(Option<Arc<str>>, Transport, NonZeroU16)> {
    let mut ports = Vec::new();
    for item in list(slice, "ports", notes) {
        if let Ok(Some((transport, number))) = numbered(&item, notes) {
            ports.push((optional_text(&item, "name", notes), transport, number));
        }
    }
    ports
}

/// Keeps Endpoints from being mirrored to EndpointSlices (KEP-752), and so from being endpoints of anything.
const SKIP_MIRROR: &str = "endpointslice.kubernetes.io/skip-mirror";

/// Endpoints, as the slices to which a cluster mirrors them: one for each subset. No object can have such a name.
pub(super) fn lower_endpoints(object: &Object, notes: &mut Notes) -> Vec<EndpointSlice> {
    let name = &object.metadata.name;
    let service = Some(Arc::clone(name)).filter(|_| object.metadata.labels.get(SKIP_MIRROR) != Some("true"));
    let subsets = list(&Field::root(&object.body), "subsets", notes);
    let slice = |(place, subset): (usize, &Field<'_>)| {
        let addresses = list(subset, "addresses", notes);
        let addresses: Vec<_> = addresses.iter().filter_map(|address| address.get("ip")).collect();
        EndpointSlice {
            key: PodKey::new(namespace(object), &format!("{name}:{place}")),
            service: service.clone(),
            addresses: network::addresses(addresses, notes),
            ports: slice_ports(subset, notes),
        }
    };
    subsets.iter().enumerate().map(slice).collect()
}

fn key(object: &Object) -> PodKey {
    PodKey::new(namespace(object), &object.metadata.name)
}

fn namespace(object: &Object) -> &str {
    object.metadata.namespace.as_deref().unwrap_or("default")
}
