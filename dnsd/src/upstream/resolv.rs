//! What a file like /etc/resolv.conf names (resolv.conf(5)): upstreams, and domains in which names are searched.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;

use crate::config::model::Protocol;

/// The `nameserver` lines of a file, at the port of the protocol.
pub(super) fn read(path: &Path, protocol: Protocol) -> io::Result<Vec<SocketAddr>> {
    let text = std::fs::read_to_string(path)?;
    Ok(nameservers(&text)
        .map(|address| SocketAddr::new(address, protocol.port()))
        .collect())
}

/// The domains of a file in which names are searched.
///
/// # Errors
/// That it cannot be read.
pub fn search_domains(path: &Path) -> io::Result<Vec<String>> {
    Ok(searched(&std::fs::read_to_string(path)?))
}

/// The last line counts, whether it is written `search` or `domain`, as for the libraries.
fn searched(text: &str) -> Vec<String> {
    let domains = |line: &str| {
        let mut words = line.split_ascii_whitespace();
        let most = match words.next()? {
            "search" => usize::MAX,
            "domain" => 1,
            _ => return None,
        };
        Some(words.take(most).map(ToOwned::to_owned).collect())
    };
    text.lines().filter_map(domains).next_back().unwrap_or_default()
}

/// What is no address is passed over, as the libraries do that the file is written for; the zone of a link-local
/// address is left out, as CoreDNS does.
fn nameservers(text: &str) -> impl Iterator<Item = IpAddr> {
    text.lines().filter_map(|line| {
        let mut words = line.split_ascii_whitespace();
        if words.next()? != "nameserver" {
            return None;
        }
        let address = words.next()?;
        let without_zone = address.split('%').next().unwrap_or(address);
        without_zone.parse().ok()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nameservers_are_read_as_the_libraries_read_them() {
        let text = "# comment\nsearch a.test\nnameserver 192.0.2.1\n nameserver\t2001:db8::1 # behind\n\
                    nameserver\nnameserver none\nnameserver fe80::1%eth0\nnameservers 192.0.2.9\n;nameserver 192.0.2.8\n";
        let read: Vec<String> = nameservers(text).map(|address| address.to_string()).collect();
        assert_eq!(read, ["192.0.2.1", "2001:db8::1", "fe80::1"]);
    }

    #[test]
    fn the_last_line_with_search_domains_counts() {
        for (text, read) in [
            ("nameserver 192.0.2.1\n", &[][..]),
            (
                "search a.test b.test\nnameserver 192.0.2.1\n",
                &["a.test", "b.test"],
            ),
            ("search a.test\n search\tb.test c.test.\n", &["b.test", "c.test."]),
            ("search a.test\ndomain b.test c.test\n", &["b.test"]),
            ("#search a.test\n;search b.test\nsearching c.test\n", &[]),
        ] {
            assert_eq!(searched(text), read, "{text:?}");
        }
    }
}
