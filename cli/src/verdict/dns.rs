//! Where dnsd answers, and in whose place: as the enforcer is told on every node.

use std::net::IpAddr;

use clap::Args;
use egret_policies::compiler::DnsStandIn;
use egret_shared::pod::PodKey;

/// dnsd, as the nodes have it.
#[derive(Args, Debug)]
pub struct Dns {
    /// An address at which dnsd answers pods on every node; may be repeated
    ///
    /// What policies say of the pods of the DNS Service at port 53, UDP and TCP, they say of this address as
    /// well. It is one of every pod's own node.
    #[arg(long = "dns-address", value_name = "ADDRESS")]
    addresses: Vec<IpAddr>,
    /// The Service in whose place dnsd answers [default: kube-system/kube-dns]
    #[arg(long = "dns-service", value_name = "NAMESPACE/NAME", requires = "addresses")]
    service: Option<PodKey>,
}

impl Dns {
    /// What the compiler is to know of it.
    #[must_use]
    pub fn stand_in(&self) -> DnsStandIn {
        let usual = DnsStandIn::default();
        DnsStandIn {
            service: self.service.clone().unwrap_or(usual.service),
            addresses: self.addresses.iter().map(IpAddr::to_canonical).collect(),
        }
    }
}
