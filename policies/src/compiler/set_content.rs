//! What a set stands for. Its name is made of this and not of its members, so it stays when pods come
//! and go, is shared by all rules that mean the same, and is the same after a restart.

use std::collections::BTreeSet;
use std::fmt;
use std::fmt::Write as _;
use std::net::IpAddr;
use std::num::NonZeroU16;
use std::sync::Arc;

use egret_shared::name::NamePattern;
use egret_shared::net::{IpNet, PortRange, Transport};
use egret_shared::pod::PodKey;

use crate::compiler::index::{Index, LivePod};
use crate::model::cluster::Service;
use crate::model::{Labels, NamespaceSelector, Requirement, Selector};
use crate::rules::{Breadth, Member, SetId, SetKind, SetSpec};

/// Whether a range of ports has the one of DNS.
pub(crate) fn is_about_dns(transport: Transport, range: PortRange) -> bool {
    DNS_TRANSPORTS.contains(&transport) && range.contains(DNS_PORT.get())
}

/// A set with its name.
#[derive(Debug)]
pub(crate) struct NamedSet {
    pub(crate) id: SetId,
    pub(crate) content: SetContent,
}

/// What a set stands for.
#[derive(Debug)]
pub(crate) enum SetContent {
    /// Addresses of pods by selectors.
    Pods {
        namespaces: NamespaceSelector,
        pods: Selector,
    },
    /// The ports of this name at pods by selectors.
    PodPorts {
        namespaces: NamespaceSelector,
        pods: Selector,
        name: Arc<str>,
        transport: Option<Transport>,
    },
    /// dnsd at port 53, as far as it answers in the place of pods by selectors; with a name, of such as serve a port
    /// of this name there.
    DnsStandIn {
        namespaces: NamespaceSelector,
        pods: Selector,
        named: Option<PortName>,
    },
    /// Fixed networks.
    Networks(BTreeSet<IpNet>),
    /// Addresses of nodes by selector, as their status has them.
    Nodes(Selector),
    /// All known addresses of nodes by selector.
    NodeAddresses(Selector),
    /// What belongs to pods and Services: their addresses, and the networks from which pods get theirs.
    Cluster,
    /// Addresses of Services, by namespace and name where these are given.
    Services {
        namespace: Option<Arc<str>>,
        name: Option<Arc<str>>,
    },
    /// Where the API server is reached, with its ports.
    ApiServer,
    /// Where connections to ports of its Service come out.
    ApiServerBehind(Transport, PortRange),
    /// Addresses that the platform declares to be the API server's.
    ApiServerAddresses,
    /// What a pod was told for names. A pod that is made anew under the same name has another UID: what the one before
    /// was told is not in its set, even where the kernel still holds that. `lost` tells runs of one UID apart: one that
    /// lost an address is over, and a backend may remember what it was told beyond its time.
    Records {
        pod: PodKey,
        uid: Option<Arc<str>>,
        ended_runs: u32,
        patterns: Arc<BTreeSet<NamePattern>>,
    },
}

/// A named port, with the protocol that it must have, if the kind says one.
pub(crate) type PortName = (Arc<str>, Option<Transport>);

/// Where DNS is asked.
const DNS_PORT: NonZeroU16 = NonZeroU16::new(53).expect("53 is not 0");
/// The protocols by which it is.
const DNS_TRANSPORTS: [Transport; 2] = [Transport::Udp, Transport::Tcp];

impl NamedSet {
    /// Names a content.
    pub(crate) fn new(content: SetContent) -> Arc<Self> {
        let id = SetId::of_content(&content.to_string());
        Arc::new(Self { id, content })
    }

    /// What a backend needs to make it.
    pub(crate) fn spec(&self) -> SetSpec {
        SetSpec {
            id: self.id,
            kind: match &self.content {
                SetContent::Pods { .. }
                | SetContent::Nodes(_)
                | SetContent::NodeAddresses(_)
                | SetContent::ApiServerAddresses => SetKind::Addresses,
                SetContent::PodPorts { .. }
                | SetContent::DnsStandIn { .. }
                | SetContent::ApiServer
                | SetContent::ApiServerBehind(..) => SetKind::AddressPorts,
                SetContent::Networks(_) | SetContent::Cluster | SetContent::Services { .. } => {
                    SetKind::Networks
                }
                SetContent::Records { .. } => SetKind::Records,
            },
            breadth: self.content.breadth(),
            description: self.content.to_string().into(),
        }
    }
}

impl SetContent {
    fn breadth(&self) -> Breadth {
        match self {
            Self::Networks(_) => Breadth::Narrow,
            Self::Pods { namespaces, .. }
            | Self::PodPorts { namespaces, .. }
            | Self::DnsStandIn { namespaces, .. }
                if namespaces.is_of_one_name() =>
            {
                Breadth::Narrow
            }
            Self::Pods { .. }
            | Self::PodPorts { .. }
            | Self::DnsStandIn { .. }
            | Self::Nodes(_)
            | Self::NodeAddresses(_)
            | Self::Cluster
            | Self::Services { .. }
            | Self::ApiServer
            | Self::ApiServerBehind(..)
            | Self::ApiServerAddresses
            | Self::Records { .. } => Breadth::Wide,
        }
    }

