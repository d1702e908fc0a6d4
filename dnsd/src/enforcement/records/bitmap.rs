//! Per-client bitmaps at cached answers: the clients for which an answer is settled, as the records said last.
//!
//! A cached answer is mostly assigned to a client that was assigned it before. To look that up by client and name is several cache
//! misses with thousands of names; the bitmap stands beside the answer, which has to be read anyway.
//!
//! Each client has a bit index, valid at every answer. Nobody visits all answers to clear a bit: a client whose records
//! changed loses its index until the next *generation*, and a new generation voids all bits set before.
//! A bit is only set after the records were looked up.
//!
//! | event | effect |
//! |---|---|
//! | an address has another owner, a record is evicted, the client's interest grows | the client loses its bit index |
//! | a connection begins, a resync, a sequence fails, records expire | a new generation |
//! | a record is sent again with a longer lifetime | none: what the kernel has is in force to its end |
//! | an answer is replaced | the new one has an empty bitmap |

use std::sync::atomic::{AtomicU64, Ordering};

/// Bit indexes of a generation. A node has 110 pods (the kubelet's `maxPods`); further clients have none.
const BITS_PER_GENERATION: usize = 128;
const WORD: usize = 64;

/// The clients for which one answer is settled, valid in its generation. Read and written while the records are locked.
#[derive(Debug, Default)]
pub struct ClientBitmap {
    generation: AtomicU64,
    bits: [AtomicU64; BITS_PER_GENERATION / WORD],
}

/// Assigns bit indexes.
#[derive(Debug)]
pub(super) struct BitAllocator {
    /// A bitmap that was never written is of generation 0.
    generation: u64,
    assigned: usize,
    /// A client has no index in this generation.
    is_short: bool,
    /// Counts what voided bits.
    voids: u64,
}

/// The bit index of a client in a generation; `None` if it lost it.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct BitIndex {
    generation: u64,
    index: Option<u8>,
}

impl BitAllocator {
    pub(super) const fn new() -> Self {
        Self {
            generation: 1,
            assigned: 0,
            is_short: false,
            voids: 0,
        }
    }

    /// How often bits became void.
    pub(super) const fn voids(&self) -> u64 {
        self.voids
    }

    /// Whether the client's bit is set.
    pub(super) fn is_marked(&self, bit: BitIndex, bitmap: &ClientBitmap) -> bool {
        let index = bit.index.filter(|_| bit.generation == self.generation);
        index.is_some_and(|index| {
            let bits = bitmap.bits[usize::from(index) / WORD].load(Ordering::Relaxed);
            bits >> (usize::from(index) % WORD) & 1 == 1
                && bitmap.generation.load(Ordering::Relaxed) == self.generation
        })
    }

    /// Sets the client's bit; assigns an index if it has none in this generation.
    pub(super) fn mark(&mut self, bit: &mut BitIndex, bitmap: &ClientBitmap) {
        if bit.generation != self.generation {
            *bit = self.assign();
        }
        let Some(index) = bit.index.map(usize::from) else {
            return;
        };
        if bitmap.generation.load(Ordering::Relaxed) != self.generation {
            for bits in &bitmap.bits {
                bits.store(0, Ordering::Relaxed);
            }
            bitmap.generation.store(self.generation, Ordering::Relaxed);
        }
        bitmap.bits[index / WORD].fetch_or(1 << (index % WORD), Ordering::Relaxed);
    }

    /// Takes the client's index away until the next generation.
    pub(super) const fn take(&mut self, bit: &mut BitIndex) {
        *bit = BitIndex {
            generation: self.generation,
            index: None,
        };
        self.is_short = true;
        self.voids += 1;
    }

    /// Voids all bits and frees all indexes.
    pub(super) const fn next_generation(&mut self) {
        *self = Self {
            generation: self.generation + 1,
            assigned: 0,
            is_short: false,
            voids: self.voids + 1,
        };
    }

    /// Whether a client would gain an index by a new generation.
    pub(super) const fn are_short(&self) -> bool {
        self.is_short
    }

    fn assign(&mut self) -> BitIndex {
        let index = u8::try_from(self.assigned)
            .ok()
            .filter(|_| self.assigned < BITS_PER_GENERATION);
        self.assigned += usize::from(index.is_some());
        self.is_short |= index.is_none();
        BitIndex {
            generation: self.generation,
            index,
        }
    }
}
