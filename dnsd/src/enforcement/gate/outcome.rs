//! How the hold speaks of an answer, and of itself.

use crate::enforcement::gate::waiting::Ticket;

/// Where an answer came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// An upstream, just now.
    Upstream,
    /// The cache.
    Cache,
}

/// What becomes of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It may go to its client.
    Release,
    /// It may not be held for want of room.
    OverLimit,
    /// It waits.
    Hold(Ticket),
}

/// How the wait of a held answer ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The kernel holds what it tells.
    Realized,
    /// It turned out that nobody waits for it.
    NotInteresting,
    /// It cannot or will not be waited for any longer.
    Stalled(Stall),
}

/// Why an answer is not waited for any longer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stall {
    /// The enforcer was slow.
    Deadline,
    /// No enforcer is connected.
    LinkDown,
    /// No enforcer has ever told what is interesting.
    NoInterest,
    /// The enforcer could not realize it.
    Failed,
    /// Too many answers are held already.
    OverLimit,
}

impl Stall {
    /// All of them.
    pub const ALL: [Self; 5] = [
        Self::Deadline,
        Self::LinkDown,
        Self::NoInterest,
        Self::Failed,
        Self::OverLimit,
    ];

    /// The label of the metric.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::Deadline => "deadline",
            Self::LinkDown => "link_down",
            Self::NoInterest => "no_interest",
            Self::Failed => "failed",
            Self::OverLimit => "over_limit",
        }
    }
}

/// The state of a `Hold` in figures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Figures {
    /// Answers that wait.
    pub held: usize,
    /// Addresses told and live.
    pub told: usize,
    /// Addresses that had to leave the ledger while they lived.
    pub evictions: u64,
    /// Clients that wait for some names.
    pub clients_with_interest: usize,
    /// Whether an enforcer is connected.
    pub is_connected: bool,
    /// Whether an enforcer has ever told its interest.
    pub is_interest_known: bool,
}
