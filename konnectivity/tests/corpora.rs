//! Replays the corpora of fuzzing: no octets make the readers of packets, of header fields and of server names panic, or hang. The functions are those of
//! `make fuzz`, the inputs those of `fuzz/corpus`, each also cut and with octets that are others.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails there and then")]

use std::fs;
use std::path::Path;

#[path = "../../fuzz/src/authority.rs"]
#[allow(unreachable_pub, reason = "it is public where it is fuzzed")]
mod authority;

#[path = "../../fuzz/src/client_hello.rs"]
#[allow(unreachable_pub, reason = "it is public where it is fuzzed")]
mod client_hello;

#[path = "../../fuzz/src/packets.rs"]
#[allow(unreachable_pub, reason = "it is public where it is fuzzed")]
mod packets;

fn replay(corpus: &str, check: fn(&[u8])) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../fuzz/corpus")
        .join(corpus);
    let mut count = 0;
    let mut state = 1u64;
    let mut random = |below: usize| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        usize::try_from(state >> 33).unwrap() % below
    };
    for entry in fs::read_dir(folder).unwrap() {
        let octets = fs::read(entry.unwrap().path()).unwrap();
        count += 1;
        check(&octets);
        for length in 0..octets.len() {
            check(&octets[..length]);
        }
        for _ in 0..500 {
            let mut other = octets.clone();
            for _ in 0..=random(4) {
                let at = random(other.len());
                other[at] = u8::try_from(random(256)).unwrap();
            }
            check(&other);
        }
    }
    assert!(count > 5, "{count} inputs");
}

#[test]
fn no_octets_make_the_reader_of_packets_panic() {
    replay("packets", packets::check);
}

#[test]
fn no_octets_make_the_rewriter_of_authorities_panic() {
    replay("authority", authority::check);
}

#[test]
fn no_octets_make_the_reader_of_server_names_panic_and_later_ones_change_nothing() {
    replay("client_hello", client_hello::check);
}
