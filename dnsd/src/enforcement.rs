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
pub mod observation;
pub mod records;
