//! Values as people write them.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use egret_kernel::iptables::Flavour;
use serde::{Deserialize, Serialize};

/// Why a value cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidValue {
    /// Not a span of time.
    #[error("{0:?} is not a span of time; write a whole number and ms, s, m or h, as in \"200ms\"")]
    Span(String),
    /// Not a source.
    #[error("{0:?} is not a source; write dir: and the path of a folder, as in \"dir:/etc/egret/manifests\"")]
    Source(String),
}

/// A span of time in whole milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Span(u64);

impl Span {
    /// As the standard library has it.
    #[must_use]
    pub const fn as_duration(self) -> Duration {
        Duration::from_millis(self.0)
    }
}

impl FromStr for Span {
    type Err = InvalidValue;

    fn from_str(text: &str) -> Result<Self, InvalidValue> {
        let invalid = || InvalidValue::Span(text.to_owned());
        let digits = text
            .find(|character: char| !character.is_ascii_digit())
            .ok_or_else(invalid)?;
        let (number, unit) = text.split_at(digits);
        let factor = match unit {
            "ms" => 1,
            "s" => 1_000,
            "m" => 60_000,
            "h" => 3_600_000,
            _ => return Err(invalid()),
        };
        let millis = number
            .parse::<u64>()
            .ok()
            .and_then(|number| number.checked_mul(factor));
        millis.map(Self).ok_or_else(invalid)
    }
}

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}ms", self.0)
    }
}

/// Where objects come from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Source(PathBuf);

impl Source {
    /// The folder.
    #[must_use]
    pub fn into_path(self) -> PathBuf {
        self.0
    }
}

impl FromStr for Source {
    type Err = InvalidValue;

    fn from_str(text: &str) -> Result<Self, InvalidValue> {
        let path = text.strip_prefix("dir:").filter(|path| !path.is_empty());
        path.map(|path| Self(path.into()))
            .ok_or_else(|| InvalidValue::Source(text.to_owned()))
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "dir:{}", self.0.display())
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

macro_rules! as_text {
    ($($kind:ty),*) => {$(
        impl TryFrom<String> for $kind {
            type Error = InvalidValue;

            fn try_from(text: String) -> Result<Self, InvalidValue> {
                text.parse()
            }
        }

        impl From<$kind> for String {
            fn from(value: $kind) -> Self {
                value.to_string()
            }
        }
    )*};
}

as_text!(Span, Source);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_span_has_a_number_and_a_unit() {
        assert_eq!(
            "90s".parse::<Span>().unwrap().as_duration(),
            Duration::from_secs(90)
        );
        for text in ["", "1", "s", "1.5s", "1 s", "1d", "99999999999999999999s"] {
            assert!(text.parse::<Span>().is_err(), "{text}");
        }
    }
}
