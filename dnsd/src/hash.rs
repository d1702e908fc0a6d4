//! Hash tables keyed by what clients choose (names, addresses). Their hash takes a fifth of SipHash's time. Each table has
//! 128 random bits of seed, so that nobody outside can find keys that collide.

use std::hash::BuildHasher;
use std::sync::OnceLock;

use foldhash::SharedSeed;
use foldhash::quality::{FoldHasher, SeedableRandomState};

/// A map with this hash.
pub(crate) type HashMap<K, V> = std::collections::HashMap<K, V, RandomState>;

/// The seeded hash of one table.
#[derive(Clone, Debug)]
pub(crate) struct RandomState(SeedableRandomState);

impl Default for RandomState {
    fn default() -> Self {
        static SHARED: OnceLock<SharedSeed> = OnceLock::new();
        let shared = SHARED.get_or_init(|| SharedSeed::from_u64(rand::random()));
        Self(SeedableRandomState::with_seed(rand::random(), shared))
    }
}

impl BuildHasher for RandomState {
    type Hasher = FoldHasher<'static>;

    fn build_hasher(&self) -> Self::Hasher {
        self.0.build_hasher()
    }
}
