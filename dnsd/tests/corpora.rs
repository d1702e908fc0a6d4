//! What fuzzing found, and what it begins with, is replayed: no octets keep the reader of messages busy or make it
//! panic. The function is that of `cargo fuzz`, the octets those of `fuzz/corpus/message`.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails there and then")]

use std::fs;
use std::path::Path;

use proptest::prelude::*;

#[path = "../../fuzz/src/message.rs"]
#[allow(unreachable_pub, reason = "it is public where it is fuzzed")]
mod message;

fn corpus() -> Vec<Vec<u8>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz/corpus/message");
    let files = fs::read_dir(&folder).unwrap();
    files
        .map(|entry| fs::read(entry.unwrap().path()).unwrap())
        .collect()
}

#[test]
fn what_was_found_stays_mended() {
    let files = corpus();
    assert!(files.len() > 5, "{} files", files.len());
    for octets in files {
        message::check(&octets);
    }
}

proptest! {
    #[test]
    fn what_is_damaged_is_read_to_its_end(
        file in any::<prop::sample::Index>(),
        edits in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8),
        cut in any::<prop::sample::Index>(),
    ) {
        let files = corpus();
        let mut octets = files[file.index(files.len())].clone();
        for (at, octet) in edits {
            let at = at.index(octets.len());
            octets[at] = octet;
        }
        message::check(&octets);
        message::check(&octets[..cut.index(octets.len())]);
    }
}
