//! dnsd: answers the pods' DNS queries, records who was given which addresses, and holds an answer until the kernel is ready.
//!
//! A query goes down this list of rooms, and each uses those above it:
//!
//! ```text
//!  listener ──▶ pipeline ──▶ zones ──▶ cache ──▶ plugins, upstream ──▶ enforcement ──▶ listener
//!                  │                                                       ▲
//!                  └── limits                                    link ─────┘
//! ```
//!
//! `dns`, `cache`, `plugins` and of `enforcement` the records and the gate do no IO and read no clock.

pub mod command;
pub mod exit;
mod hash;
pub mod net;
pub mod dns;
pub mod config;
pub mod limits;
pub mod cache;
pub mod upstream;
pub mod plugins;
pub mod enforcement;
pub mod zones;
pub mod pipeline;
pub mod listener;
pub mod host;
pub mod takeover;
pub mod telemetry;
