//! Makes the kernel of a node agree with the policies that concern it.
//!
//! ```text
//!  watch ──▶ engine (policies::Compiler) ──▶ backend ──▶ kernel
//!  dnsd ◀──▶ link ◀──▶ ┘ ▲    ▲
//!                        │    └── node (links, routes)
//!                        ├▶ state (what pods were told, for the next start)
//!                        └▶ events (who was denied what, read from the kernel)
//!  report (the node's addresses, for other nodes)
//! ```

#![warn(missing_docs)]

pub mod engine;
pub mod state;
pub mod backend;
pub mod apply;
pub mod node;
mod metrics;
pub mod link;
pub mod watch;
pub mod events;
pub mod address_report;
pub mod admin;
pub mod config;
