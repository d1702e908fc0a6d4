//! The health of an upstream: whether it answers, its latency, and what it does not support.
//!
//! Two mechanisms avoid an upstream that does not answer. `max_fails` and the health checks are CoreDNS': checks begin when a
//! query failed, are repeated until one succeeds, and after more than `max_fails` failures in a row the upstream is down and
//! is not queried. That takes seconds; so an upstream that did not answer is also avoided at once: for a while it is queried
//! after the others.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use egret_shared::time::Timestamp;

/// How long an upstream that did not answer is queried last.
const AVOIDED: Duration = Duration::from_secs(5);
/// How long it is remembered what an upstream does not support: another server may take its address.
const UNSUPPORTED_TTL: Duration = Duration::from_secs(600);
/// The weight of one sample in the smoothed latency is 1 in so many.
const SMOOTHING: u64 = 8;
/// The latency is unknown.
const UNKNOWN: u64 = 0;

/// The health of an upstream. Threads read and write it at once: no two values depend on each other.
#[derive(Debug, Default)]
pub(super) struct Health {
    failed_checks: AtomicU32,
    is_checked: AtomicBool,
    avoided_until: AtomicU64,
    latency_micros: AtomicU64,
    knows_no_edns_until: AtomicU64,
    keeps_no_case_until: AtomicU64,
}

impl Health {
    /// Whether it counts as down: as in CoreDNS, more checks than `max_fails` failed.
    pub(super) fn is_down(&self, max_fails: u32) -> bool {
        max_fails > 0 && self.failed_checks.load(Ordering::Relaxed) > max_fails
    }

    /// Whether it recently did not answer. `now` is called only if it ever failed.
    pub(super) fn is_avoided(&self, now: impl FnOnce() -> Timestamp) -> bool {
        let until = &self.avoided_until;
        until.load(Ordering::Relaxed) != 0 && is_future(until, now())
    }

    /// The smoothed latency.
    pub(super) fn latency(&self) -> Option<Duration> {
        let micros = self.latency_micros.load(Ordering::Relaxed);
        (micros != UNKNOWN).then(|| Duration::from_micros(micros))
    }

    /// Records a response.
    pub(super) fn record_response(&self, span: Duration) {
        self.record_latency(span);
        if self.avoided_until.load(Ordering::Relaxed) != 0 {
            self.avoided_until.store(0, Ordering::Relaxed);
        }
    }

    /// Records a latency sample.
    pub(super) fn record_latency(&self, span: Duration) {
        let sample = u64::try_from(span.as_micros()).unwrap_or(u64::MAX).max(1);
        let known = self.latency_micros.load(Ordering::Relaxed);
        let smoothed = match known {
            UNKNOWN => sample,
            known => (known - known / SMOOTHING)
                .saturating_add(sample / SMOOTHING)
                .max(1),
        };
        self.latency_micros.store(smoothed, Ordering::Relaxed);
    }

    /// Records that it did not answer.
    pub(super) fn avoid(&self, now: Timestamp) {
        self.avoided_until
            .store(now.after(AVOIDED).as_millis(), Ordering::Relaxed);
    }

    /// Whether the caller is to start the health checks: none run.
    pub(super) fn begin_check(&self) -> bool {
        !self.is_checked.swap(true, Ordering::Relaxed)
    }

    /// Records a failed check.
    pub(super) fn check_failed(&self) {
        let failed = self.failed_checks.load(Ordering::Relaxed);
        self.failed_checks
            .store(failed.saturating_add(1), Ordering::Relaxed);
    }

    /// Records a successful check.
    pub(super) fn check_succeeded(&self) {
        self.failed_checks.store(0, Ordering::Relaxed);
        self.avoided_until.store(0, Ordering::Relaxed);
        self.is_checked.store(false, Ordering::Relaxed);
    }

    /// Whether it is queried with an OPT.
    pub(super) fn knows_edns(&self, now: Timestamp) -> bool {
        !is_future(&self.knows_no_edns_until, now)
    }

    /// Records that it does not support EDNS.
    pub(super) fn does_not_know_edns(&self, now: Timestamp) {
        self.knows_no_edns_until
            .store(now.after(UNSUPPORTED_TTL).as_millis(), Ordering::Relaxed);
    }

    /// Whether its responses preserve the case. `now` is called only if they ever did not.
    pub(super) fn keeps_case(&self, now: impl FnOnce() -> Timestamp) -> bool {
        let until = &self.keeps_no_case_until;
        until.load(Ordering::Relaxed) == 0 || !is_future(until, now())
    }

    /// Records that they do not.
    pub(super) fn does_not_keep_case(&self, now: Timestamp) {
        self.keeps_no_case_until
            .store(now.after(UNSUPPORTED_TTL).as_millis(), Ordering::Relaxed);
    }
}

fn is_future(until: &AtomicU64, now: Timestamp) -> bool {
    now.as_millis() < until.load(Ordering::Relaxed)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Timestamp = Timestamp::from_millis(1_000);

    #[test]
    fn a_silent_upstream_is_avoided_for_a_while_or_until_it_answers() {
        let health = Health::default();
        assert!(!health.is_avoided(|| NOW));
        health.avoid(NOW);
        assert!(health.is_avoided(|| NOW));
        assert!(!health.is_avoided(|| NOW.after(AVOIDED)));
        health.record_response(Duration::from_millis(1));
        assert!(!health.is_avoided(|| NOW));
    }

    #[test]
    fn above_max_fails_it_is_down_until_a_check_succeeds() {
        let health = Health::default();
        for _ in 0..2 {
            health.check_failed();
            assert!(!health.is_down(2));
        }
        health.check_failed();
        assert!(health.is_down(2) && !health.is_down(3) && !health.is_down(0));
        health.check_succeeded();
        assert!(!health.is_down(1));
    }

    #[test]
    fn one_check_runs_at_a_time() {
        let health = Health::default();
        assert!(health.begin_check() && !health.begin_check());
        health.check_succeeded();
        assert!(health.begin_check());
    }

    #[test]
    fn the_latency_follows_what_is_measured() {
        let health = Health::default();
        assert_eq!(health.latency(), None);
        health.record_response(Duration::from_micros(800));
        assert_eq!(health.latency(), Some(Duration::from_micros(800)));
        health.record_latency(Duration::from_micros(1_600));
        assert_eq!(health.latency(), Some(Duration::from_micros(900)));
        for _ in 0..100 {
            health.record_response(Duration::from_micros(80));
        }
        assert!(health.latency().unwrap() < Duration::from_micros(100));
    }

    #[test]
    fn learned_capabilities_expire() {
        let health = Health::default();
        assert!(health.knows_edns(NOW) && health.keeps_case(|| NOW));
        health.does_not_know_edns(NOW);
        assert!(!health.knows_edns(NOW) && health.keeps_case(|| NOW));
        health.does_not_keep_case(NOW);
        assert!(!health.keeps_case(|| NOW));
        let later = NOW.after(UNSUPPORTED_TTL);
        assert!(health.knows_edns(later) && health.keeps_case(|| later));
    }
}
