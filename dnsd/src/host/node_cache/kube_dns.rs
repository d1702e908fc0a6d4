//! The mounted `kube-dns` ConfigMap: a file for each key.

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};

/// The keys that are used; `federations` and others are ignored.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KubeDns {
    /// Domains with servers of their own.
    pub stub_domains: BTreeMap<String, Vec<String>>,
    /// Upstreams of all other names; empty means the host's resolvers.
    pub upstream_nameservers: Vec<String>,
}

/// Why a ConfigMap is invalid.
#[derive(Debug, thiserror::Error)]
pub enum InvalidConfigMap {
    /// The folder or a file cannot be read.
    #[error("{}: {source}", path.display())]
    Unreadable {
        /// The path.
        path: PathBuf,
        /// The error.
        source: io::Error,
    },
    /// Invalid JSON.
    #[error("{key}: {error}; {accepted} is accepted")]
    Json {
        /// The key.
        key: &'static str,
        /// The error, with line and column.
        error: serde_json::Error,
        /// What is accepted.
        accepted: &'static str,
    },
    /// An invalid server.
    #[error(
        "{key}: {server:?} cannot be asked; IP, IP:PORT, dns://IP[:PORT], tls://IP[:PORT][%NAME] or the path of a file like /etc/resolv.conf is accepted"
    )]
    Server {
        /// The key, or the stub domain.
        key: String,
        /// The server.
        server: String,
    },
    /// A stub domain without servers: node-cache would write a block that CoreDNS refuses.
    #[error("stubDomains: {domain:?} has no servers; one or more are accepted")]
    NoServers {
        /// The domain.
        domain: String,
    },
    /// An invalid name.
    #[error("stubDomains: {domain:?} is not a domain: {reason}")]
    Domain {
        /// The name.
        domain: String,
        /// The error.
        reason: crate::dns::message::InvalidText,
    },
}

const STUB_DOMAINS: &str = "stubDomains";
const UPSTREAMS: &str = "upstreamNameservers";

impl KubeDns {
    /// Reads the folder. A missing key counts as empty.
    ///
    /// # Errors
    /// With the key.
    pub fn read(folder: &Path) -> Result<Self, InvalidConfigMap> {
        Self::of(|key| file(folder, key))
    }

    fn of(
        text: impl Fn(&'static str) -> Result<Option<String>, InvalidConfigMap>,
    ) -> Result<Self, InvalidConfigMap> {
        let found = Self {
            stub_domains: json(
                STUB_DOMAINS,
                text(STUB_DOMAINS)?,
                "a map from domains to lists of servers",
            )?,
            upstream_nameservers: json(UPSTREAMS, text(UPSTREAMS)?, "a list of servers")?,
        };
        found.check()
    }

    fn check(self) -> Result<Self, InvalidConfigMap> {
        for (domain, servers) in &self.stub_domains {
            let invalid = |reason| InvalidConfigMap::Domain {
                domain: domain.clone(),
                reason,
            };
            crate::dns::message::WireName::parse(domain).map_err(invalid)?;
            if servers.is_empty() {
                return Err(InvalidConfigMap::NoServers {
                    domain: domain.clone(),
                });
            }
            check_servers(domain, servers)?;
        }
        check_servers(UPSTREAMS, &self.upstream_nameservers)?;
        Ok(self)
    }
}

fn file(folder: &Path, key: &'static str) -> Result<Option<String>, InvalidConfigMap> {
    let path = folder.join(key);
    match std::fs::read_to_string(&path) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == io::ErrorKind::NotFound && folder.is_dir() => Ok(None),
        Err(source) => Err(InvalidConfigMap::Unreadable { path, source }),
    }
}

fn json<T: serde::de::DeserializeOwned + Default>(
    key: &'static str,
    text: Option<String>,
    accepted: &'static str,
) -> Result<T, InvalidConfigMap> {
    let Some(text) = text.filter(|text| !text.trim().is_empty()) else {
        return Ok(T::default());
    };
    serde_json::from_str(&text).map_err(|error| InvalidConfigMap::Json { key, error, accepted })
}

