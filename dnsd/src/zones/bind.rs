//! Where a block listens (`bind`).

use std::collections::BTreeSet;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use crate::config::model::{BindTo, Block};

/// The addresses of the interface with a name; none where there is no such interface.
pub type Interfaces<'a> = dyn Fn(&str) -> io::Result<Option<Vec<IpAddr>>> + 'a;

/// Why it cannot be told where a block listens.
#[derive(Debug, thiserror::Error)]
pub enum BindError {
    /// There is no such interface.
    #[error("bind: {0:?} is no address, and there is no interface of this name")]
    Unknown(String),
    /// The kernel did not tell.
    #[error("bind: the addresses of {0:?} cannot be told: {1}")]
    Io(String, io::Error),
    /// All that it names is excepted, or the interfaces have no addresses.
    #[error("bind: nothing is left to listen on")]
    Nothing,
}

/// The addresses of a block, each once.
pub(super) fn addresses(
    block: &Block,
    interfaces: &Interfaces<'_>,
) -> Result<BTreeSet<SocketAddr>, BindError> {
    let with_port = |address| SocketAddr::new(address, block.port);
    if block.bind.is_empty() {
        let any: [IpAddr; 2] = [Ipv4Addr::UNSPECIFIED.into(), Ipv6Addr::UNSPECIFIED.into()];
        return Ok(any.map(with_port).into());
    }
    let mut found = BTreeSet::new();
    for bind in &block.bind {
        let except = resolve(&bind.except, interfaces)?;
        found.extend(resolve(&bind.to, interfaces)?.difference(&except).copied());
    }
    if found.is_empty() {
        return Err(BindError::Nothing);
    }
    Ok(found.into_iter().map(with_port).collect())
}

fn resolve(words: &[BindTo], interfaces: &Interfaces<'_>) -> Result<BTreeSet<IpAddr>, BindError> {
    let mut found = BTreeSet::new();
    for word in words {
        match word {
            BindTo::Address(address) => {
                found.insert(*address);
            }
            BindTo::Interface(name) => {
                let addresses = interfaces(name)
                    .map_err(|error| BindError::Io(name.clone(), error))?
                    .ok_or_else(|| BindError::Unknown(name.clone()))?;
                found.extend(addresses);
            }
        }
    }
    Ok(found)
}

/// The host's interfaces. IPv6 addresses of one link are left out: nobody can be told to ask at them without naming
/// the link.
///
/// # Errors
/// When the kernel does not tell.
pub fn host_interfaces(name: &str) -> io::Result<Option<Vec<IpAddr>>> {
    let mut found = None::<Vec<IpAddr>>;
    for interface in nix::ifaddrs::getifaddrs().map_err(io::Error::from)? {
        if interface.interface_name != name {
            continue;
        }
        let addresses = found.get_or_insert_default();
        let Some(storage) = interface.address else {
            continue;
        };
        let ipv4 = storage.as_sockaddr_in().map(|address| address.ip().into());
        let ipv6 = storage.as_sockaddr_in6().map(|address| address.ip());
        let ipv6 = ipv6.filter(|address| !address.is_unicast_link_local());
        addresses.extend(ipv4.or_else(|| ipv6.map(IpAddr::V6)));
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn interfaces(name: &str) -> io::Result<Option<Vec<IpAddr>>> {
        Ok(match name {
            "lo" => Some(vec!["127.0.0.1".parse().unwrap(), "::1".parse().unwrap()]),
            "bare" => Some(Vec::new()),
            _other => None,
        })
    }

    fn words(text: &str) -> Vec<BindTo> {
        text.split_whitespace()
            .map(|word| {
                word.parse()
                    .map_or_else(|_name| BindTo::Interface(word.to_owned()), BindTo::Address)
            })
            .collect()
    }

    #[test]
    fn bind_resolves_interfaces_and_exceptions() {
        for (to, except, addresses) in [
            ("192.0.2.1", "", "192.0.2.1"),
            ("lo", "", "127.0.0.1 ::1"),
            ("lo 192.0.2.1", "::1", "127.0.0.1 192.0.2.1"),
            ("lo 192.0.2.1", "lo", "192.0.2.1"),
        ] {
            let found = resolve(&words(to), &interfaces).unwrap();
            let except = resolve(&words(except), &interfaces).unwrap();
            let found: Vec<String> = found.difference(&except).map(ToString::to_string).collect();
            assert_eq!(found.join(" "), addresses, "{to}");
        }
        assert!(matches!(
            resolve(&words("eth9"), &interfaces),
            Err(BindError::Unknown(name)) if name == "eth9"
        ));
    }

    #[test]
    fn lo_is_an_interface_and_a_missing_one_is_an_error() {
        let loopback = host_interfaces("lo").unwrap().unwrap();
        assert!(loopback.contains(&Ipv4Addr::LOCALHOST.into()));
        assert!(host_interfaces("eg-nonexistent").unwrap().is_none());
    }
}
