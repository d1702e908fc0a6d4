//! dnsd: answers the pods' DNS queries, notes who was told what, and holds an answer until the kernel is ready.
//!
//! ```text
//!  listen ──▶ message ──▶ client ──▶ server ──▶ cache ──▶ local, forward ──▶ exchange ──▶ observe ──▶ ledger ──▶ hold ──▶ release ──▶ listen
//!                                                                                                        │          ▲
//!                                                                                                        └── link ──┘
//! ```
//!
//! `resolve` is the way of one query through all of it. `message`, `answer`, `exchange`, `observe`, `cache`,
//! `ledger` and `hold` do no IO and read no clock.

pub mod command;
pub mod config;
pub mod plan;
pub mod corefile;
pub mod check;
pub mod convert;
pub mod message;
mod batch;
mod room;
mod arrival;
pub mod listen;
pub mod client;
pub mod resolve;
pub mod answer;
pub mod server;
pub mod cache;
pub mod cut;
pub mod local;
pub mod forward;
pub mod exchange;
pub mod observe;
pub mod ledger;
pub mod hold;
pub mod release;
pub mod link;
pub mod node_cache;
pub mod intercept;
pub mod handover;
pub mod memory;
pub mod quota;
pub mod tally;
pub mod threads;
mod wanted;
mod table;
mod heard;
pub mod rate;
pub mod environment;
pub mod exit;
pub mod files;
pub mod faults;
pub mod metrics;
mod sums;
pub mod admin;
pub mod pages;