fn check_servers(key: &str, servers: &[String]) -> Result<(), InvalidConfigMap> {
    match servers.iter().find(|server| !can_be_asked(server)) {
        None => Ok(()),
        Some(server) => Err(InvalidConfigMap::Server {
            key: key.to_owned(),
            server: server.clone(),
        }),
    }
}

/// Whether CoreDNS' `forward` accepts it. White space would make it two words.
fn can_be_asked(server: &str) -> bool {
    let is_address = |text: &str| text.parse::<IpAddr>().is_ok() || text.parse::<SocketAddr>().is_ok();
    let is_word = !server.contains(|letter: char| letter.is_whitespace() || "{}\"#".contains(letter));
    let is_tls = |rest: &str| is_address(rest.split_once('%').map_or(rest, |(address, _name)| address));
    is_word
        && match server.split_once("://") {
            Some(("dns", rest)) => is_address(rest),
            Some(("tls", rest)) => is_tls(rest),
            Some((_other, _rest)) => false,
            None => is_address(server) || server.starts_with('/'),
        }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(stub_domains: &str, upstreams: &str) -> Result<KubeDns, InvalidConfigMap> {
        KubeDns::of(|key| {
            Ok(Some(
                if key == STUB_DOMAINS {
                    stub_domains
                } else {
                    upstreams
                }
                .to_owned(),
            ))
        })
    }

    #[test]
    fn the_keys_of_the_config_map_are_read() {
        let found = read(
            r#"{"acme.local": ["1.2.3.4"], "b": ["[fd00::1]:54", "tls://9.9.9.9%dns.quad9.net"]}"#,
            r#"["8.8.8.8", "dns://8.8.4.4:53"]"#,
        )
        .unwrap();
        assert_eq!(found.stub_domains.len(), 2);
        assert_eq!(found.upstream_nameservers, ["8.8.8.8", "dns://8.8.4.4:53"]);
        assert_eq!(read("", "\n").unwrap(), KubeDns::default());
    }

    #[test]
    fn invalid_config_maps_are_named() {
        for (stub_domains, upstreams, words) in [
            ("[]", "", "stubDomains: invalid type"),
            (
                "{\"a\":\"1.1.1.1\"}",
                "",
                "a map from domains to lists of servers is accepted",
            ),
            ("{", "", "line 1 column"),
            ("{\"a\":[]}", "", "\"a\" has no servers"),
            ("{\"a..b\":[\"1.1.1.1\"]}", "", "\"a..b\" is not a domain"),
            (
                "{\"a\":[\"ns.example\"]}",
                "",
                "a: \"ns.example\" cannot be asked",
            ),
            (
                "",
                "[\"1.1.1.1 2.2.2.2\"]",
                "upstreamNameservers: \"1.1.1.1 2.2.2.2\" cannot be asked",
            ),
            ("", "[\"https://1.1.1.1\"]", "tls://IP"),
            ("", "[\"1.1.1.1:99999\"]", "cannot be asked"),
            ("", "[\"/etc/resolv.conf{\"]", "cannot be asked"),
        ] {
            let error = read(stub_domains, upstreams).expect_err(words).to_string();
            assert!(error.contains(words), "{error}");
        }
    }

    #[test]
    fn a_key_that_is_missing_is_empty_and_a_folder_that_is_missing_is_an_error() {
        let folder = std::env::temp_dir().join(format!("egret-kube-dns-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        assert_eq!(KubeDns::read(&folder).unwrap(), KubeDns::default());
        std::fs::write(folder.join(UPSTREAMS), "[\"9.9.9.9\"]").unwrap();
        assert_eq!(KubeDns::read(&folder).unwrap().upstream_nameservers, ["9.9.9.9"]);
        std::fs::write(folder.join(STUB_DOMAINS), [0xff, 0xfe]).unwrap();
        assert!(
            KubeDns::read(&folder)
                .unwrap_err()
                .to_string()
                .contains(STUB_DOMAINS)
        );
        std::fs::remove_dir_all(&folder).unwrap();
        assert!(KubeDns::read(&folder).is_err());
    }
}
