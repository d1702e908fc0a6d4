//! The exit codes that have a meaning.

/// Wrong usage or configuration (`EX_USAGE` of sysexits.h).
pub const USAGE: u8 = 64;
