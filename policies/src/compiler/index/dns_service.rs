//! The pods in whose place dnsd answers: a rule about one of them at port 53 is about dnsd too.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};

use egret_shared::link::ClusterDns;
use egret_shared::net::Transport;
use egret_shared::pod::PodKey;

use super::{Index, LivePod};
use crate::compiler::settings::DnsStandIn;
use crate::model::Labels;
use crate::model::cluster::{EndpointSlice, Service, ServicePort};

/// Where DNS is asked (RFC 1035 §4.2).
const PORT: u16 = 53;

/// The Service, and the pods that count among those that it selects.
#[derive(Debug, Default)]
pub(super) struct DnsService {
    stand_in: DnsStandIn,
    /// Never an empty one: that would be every pod, and means none.
    selector: Option<Labels>,
    pods: BTreeSet<PodKey>,
    /// The endpoints of the Service.
    slices: BTreeMap<PodKey, EndpointSlice>,
    /// The addresses of all Services that can be asked.
    asked: BTreeMap<PodKey, Vec<IpAddr>>,
    /// Whether one of the two may be another than when this was last asked.
    is_elsewhere: bool,
    /// Whether there may be other pods, or others may select them, than when this was last asked.
    is_changed: bool,
}

impl DnsService {
    pub(super) fn new(stand_in: DnsStandIn) -> Self {
        let addresses = stand_in.addresses.iter().map(IpAddr::to_canonical);
        Self {
            stand_in: DnsStandIn {
                addresses: addresses.collect(),
                ..stand_in
            },
            is_elsewhere: true,
            ..Self::default()
        }
    }

    /// The labels of the namespace may be others.
    pub(super) fn note_namespace(&mut self, name: &str) {
        self.is_changed |= self.stand_in.service.namespace() == name;
    }

    /// Takes note of endpoints, where they are the Service's.
    pub(super) fn set_slice(&mut self, key: &PodKey, slice: Option<&EndpointSlice>) {
        let service = &self.stand_in.service;
        let is_its = |slice: &&EndpointSlice| {
            slice.key.namespace() == service.namespace() && slice.service.as_deref() == Some(service.name())
        };
        let slice = slice.filter(is_its);
        let before = match slice {
            Some(slice) => self.slices.insert(key.clone(), slice.clone()),
            None => self.slices.remove(key),
        };
        self.is_elsewhere |= before.as_ref() != slice;
    }

    /// Takes note of where a Service is asked, if it can be.
    pub(super) fn set_service(&mut self, key: &PodKey, service: Option<&Service>) {
        let before = match service.filter(|service| service.ports.iter().any(is_dns)) {
            Some(service) => {
                let addresses = service.addresses.iter().chain(&service.external_addresses);
                self.asked.insert(key.clone(), addresses.copied().collect())
            }
            None => self.asked.remove(key),
        };
        self.is_elsewhere |= before.as_ref() != self.asked.get(key) || *key == self.stand_in.service;
    }

    /// Over UDP; what is asked over TCP is at the same port. Slices name ports as the Service does.
    fn endpoints(&self, service: &Service) -> BTreeSet<SocketAddr> {
        let ports = service.ports.iter();
        let ports = ports.filter(|port| is_dns(port) && port.transport == Transport::Udp);
        let names: BTreeSet<&str> = ports.map(|port| port.name.as_deref().unwrap_or("")).collect();
        let mut found = BTreeSet::new();
        for slice in self.slices.values() {
            let ports = slice.ports.iter().filter(|(name, transport, _)| {
                *transport == Transport::Udp && names.contains(name.as_deref().unwrap_or(""))
            });
            for (_, _, number) in ports {
                let each = slice.addresses.iter().map(IpAddr::to_canonical);
                found.extend(each.map(|address| SocketAddr::new(address, number.get())));
            }
        }
        found
    }

    fn is_served_by(&self, key: &PodKey, labels: &Labels) -> bool {
        let selects = |selector: &Labels| {
            let mut wanted = selector.iter();
            wanted.all(|(label, value)| labels.get(label) == Some(value))
        };
        self.stand_in.service.namespace() == key.namespace() && self.selector.as_ref().is_some_and(selects)
    }
}

fn is_dns(port: &ServicePort) -> bool {
    port.number.get() == PORT && [Transport::Udp, Transport::Tcp].contains(&port.transport)
}

impl Index {
    /// Where the cluster's own DNS is, where it may be elsewhere than when this was last asked.
    pub(crate) fn take_cluster_dns(&mut self) -> Option<ClusterDns> {
        std::mem::take(&mut self.dns.is_elsewhere).then(|| self.cluster_dns())
    }

    fn cluster_dns(&self) -> ClusterDns {
        let service = self.service(&self.dns.stand_in.service);
        let asked = self.dns.asked.values().flatten().map(IpAddr::to_canonical);
        let asked: BTreeSet<IpAddr> = asked.collect();
        ClusterDns {
            endpoints: service.map_or_else(Vec::new, |service| {
                self.dns.endpoints(service).into_iter().collect()
            }),
            services: asked.into_iter().collect(),
        }
    }

    /// The addresses at which dnsd listens.
    pub(crate) fn dns_addresses(&self) -> impl Iterator<Item = IpAddr> {
        self.dns.stand_in.addresses.iter().copied()
    }

    /// The pods in whose place it answers.
    pub(crate) fn dns_pods(&self) -> impl Iterator<Item = LivePod<'_>> {
        self.dns.pods.iter().filter_map(|key| self.live(key))
    }

    /// Whether rules may match dnsd by other pods than when this was last asked.
    pub(crate) fn take_dns_change(&mut self) -> bool {
        std::mem::take(&mut self.dns.is_changed)
    }

    /// A pod may look different.
    pub(super) fn settle_dns_pod(&mut self, key: &PodKey) {
        let is_one = self
            .live(key)
            .is_some_and(|pod| self.dns.is_served_by(key, &pod.pod.labels));
        let was_one = if is_one {
            !self.dns.pods.insert(key.clone())
        } else {
            self.dns.pods.remove(key)
        };
        self.dns.is_changed |= is_one || was_one;
    }

    /// The Service may select other pods.
    pub(super) fn settle_dns_service(&mut self, key: &PodKey) {
        if self.dns.stand_in.service != *key {
            return;
        }
        let service = self.service(key);
        let selector = service.and_then(|service| service.selector.clone());
        self.dns.selector = selector.filter(|selector| selector.iter().next().is_some());
        let of_namespace: Vec<PodKey> = self.keys_of_namespace(key.namespace()).cloned().collect();
        for pod in of_namespace {
            self.settle_dns_pod(&pod);
        }
    }
}
