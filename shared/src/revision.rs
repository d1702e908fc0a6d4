//! Numbers to wait for. Nobody asks "did anything change?": the second of two equal questions would
//! find that nothing did, and go ahead of the change that the first one caused.

use std::fmt;

use serde::{Deserialize, Serialize};

/// A state of the compiled policy; a higher one includes every lower one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Revision(u64);

impl Revision {
    /// Before anything was compiled.
    pub const ZERO: Self = Self(0);

    /// The one after this.
    #[must_use]
    pub const fn next(self) -> Self {
        Self(self.0 + 1)
    }

    /// As a number, for logs and metrics.
    #[must_use]
    pub const fn as_u64(self) -> u64 {
        self.0
    }
}

impl fmt::Display for Revision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// The number that one dnsd gives to an observation; they rise by one from 1 for each of its instances.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Sequence(u64);

impl Sequence {
    /// Before the first observation.
    pub const ZERO: Self = Self(0);

    /// The one after this.
    #[must_use]
    pub const fn next(self) -> Self {
        Self(self.0 + 1)
    }

    /// As a number, for logs and metrics.
    #[must_use]
    pub const fn as_u64(self) -> u64 {
        self.0
    }
}

impl fmt::Display for Sequence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// One run of a dnsd: two of them may be connected at once while it is rolled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct DnsdInstance(u64);

impl DnsdInstance {
    /// An instance by a number that no other run of this boot has; dnsd draws it at random.
    #[must_use]
    pub const fn from_random(number: u64) -> Self {
        Self(number)
    }

    /// As a number.
    #[must_use]
    pub const fn as_u64(self) -> u64 {
        self.0
    }
}

impl fmt::Display for DnsdInstance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}
