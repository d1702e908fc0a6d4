//! Counters of verdicts. A counter is found by the digest of its rule, so it continues after a restart.

use std::collections::{HashMap, HashSet};
use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use egret_policies::rules::{Direction, Tier};

use super::layout::{CounterKey, CounterTier};
use super::syscall::{Map, Update};
use crate::backend::series::Series;
use crate::backend::{Action, BackendError, Decider, VerdictCount, VerdictCounters, VerdictKey};

/// TCP connections that were established, as sock_ops counts them.
#[derive(Debug)]
pub(super) struct Established(Map);

impl Established {
    /// Opens the pinned map.
    pub(super) fn open(pins: &Path, processors: usize) -> io::Result<Self> {
        Map::open(&pins.join("egret_established"), (4, 8), processors).map(Self)
    }

    /// Connections that pods opened, and those that they accepted.
    pub(super) fn read(&self) -> io::Result<[u64; 2]> {
        let read = |index: u32| self.0.lookup(&index.to_ne_bytes());
        Ok([read(0)?, read(1)?].map(|value| value.map_or(0, |value| words(&value).sum())))
    }
}

/// The map of counters, with their rules. The engine's thread adds rules while others read. The lock is held for no
/// system call that blocks.
#[derive(Debug)]
pub(super) struct Counters {
    map: Map,
    labels: Mutex<HashMap<[u8; CounterKey::SIZE], Label>>,
    series: Mutex<Series>,
}

/// Object and index of a rule; none where no rule decides.
pub(super) type RuleOrigin = Option<(Arc<str>, usize)>;
type Label = (CounterKey, RuleOrigin);

impl Counters {
    /// Opens the pinned map, and creates the counters without a rule.
    pub(super) fn open(pins: &Path, processors: usize) -> io::Result<Self> {
        let map = Map::open(&pins.join("egret_counters"), (CounterKey::SIZE, 8), processors)?;
        let counters = Self {
            map,
            labels: Mutex::default(),
            series: Mutex::default(),
        };
        for key in every_key() {
            counters.make(key, None)?;
        }
        Ok(counters)
    }

    /// Creates the counters of rules. If the map is full, counters of rules that no pod has are first summed up under
    /// their tier.
    pub(super) fn register(
        &self,
        rules: &[(CounterKey, (Arc<str>, usize))],
        mut is_used: impl FnMut(CounterKey) -> bool,
    ) -> io::Result<()> {
        for (key, origin) in rules {
            match self.make(*key, Some(origin.clone())) {
                Err(error) if error.raw_os_error() == Some(libc::E2BIG) => {
                    self.fold(&mut is_used)?;
                    self.make(*key, Some(origin.clone()))?;
                }
                made => made?,
            }
        }
        Ok(())
    }

    /// Creates a counter, unless this process knows that it is there: most rules of a pod are those of others.
    fn make(&self, key: CounterKey, origin: Option<(Arc<str>, usize)>) -> io::Result<()> {
        let octets = key.to_octets();
        if self.labels().contains_key(&octets) {
            return Ok(());
        }
        self.start_at_zero(&octets)?;
        self.labels().insert(octets, (key, origin));
        Ok(())
    }

    /// Creates counters again that somebody else removed: their rules decide uncounted. Returns how many.
    pub(super) fn repair(&self) -> io::Result<u64> {
        let there: HashSet<Vec<u8>> = self.map.keys()?.into_iter().collect();
        let labels = self.labels();
        let all = labels.keys().copied();
        let missing: Vec<_> = all.filter(|octets| !there.contains(octets.as_slice())).collect();
        drop(labels);
        missing.iter().try_for_each(|octets| self.start_at_zero(octets))?;
        Ok(missing.len() as u64)
    }

    /// Creates an entry of the map, unless it is there.
    fn start_at_zero(&self, octets: &[u8]) -> io::Result<()> {
        let zeros = vec![0; self.map.value_size()];
        match self.map.update(octets, &zeros, Update::New) {
            Err(error) if error.raw_os_error() != Some(libc::EEXIST) => Err(error),
            Ok(()) | Err(_) => Ok(()),
        }
    }

