//! What a block keeps (`cache`).

use std::time::Duration;

use serde::{Deserialize, Deserializer, Serialize};

use super::{Zone, go_duration};
use crate::config::model::serde_forms::{percent, positive_ttl, stale_ttl, ttl, up_to_five_minutes};

/// `cache [TTL] [ZONES…] { … }`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct CacheRules {
    /// The zones; empty means those of the block.
    pub zones: Vec<Zone>,
    /// Answers that say something.
    pub success: Capacity,
    /// Answers that say there is nothing.
    #[serde(deserialize_with = "denial")]
    pub denial: Capacity,
    /// Answers that are asked for again before they end.
    pub prefetch: Option<Prefetch>,
    /// Answers that are given after their end, while nobody answers.
    pub serve_stale: Option<ServeStale>,
    /// How long a failure is kept: 0 s to 5 min, 5 s where nothing is said (RFC 9520 §3.2).
    #[serde(with = "up_to_five_minutes")]
    pub servfail: Duration,
    /// What is not kept although it could be.
    pub disabled: Disabled,
    /// Whether clients are given the TTL that the upstream said, not what is left of it.
    pub keep_ttl: bool,
}

/// How much and how long.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct Capacity {
    /// Answers at most; CoreDNS' 9984 where nothing is said.
    pub entries: usize,
    /// TTLs above are lowered to this.
    #[serde(with = "positive_ttl")]
    pub max_ttl: Duration,
    /// TTLs below are raised to this.
    #[serde(with = "ttl")]
    pub min_ttl: Duration,
}

/// `prefetch AMOUNT [DURATION] [PERCENTAGE%]`: an answer that was asked for `amount` times, never more than
/// `within` apart, is asked for again when `percentage` of its TTL is left.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct Prefetch {
    /// Questions.
    pub amount: u32,
    /// The longest pause between them.
    #[serde(with = "go_duration")]
    pub within: Duration,
    /// What must be left of the TTL, 10 to 90.
    #[serde(deserialize_with = "percent")]
    pub percentage: u8,
}

/// `serve_stale [DURATION] [REFRESH_MODE [VERIFY_TIMEOUT]]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct ServeStale {
    /// How long after its end an answer may be given.
    #[serde(with = "go_duration")]
    pub up_to: Duration,
    /// When the upstream is asked.
    pub refresh: Refresh,
    /// The TTL of what is given (0 in CoreDNS where nothing is said).
    #[serde(with = "stale_ttl")]
    pub response_ttl: Duration,
    /// How long after a failed refresh no other is tried.
    #[serde(with = "up_to_five_minutes")]
    pub failure_recheck: Duration,
    /// Whether only answers that say something are given after their end (`serve_stale_policy prefer_positive`).
    pub prefers_positive: bool,
}

/// When a stale answer is given.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub enum Refresh {
    /// At once; the upstream is asked behind it.
    Immediate,
    /// When the upstream was asked and said nothing; after `timeout` where one is set.
    Verify {
        /// How long it is waited for.
        #[serde(with = "go_duration::optional", default)]
        timeout: Option<Duration>,
    },
}

/// `disable success|denial [ZONES…]`; `None` keeps, an empty list keeps none of the block's zones.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct Disabled {
    /// Zones whose answers are not kept.
    pub success: Option<Vec<Zone>>,
    /// Zones whose denials are not kept.
    pub denial: Option<Vec<Zone>>,
}

/// CoreDNS': 256 parts of 39 answers, TTLs of 5 s to an hour, half an hour for what says that there is nothing.
impl Default for CacheRules {
    fn default() -> Self {
        Self {
            zones: Vec::new(),
            success: Capacity::default(),
            denial: Capacity::of_denials(),
            prefetch: None,
            serve_stale: None,
            servfail: Duration::from_secs(5),
            disabled: Disabled::default(),
            keep_ttl: false,
        }
    }
}

impl Capacity {
    const fn of_denials() -> Self {
        Self {
            entries: 9_984,
            max_ttl: Duration::from_secs(1_800),
            min_ttl: Duration::from_secs(5),
        }
    }
}

/// What is not written is as for denials, not as for answers.
fn denial<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Capacity, D::Error> {
    #[derive(Deserialize)]
    #[serde(default, deny_unknown_fields, rename_all = "camelCase")]
    struct Denial {
        entries: usize,
        #[serde(with = "positive_ttl")]
        max_ttl: Duration,
        #[serde(with = "ttl")]
        min_ttl: Duration,
    }

    impl Default for Denial {
        fn default() -> Self {
            let Capacity {
                entries,
                max_ttl,
                min_ttl,
            } = Capacity::of_denials();
            Self {
                entries,
                max_ttl,
                min_ttl,
            }
        }
    }

    let Denial {
        entries,
        max_ttl,
        min_ttl,
    } = Denial::deserialize(deserializer)?;
    Ok(Capacity {
        entries,
        max_ttl,
        min_ttl,
    })
}

/// Of answers that say something.
impl Default for Capacity {
    fn default() -> Self {
        Self {
            entries: 9_984,
            max_ttl: Duration::from_secs(3_600),
            min_ttl: Duration::from_secs(5),
        }
    }
}

/// CoreDNS': none, but with these two as soon as an amount is said.
impl Default for Prefetch {
    fn default() -> Self {
        Self {
            amount: 1,
            within: Duration::from_secs(60),
            percentage: 10,
        }
    }
}

/// CoreDNS'.
impl Default for ServeStale {
    fn default() -> Self {
        Self {
            up_to: Duration::from_secs(3_600),
            refresh: Refresh::Immediate,
            response_ttl: Duration::ZERO,
            failure_recheck: Duration::ZERO,
            prefers_positive: false,
        }
    }
}
