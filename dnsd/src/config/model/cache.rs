//! The cache of a block (`cache`).

use std::time::Duration;

use serde::{Deserialize, Deserializer, Serialize};

use super::{Zone, go_duration};
use crate::config::model::serde_forms::{percent, positive_ttl, stale_ttl, ttl, up_to_five_minutes};

/// `cache [TTL] [ZONES…] { … }`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct CacheRules {
    /// The zones; empty means the block's.
    pub zones: Vec<Zone>,
    /// Positive answers.
    pub success: Capacity,
    /// Negative answers.
    #[serde(deserialize_with = "denial")]
    pub denial: Capacity,
    /// Refresh of popular answers before they expire.
    pub prefetch: Option<Prefetch>,
    /// Use of expired answers while the upstreams do not answer.
    pub serve_stale: Option<ServeStale>,
    /// How long a failure is cached: 0 s to 5 min; default 5 s (RFC 9520 §3.2).
    #[serde(with = "up_to_five_minutes")]
    pub servfail: Duration,
    /// Zones that are not cached.
    pub disabled: Disabled,
    /// Whether clients get the upstream's TTL instead of the remaining one.
    pub keep_ttl: bool,
}

/// The limits of a class of answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct Capacity {
    /// The most answers; default CoreDNS' 9984.
    pub entries: usize,
    /// The upper bound of TTLs.
    #[serde(with = "positive_ttl")]
    pub max_ttl: Duration,
    /// The lower bound of TTLs.
    #[serde(with = "ttl")]
    pub min_ttl: Duration,
}

/// `prefetch AMOUNT [DURATION] [PERCENTAGE%]`: an answer that was queried `amount` times, with pauses of at most
/// `within`, is refreshed when `percentage` of its TTL is left.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct Prefetch {
    /// Queries.
    pub amount: u32,
    /// The longest pause between them.
    #[serde(with = "go_duration")]
    pub within: Duration,
    /// The remaining part of the TTL, 10 to 90.
    #[serde(deserialize_with = "percent")]
    pub percentage: u8,
}

/// `serve_stale [DURATION] [REFRESH_MODE [VERIFY_TIMEOUT]]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct ServeStale {
    /// How long an answer is used after it expired.
    #[serde(with = "go_duration")]
    pub up_to: Duration,
    /// When the upstream is queried.
    pub refresh: Refresh,
    /// The TTL of a stale answer (CoreDNS' default: 0).
    #[serde(with = "stale_ttl")]
    pub response_ttl: Duration,
    /// The pause after a failed refresh.
    #[serde(with = "up_to_five_minutes")]
    pub failure_recheck: Duration,
    /// Whether only positive answers are used after they expired (`serve_stale_policy prefer_positive`).
    pub prefers_positive: bool,
}

/// When a stale answer is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub enum Refresh {
    /// At once; the upstream is queried afterwards.
    Immediate,
    /// When the upstream has not answered; after `timeout` if it is set.
    Verify {
        /// The timeout of the upstream.
        #[serde(with = "go_duration::optional", default)]
        timeout: Option<Duration>,
    },
}

/// `disable success|denial [ZONES…]`; `None` caches everything, an empty list none of the block's zones.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct Disabled {
    /// Zones whose positive answers are not cached.
    pub success: Option<Vec<Zone>>,
    /// Zones whose negative answers are not cached.
    pub denial: Option<Vec<Zone>>,
}

/// CoreDNS' defaults: 256 shards of 39 answers, TTLs of 5 s to an hour, of negative answers to half an hour.
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

/// Unset fields have the defaults of negative answers.
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

/// The defaults of positive answers.
impl Default for Capacity {
    fn default() -> Self {
        Self {
            entries: 9_984,
            max_ttl: Duration::from_secs(3_600),
            min_ttl: Duration::from_secs(5),
        }
    }
}

/// CoreDNS' defaults once an amount is set.
impl Default for Prefetch {
    fn default() -> Self {
        Self {
            amount: 1,
            within: Duration::from_secs(60),
            percentage: 10,
        }
    }
}

/// CoreDNS' defaults.
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
