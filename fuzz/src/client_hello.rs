//! The server name that the first octets of a connection of the API server ask for.

use egret_konnectivity::server::{Hello, read_client_hello};

/// Whatever comes later changes nothing that was said; what is said is said of few octets, and a name is one that a server can have.
pub fn check(octets: &[u8]) {
    let whole = read_client_hello(octets);
    if let Hello::Name(name) = &whole {
        assert!(name.to_string().contains(|letter: char| letter != '.'));
    }
    let mut shorter = [octets.len() / 2, octets.len().saturating_sub(1), 5, 9];
    shorter.sort_unstable();
    for length in shorter.into_iter().filter(|length| *length < octets.len()) {
        let part = read_client_hello(&octets[..length]);
        assert!(
            part == Hello::Incomplete || part == whole,
            "{length}: {part:?}, {whole:?}"
        );
    }
    let more = [octets, &[0x16, 3, 1, 0, 0, 0xff, 0]].concat();
    assert!(whole == Hello::Incomplete || read_client_hello(&more) == whole);
    assert!(octets.len() < 40_000 || whole != Hello::Incomplete);
}
