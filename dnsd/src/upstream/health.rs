//! What is remembered of an upstream: whether it answers, how soon, and what it does not understand.
//!
//! Two things keep a query away from an upstream that says nothing. `max_fails` and the checks are CoreDNS': a check
//! begins when a question failed, is repeated until one succeeds, and after more than `max_fails` of them in a row
//! the upstream is dead and is not asked. That takes seconds; so an upstream that said nothing is also shunned at
//! once: for a while it is asked after the others.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use egret_shared::time::Timestamp;

/// How long an upstream that said nothing is asked last.
const SHUNNED: Duration = Duration::from_secs(5);
/// How long it is remembered what an upstream does not understand: it may be replaced by another at its address.
const REMEMBERED: Duration = Duration::from_secs(600);
/// An answer moves what is known of the latency by one in so many parts.
const SMOOTHING: u64 = 8;
/// Nothing is known of the latency.
const UNKNOWN: u64 = 0;

/// What is remembered. All of it may be read and written at once by several threads: no two values depend on
/// each other.
#[derive(Debug, Default)]
pub(super) struct Health {
    failed_checks: AtomicU32,
    is_checked: AtomicBool,
    shunned_until: AtomicU64,
    latency_micros: AtomicU64,
    knows_no_edns_until: AtomicU64,
    keeps_no_case_until: AtomicU64,
}

impl Health {
    /// Whether it counts as dead: as in CoreDNS, more checks than `max_fails` failed.
    pub(super) fn is_dead(&self, max_fails: u32) -> bool {
        max_fails > 0 && self.failed_checks.load(Ordering::Relaxed) > max_fails
    }

    /// Whether it said nothing of late. The clock is looked at where it once did not.
    pub(super) fn is_shunned(&self, now: impl FnOnce() -> Timestamp) -> bool {
        let until = &self.shunned_until;
        until.load(Ordering::Relaxed) != 0 && lies_ahead(until, now())
    }

    /// How long it takes of late.
    pub(super) fn latency(&self) -> Option<Duration> {
        let micros = self.latency_micros.load(Ordering::Relaxed);
        (micros != UNKNOWN).then(|| Duration::from_micros(micros))
    }

    /// It answered.
    pub(super) fn answered(&self, span: Duration) {
        self.took(span);
        if self.shunned_until.load(Ordering::Relaxed) != 0 {
            self.shunned_until.store(0, Ordering::Relaxed);
        }
    }

    /// It takes so long, at least.
    pub(super) fn took(&self, span: Duration) {
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

    /// It said nothing.
    pub(super) fn shun(&self, now: Timestamp) {
        self.shunned_until
            .store(now.after(SHUNNED).as_millis(), Ordering::Relaxed);
    }

    /// Whether the caller is to check it now: nobody else does.
    pub(super) fn begin_check(&self) -> bool {
        !self.is_checked.swap(true, Ordering::Relaxed)
    }

    /// The check failed, and will be repeated.
    pub(super) fn check_failed(&self) {
        let failed = self.failed_checks.load(Ordering::Relaxed);
        self.failed_checks
            .store(failed.saturating_add(1), Ordering::Relaxed);
    }

    /// The check succeeded: it lives.
    pub(super) fn check_succeeded(&self) {
        self.failed_checks.store(0, Ordering::Relaxed);
        self.shunned_until.store(0, Ordering::Relaxed);
        self.is_checked.store(false, Ordering::Relaxed);
    }

    /// Whether it is asked with an OPT.
    pub(super) fn knows_edns(&self, now: Timestamp) -> bool {
        !lies_ahead(&self.knows_no_edns_until, now)
    }

    /// It could read a question only without an OPT.
    pub(super) fn does_not_know_edns(&self, now: Timestamp) {
        self.knows_no_edns_until
            .store(now.after(REMEMBERED).as_millis(), Ordering::Relaxed);
    }

    /// Whether its answers repeat the case of the question. The clock is looked at where they once did not.
    pub(super) fn keeps_case(&self, now: impl FnOnce() -> Timestamp) -> bool {
        let until = &self.keeps_no_case_until;
        until.load(Ordering::Relaxed) == 0 || !lies_ahead(until, now())
    }

    /// They do not.
    pub(super) fn does_not_keep_case(&self, now: Timestamp) {
        self.keeps_no_case_until
            .store(now.after(REMEMBERED).as_millis(), Ordering::Relaxed);
    }
}

fn lies_ahead(until: &AtomicU64, now: Timestamp) -> bool {
    now.as_millis() < until.load(Ordering::Relaxed)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Timestamp = Timestamp::from_millis(1_000);

    #[test]
    fn an_upstream_that_says_nothing_is_shunned_for_a_while_or_until_it_answers() {
        let health = Health::default();
        assert!(!health.is_shunned(|| NOW));
        health.shun(NOW);
        assert!(health.is_shunned(|| NOW));
        assert!(!health.is_shunned(|| NOW.after(SHUNNED)));
        health.answered(Duration::from_millis(1));
        assert!(!health.is_shunned(|| NOW));
    }

    #[test]
    fn more_failed_checks_than_max_fails_make_it_dead_and_one_that_succeeds_makes_it_live() {
        let health = Health::default();
        for _ in 0..2 {
            health.check_failed();
            assert!(!health.is_dead(2));
        }
        health.check_failed();
        assert!(health.is_dead(2) && !health.is_dead(3) && !health.is_dead(0));
        health.check_succeeded();
        assert!(!health.is_dead(1));
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
        health.answered(Duration::from_micros(800));
        assert_eq!(health.latency(), Some(Duration::from_micros(800)));
        health.took(Duration::from_micros(1_600));
        assert_eq!(health.latency(), Some(Duration::from_micros(900)));
        for _ in 0..100 {
            health.answered(Duration::from_micros(80));
        }
        assert!(health.latency().unwrap() < Duration::from_micros(100));
    }

    #[test]
    fn what_an_upstream_does_not_understand_is_forgotten_in_time() {
        let health = Health::default();
        assert!(health.knows_edns(NOW) && health.keeps_case(|| NOW));
        health.does_not_know_edns(NOW);
        assert!(!health.knows_edns(NOW) && health.keeps_case(|| NOW));
        health.does_not_keep_case(NOW);
        assert!(!health.keeps_case(|| NOW));
        let later = NOW.after(REMEMBERED);
        assert!(health.knows_edns(later) && health.keeps_case(|| later));
    }
}
