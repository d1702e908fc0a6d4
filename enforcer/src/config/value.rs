//! Types of option values.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use egret_kernel::iptables::{Flavour, InterfacePattern, NameError};
pub use egret_shared::rt::config::MillisDuration;
use serde::{Deserialize, Serialize};

/// Why a value is invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidValue {
    /// Not a source.
    #[error(
        "{0:?} is not a source; write kube, or dir: and the path of a folder, as in \"dir:/etc/egret/manifests\""
    )]
    Source(String),
    /// Not an interface name.
    #[error(transparent)]
    Interfaces(#[from] NameError),
    /// No pod is behind the loopback interface.
    #[error(
        "{0:?} is also the loopback interface, where no pod is; write names that only pods have, as in \"veth+\""
    )]
    Loopback(String),
}

/// The source of objects.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Source {
    /// A folder of manifests.
    Dir(PathBuf),
    /// The API server of a cluster.
    Kube,
}

impl Source {
    /// What tells it from other sources where its objects are kept.
    #[must_use]
    pub fn root(&self) -> &Path {
        match self {
            Self::Dir(folder) => folder,
            // A name that no folder can have.
            Self::Kube => Path::new("\0kube"),
        }
    }
}

impl FromStr for Source {
    type Err = InvalidValue;

    fn from_str(text: &str) -> Result<Self, InvalidValue> {
        if text == "kube" {
            return Ok(Self::Kube);
        }
        let path = text.strip_prefix("dir:").filter(|path| !path.is_empty());
        path.map(|path| Self::Dir(path.into()))
            .ok_or_else(|| InvalidValue::Source(text.to_owned()))
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Dir(folder) => write!(f, "dir:{}", folder.display()),
            Self::Kube => f.write_str("kube"),
        }
    }
}

/// What is configured as the backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum BackendChoice {
    /// The packet filter whose rules are there; without any, nftables where the kernel has what it needs, nobody uses legacy
    /// iptables and no flavour is configured, else netfilter.
    Auto,
    /// iptables and ipset.
    #[value(alias = "iptables")]
    #[serde(alias = "iptables")]
    Netfilter,
    /// A table of nftables.
    Nftables,
    /// eBPF programs at the pods' cgroups.
    Ebpf,
    /// Netfilter, with eBPF programs in front that refuse at the socket.
    Both,
    /// Maps in this process; nothing is enforced.
    Memory,
    /// Everything is computed, nothing is enforced.
    None,
}

impl BackendChoice {
    /// The backend; none for `Auto`.
    #[must_use]
    pub const fn kind(self) -> Option<BackendKind> {
        Some(match self {
            Self::Auto => return None,
            Self::Netfilter => BackendKind::Netfilter,
            Self::Nftables => BackendKind::Nftables,
            Self::Ebpf => BackendKind::Ebpf,
            Self::Both => BackendKind::Both,
            Self::Memory => BackendKind::Memory,
            Self::None => BackendKind::None,
        })
    }
}

/// A backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BackendKind {
    /// iptables and ipset.
    Netfilter,
    /// A table of nftables.
    Nftables,
    /// eBPF programs at the pods' cgroups.
    Ebpf,
    /// Netfilter, with eBPF programs in front.
    Both,
    /// Maps in this process.
    Memory,
    /// Nothing is enforced.
    None,
}

impl BackendKind {
    /// Whether it writes rules of the network namespace, of which there is one writer.
    #[must_use]
    pub const fn is_packet_filter(self) -> bool {
        match self {
            Self::Netfilter | Self::Nftables | Self::Both => true,
            Self::Ebpf | Self::Memory | Self::None => false,
        }
    }
}

/// What happens to an unknown pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum UnknownPodPolicy {
    /// Only its own node may reach it, and receives replies.
    Deny,
    /// Everything is allowed.
    Allow,
}

/// Interfaces of pods.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct PodInterfaces(InterfacePattern);

impl PodInterfaces {
    /// The pattern.
    #[must_use]
    pub fn into_pattern(self) -> InterfacePattern {
        self.0
    }
}

impl FromStr for PodInterfaces {
    type Err = InvalidValue;

    fn from_str(text: &str) -> Result<Self, InvalidValue> {
        let pattern = InterfacePattern::new(text)?;
        if pattern.matches("lo") {
            return Err(InvalidValue::Loopback(text.to_owned()));
        }
        Ok(Self(pattern))
    }
}

impl fmt::Display for PodInterfaces {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0.as_str())
    }
}

/// The flavour of iptables.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum FlavourChoice {
    /// The kubelet's, else the one with more rules, else the system's default.
    Auto,
    /// nf_tables.
    Nft,
    /// x_tables.
    Legacy,
}

impl FlavourChoice {
    /// The flavour; none for `Auto`.
    #[must_use]
    pub const fn flavour(self) -> Option<Flavour> {
        match self {
            Self::Auto => None,
            Self::Nft => Some(Flavour::Nft),
            Self::Legacy => Some(Flavour::Legacy),
        }
    }
}

/// What an isolated pod may send to its own node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum OwnNodeAccess {
    /// Everything, as the documentation of NetworkPolicy says.
    Allow,
    /// Port 53.
    Dns,
    /// What policies allow.
    Enforce,
}

/// Whether policies are enforced.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum EnforcementMode {
    /// Policies are enforced, unless they are in audit themselves.
    Enforce,
    /// All policies are in audit: what they would deny is counted and logged.
    Audit,
}

/// Addresses of the cluster that a name may open.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum NameTarget {
    /// Addresses of nodes.
    Node,
    /// Addresses of the API server.
    ApiServer,
}

egret_shared::as_text!(Source, PodInterfaces);
