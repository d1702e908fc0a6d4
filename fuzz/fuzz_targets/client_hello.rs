//! Octets for `client_hello`, by `make fuzz`.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|octets: &[u8]| egret_fuzz::client_hello::check(octets));
