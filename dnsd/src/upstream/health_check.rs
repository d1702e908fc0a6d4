//! The query of health checks (`health_check`).

use std::time::Duration;

use super::Limits;
use crate::config::model::HealthCheck;
use crate::dns::answer::TtlLimits;
use crate::dns::message::Query;
use crate::limits::quota_key::QuotaKey;

/// The timeout of a check (CoreDNS' value).
const PATIENCE: Duration = Duration::from_secs(1);
/// The type NS: every resolver knows those of the root.
const NS: u16 = 2;
/// The lower bound of the interval.
const AT_LEAST: Duration = Duration::from_millis(10);

/// A health check.
#[derive(Clone, Debug)]
pub(super) struct Check(HealthCheck);

impl Check {
    pub(super) const fn new(written: HealthCheck) -> Self {
        Self(written)
    }

    pub(super) fn interval(&self) -> Duration {
        self.0.interval.max(AT_LEAST)
    }

    pub(super) const fn patience(&self) -> Duration {
        PATIENCE
    }

    pub(super) const fn limits(&self) -> Limits {
        Limits {
            patience: PATIENCE,
            udp_size: 512,
            ttl: TtlLimits {
                at_least: 0,
                at_most: u32::MAX,
            },
            quota_key: QuotaKey::OWN,
        }
    }

    pub(super) fn query(&self) -> Query<'static> {
        Query::own(self.0.domain, NS, self.0.recursion)
    }
}
