//! A connection as one of its pods sees it: what is compared with rules.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::num::NonZeroU16;

use egret_policies::model::{Direction, Labels};
use egret_policies::simulator::Protocol;
use egret_shared::name::DnsName;
use egret_shared::time::Timestamp;

use crate::cluster::PodMember;
use crate::verdict::judge::protocol_of;
use crate::verdict::questions::LoadedQuestions;
use crate::verdict::route::ProbeConnection;

/// A pod's view of a connection.
#[derive(Clone, Copy, Debug)]
pub(super) struct Viewpoint<'a> {
    pub(super) asked: &'a LoadedQuestions,
    pub(super) direction: Direction,
    pub(super) subject: &'a PodMember,
    /// The pod at the other end, if there is one.
    pub(super) peer: Option<&'a PodMember>,
    pub(super) address: IpAddr,
    pub(super) protocol: Protocol,
    pub(super) now: Timestamp,
    /// Whether a Service led here.
    pub(super) is_forwarded: bool,
    /// The address that the source was told, if it asked for a name: a Service's leads on.
    pub(super) told_address: Option<IpAddr>,
}

impl<'a> Viewpoint<'a> {
    /// The view of the pod that is asked about a direction; none where no pod is.
    pub(super) fn new(
        asked: &'a LoadedQuestions,
        direction: Direction,
        connection: &ProbeConnection,
        told_address: Option<IpAddr>,
        now: Timestamp,
    ) -> Option<Self> {
        let (subject, address) = match direction {
            Direction::Egress => (connection.source, connection.destination),
            Direction::Ingress => (connection.destination, connection.source),
        };
        Some(Self {
            asked,
            direction,
            subject: asked.cluster.pod_at(subject)?,
            peer: asked.cluster.pod_at(address),
            address: address.to_canonical(),
            protocol: protocol_of(connection),
            now,
            is_forwarded: connection.is_forwarded,
            told_address,
        })
    }

    pub(super) fn is_with_itself(&self) -> bool {
        self.peer.is_some_and(|peer| peer.pod.key == self.subject.pod.key)
    }

    pub(super) fn is_with_own_node(&self) -> bool {
        self.peer.is_none() && self.asked.cluster.is_own_node(&self.subject.pod, self.address)
    }

    /// Whether it asks dnsd for names.
    pub(super) fn asks_dnsd(&self) -> bool {
        let port = match self.protocol {
            Protocol::Port(transport, port) => NonZeroU16::new(port).map(|port| (transport, port)),
            Protocol::Icmp | Protocol::Other => None,
        };
        self.direction == Direction::Egress && self.asked.cluster.is_asked_for_names(self.address, port)
    }

    /// The pods in whose place dnsd is asked.
    pub(super) fn stood_in_for(&self) -> Vec<&'a PodMember> {
        if self.asks_dnsd() {
            self.asked.cluster.dns_pods().collect()
        } else {
            Vec::new()
        }
    }

    /// The pods that the other end counts as.
    pub(super) fn peers(&self) -> Vec<&'a PodMember> {
        self.peer.into_iter().chain(self.stood_in_for()).collect()
    }

    /// The labels of a namespace; one without an object has the default one.
    pub(super) fn labels_of_namespace(&self, name: &str) -> Labels {
        let mut namespaces = self.asked.manifests.namespaces.iter();
        namespaces
            .find(|namespace| namespace.name.as_ref() == name)
            .map_or_else(
                || Labels::of_namespace_without_object(name),
                |namespace| namespace.labels.clone(),
            )
    }

    /// Who is at the other end.
    pub(super) fn peer_name(&self) -> String {
        name_of(self.asked, self.address)
    }

    /// What the pod was told, over or not.
    pub(super) fn told(&self) -> impl Iterator<Item = (&'a DnsName, &'a BTreeMap<IpAddr, Timestamp>)> {
        let subject = &self.subject.pod.key;
        let told = self.asked.judge.records().iter();
        told.filter(move |((pod, _), _)| pod == subject)
            .map(|((_, name), addresses)| (name, addresses))
    }
}

/// Who has an address.
pub(super) fn name_of(asked: &LoadedQuestions, address: IpAddr) -> String {
    if let Some(member) = asked.cluster.pod_at(address) {
        return format!("{} ({address})", member.pod.key);
    }
    match asked.cluster.nodes_at(address) {
        Some(nodes) => format!("node {nodes} ({address})"),
        None if asked.cluster.is_dnsd(address) => format!("dnsd ({address})"),
        None => address.to_string(),
    }
}

/// The protocol and port, as rules write them.
pub(super) fn protocol_words(protocol: Protocol) -> String {
    match protocol {
        Protocol::Port(transport, port) => format!("{transport}/{port}"),
        Protocol::Icmp => "ICMP".to_owned(),
        Protocol::Other => "another protocol".to_owned(),
    }
}
