//! Encrypted queries to the program itself: over TLS, HTTPS and QUIC.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]
#![allow(clippy::float_cmp, reason = "counters are whole numbers")]
#![allow(
    clippy::disallowed_methods,
    reason = "its clients and processes wait by their own clock"
)]

mod server;
mod tls;
mod https;
mod quic;
mod certificates;
mod takeover;

mod pods;
