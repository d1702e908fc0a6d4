//! Replays the corpora of fuzzing: no input makes the readers of messages, Corefiles, YAML, upstreams' answers and
//! transferred state panic or hang. The functions are those of `make fuzz`, the inputs those of `fuzz/corpus`.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails there and then")]

use std::fs;
use std::path::Path;

use proptest::prelude::*;

#[path = "../../fuzz/src/message.rs"]
#[allow(unreachable_pub, reason = "it is public where it is fuzzed")]
mod message;

#[path = "../../fuzz/src/corefile.rs"]
#[allow(unreachable_pub, reason = "it is public where it is fuzzed")]
mod corefile;

#[path = "../../fuzz/src/config.rs"]
#[allow(unreachable_pub, reason = "it is public where it is fuzzed")]
mod config;

#[path = "../../fuzz/src/upstream.rs"]
#[allow(unreachable_pub, reason = "it is public where it is fuzzed")]
mod upstream;

#[path = "../../fuzz/src/memory.rs"]
#[allow(unreachable_pub, reason = "it is public where it is fuzzed")]
mod memory;

fn corpus(reader: &str) -> Vec<Vec<u8>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../fuzz/corpus")
        .join(reader);
    let files = fs::read_dir(&folder).unwrap();
    files
        .map(|entry| fs::read(entry.unwrap().path()).unwrap())
        .collect()
}

#[test]
fn inputs_that_fuzzing_found_stay_fixed() {
    for (reader, check) in [
        ("message", message::check as fn(&[u8])),
        ("corefile", corefile::check),
        ("config", config::check),
        ("upstream", upstream::check),
        ("memory", memory::check),
    ] {
        let files = corpus(reader);
        assert!(files.len() > 5, "{} files of {reader}", files.len());
        for octets in files {
            check(&octets);
        }
    }
}

/// What is looked for begins behind what is refused only where nothing is.
#[test]
fn a_corefile_with_every_directive_is_accepted() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz/corpus/corefile");
    let words = [
        "every-cache",
        "every-forward",
        "every-own-answer",
        "every-rewrite",
        "node-local-dns",
        "words-that-yaml-knows",
    ];
    for file in words {
        let text = fs::read_to_string(folder.join(file)).unwrap();
        assert!(corefile::is_taken(&text), "{file}");
    }
}

proptest! {
    #[test]
    fn damaged_inputs_are_read_to_their_end(
        file in any::<prop::sample::Index>(),
        edits in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8),
        cut in any::<prop::sample::Index>(),
    ) {
        let files = corpus("message");
        let mut octets = files[file.index(files.len())].clone();
        for (at, octet) in edits {
            let at = at.index(octets.len());
            octets[at] = octet;
        }
        message::check(&octets);
        message::check(&octets[..cut.index(octets.len())]);
    }

    #[test]
    fn a_damaged_answer_is_accepted_only_if_it_matches_the_query(
        file in any::<prop::sample::Index>(),
        edits in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8),
        cut in any::<prop::sample::Index>(),
    ) {
        let mut files = corpus("upstream");
        files.retain(|octets| !octets.is_empty());
        let mut octets = files[file.index(files.len())].clone();
        for (at, octet) in edits {
            let at = at.index(octets.len());
            octets[at] = octet;
        }
        upstream::check(&octets);
        upstream::check(&octets[..cut.index(octets.len())]);
    }

    #[test]
    fn a_corefile_with_exchanged_words_is_accepted_or_refused(
        file in any::<prop::sample::Index>(),
        edits in prop::collection::vec((any::<prop::sample::Index>(), any::<prop::sample::Index>()), 1..6),
    ) {
        let files = corpus("corefile");
        let text = String::from_utf8_lossy(&files[file.index(files.len())]).into_owned();
        let mut words: Vec<&str> = text.split_inclusive(char::is_whitespace).collect();
        for (to, from) in edits {
            let word = words[from.index(words.len())];
            let to = to.index(words.len());
            words[to] = word;
        }
        corefile::check(words.concat().as_bytes());
    }

    #[test]
    fn no_text_keeps_the_reader_of_corefiles_busy(text in "(\\PC|[ \n\"{}$%#\\\\]){0,200}") {
        corefile::check(text.as_bytes());
        corefile::check(format!(". {{\n{text}\n}}").as_bytes());
    }
}
