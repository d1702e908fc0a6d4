//! The operators' directives of a block: `bind`, `errors`, `log`, `health`, `reload`.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{Expression, Zone, go_duration};

/// `bind ADDRESS|INTERFACE… { except ADDRESS|INTERFACE… }`: interfaces have the addresses of the moment when the plan
/// is applied.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct Bind {
    /// The addresses; at least one.
    pub to: Vec<BindTo>,
    /// Excluded addresses.
    #[serde(default)]
    pub except: Vec<BindTo>,
}

/// An address, or those of an interface.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum BindTo {
    /// An address.
    Address(IpAddr),
    /// All addresses of this interface.
    Interface(String),
}

/// `errors { … }`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct ErrorLog {
    /// Whether the position of a fault is logged (`stacktrace`).
    pub stacktrace: bool,
    /// Errors that are summed up.
    pub consolidate: Vec<Consolidate>,
}

/// `consolidate DURATION REGEXP [LEVEL] [show_first]`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct Consolidate {
    /// The interval.
    #[serde(with = "go_duration")]
    pub every: Duration,
    /// The errors.
    pub errors: Expression,
    /// The level.
    #[serde(default = "LogLevel::error")]
    pub level: LogLevel,
    /// Whether the first error is logged at once.
    #[serde(default)]
    pub show_first: bool,
}

/// The level of a log line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogLevel {
    /// An error.
    Error,
    /// A warning.
    Warning,
    /// Information.
    Info,
    /// For debugging.
    Debug,
}

/// `log [NAMES…] [FORMAT] { class … }`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct QueryLog {
    /// The zones of logged names.
    pub zones: Vec<Zone>,
    /// The format of a line.
    pub format: LogFormat,
    /// The classes of logged answers.
    pub classes: Vec<LogClass>,
}

/// The format of a line, with placeholders (`{remote}:{port} - {>id} "{type} …`), as written. The reader checks the
/// placeholders.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "String")]
pub struct LogFormat(pub String);

/// A class of answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogClass {
    /// Positive.
    Success,
    /// Negative.
    Denial,
    /// SERVFAIL, NOTIMP, REFUSED and the like.
    Error,
    /// Any.
    All,
}

/// `health [ADDRESS] { lameduck DURATION }`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct Health {
    /// The address.
    pub address: SocketAddr,
    /// How long `/health` and queries are answered after a request to stop.
    #[serde(with = "go_duration")]
    pub lameduck: Duration,
}

/// `reload [INTERVAL] [JITTER]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct Reload {
    /// How often the file is checked.
    #[serde(with = "go_duration")]
    pub interval: Duration,
    /// The largest random variation of the interval.
    #[serde(with = "go_duration")]
    pub jitter: Duration,
}

impl BindTo {
    /// An address, or an interface name that the kernel accepts (1 to 15 octets without slashes, colons and white
    /// space: net/core/dev.c, dev_valid_name).
    #[must_use]
    pub fn of(word: &str) -> Option<Self> {
        if let Ok(address) = word.parse() {
            return Some(Self::Address(address));
        }
        let is_name = (1..=15).contains(&word.len())
            && !matches!(word, "." | "..")
            && !word.contains(|character: char| matches!(character, '/' | ':') || character.is_whitespace());
        is_name.then(|| Self::Interface(word.to_owned()))
    }
}

impl TryFrom<String> for BindTo {
    type Error = String;

    fn try_from(word: String) -> Result<Self, String> {
        Self::of(&word).ok_or_else(|| format!("{word:?} is neither an address nor the name of an interface"))
    }
}

impl From<BindTo> for String {
    fn from(to: BindTo) -> Self {
        match to {
            BindTo::Address(address) => address.to_string(),
            BindTo::Interface(name) => name,
        }
    }
}

impl LogLevel {
    const fn error() -> Self {
        Self::Error
    }
}

impl LogFormat {
    /// CoreDNS' "common" format.
    pub const COMMON: &str = "{remote}:{port} - {>id} \"{type} {class} {name} {proto} {size} {>do} {>bufsize}\" \
         {rcode} {>rflags} {rsize} {duration}";
}

/// `common` and `combined` stand for CoreDNS' two formats.
impl From<String> for LogFormat {
    fn from(text: String) -> Self {
        let combined = format!("{} \"{{>opcode}}\"", Self::COMMON);
        Self(
            text.replace("{common}", Self::COMMON)
                .replace("{combined}", &combined),
        )
    }
}

/// Every query, in the common format.
impl Default for QueryLog {
    fn default() -> Self {
        Self {
            zones: vec![Zone::root()],
            format: LogFormat(LogFormat::COMMON.to_owned()),
            classes: vec![LogClass::All],
        }
    }
}

/// CoreDNS' defaults.
impl Default for Health {
    fn default() -> Self {
        Self {
            address: (Ipv6Addr::UNSPECIFIED, 8080).into(),
            lameduck: Duration::ZERO,
        }
    }
}

impl Reload {
    /// The shortest interval, and the shortest jitter other than zero.
    pub const SHORTEST: (Duration, Duration) = (Duration::from_secs(2), Duration::from_secs(1));

    /// Limits the jitter to half of the interval.
    #[must_use]
    pub fn bounded(self) -> Self {
        Self {
            jitter: self.jitter.min(self.interval / 2),
            ..self
        }
    }
}

/// CoreDNS' defaults.
impl Default for Reload {
    fn default() -> Self {
        Self {
            interval: Duration::from_secs(30),
            jitter: Duration::from_secs(15),
        }
    }
}
