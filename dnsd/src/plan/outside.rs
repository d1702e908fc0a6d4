//! What operators see of a block: `bind`, `errors`, `log`, `health`, `reload`.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use super::{Expression, Zone};

/// `bind ADDRESS|INTERFACE… { except ADDRESS|INTERFACE… }`: the addresses of interfaces are those that they have
/// when the plan is put in force.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bind {
    /// What is listened on; at least one.
    pub to: Vec<BindTo>,
    /// What of that is left out.
    pub except: Vec<BindTo>,
}

/// One or more addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BindTo {
    /// This one.
    Address(IpAddr),
    /// Those of the interface with this name.
    Interface(String),
}

/// `errors { … }`.
#[derive(Clone, Debug, PartialEq)]
pub struct ErrorLog {
    /// Whether where it happened is told (`stacktrace`).
    pub stacktrace: bool,
    /// Errors that are told once a while.
    pub consolidate: Vec<Consolidate>,
}

/// `consolidate DURATION REGEXP [LEVEL] [show_first]`.
#[derive(Clone, Debug, PartialEq)]
pub struct Consolidate {
    /// How often.
    pub every: Duration,
    /// Which.
    pub errors: Expression,
    /// At which level.
    pub level: LogLevel,
    /// Whether the first is told at once.
    pub show_first: bool,
}

/// Of a log line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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
#[derive(Clone, Debug, PartialEq)]
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
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogFormat(pub String);

/// Answers by what they say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Health {
    /// Where.
    pub address: SocketAddr,
    /// How long `/health` says 200 and queries are answered after a stop was asked for.
    pub lameduck: Duration,
}

/// `reload [INTERVAL] [JITTER]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reload {
    /// How often the file is looked at.
    pub interval: Duration,
    /// By how much that varies at most.
    pub jitter: Duration,
}
