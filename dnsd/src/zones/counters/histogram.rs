//! A histogram of atomic counters.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// CoreDNS' bounds of time: 0.25 ms, and 15 times twice as much; in nanoseconds.
const TIME: [u64; 16] = {
    let mut bounds = [250_000; 16];
    let mut at = 1;
    while at < bounds.len() {
        bounds[at] = bounds[at - 1] * 2;
        at += 1;
    }
    bounds
};
/// CoreDNS' bounds of messages, in octets.
const OCTETS: [u64; 14] = [
    0, 100, 200, 300, 400, 511, 1023, 2047, 4095, 8291, 16_000, 32_000, 48_000, 64_000,
];

/// How many values were in which range, and what they add up to.
#[derive(Debug)]
pub(super) struct Histogram {
    bounds: &'static [u64],
    /// What one of the unit that is shown is in the unit that is counted.
    scale: f64,
    counts: Box<[AtomicU64]>,
    sum: AtomicU64,
}

impl Histogram {
    /// Of spans, counted in nanoseconds and shown in seconds.
    pub(super) fn of_time() -> Self {
        Self::new(&TIME, 1e9)
    }

    /// Of octets.
    pub(super) fn of_octets() -> Self {
        Self::new(&OCTETS, 1.0)
    }

    fn new(bounds: &'static [u64], scale: f64) -> Self {
        Self {
            bounds,
            scale,
            counts: (0..=bounds.len()).map(|_| AtomicU64::new(0)).collect(),
            sum: AtomicU64::new(0),
        }
    }

    /// So many spans that are all as long.
    pub(super) fn add(&self, span: Duration, count: u64) {
        let nanoseconds = u64::try_from(span.as_nanos()).unwrap_or(u64::MAX);
        let sum = nanoseconds.saturating_mul(count);
        self.add_at(bucket(self.bounds, nanoseconds), count, sum);
    }

    /// So many values of one range, and what they add up to.
    pub(super) fn add_at(&self, bucket: usize, count: u64, sum: u64) {
        self.counts[bucket].fetch_add(count, Ordering::Relaxed);
        self.sum.fetch_add(sum, Ordering::Relaxed);
    }

    /// The bounds with how many values are not above, the last of them without a bound; and the sum.
    pub(super) fn read(&self) -> (Vec<(Option<f64>, u64)>, f64) {
        let mut below = 0;
        let rows = self.counts.iter().enumerate().map(|(bucket, count)| {
            below += count.load(Ordering::Relaxed);
            (self.bounds.get(bucket).map(|bound| self.shown(*bound)), below)
        });
        let rows = rows.collect();
        (rows, self.shown(self.sum.load(Ordering::Relaxed)))
    }

    #[allow(
        clippy::cast_precision_loss,
        reason = "a sum of 2^53 ns is a hundred days: its last digits do not count"
    )]
    fn shown(&self, value: u64) -> f64 {
        value as f64 / self.scale
    }
}

/// The range of so many octets.
pub(super) fn of_octets(octets: u64) -> usize {
    bucket(&OCTETS, octets)
}

fn bucket(bounds: &[u64], value: u64) -> usize {
    let bucket = bounds.iter().position(|bound| value <= *bound);
    bucket.unwrap_or(bounds.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_at_a_bound_is_below_it_and_one_above_all_is_counted_too() {
        let histogram = Histogram::of_octets();
        for value in [0, 1, 100, 101, 70_000] {
            histogram.add_at(of_octets(value), 1, value);
        }
        let (rows, sum) = histogram.read();
        assert_eq!(rows[..3], [(Some(0.0), 1), (Some(100.0), 3), (Some(200.0), 4)]);
        assert_eq!(rows[rows.len() - 2..], [(Some(64_000.0), 4), (None, 5)]);
        assert_eq!(sum, 70_202.0);
    }

    #[test]
    fn the_bounds_of_time_are_those_of_coredns() {
        let (rows, _) = Histogram::of_time().read();
        assert_eq!((rows[0].0, rows[15].0), (Some(0.00025), Some(8.192)));
    }
}
