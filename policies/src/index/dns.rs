//! The pods in whose place dnsd answers: a rule about one of them at port 53 is about dnsd too.

use std::collections::BTreeSet;
use std::net::IpAddr;

use egret_shared::pod::PodKey;
use egret_shared::switch::{Switch, is_off};

use super::{Index, LivePod};
use crate::compiler::DnsStandIn;
use crate::model::Labels;

/// The Service, and the pods that count among those that it selects.
#[derive(Debug, Default)]
pub(super) struct Dns {
    stand_in: DnsStandIn,
    /// Never an empty one: that would be every pod, and means none.
    selector: Option<Labels>,
    pods: BTreeSet<PodKey>,
    /// Whether there may be other pods, or others may select them, than when this was last asked.
    is_changed: bool,
}

impl Dns {
    pub(super) fn new(stand_in: DnsStandIn) -> Self {
        let addresses = stand_in.addresses.iter().map(IpAddr::to_canonical);
        Self {
            stand_in: DnsStandIn {
                addresses: addresses.collect(),
                ..stand_in
            },
            ..Self::default()
        }
    }

    /// The labels of the namespace may be others.
    pub(super) fn note_namespace(&mut self, name: &str) {
        self.is_changed |= self.stand_in.service.namespace() == name;
    }

    fn is_served_by(&self, key: &PodKey, labels: &Labels) -> bool {
        let selects = |selector: &Labels| {
            let mut wanted = selector.iter();
            wanted.all(|(label, value)| labels.get(label) == Some(value))
        };
        self.stand_in.service.namespace() == key.namespace() && self.selector.as_ref().is_some_and(selects)
    }
}

impl Index {
    /// The addresses at which dnsd listens.
    pub(crate) fn dns_addresses(&self) -> impl Iterator<Item = IpAddr> {
        let addresses = self.dns.stand_in.addresses.iter().copied();
        addresses.filter(|_| !is_off(Switch::StandIn))
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