    /// What a pod has in the set.
    pub(crate) fn members_of_pod(&self, pod: &LivePod<'_>, index: &Index) -> BTreeSet<Member> {
        match self {
            Self::Pods { namespaces, pods } if pod.is_selected(namespaces, pods) => {
                pod.addresses.iter().copied().map(Member::Address).collect()
            }
            Self::PodPorts {
                namespaces,
                pods,
                name,
                transport,
            } if pod.is_selected(namespaces, pods) => port_members(pod, name, *transport),
            Self::Cluster => single_networks(
                pod.addresses
                    .iter()
                    .filter(|address| !index.is_node_address(**address)),
            ),
            Self::Pods { .. }
            | Self::PodPorts { .. }
            | Self::DnsStandIn { .. }
            | Self::Networks(_)
            | Self::Nodes(_)
            | Self::NodeAddresses(_)
            | Self::ApiServer
            | Self::ApiServerBehind(..)
            | Self::ApiServerAddresses
            | Self::Services { .. }
            | Self::Records { .. } => BTreeSet::new(),
        }
    }

    /// What a node has in the set.
    pub(crate) fn members_of_node(&self, name: &str, index: &Index) -> BTreeSet<Member> {
        let none = Labels::default();
        let node = index.node(name);
        let labels = node.map_or(&none, |node| &node.labels);
        match self {
            Self::Nodes(selector) if selector.matches(labels) => {
                addresses(node.into_iter().flat_map(|node| &node.addresses))
            }
            Self::NodeAddresses(selector) if selector.matches(labels) => {
                addresses(index.addresses_of_node(name))
            }
            Self::Cluster => index
                .pod_networks_of_node(name)
                .into_iter()
                .map(Member::Network)
                .collect(),
            Self::Nodes(_)
            | Self::NodeAddresses(_)
            | Self::ApiServer
            | Self::ApiServerBehind(..)
            | Self::ApiServerAddresses
            | Self::Pods { .. }
            | Self::PodPorts { .. }
            | Self::DnsStandIn { .. }
            | Self::Networks(_)
            | Self::Services { .. }
            | Self::Records { .. } => BTreeSet::new(),
        }
    }

    /// What a Service has in the set.
    pub(crate) fn members_of_service(&self, service: &Service) -> BTreeSet<Member> {
        match self {
            Self::Cluster => single_networks(&service.addresses),
            Self::Services { namespace, name }
                if is_named(namespace.as_deref(), service.key.namespace())
                    && is_named(name.as_deref(), service.key.name()) =>
            {
                single_networks(&service.addresses)
            }
            Self::Pods { .. }
            | Self::PodPorts { .. }
            | Self::DnsStandIn { .. }
            | Self::Networks(_)
            | Self::Nodes(_)
            | Self::NodeAddresses(_)
            | Self::ApiServer
            | Self::ApiServerBehind(..)
            | Self::ApiServerAddresses
            | Self::Services { .. }
            | Self::Records { .. } => BTreeSet::new(),
        }
    }

    /// What is in the set of dnsd.
    pub(crate) fn members_of_dns(&self, index: &Index) -> BTreeSet<Member> {
        let Self::DnsStandIn {
            namespaces,
            pods,
            named,
        } = self
        else {
            return BTreeSet::new();
        };
        let transports: BTreeSet<Transport> = index
            .dns_pods()
            .filter(|pod| pod.is_selected(namespaces, pods))
            .flat_map(|pod| dns_transports(&pod, named.as_ref()))
            .collect();
        let at = |address| {
            let member = move |transport: &Transport| Member::AddressPort(address, *transport, DNS_PORT);
            transports.iter().map(member)
        };
        index.dns_addresses().flat_map(at).collect()
    }

    /// What is in the set of the API server.
    pub(crate) fn members_of_api_server(&self, index: &Index) -> BTreeSet<Member> {
        match self {
            Self::ApiServer => address_ports(index.api_server()),
            Self::ApiServerBehind(transport, range) => {
                address_ports(index.api_server_behind(*transport, *range))
            }
            Self::ApiServerAddresses => addresses(index.declared_api_server()),
            Self::Pods { .. }
            | Self::PodPorts { .. }
            | Self::DnsStandIn { .. }
            | Self::Networks(_)
            | Self::Nodes(_)
            | Self::NodeAddresses(_)
            | Self::Cluster
            | Self::Services { .. }
            | Self::Records { .. } => BTreeSet::new(),
        }
    }
}

fn is_named(wanted: Option<&str>, found: &str) -> bool {
    wanted.is_none_or(|wanted| wanted == found)
}

