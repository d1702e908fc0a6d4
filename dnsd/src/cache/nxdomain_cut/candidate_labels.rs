//! Candidate labels: those below which more than one name was denied recently, in a table of fixed size. An evicted
//! label costs one query, and nothing else.

use std::hash::BuildHasher;

use egret_shared::time::Timestamp;

use crate::hash::RandomState;

/// Slots of the table: search lists lead to some dozens of different labels.
const SLOTS: usize = 512;
/// Slots per row (associativity). With 40 candidates, one table in 500 has a row that five of them share.
const ROW: usize = 4;

/// The table.
#[derive(Debug)]
pub(super) struct CandidateLabels {
    slots: Box<[Option<CandidateLabel>]>,
    seed: RandomState,
}

#[derive(Clone, Copy, Debug)]
struct CandidateLabel {
    label: u64,
    /// The hash of what precedes the label in the first denied name.
    rest: u64,
    until: Timestamp,
    /// Whether another name was denied below it.
    is_common: bool,
}

impl Default for CandidateLabels {
    fn default() -> Self {
        Self {
            slots: vec![None; SLOTS].into(),
            seed: RandomState::default(),
        }
    }
}

impl CandidateLabels {
    /// Notes a denial until `until`, of a name with `rest` before `label`; returns whether another name below the label
    /// is still denied. A label with one denied name can be evicted, so that invented labels do not stay.
    pub(super) fn repeats(&mut self, label: &[u8], rest: &[u8], until: Timestamp, now: Timestamp) -> bool {
        let (label, rest) = (self.seed.hash_one(label), self.seed.hash_one(rest));
        let row = usize::try_from(label % (SLOTS / ROW) as u64).expect("the table is small") * ROW;
        let row = &mut self.slots[row..row + ROW];
        let live = |slot: &Option<CandidateLabel>| slot.filter(|candidate| now < candidate.until);
        if let Some(slot) = row
            .iter()
            .position(|slot| live(slot).is_some_and(|known| known.label == label))
            && let Some(candidate) = &mut row[slot]
        {
            candidate.is_common |= candidate.rest != rest;
            candidate.until = candidate.until.max(until);
            return candidate.is_common;
        }
        let free = row.iter().position(|slot| live(slot).is_none());
        let once = || {
            row.iter()
                .position(|slot| live(slot).is_some_and(|known| !known.is_common))
        };
        if let Some(slot) = free.or_else(once) {
            row[slot] = Some(CandidateLabel {
                label,
                rest,
                until,
                is_common: false,
            });
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn at(seconds: u64) -> Timestamp {
        Timestamp::from_millis(0).after(Duration::from_secs(seconds))
    }

    #[test]
    fn a_label_is_common_from_the_second_name_on_while_the_first_is_denied() {
        let mut candidates = CandidateLabels::default();
        for (label, rest, now, is_common) in [
            (&b"com"[..], &b"api"[..], 0, false),
            (b"com", b"api", 1, false),
            (b"com", b"www", 4, true),
            (b"com", b"api", 8, true),
            (b"com", b"api", 20, false),
            (b"com", b"www", 26, false),
        ] {
            let repeats = candidates.repeats(label, rest, at(now + 5), at(now));
            assert_eq!(repeats, is_common, "at {now}");
        }
    }

    #[test]
    fn dozens_of_labels_are_common_beside_each_other() {
        // With new random hashes each time: if a label had a single slot, one of two tables would lack some.
        for _ in 0..20 {
            let mut candidates = CandidateLabels::default();
            for rest in [b"api", b"www"] {
                for number in 0..30_u8 {
                    let repeats = candidates.repeats(&[number], rest, at(5), at(0));
                    assert_eq!(repeats, rest == b"www", "{number}");
                }
            }
        }
    }

    #[test]
    fn a_flood_of_labels_neither_becomes_common_nor_evicts_common_labels() {
        let mut candidates = CandidateLabels::default();
        assert!(!candidates.repeats(b"com", b"api", at(5), at(0)));
        assert!(candidates.repeats(b"com", b"www", at(5), at(0)));
        for number in 0..100_000_u32 {
            assert!(!candidates.repeats(&number.to_be_bytes(), b"x.y", at(5), at(0)));
        }
        assert!(candidates.repeats(b"com", b"cdn", at(5), at(1)));
    }
}
