//! The gate's decisions about a response, and its statistics.

use crate::enforcement::gate::waiting::Ticket;

/// Where an answer came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// An upstream.
    Upstream,
    /// The cache.
    Cache,
}

/// What becomes of a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It is sent now.
    Release,
    /// It needs to be held, and the limits are used up.
    OverLimit,
    /// It is held.
    Hold(Ticket),
}

/// How the wait of a held response ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The kernel has its addresses.
    Realized,
    /// Its client has no interest in the name.
    NotInteresting,
    /// The wait was given up.
    Stalled(Stall),
}

/// Why a wait was given up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stall {
    /// The deadline passed.
    Deadline,
    /// No enforcer is connected.
    LinkDown,
    /// No enforcer has ever sent its interests.
    NoInterest,
    /// The enforcer failed to apply it.
    Failed,
    /// The permit was revoked for another client.
    OverLimit,
}

labels! {
    Stall: Deadline => "deadline", LinkDown => "link_down", NoInterest => "no_interest", Failed => "failed",
    OverLimit => "over_limit"
}

/// The state of a `Gate` in numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GateStats {
    /// Held responses.
    pub held: usize,
    /// Live recorded addresses.
    pub recorded: usize,
    /// Addresses that were evicted from the records before they expired.
    pub evictions: u64,
    /// Clients with an interest in some names.
    pub clients_with_interest: usize,
    /// Whether an enforcer is connected.
    pub is_connected: bool,
    /// Whether an enforcer has ever sent its interests.
    pub is_interest_known: bool,
}
