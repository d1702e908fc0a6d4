//! Tables by what clients choose (names, addresses), which every query looks into several times. Their hash takes a fifth of
//! the standard one's time, and is seeded with 128 random bits for each table, so that nobody outside knows which names
//! fall together.

use std::hash::BuildHasher;
use std::sync::OnceLock;

use foldhash::SharedSeed;
use foldhash::quality::{FoldHasher, SeedableRandomState};

/// A table.
pub(crate) type HashMap<K, V> = std::collections::HashMap<K, V, Seeded>;

/// The hash of a table.
#[derive(Clone, Debug)]
pub(crate) struct Seeded(SeedableRandomState);

impl Default for Seeded {
    fn default() -> Self {
        static SHARED: OnceLock<SharedSeed> = OnceLock::new();
        let shared = SHARED.get_or_init(|| SharedSeed::from_u64(rand::random()));
        Self(SeedableRandomState::with_seed(rand::random(), shared))
    }
}

impl BuildHasher for Seeded {
    type Hasher = FoldHasher<'static>;

    fn build_hasher(&self) -> Self::Hasher {
        self.0.build_hasher()
    }
}
