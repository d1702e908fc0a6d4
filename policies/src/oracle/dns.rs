//! dnsd, in whose place it answers.

use egret_shared::net::Transport;

use crate::model::Direction;
use crate::model::cluster::{Entity, EntityKey, Pod};
use crate::simulator::Protocol;

use super::{Question, World};

impl Question<'_> {
    /// The pods that the destination counts as besides itself: those of the DNS Service, where a pod asks dnsd.
    pub(super) fn pods_that_dnsd_stands_for(&self) -> Vec<&Pod> {
        let is_dns = match self.connection.protocol {
            Protocol::Port(Transport::Udp | Transport::Tcp, port) => port == 53,
            Protocol::Port(Transport::Sctp, _) | Protocol::Icmp | Protocol::Other => false,
        };
        let listens = &self.world.settings.dns.addresses;
        let peer = self.connection.peer.to_canonical();
        if self.connection.direction == Direction::Egress
            && is_dns
            && listens.iter().any(|address| address.to_canonical() == peer)
        {
            self.world.pods_of_dns_service()
        } else {
            Vec::new()
        }
    }
}

impl World {
    /// Ready or not; those that have ended or are on the node's network are nobody's peers.
    fn pods_of_dns_service(&self) -> Vec<&Pod> {
        let key = &self.settings.dns.service;
        let Some(Entity::Service(service)) = self.entities.get(&EntityKey::Service(key.clone())) else {
            return Vec::new();
        };
        let wanted: Vec<(&str, &str)> = service.selector.iter().flat_map(|labels| labels.iter()).collect();
        if wanted.is_empty() {
            return Vec::new();
        }
        self.pods()
            .filter(|pod| pod.key.namespace() == key.namespace())
            .filter(|pod| {
                wanted
                    .iter()
                    .all(|label| pod.labels.iter().any(|has| has == *label))
            })
            .filter(|pod| !self.own_addresses(pod).is_empty())
            .collect()
    }
}
