//! dnsd, and the pods in whose place it answers.

use std::net::IpAddr;
use std::num::NonZeroU16;

use egret_policies::compiler::DnsStandIn;
use egret_shared::net::Transport;
use egret_shared::pod::PodKey;

use super::{Cluster, PodMember};

const DNS_PORT: u16 = 53;

impl Cluster {
    /// With dnsd in the place of a Service.
    #[must_use]
    pub fn with_dns(mut self, dns: DnsStandIn) -> Self {
        self.dns = dns;
        self
    }

    /// dnsd, as the cluster has it.
    #[must_use]
    pub const fn dns(&self) -> &DnsStandIn {
        &self.dns
    }

    /// Whether dnsd answers there.
    #[must_use]
    pub fn is_dnsd(&self, address: IpAddr) -> bool {
        self.dns.addresses.contains(&address.to_canonical())
    }

    /// Whether the address is neither a pod's nor dnsd's.
    #[must_use]
    pub fn is_nobodys(&self, address: IpAddr) -> bool {
        self.pod_at(address).is_none() && !self.is_dnsd(address)
    }

    /// Whether dnsd is asked there for names: nobody rewrites that, not even where a Service has the address.
    #[must_use]
    pub fn is_asked_for_names(&self, address: IpAddr, port: Option<(Transport, NonZeroU16)>) -> bool {
        let is_dns = |(transport, port): (Transport, NonZeroU16)| {
            port.get() == DNS_PORT && matches!(transport, Transport::Udp | Transport::Tcp)
        };
        self.is_dnsd(address) && port.is_some_and(is_dns)
    }

    /// The pods in whose place dnsd answers: ready or not, as long as policies are about them.
    pub fn dns_pods(&self) -> impl Iterator<Item = &PodMember> {
        let key = &self.dns.service;
        let selector = self.service(key).and_then(|service| service.selector.as_ref());
        let selector = selector.filter(|selector| selector.iter().next().is_some());
        let in_namespace = self
            .pods
            .range(PodKey::new(key.namespace(), "")..)
            .map(|(_, member)| member)
            .take_while(|member| member.pod.key.namespace() == key.namespace());
        in_namespace.filter(move |member| {
            let selects = selector.is_some_and(|selector| {
                let mut wanted = selector.iter();
                wanted.all(|(label, value)| member.pod.labels.get(label) == Some(value))
            });
            selects && member.is_policed() && !self.addresses(member).is_empty()
        })
    }

    /// Why dnsd stands for nobody, if it was said to stand for somebody.
    #[must_use]
    pub fn nobody_behind_dnsd(&self) -> Option<String> {
        let service = &self.dns.service;
        let reason = match self.service(service) {
            _ if self.dns.addresses.is_empty() || self.dns_pods().next().is_some() => return None,
            None => "the manifests have no such Service".to_owned(),
            Some(found) if found.selector.is_none() => "it has no selector".to_owned(),
            Some(_) => "it selects no live pod with an address of its own".to_owned(),
        };
        Some(format!(
            "dnsd stands in for no pod of Service {service}: {reason}; rules about pods do not concern it"
        ))
    }
}
