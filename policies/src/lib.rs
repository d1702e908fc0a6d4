//! **A policy that fails to be understood must never be weaker than one that is.**
//!
//! From API objects to per-pod rules: a function with memory. Events go in, batches come out, time is an
//! argument; there is no IO, no clock, no runtime, no lock.
//!
//! ```text
//!  text ──▶ api ──▶ lower ──▶ model ──▶ index, records, compile ──▶ sequence ──▶ rules::Batch
//!                                       └──────────── compiler ──────────────┘
//! ```
//!
//! `api` is what users write, `model` what it means, `rules` all that a backend may see. `memory` decides
//! packets from the rules, as a kernel would; `oracle` decides them straight from the model's objects,
//! slowly and obviously, and the tests hold the two together.

#![warn(missing_docs)]

pub mod api;
pub mod lower;
pub mod diagnostic;
pub mod model;
mod index;
pub mod records;
mod compile;
mod sequence;
pub mod compiler;
pub mod controller;
pub mod schema;
pub mod rules;
pub mod memory;
pub mod oracle;
