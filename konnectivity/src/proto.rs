//! The wire protocol: packets, their frames, metadata of a stream, identifiers of an agent, texts of dial errors.

mod frame;
mod identifiers;
pub mod metadata;
mod packet;
mod reason;

pub use frame::{Frame, FrameError, Frames, encode};
pub use identifiers::{Claim, Identifiers, InvalidIdentifiers};
pub use packet::{DecodeError, Packet};
pub use reason::dial_error;

/// Octets that every peer takes in one packet: grpc-go receives less than 4 MiB.
pub const MAX_PACKET: usize = 4 << 20;

/// Octets of one DATA packet that we send.
pub const MAX_DATA: usize = 32 << 10;
