//! What operators see of a block: `bind`, `errors`, `log`, `health`, `reload`.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{Expression, Zone, go_duration};

/// `bind ADDRESS|INTERFACE… { except ADDRESS|INTERFACE… }`: the addresses of interfaces are those that they have
/// when the plan is put in force.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct Bind {
    /// What is listened on; at least one.
    pub to: Vec<BindTo>,
    /// What of that is left out.
    #[serde(default)]
    pub except: Vec<BindTo>,
}

/// One or more addresses.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum BindTo {
    /// This one.
    Address(IpAddr),
    /// Those of the interface with this name.
    Interface(String),
}

/// `errors { … }`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct ErrorLog {
    /// Whether where it happened is told (`stacktrace`).
    pub stacktrace: bool,
    /// Errors that are told once a while.
    pub consolidate: Vec<Consolidate>,
}

/// `consolidate DURATION REGEXP [LEVEL] [show_first]`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct Consolidate {
    /// How often.
    #[serde(with = "go_duration")]
    pub every: Duration,
    /// Which.
    pub errors: Expression,
    /// At which level.
    #[serde(default = "LogLevel::error")]
    pub level: LogLevel,
    /// Whether the first is told at once.
    #[serde(default)]
    pub show_first: bool,
}

/// Of a log line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogLevel {
    /// Something failed.
    Error,
    /// Something may fail.
    Warning,
    /// For the record.
    Info,
    /// For who looks for a fault.
    Debug,
}

/// `log [NAMES…] [FORMAT] { class … }`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct QueryLog {
    /// Names in these zones.
    pub zones: Vec<Zone>,
    /// How a line looks.
    pub format: LogFormat,
    /// Which answers.
    pub classes: Vec<LogClass>,
}

/// A line with places to fill in (`{remote}:{port} - {>id} "{type} …`), as it was written; which places there
/// are is checked when it is read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "String")]
pub struct LogFormat(pub String);

/// Answers by what they say.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogClass {
    /// They say something.
    Success,
    /// They say that there is nothing.
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
    /// Where.
    pub address: SocketAddr,
    /// How long `/health` says 200 and queries are answered after a stop was asked for.
    #[serde(with = "go_duration")]
    pub lameduck: Duration,
}

/// `reload [INTERVAL] [JITTER]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct Reload {
    /// How often the file is looked at.
    #[serde(with = "go_duration")]
    pub interval: Duration,
    /// By how much that varies at most.
    #[serde(with = "go_duration")]
    pub jitter: Duration,
}

impl BindTo {
    /// What a word names: an address, or an interface whose name the kernel could accept (1 to 15 octets without
    /// slashes, colons and white space: net/core/dev.c, dev_valid_name).
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

/// With the names of CoreDNS' two formats replaced by these.
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

/// CoreDNS'.
impl Default for Health {
    fn default() -> Self {
        Self {
            address: (Ipv6Addr::UNSPECIFIED, 8080).into(),
            lameduck: Duration::ZERO,
        }
    }
}

impl Reload {
    /// The shortest interval, and the shortest jitter that is any.
    pub const SHORTEST: (Duration, Duration) = (Duration::from_secs(2), Duration::from_secs(1));

    /// The jitter is half of the interval at most.
    #[must_use]
    pub fn bounded(self) -> Self {
        Self {
            jitter: self.jitter.min(self.interval / 2),
            ..self
        }
    }
}

/// CoreDNS'.
impl Default for Reload {
    fn default() -> Self {
        Self {
            interval: Duration::from_secs(30),
            jitter: Duration::from_secs(15),
        }
    }
}
