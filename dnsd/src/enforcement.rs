//! Who asks, which addresses the client is given, and how an answer waits until the enforcer has programmed them.
//!
//! ```text
//!  client ──▶ observation ──▶ records ──▶ gate ──▶ gated ──▶ reply
//!                                          │  ▲
//!                                          └──┴── link ── enforcer
//! ```

pub mod client;
pub mod gate;
pub mod gated;
pub mod link;
mod metrics;
pub mod observation;
pub mod records;

pub use self::metrics::Metrics;
