//! What a client sends first, until it says which server name it asks for. Where a rule asks for the name it waits, and nothing
//! passes in either direction before the verdict.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use egret_policies::model::api_server::ServerName;
use egret_shared::name::DnsName;

use super::client_hello::{self, Hello, NoServerName};

/// How long a client may take where a rule asks for the name. A client of TLS speaks at once.
pub(super) const HELLO_WITHIN: Duration = Duration::from_secs(10);

/// What is known of the server name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum SeenName {
    Name(DnsName),
    None(NoServerName),
}

impl std::fmt::Display for SeenName {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Name(name) => write!(formatter, "server name {name}"),
            Self::None(reason) => write!(formatter, "server name unknown: {reason}"),
        }
    }
}

impl SeenName {
    pub(super) fn known(&self) -> ServerName {
        match self {
            Self::Name(name) => ServerName::Known(name.clone()),
            Self::None(_) => ServerName::Unknown,
        }
    }
}

#[derive(Debug)]
pub(super) struct FirstOctets {
    waits: bool,
    is_late: AtomicBool,
    is_read: AtomicBool,
    seen: Mutex<Seen>,
}

#[derive(Debug)]
enum Seen {
    /// These, and they do not say it yet.
    Some(Vec<u8>),
    /// The name is known, or never will be.
    Enough,
}

impl FirstOctets {
    /// `waits`: nothing passes before the name is known.
    pub(super) fn new(waits: bool) -> Self {
        Self {
            waits,
            is_late: AtomicBool::new(false),
            is_read: AtomicBool::new(false),
            seen: Mutex::new(Seen::Some(Vec::new())),
        }
    }

    /// Whether nothing passes.
    pub(super) fn is_waiting(&self) -> bool {
        self.waits && !self.is_read.load(Ordering::Acquire)
    }

    /// No more is waited for.
    pub(super) fn expire(&self) {
        self.is_late.store(true, Ordering::Release);
    }

    pub(super) fn is_late(&self) -> bool {
        self.is_late.load(Ordering::Acquire)
    }

    /// Takes what the client sends, and gives what passes at once. When the name is known, `judge` is called with what waited,
    /// before anything else passes.
    pub(super) fn push(&self, data: Bytes, judge: impl FnOnce(SeenName, Bytes)) -> Option<Bytes> {
        if self.is_read.load(Ordering::Acquire) {
            return Some(data);
        }
        let mut seen = self.lock();
        let Seen::Some(octets) = &mut *seen else {
            return Some(data);
        };
        let is_first = octets.is_empty();
        if !is_first {
            octets.extend_from_slice(&data);
        }
        let name = match client_hello::read(if is_first { &data } else { octets }) {
            Hello::Name(name) => SeenName::Name(name),
            Hello::Unreadable(reason) => SeenName::None(reason),
            Hello::Incomplete => {
                if is_first {
                    octets.extend_from_slice(&data);
                }
                return (!self.waits).then_some(data);
            }
        };
        let octets = std::mem::take(octets);
        let passes = if is_first || !self.waits {
            data
        } else {
            octets.into()
        };
        *seen = Seen::Enough;
        judge(name, passes);
        self.is_read.store(true, Ordering::Release);
        None
    }

    /// Nothing more is read: `judge` is called with why there is no name, unless it was called.
    pub(super) fn give_up(&self, reason: NoServerName, judge: impl FnOnce(SeenName, Bytes)) {
        let mut seen = self.lock();
        if let Seen::Some(octets) = std::mem::replace(&mut *seen, Seen::Enough) {
            let passes = if self.waits { octets.into() } else { Bytes::new() };
            judge(SeenName::None(reason), passes);
            self.is_read.store(true, Ordering::Release);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
