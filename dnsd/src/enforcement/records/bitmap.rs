//! Marks at kept answers: whom the ledger, when it was asked last, knew to have been told them.
//!
//! A cached answer is mostly given to who was told it before. To find that out by pod and name is several places in memory
//! that no cache of the processor holds, with thousands of names; the mark stands beside the answer, which has to be read
//! anyway.
//!
//! Each client has a seat, a bit at each answer. Nobody goes through all answers to take a bit away: who may count as told
//! no longer loses its seat, and has none until the next *epoch*; with an epoch all marks of earlier ones are void.
//! A mark is only ever made after the ledger has said yes.
//!
//! | what happens | to the marks |
//! |---|---|
//! | an address has another owner, a record makes room for others, the client waits for more names | its seat is gone |
//! | a connection begins, everything is told again, a number fails, records have died | a new epoch |
//! | what was told is told again, since it lives longer | nothing: what the kernel was told before is in force to its end |
//! | an answer takes the place of another | the new one has no marks |

use std::sync::atomic::{AtomicU64, Ordering};

/// Seats of an epoch. A node has 110 pods (the kubelet's `maxPods`); who comes later has none.
const SEATS: usize = 128;
const BITS: usize = 64;

/// Who was told one answer. What is here counts in its epoch alone; it is read and written while the ledger is held.
#[derive(Debug, Default)]
pub struct Marks {
    epoch: AtomicU64,
    seats: [AtomicU64; SEATS / BITS],
}

/// The seats that are given.
#[derive(Debug)]
pub(super) struct Seats {
    /// Marks that were never made are of epoch 0.
    epoch: u64,
    given: usize,
    /// Somebody has none.
    is_short: bool,
}

/// What a client has in an epoch: a place, or none any more.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Seat {
    epoch: u64,
    place: Option<u8>,
}

impl Seats {
    pub(super) const fn new() -> Self {
        Self {
            epoch: 1,
            given: 0,
            is_short: false,
        }
    }

    /// Whether the answer is marked for who has this seat.
    pub(super) fn is_marked(&self, seat: Seat, marks: &Marks) -> bool {
        let place = seat.place.filter(|_| seat.epoch == self.epoch);
        place.is_some_and(|place| {
            let bits = marks.seats[usize::from(place) / BITS].load(Ordering::Relaxed);
            bits >> (usize::from(place) % BITS) & 1 == 1 && marks.epoch.load(Ordering::Relaxed) == self.epoch
        })
    }

    /// Marks an answer for who has this seat, or gets one now.
    pub(super) fn mark(&mut self, seat: &mut Seat, marks: &Marks) {
        if seat.epoch != self.epoch {
            *seat = self.give();
        }
        let Some(place) = seat.place.map(usize::from) else {
            return;
        };
        if marks.epoch.load(Ordering::Relaxed) != self.epoch {
            for seats in &marks.seats {
                seats.store(0, Ordering::Relaxed);
            }
            marks.epoch.store(self.epoch, Ordering::Relaxed);
        }
        marks.seats[place / BITS].fetch_or(1 << (place % BITS), Ordering::Relaxed);
    }

    /// Takes a seat away until the next epoch.
    pub(super) const fn take(&mut self, seat: &mut Seat) {
        *seat = Seat {
            epoch: self.epoch,
            place: None,
        };
        self.is_short = true;
    }

    /// All marks are void, and all seats are free.
    pub(super) const fn begin_epoch(&mut self) {
        *self = Self {
            epoch: self.epoch + 1,
            given: 0,
            is_short: false,
        };
    }

    /// Whether somebody would gain by a new epoch.
    pub(super) const fn are_short(&self) -> bool {
        self.is_short
    }

    fn give(&mut self) -> Seat {
        let place = u8::try_from(self.given).ok().filter(|_| self.given < SEATS);
        self.given += usize::from(place.is_some());
        self.is_short |= place.is_none();
        Seat {
            epoch: self.epoch,
            place,
        }
    }
}