fn address_ports(list: BTreeSet<(IpAddr, Transport, NonZeroU16)>) -> BTreeSet<Member> {
    list.into_iter()
        .map(|(address, transport, port)| Member::AddressPort(address, transport, port))
        .collect()
}

fn addresses<'a>(list: impl IntoIterator<Item = &'a IpAddr>) -> BTreeSet<Member> {
    list.into_iter()
        .map(|address| Member::Address(address.to_canonical()))
        .collect()
}

fn single_networks<'a>(list: impl IntoIterator<Item = &'a IpAddr>) -> BTreeSet<Member> {
    list.into_iter()
        .map(|address| Member::Network(IpNet::from(address.to_canonical())))
        .collect()
}

fn port_members(pod: &LivePod<'_>, name: &str, transport: Option<Transport>) -> BTreeSet<Member> {
    let ports: Vec<_> = pod
        .pod
        .ports
        .iter()
        .filter(|port| port.name.as_ref() == name && transport.is_none_or(|asked| asked == port.transport))
        .collect();
    pod.addresses
        .iter()
        .flat_map(|address| {
            ports
                .iter()
                .map(|port| Member::AddressPort(*address, port.transport, port.number))
        })
        .collect()
}

/// The protocols by which a pod would be asked at port 53.
fn dns_transports(pod: &LivePod<'_>, named: Option<&PortName>) -> Vec<Transport> {
    let serves = |(name, asked): &PortName, transport: Transport| {
        asked.is_none_or(|asked| asked == transport)
            && pod
                .pod
                .ports
                .iter()
                .any(|port| port.name == *name && port.transport == transport && port.number == DNS_PORT)
    };
    DNS_TRANSPORTS
        .into_iter()
        .filter(|transport| named.is_none_or(|named| serves(named, *transport)))
        .collect()
}

/// The text that makes the name and that people read. What users wrote in it stands in quotes with
/// escapes, so no two contents have one text.
impl fmt::Display for SetContent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Pods { namespaces, pods } => write!(f, "pods {}", Selected(namespaces, pods)),
            Self::PodPorts {
                namespaces,
                pods,
                name,
                transport,
            } => {
                let (protocol, selected) = (protocol(*transport), Selected(namespaces, pods));
                write!(f, "port {name:?}/{protocol} of pods {selected}")
            }
            Self::DnsStandIn {
                namespaces,
                pods,
                named,
            } => {
                f.write_str("dnsd")?;
                if let Some((name, transport)) = named {
                    write!(f, " as port {name:?}/{}", protocol(*transport))?;
                }
                write!(f, " in place of pods {}", Selected(namespaces, pods))
            }
            Self::Networks(networks) => {
                f.write_str("networks")?;
                networks.iter().try_for_each(|network| write!(f, " {network}"))
            }
            Self::Nodes(selector) => write!(f, "nodes {}", Requirements(selector)),
            Self::NodeAddresses(selector) => {
                write!(f, "all addresses of nodes {}", Requirements(selector))
            }
            Self::Cluster => f.write_str("pods and services of the cluster"),
            Self::Services { namespace, name } => {
                write!(f, "services {namespace:?} {name:?}")
            }
            Self::ApiServer => f.write_str("the API server"),
            Self::ApiServerBehind(transport, range) => {
                write!(f, "the API server behind {transport}/{range} of its Service")
            }
            Self::ApiServerAddresses => f.write_str("declared addresses of the API server"),
            Self::Records {
                pod,
                uid,
                ended_runs: lost,
                patterns,
            } => {
                f.write_str("names")?;
                patterns.iter().try_for_each(|pattern| write!(f, " {pattern}"))?;
                write!(f, " of {pod}")?;
                uid.iter().try_for_each(|uid| write!(f, " with UID {uid:?}"))?;
                match lost {
                    0 => Ok(()),
                    lost => write!(f, " after {lost} that ended"),
                }
            }
        }
    }
}

fn protocol(transport: Option<Transport>) -> String {
    transport.map_or_else(|| "any".to_owned(), |transport| transport.to_string())
}

struct Selected<'a>(&'a NamespaceSelector, &'a Selector);

impl fmt::Display for Selected<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            NamespaceSelector::Named(name) => write!(f, "namespace {name:?}")?,
            NamespaceSelector::Matching(selector) => write!(f, "namespaces {}", Requirements(selector))?,
        }
        write!(f, " pods {}", Requirements(self.1))
    }
}

struct Requirements<'a>(&'a Selector);

impl fmt::Display for Requirements<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_char('{')?;
        for (place, requirement) in self.0.requirements().enumerate() {
            f.write_str(if place == 0 { "" } else { ", " })?;
            match requirement {
                Requirement::In(key, values) => write!(f, "{key:?} in {values:?}")?,
                Requirement::NotIn(key, values) => write!(f, "{key:?} not in {values:?}")?,
                Requirement::Exists(key) => write!(f, "{key:?}")?,
                Requirement::DoesNotExist(key) => write!(f, "not {key:?}")?,
            }
        }
        f.write_char('}')
    }
}
