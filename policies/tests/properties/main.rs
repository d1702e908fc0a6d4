//! Random clusters of all kinds at once, written as people write them, decided three times: by compiler and memory,
//! by the oracle, and by a second reading of the objects. The run counts which numbers of the texts decided a
//! connection, and fails when one never did.
//!
//! `make test` plays the cases that were found before and a fixed number of new ones; `make properties` plays for
//! an hour (`EGRET_PROPERTY_SECONDS`), with seeds of its own.

#![allow(clippy::unwrap_used, reason = "a test that cannot be set up fails")]

mod ids;
mod scenario;
mod generator;
mod judge;
mod reference;
mod shrink;
mod run;
