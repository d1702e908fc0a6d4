//! What fuzzing found, and what it begins with, is replayed and damaged further: no octets keep a reader busy or
//! make it panic. The functions are those of `make fuzz`, the octets those of `fuzz/corpus`.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails there and then")]

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use proptest::prelude::*;
use proptest::sample::Index;

#[path = "../../fuzz/src/link.rs"]
#[allow(unreachable_pub, reason = "it is public where it is fuzzed")]
mod link;
#[path = "../../fuzz/src/probes.rs"]
#[allow(unreachable_pub, reason = "it is public where it is fuzzed")]
mod probes;
#[path = "../../fuzz/src/reader.rs"]
#[allow(unreachable_pub, reason = "it is public where it is fuzzed")]
mod reader;

/// Many times what a debug build takes on a slow machine for the worst of them.
const PATIENCE: Duration = Duration::from_secs(5);

type Check = fn(&[u8]);

/// Corpus, what holds for its octets, how many octets at least show that it is there.
const READERS: [(&str, Check, usize); 3] = [
    ("reader", reader::check, 10_000),
    ("probes", probes::check, 1_000),
    ("link", link::check, 200),
];

fn corpus(name: &str) -> Vec<(String, Vec<u8>)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../fuzz/corpus")
        .join(name);
    let mut files: Vec<_> = fs::read_dir(&folder)
        .unwrap_or_else(|error| panic!("{}: {error}", folder.display()))
        .map(|entry| entry.unwrap().path())
        .collect();
    files.sort();
    files
        .into_iter()
        .map(|path| (path.display().to_string(), fs::read(&path).unwrap()))
        .collect()
}

#[allow(clippy::disallowed_methods, reason = "what is measured is time")]
fn check_in_time(check: Check, octets: &[u8], what: &str) {
    let start = Instant::now();
    check(octets);
    let elapsed = start.elapsed();
    assert!(elapsed < PATIENCE, "{what}: {elapsed:?}");
}

#[test]
fn what_was_found_stays_mended() {
    for (name, check, least) in READERS {
        let files = corpus(name);
        let size: usize = files.iter().map(|(_, octets)| octets.len()).sum();
        assert!(size >= least, "{name}: {size} octets");
        for (path, octets) in files {
            println!("{path}");
            check_in_time(check, &octets, &path);
        }
    }
}

/// What a file becomes: another piece of a corpus, or octets, in place of some of it.
#[derive(Clone, Debug)]
struct Edit {
    at: Index,
    length: usize,
    with: With,
}

#[derive(Clone, Debug)]
enum With {
    Octets(Vec<u8>),
    Piece { file: Index, from: Index, length: usize },
}

fn edit() -> impl Strategy<Value = Edit> {
    let octets = prop_oneof![
        "[a-z:{}\\[\\],\\-&*!|>'\" \n\t0-9]{0,6}".prop_map(String::into_bytes),
        prop::collection::vec(any::<u8>(), 0..4),
    ];
    let piece = (any::<Index>(), any::<Index>(), 1..200usize);
    let with = prop_oneof![
        octets.prop_map(With::Octets),
        piece.prop_map(|(file, from, length)| With::Piece { file, from, length }),
    ];
    (any::<Index>(), 0..40usize, with).prop_map(|(at, length, with)| Edit { at, length, with })
}

fn damage(octets: &mut Vec<u8>, Edit { at, length, with }: Edit, files: &[(String, Vec<u8>)]) {
    let from = at.index(octets.len() + 1);
    let to = (from + length).min(octets.len());
    let new = match with {
        With::Octets(new) => new,
        With::Piece { file, from, length } => {
            let (_, other) = &files[file.index(files.len())];
            let from = from.index(other.len() + 1);
            other[from..(from + length).min(other.len())].to_vec()
        }
    };
    octets.splice(from..to, new);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2 * ProptestConfig::default().cases))]

    #[test]
    fn what_is_damaged_is_read_to_its_end(
        file in any::<Index>(),
        edits in prop::collection::vec(edit(), 1..6),
    ) {
        for (name, check, _) in READERS {
            let files = corpus(name);
            let (path, mut octets) = files[file.index(files.len())].clone();
            for edit in edits.clone() {
                damage(&mut octets, edit, &files);
            }
            check_in_time(check, &octets, &path);
        }
    }
}
