//! Where pods are attached to the node.

use std::net::IpAddr;

use egret_kernel::Family;
use egret_kernel::iptables::InterfaceName;
use ipnet::IpNet;

use crate::backend::netfilter::names::PodChains;

/// Where a pod is attached to the node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodAttachment {
    /// Its chains.
    pub chains: PodChains,
    /// Its interfaces on the node's side.
    pub interfaces: Vec<PodInterface>,
    /// Its addresses.
    pub addresses: Vec<IpAddr>,
}

impl PodAttachment {
    /// Its addresses of a family.
    pub(in crate::backend) fn hosts(&self, family: Family) -> impl Iterator<Item = IpNet> {
        let of_family = self
            .addresses
            .iter()
            .filter(move |address| Family::of(**address) == family);
        of_family.map(|address| IpNet::from(*address))
    }
}

/// An interface of a pod.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum PodInterface {
    /// Everything that passes it is this pod's.
    Own(InterfaceName),
    /// It is shared with other pods.
    Shared(InterfaceName),
    /// A bridge, and the port of it behind which the pod is alone. By which port a packet will leave is not known when it
    /// is routed to the bridge, so what goes to the pod is known by its address.
    BridgePort {
        /// The bridge.
        bridge: InterfaceName,
        /// Its port.
        port: InterfaceName,
    },
}
