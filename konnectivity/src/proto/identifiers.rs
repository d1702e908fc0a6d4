//! What an agent says of itself, as a URL's query: `host=node-1&ipv4=10.0.0.1&default-route=true`.

use std::fmt;
use std::net::IpAddr;

use ipnet::IpNet;

/// Which destinations an agent stands for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Identifiers {
    addresses: Vec<IpAddr>,
    hosts: Vec<String>,
    networks: Vec<IpNet>,
    zones: Vec<String>,
    default_route: bool,
}

/// One of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Claim<'a> {
    Address(IpAddr),
    Host(&'a str),
    Network(IpNet),
    Zone(&'a str),
    DefaultRoute,
}

/// For people.
impl fmt::Display for Claim<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Address(address) => address.fmt(formatter),
            Self::Host(host) => formatter.write_str(host),
            Self::Network(network) => network.fmt(formatter),
            Self::Zone(zone) => write!(formatter, "the zone {zone}"),
            Self::DefaultRoute => formatter.write_str("the default route"),
        }
    }
}

/// Why identifiers are refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidIdentifiers {
    #[error("unknown identifier {0:?}; there are host, ipv4, ipv6, cidr, zone and default-route")]
    Key(String),
    #[error("{key}={value:?} is no address")]
    Address { key: String, value: String },
    #[error("default-route={0:?} is neither true nor false")]
    DefaultRoute(String),
    #[error("cidr={0:?} is no network")]
    Network(String),
}

impl Identifiers {
    /// Reads what an operator writes.
    ///
    /// # Errors
    /// At the first identifier that is unknown or has no meaning.
    pub fn parse(query: &str) -> Result<Self, InvalidIdentifiers> {
        let mut identifiers = Self::default();
        for (key, value) in form_urlencoded::parse(query.as_bytes()) {
            identifiers.add(&key, &value)?;
        }
        Ok(identifiers)
    }

    /// Reads what an agent sends. Unknown identifiers are passed over, as upstream's server does; those without a meaning match nothing.
    #[must_use]
    pub fn of_agent(query: &str) -> (Self, Vec<InvalidIdentifiers>) {
        let mut identifiers = Self::default();
        let pairs = form_urlencoded::parse(query.as_bytes());
        let refused = pairs.filter_map(|(key, value)| identifiers.add(&key, &value).err());
        let refused = refused.collect();
        (identifiers, refused)
    }

    fn add(&mut self, key: &str, value: &str) -> Result<(), InvalidIdentifiers> {
        match key {
            // Manifests say `ipv4=$(HOST_IP)` on nodes of either family; upstream's agent takes it.
            "ipv4" | "ipv6" => match value.parse() {
                Ok(address) => self.addresses.push(address),
                Err(_text) => {
                    return Err(InvalidIdentifiers::Address {
                        key: key.to_owned(),
                        value: value.to_owned(),
                    });
                }
            },
            "host" => self.hosts.push(value.to_owned()),
            "cidr" => match value.parse() {
                Ok(network) => self.networks.push(network),
                Err(_text) => return Err(InvalidIdentifiers::Network(value.to_owned())),
            },
            "zone" => self.zones.push(value.to_owned()),
            "default-route" => match value {
                "true" => self.default_route = true,
                "false" => {}
                _ => return Err(InvalidIdentifiers::DefaultRoute(value.to_owned())),
            },
            _ => return Err(InvalidIdentifiers::Key(key.to_owned())),
        }
        Ok(())
    }

    /// Whether the agent stands for this host: addresses compare as addresses, names as text.
    #[must_use]
    pub fn has_host(&self, host: &str) -> bool {
        match host.parse::<IpAddr>() {
            Ok(address) => self.addresses.contains(&address),
            Err(_name) => self.hosts.iter().any(|it| it == host),
        }
    }

    /// All that it stands for.
    pub fn claims(&self) -> impl Iterator<Item = Claim<'_>> {
        let addresses = self.addresses.iter().copied().map(Claim::Address);
        let hosts = self.hosts.iter().map(|host| Claim::Host(host));
        let networks = self.networks.iter().copied().map(Claim::Network);
        let zones = self.zones.iter().map(|zone| Claim::Zone(zone));
        let route = self.default_route.then_some(Claim::DefaultRoute);
        addresses.chain(hosts).chain(networks).chain(zones).chain(route)
    }

    /// Whether it stands for any host.
    #[must_use]
    pub fn has_hosts(&self) -> bool {
        !self.addresses.is_empty() || !self.hosts.is_empty()
    }

    /// Whether it stands for any network.
    #[must_use]
    pub fn has_networks(&self) -> bool {
        !self.networks.is_empty()
    }

    /// The longest prefix of its networks that have the address.
    #[must_use]
    pub fn narrowest_network(&self, address: IpAddr) -> Option<u8> {
        let address = address.to_canonical();
        let having = self.networks.iter().filter(|network| network.contains(&address));
        having.map(IpNet::prefix_len).max()
    }

    #[must_use]
    pub fn has_zone(&self, zone: &str) -> bool {
        self.zones.iter().any(|it| it == zone)
    }

    #[must_use]
    pub fn is_default_route(&self) -> bool {
        self.default_route
    }
}

/// As it is sent.
impl fmt::Display for Identifiers {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut query = form_urlencoded::Serializer::new(String::new());
        for address in &self.addresses {
            let key = if address.is_ipv4() { "ipv4" } else { "ipv6" };
            query.append_pair(key, &address.to_string());
        }
        query.extend_pairs(self.hosts.iter().map(|host| ("host", host)));
        query.extend_pairs(self.networks.iter().map(|network| ("cidr", network.to_string())));
        query.extend_pairs(self.zones.iter().map(|zone| ("zone", zone)));
        if self.default_route {
            query.append_pair("default-route", "true");
        }
        formatter.write_str(&query.finish())
    }
}
