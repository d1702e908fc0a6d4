//! The server name of real ClientHellos (those of `fuzz/corpus/client_hello`, from Go's crypto/tls and OpenSSL) and of some that no
//! client should send.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails there and then")]

use std::fs;
use std::path::Path;

use egret_konnectivity::server::{Hello, NoServerName, read_client_hello};

fn octets(name: &str) -> Vec<u8> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz/corpus/client_hello");
    fs::read(folder.join(name)).unwrap()
}

#[test]
fn a_server_name_is_read_out_of_what_clients_send() {
    for (hello, name) in [
        ("go", "hook.shop.svc"),
        ("go-1.2", "hook.shop.svc"),
        ("openssl", "hook.shop.svc"),
        ("records", "hook.shop.svc"),
        ("one-name", "a.shop.svc"),
    ] {
        let octets = octets(hello);
        assert_eq!(
            read_client_hello(&octets),
            Hello::Name(name.parse().unwrap()),
            "{hello}"
        );
        // However it comes in pieces, nothing is said before the last octet.
        for length in 0..octets.len() {
            assert_eq!(
                read_client_hello(&octets[..length]),
                Hello::Incomplete,
                "{hello} {length}"
            );
        }
    }
}

#[test]
fn a_name_that_cannot_be_known_has_a_reason() {
    for (hello, reason) in [
        ("http", NoServerName::NotTls),
        ("go-address", NoServerName::Absent),
        ("openssl-no-name", NoServerName::Absent),
        // Its outer name is public.example.com: the name of whoever decrypts it.
        ("go-encrypted", NoServerName::Encrypted),
        ("two-names", NoServerName::Malformed),
        ("twice", NoServerName::Malformed),
        ("final-dot", NoServerName::Malformed),
        ("address", NoServerName::Malformed),
        ("records-of-few-octets", NoServerName::TooLong),
    ] {
        assert_eq!(
            read_client_hello(&octets(hello)),
            Hello::Unreadable(reason),
            "{hello}"
        );
    }
    let too_long = [&[22, 3, 1, 0, 4, 1, 1, 0, 0][..], &[0; 40]].concat();
    assert_eq!(
        read_client_hello(&too_long),
        Hello::Unreadable(NoServerName::TooLong)
    );
    // A server hello, and an alert.
    for octets in [&[22, 3, 3, 0, 1, 2][..], &[21, 3, 3]] {
        assert_eq!(read_client_hello(octets), Hello::Unreadable(NoServerName::NotTls));
    }
}
