//! What a dnsd tells its successor.

use egret_dnsd::takeover::state::{read, write};

/// Reading ends, and what was read is written so that it is read as the same.
pub fn check(octets: &[u8]) {
    match read(octets) {
        Ok(pieces) => assert_eq!(read(&write(&pieces)), Ok(pieces)),
        Err(error) => assert!(!error.to_string().is_empty()),
    }
}
