//! dnsd: answers the pods' DNS queries, records who was given which addresses, and holds an answer until the kernel is ready.
//!
//! A query passes these rooms, and the answer comes back through them:
//!
//! ```text
//!  listener ──▶ pipeline ──▶ zones ──▶ cache ──▶ plugins, upstream ──▶ enforcement ──▶ listener
//!                  │                                                       ▲
//!                  └── limits                                    link ─────┘
//! ```
//!
//! The rooms stand in the order of use: a room uses only those above it (`integration/tests/architecture.rs`). `config::model`
//! is below the other rooms, and the readers of `config` are above `enforcement`. `dns`, `cache`, `plugins` and, of
//! `enforcement`, the records and the gate do no IO and read no clock.

/// Describes metrics: a kind, a name, and its help on one line each.
macro_rules! describe {
    ($($kind:ident $name:literal: $help:literal;)+) => { $(describe!(@$kind $name, $help);)+ };
    (@counter $name:literal, $help:literal) => { metrics::describe_counter!($name, $help) };
    (@gauge $name:literal, $help:literal) => { metrics::describe_gauge!($name, $help) };
    (@bytes $name:literal, $help:literal) => { metrics::describe_gauge!($name, metrics::Unit::Bytes, $help) };
    (@seconds $name:literal, $help:literal) => { metrics::describe_histogram!($name, metrics::Unit::Seconds, $help) };
}

/// Implements `ALL` and `label`, the label of metrics, for an enum without fields.
macro_rules! labels {
    ($type:ident: $($variant:ident => $label:literal),+) => {
        impl $type {
            /// All of them.
            pub const ALL: [Self; [$($label),+].len()] = [$(Self::$variant),+];

            /// The label of metrics.
            #[must_use]
            pub const fn label(self) -> &'static str {
                match self {
                    $(Self::$variant => $label),+
                }
            }
        }
    };
}

pub mod exit;
mod hash;
pub mod net;
pub mod kernel_answers;
pub mod dns;
pub mod limits;
pub mod cache;
pub mod upstream;
pub mod encryption;
pub mod plugins;
pub mod enforcement;
pub mod config;
pub mod zones;
pub mod pipeline;
pub mod takeover;
pub mod listener;
pub mod host;
pub mod telemetry;
pub mod command;