    fn fold(&self, is_used: &mut impl FnMut(CounterKey) -> bool) -> io::Result<()> {
        for octets in self.map.keys()? {
            let Some(key) = parse(&octets) else { continue };
            let total = CounterKey { digest: None, ..key };
            if is_ruleless(&octets) || self.label(&octets).is_some_and(|(key, _)| is_used(key)) {
                continue;
            }
            let Some(counts) = self.map.take(&octets)? else {
                continue;
            };
            self.add(total, &counts)?;
            self.labels().remove(octets.as_slice());
        }
        Ok(())
    }

    /// Adds to a counter that no program writes, for each CPU.
    fn add(&self, total: CounterKey, counts: &[u8]) -> io::Result<()> {
        let key = total.to_octets();
        let sum = self.map.lookup(&key)?.unwrap_or_else(|| vec![0; counts.len()]);
        let sums: Vec<u8> = words(&sum)
            .zip(words(counts))
            .flat_map(|(a, b)| (a + b).to_ne_bytes())
            .collect();
        self.map.update(&key, &sums, Update::Any)
    }

    /// What a counter is of: the decision, and the rule where one decided. None for rules that are gone.
    pub(super) fn decided_by(&self, octets: &[u8]) -> Option<(VerdictKey, RuleOrigin)> {
        self.label(octets).map(|(key, origin)| (verdict_key(key), origin))
    }

    fn label(&self, octets: &[u8]) -> Option<Label> {
        self.labels().get(octets).cloned()
    }

    fn labels(&self) -> MutexGuard<'_, HashMap<[u8; CounterKey::SIZE], Label>> {
        self.labels.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl VerdictCounters for Counters {
    fn read(&self) -> Result<Vec<VerdictCount>, BackendError> {
        let failed = |error| BackendError::new("read the verdict counters of the eBPF programs", error);
        let mut counts = Vec::new();
        for octets in self.map.keys().map_err(failed)? {
            let Some(key) = parse(&octets) else { continue };
            let Some(value) = self.map.lookup(&octets).map_err(failed)? else {
                continue;
            };
            let origin = self.label(&octets).and_then(|(_, origin)| origin);
            let packets = words(&value).sum();
            // Some tiers and actions do not occur together.
            if packets > 0 || origin.is_some() {
                let key = verdict_key(key);
                counts.push(VerdictCount { key, origin, packets });
            }
        }
        Ok(counts)
    }

    fn by_series(&self, most: usize) -> Result<Vec<VerdictCount>, BackendError> {
        let counts = self.read()?;
        // A panic leaves valid numbers.
        let mut series = self.series.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(series.add_up(&counts, most))
    }
}

fn words(octets: &[u8]) -> impl Iterator<Item = u64> {
    octets
        .chunks_exact(8)
        .map(|word| u64::from_ne_bytes(word.try_into().expect("chunks of 8 octets")))
}

fn verdict_key(key: CounterKey) -> VerdictKey {
    let decider = match key.tier {
        CounterTier::Policy(tier) => Decider::Tier(tier),
        CounterTier::Default => Decider::Default,
        CounterTier::Unprogrammed => Decider::UnknownPod,
    };
    VerdictKey {
        decider,
        action: key.action,
        direction: key.direction,
    }
}

/// All counters without a rule: for removed rules by tier and action, for the default, and for pods without rules.
fn every_key() -> impl Iterator<Item = CounterKey> {
    let tiers = Tier::ALL
        .into_iter()
        .map(CounterTier::Policy)
        .chain([CounterTier::Default, CounterTier::Unprogrammed]);
    let directed =
        tiers.flat_map(|tier| [Direction::Egress, Direction::Ingress].map(|direction| (tier, direction)));
    directed.flat_map(|(tier, direction)| {
        let key = move |action| CounterKey {
            tier,
            action,
            direction,
            digest: None,
        };
        [Action::Allow, Action::Deny, Action::Pass, Action::WouldDeny].map(key)
    })
}

fn is_ruleless(octets: &[u8]) -> bool {
    octets
        .get(4..)
        .is_none_or(|digest| digest.iter().all(|octet| *octet == 0))
}

/// Tier, action and direction of a counter.
fn parse(octets: &[u8]) -> Option<CounterKey> {
    every_key().find(|key| key.to_octets().get(..4) == octets.get(..4))
}
