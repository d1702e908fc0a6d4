//! Octets for `packets`, by `make fuzz`.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|octets: &[u8]| egret_fuzz::packets::check(octets));
