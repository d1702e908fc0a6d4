//! Services, as kube-proxy leads them on: the rules of its iptables and its nftables mode, as
//! pkg/proxy/{iptables,nftables}/proxier.go of kubernetes/kubernetes writes them for the same Services.
//!
//! Both modes are told the pods' addresses (`--cluster-cidr`): who connects from elsewhere to a cluster address is
//! masqueraded, and so are clients of a node port, unless the Service keeps them.

use std::{
    collections::BTreeSet,
    fs,
    net::{IpAddr, SocketAddr},
    path::Path,
    sync::Arc,
};

use crate::{World, WorldError, command, netns::Netns};

mod iptables;
mod nftables;

/// Which rules kube-proxy writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProxyMode {
    Iptables,
    Nftables,
}

impl ProxyMode {
    pub const ALL: [Self; 2] = [Self::Iptables, Self::Nftables];
}

/// A port of a Service: where it is reached, and where it leads. All its addresses are of one family: a Service of two
/// has one of these for each.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServicePort {
    name: String,
    protocol: &'static str,
    cluster: Option<SocketAddr>,
    outside: Vec<SocketAddr>,
    node_port: Option<u16>,
    keeps_clients: bool,
    endpoints: Vec<SocketAddr>,
}

impl ServicePort {
    pub fn tcp(name: &str) -> Self {
        Self {
            name: name.into(),
            protocol: "tcp",
            cluster: None,
            outside: Vec::new(),
            node_port: None,
            keeps_clients: false,
            endpoints: Vec::new(),
        }
    }

    pub fn udp(name: &str) -> Self {
        Self {
            protocol: "udp",
            ..Self::tcp(name)
        }
    }

    /// Its cluster address.
    #[must_use]
    pub fn at(self, cluster: SocketAddr) -> Self {
        Self {
            cluster: Some(cluster),
            ..self
        }
    }

    /// An external address, or one of a load balancer: for kube-proxy they are alike.
    #[must_use]
    pub fn at_outside(mut self, address: SocketAddr) -> Self {
        self.outside.push(address);
        self
    }

    /// A port of every address of the node.
    #[must_use]
    pub fn at_node_port(self, port: u16) -> Self {
        Self {
            node_port: Some(port),
            ..self
        }
    }

    /// `externalTrafficPolicy: Local`.
    #[must_use]
    pub fn keeping_clients(self) -> Self {
        Self {
            keeps_clients: true,
            ..self
        }
    }

    #[must_use]
    pub fn to(mut self, endpoint: SocketAddr) -> Self {
        self.endpoints.push(endpoint);
        self
    }

    /// The Service that kube-proxy would have seen.
    fn object(&self, place: usize) -> String {
        let port = self.cluster.map_or(1, |cluster| cluster.port());
        let protocol = self.protocol.to_uppercase();
        let list = |addresses: &mut dyn Iterator<Item = IpAddr>| {
            let quoted: Vec<String> = addresses.map(|address| format!("'{address}'")).collect();
            quoted.join(", ")
        };
        let cluster = list(&mut self.cluster.iter().map(SocketAddr::ip));
        let outside = list(&mut self.outside.iter().map(SocketAddr::ip));
        format!(
            "apiVersion: v1
kind: Service
metadata: {{name: proxied-{place}, namespace: default}}
spec:
  clusterIPs: [{cluster}]
  externalIPs: [{outside}]
  ports: [{{name: only, port: {port}, protocol: {protocol}}}]
"
        )
    }

    fn is_v4(&self) -> bool {
        let mut addresses = self.cluster.iter().chain(&self.outside).chain(&self.endpoints);
        addresses.next().is_none_or(SocketAddr::is_ipv4)
    }

    fn is_exposed(&self) -> bool {
        self.node_port.is_some() || !self.outside.is_empty()
    }
}

/// Where the node takes connections for a Service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Front {
    /// A cluster IP: reached from pods and from the node.
    Cluster(SocketAddr),
    /// An external IP, or a load balancer's: whoever sends a packet there.
    External(SocketAddr),
    /// A port of every address of the node.
    NodePort(u16),
}

/// A Service with one endpoint: TCP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Forwarding {
    /// Where it is reached.
    pub front: Front,
    /// Where it leads.
    pub endpoint: SocketAddr,
}

impl Forwarding {
    fn port(&self, number: usize) -> ServicePort {
        let port = ServicePort::tcp(&format!("forwarding-{number}")).to(self.endpoint);
        match self.front {
            Front::Cluster(at) => port.at(at),
            Front::External(at) => port.at_outside(at),
            Front::NodePort(at) => port.at_node_port(at),
        }
    }
}

impl World {
    /// Has the node forward to endpoints, instead of what it forwarded before: kube-proxy's rules in the table `nat`, in
    /// iptables mode, and none in `filter`.
    pub fn forward(&self, services: &[Forwarding]) -> Result<(), WorldError> {
        let services: Vec<ServicePort> = (0..)
            .zip(services)
            .map(|(number, service)| service.port(number))
            .collect();
        self.proxy_host().write_nat(&services)
    }

