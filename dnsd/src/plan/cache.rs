//! What a block keeps (`cache`).

use std::time::Duration;

use super::Zone;

/// `cache [TTL] [ZONES…] { … }`.
#[derive(Clone, Debug, PartialEq)]
pub struct CacheRules {
    /// The zones; empty means those of the block.
    pub zones: Vec<Zone>,
    /// Answers that say something.
    pub success: Capacity,
    /// Answers that say there is nothing.
    pub denial: Capacity,
    /// Answers that are asked for again before they end.
    pub prefetch: Option<Prefetch>,
    /// Answers that are given after their end, while nobody answers.
    pub serve_stale: Option<ServeStale>,
    /// How long a failure is kept: 0 s to 5 min, 5 s where nothing is said (RFC 9520 §3.2).
    pub servfail: Duration,
    /// What is not kept although it could be.
    pub disabled: Disabled,
    /// Whether clients are given the TTL that the upstream said, not what is left of it.
    pub keep_ttl: bool,
}

/// How much and how long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capacity {
    /// Answers at most; CoreDNS' 9984 where nothing is said.
    pub entries: usize,
    /// TTLs above are lowered to this.
    pub max_ttl: Duration,
    /// TTLs below are raised to this.
    pub min_ttl: Duration,
}

/// `prefetch AMOUNT [DURATION] [PERCENTAGE%]`: an answer that was asked for `amount` times, never more than
/// `within` apart, is asked for again when `percentage` of its TTL is left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Prefetch {
    /// Questions.
    pub amount: u32,
    /// The longest pause between them.
    pub within: Duration,
    /// What must be left of the TTL, 10 to 90.
    pub percentage: u8,
}

/// `serve_stale [DURATION] [REFRESH_MODE [VERIFY_TIMEOUT]]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServeStale {
    /// How long after its end an answer may be given.
    pub up_to: Duration,
    /// When the upstream is asked.
    pub refresh: Refresh,
    /// The TTL of what is given (0 in CoreDNS where nothing is said).
    pub response_ttl: Duration,
    /// How long after a failed refresh no other is tried.
    pub failure_recheck: Duration,
    /// Whether only answers that say something are given after their end (`serve_stale_policy prefer_positive`).
    pub prefers_positive: bool,
}

/// When a stale answer is given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refresh {
    /// At once; the upstream is asked behind it.
    Immediate,
    /// When the upstream was asked and said nothing; after `timeout` where one is set.
    Verify {
        /// How long it is waited for.
        timeout: Option<Duration>,
    },
}

/// `disable success|denial [ZONES…]`; `None` keeps, an empty list keeps none of the block's zones.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Disabled {
    /// Zones whose answers are not kept.
    pub success: Option<Vec<Zone>>,
    /// Zones whose denials are not kept.
    pub denial: Option<Vec<Zone>>,
}
