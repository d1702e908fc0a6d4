//! The contract between dnsd and the enforcer: what they say, and how it is written on a Unix socket.
//!
//! ```text
//!  dnsd                                                  enforcer
//!   Hello ───────────────────────────────────────────────▶
//!   ◀──────────────────────────────────────────────── Hello
//!   ◀──────────────── Interest … Interest, InterestComplete
//!   ◀─────────────────────────────────────────── ClusterDns      who answers in dnsd's place, again when it changes
//!   ◀───────────────────────────────────────────────── Pods      whom dnsd may intercept, again when it changes
//!   ResyncStarted, Observed …, ResyncEnded ──────────────▶      all that is live, told again
//!   ◀───────────────────────────── Realized { through … }
//!   Observed { sequence } ───────────────────────────────▶      as answers arrive
//!   ◀──────────────────── Interest (when a policy changes)
//!   ◀───────────────────────────── Realized { through … }      dnsd releases what it held
//! ```
//!
//! The enforcer listens, every dnsd connects. Either may go away at any moment; nothing is lost by it,
//! since dnsd keeps what it told and the kernel keeps what was realized.

mod message;
mod codec;

pub use codec::{CodecError, Frame, FrameDecoder, MAX_FRAME, VERSION, WireMessage, encode};
pub use message::{ClusterDns, Hello, Interest, NodePods, ToDnsd, ToEnforcer};