    /// Has the node lead these Services on, instead of those before, as kube-proxy does when it syncs: what it jumps
    /// to for the first time it puts in front of everybody else's rules.
    pub fn proxy(&self, mode: ProxyMode, services: &[ServicePort]) -> Result<(), WorldError> {
        if self.cgroup_root().is_some() {
            self.announce_services(services)?;
        }
        self.proxy_host().write(mode, services)
    }

    /// Writes the Services as objects: what judges at the socket has to know which addresses are translated.
    fn announce_services(&self, services: &[ServicePort]) -> Result<(), WorldError> {
        let objects = services
            .iter()
            .enumerate()
            .map(|(place, service)| service.object(place));
        let objects: Vec<String> = objects.collect();
        self.manifests().write("proxied.yaml", &objects.join("---\n"))
    }

    fn proxy_host(&self) -> ProxyHost<'_> {
        let pods = self.pods().flat_map(|pod| pod.addresses());
        ProxyHost {
            netns: self.node().netns(),
            folder: self.files(),
            local: pods.chain(self.node().addresses()).collect(),
        }
    }
}

/// A node on which kube-proxy runs.
pub(crate) struct ProxyHost<'a> {
    pub(crate) netns: &'a Arc<Netns>,
    pub(crate) folder: &'a Path,
    /// Endpoints at these addresses are on this node.
    pub(crate) local: BTreeSet<IpAddr>,
}

/// What the rules of one family need to know.
struct Around<'a> {
    is_v4: bool,
    local: &'a BTreeSet<IpAddr>,
}

impl Around<'_> {
    /// `--cluster-cidr`.
    fn pods(&self) -> &'static str {
        if self.is_v4 { "10.77.0.0/16" } else { "fd77::/64" }
    }

    fn endpoints<'s>(&self, service: &'s ServicePort) -> impl Iterator<Item = (usize, &'s SocketAddr, bool)> {
        let with_place = service.endpoints.iter().enumerate();
        with_place.map(|(number, endpoint)| (number, endpoint, self.local.contains(&endpoint.ip())))
    }

    fn has_local(&self, service: &ServicePort) -> bool {
        self.endpoints(service).any(|(_, _, is_local)| is_local)
    }
}

impl ProxyHost<'_> {
    pub(crate) fn write(&self, mode: ProxyMode, services: &[ServicePort]) -> Result<(), WorldError> {
        // As kube-proxy does when it starts in another mode, each takes away what the other wrote.
        let [by_iptables, by_nftables]: [&[ServicePort]; 2] = match mode {
            ProxyMode::Iptables => [services, &[]],
            ProxyMode::Nftables => [&[], services],
        };
        let is_used = mode == ProxyMode::Nftables;
        self.run(
            &["nft", "-f"],
            "kube-proxy.nft",
            &self.nftables(is_used, by_nftables),
        )?;
        for (save, restore, is_v4) in FAMILIES {
            let present = command::list(self.netns, &[save])?;
            if mode == ProxyMode::Nftables && !present.contains("KUBE-FORWARD") {
                continue;
            }
            let (of_family, around) = (of_family(by_iptables, is_v4), self.around(is_v4));
            let text = match mode {
                ProxyMode::Iptables => iptables::tables(&of_family, &around, &present),
                ProxyMode::Nftables => iptables::emptied(),
            };
            self.run(&[restore, "--noflush"], restore, &text)?;
        }
        Ok(())
    }

    fn write_nat(&self, services: &[ServicePort]) -> Result<(), WorldError> {
        for (_, restore, is_v4) in FAMILIES {
            let text = iptables::nat(&of_family(services, is_v4), &self.around(is_v4), "");
            self.run(&[restore], restore, &text)?;
        }
        Ok(())
    }

    fn nftables(&self, is_used: bool, services: &[ServicePort]) -> String {
        let families = [true, false].map(|is_v4| {
            let services = of_family(services, is_v4);
            nftables::table(is_used.then_some(&services[..]), &self.around(is_v4))
        });
        families.concat()
    }

    fn around(&self, is_v4: bool) -> Around<'_> {
        Around {
            is_v4,
            local: &self.local,
        }
    }

    fn run(&self, argv: &[&str], file: &str, text: &str) -> Result<(), WorldError> {
        let path = self.folder.join(file);
        fs::write(&path, text).map_err(WorldError::file(&path))?;
        let path = path.display().to_string();
        command::ask(self.netns, &[argv, &[&path]].concat()).map(drop)
    }
}

const FAMILIES: [(&str, &str, bool); 2] = [
    ("iptables-save", "iptables-restore", true),
    ("ip6tables-save", "ip6tables-restore", false),
];

fn of_family(services: &[ServicePort], is_v4: bool) -> Vec<&ServicePort> {
    services
        .iter()
        .filter(|service| service.is_v4() == is_v4)
        .collect()
}
