//! Repeatable random numbers, and the results of the loads.

use std::{
    env,
    io::{self, Write as _},
    ops::Range,
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use egret_integration::LoadReport;
use rand::{RngExt as _, SeedableRng as _, rngs::StdRng};

use crate::daemons::Victim;

pub(crate) struct Seeded {
    pub(crate) seed: u64,
    pub(crate) random: StdRng,
}

impl Seeded {
    pub(crate) fn from_environment() -> Result<Self, std::num::ParseIntError> {
        let seed = env::var("EGRET_SEED").map_or_else(|_| Ok(rand::random()), |text| text.parse())?;
        say(&format!("EGRET_SEED={seed}"));
        let random = StdRng::seed_from_u64(seed);
        Ok(Self { seed, random })
    }

    pub(crate) fn span(&mut self, milliseconds: Range<u64>) -> Duration {
        Duration::from_millis(self.random.random_range(milliseconds))
    }
}

/// The results of all loads.
#[derive(Debug)]
pub(crate) struct Seen {
    pub(crate) life: LoadReport,
    /// Attempts of both pods to addresses that were never allowed, and to addresses that were.
    pub(crate) knocks: [LoadReport; 3],
    pub(crate) unanswered: Unanswered,
    /// The longest time from a restart of the enforcer until addresses observed meanwhile were usable.
    pub(crate) catching_up: Duration,
}

/// Unanswered look-ups, by the daemon that was down.
#[derive(Debug, Default)]
pub(crate) struct Unanswered {
    pub(crate) without_dnsd: usize,
    pub(crate) without_enforcer: usize,
}

impl Unanswered {
    pub(crate) fn note(&mut self, victim: Victim, number: usize) {
        match victim {
            Victim::Dnsd => self.without_dnsd += number,
            Victim::Enforcer => self.without_enforcer += number,
        }
    }
}

impl Seen {
    pub(crate) fn leaked(&self) -> usize {
        self.knocks.iter().map(|knocks| knocks.leaked).sum()
    }

    pub(crate) fn summary(&self, random: &Seeded, rounds: usize) -> String {
        let Self {
            life,
            knocks,
            unanswered,
            catching_up,
        } = self;
        format!(
            "restarts: seed {}, {rounds} of them: lost {}, leaked {}, late {} (the latest {} ms)\n\
             restarts: {} connections, {} echoes on open ones; knocks: {} where nothing was told or allowed, \
             {} where a record had ended; {} look-ups, not answered: {} without dnsd, {} without enforcer\n\
             restarts: what was told without enforcer was usable at most {} ms after its return",
            random.seed,
            life.lost,
            self.leaked(),
            life.late,
            life.latest.as_millis(),
            life.connections,
            life.echoes,
            knocks[0].refusals + knocks[1].refusals,
            knocks[2].refusals,
            life.lookups,
            unanswered.without_dnsd,
            unanswered.without_enforcer,
            catching_up.as_millis(),
        )
    }
}

/// Ends the threads with the test, also when it fails.
pub(crate) struct SetWhenDropped<'a>(pub(crate) &'a AtomicBool);

impl Drop for SetWhenDropped<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// Prints past the capture of the test harness.
pub(crate) fn say(text: &str) {
    io::stderr().write_all(format!("{text}\n").as_bytes()).unwrap();
}
