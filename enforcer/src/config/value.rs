//! Values as people write them.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use egret_kernel::iptables::{Flavour, InterfacePattern, NameError};
pub use egret_shared::rt::config::Span;
use serde::{Deserialize, Serialize};

/// Why a value cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidValue {
    /// Not a source.
    #[error(
        "{0:?} is not a source; write kube, or dir: and the path of a folder, as in \"dir:/etc/egret/manifests\""
    )]
    Source(String),
    /// Not a place for events.
    #[error(
        "{0:?} is no place for events; write off, stdout, or a path with a slash, as in \"/var/log/egret/events.jsonl\""
    )]
    EventsTo(String),
    /// Not a name of interfaces.
    #[error(transparent)]
    Interfaces(#[from] NameError),
    /// No pod is there.
    #[error(
        "{0:?} is also the loopback interface, where no pod is; write names that only pods have, as in \"veth+\""
    )]
    Loopback(String),
}

/// Where objects come from.
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

/// Where denied packets are told.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum EventsTo {
    /// Nowhere: the kernel only counts them.
    Off,
    /// On standard output; the log is on standard error.
    Stdout,
    /// At the end of a file.
    File(PathBuf),
}

impl FromStr for EventsTo {
    type Err = InvalidValue;

    /// A path has a slash, so that a misspelt word makes no file.
    fn from_str(text: &str) -> Result<Self, InvalidValue> {
        match text {
            "off" => Ok(Self::Off),
            "stdout" => Ok(Self::Stdout),
            path if path.contains('/') && !path.ends_with('/') => Ok(Self::File(path.into())),
            other => Err(InvalidValue::EventsTo(other.to_owned())),
        }
    }
}

impl fmt::Display for EventsTo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Off => f.write_str("off"),
            Self::Stdout => f.write_str("stdout"),
            Self::File(path) => path.display().fmt(f),
        }
    }
}

/// Which kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum BackendKind {
    /// iptables and ipset.
    Netfilter,
    /// Programs at the pods' cgroups.
    Ebpf,
    /// Maps in this process: nothing is enforced.
    Memory,
    /// Everything is computed, nothing is enforced.
    None,
}

/// What happens to a pod that is not known yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum OnUnknownPod {
    /// Nothing passes from or to it but what its own node sends, and answers.
    Deny,
    /// Everything passes.
    Allow,
}

/// Interfaces of the node.
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

/// Which iptables.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum FlavourChoice {
    /// The one that the kubelet uses, else the one with more rules, else the default one.
    Auto,
    /// The one in nf_tables.
    Nft,
    /// The one in x_tables.
    Legacy,
}

impl FlavourChoice {
    /// The flavour, where one was chosen.
    #[must_use]
    pub const fn flavour(self) -> Option<Flavour> {
        match self {
            Self::Auto => None,
            Self::Nft => Some(Flavour::Nft),
            Self::Legacy => Some(Flavour::Legacy),
        }
    }
}

/// What an isolated pod may ask of its own node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum OwnNode {
    /// Everything, as the documentation of NetworkPolicy says.
    Allow,
    /// Port 53.
    Dns,
    /// What policies allow.
    Enforce,
}

/// Whether policies are enforced on this node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Enforce {
    /// They are, but for those that say otherwise themselves.
    Enforce,
    /// None is: what they would deny is counted and told.
    Audit,
}

/// What of the cluster itself a name may open.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Opened {
    /// Addresses of nodes.
    Node,
    /// Where the API server is reached.
    ApiServer,
}

egret_shared::as_text!(EventsTo, Source, PodInterfaces);
