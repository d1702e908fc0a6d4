//! Frames of gRPC: a flag, a length, a message (`PROTOCOL-HTTP2.md` of grpc/grpc, "Length-Prefixed-Message").

use bytes::{Buf as _, BufMut as _, Bytes, BytesMut};
use prost::Message as _;

use super::{MAX_PACKET, Packet};

const PREFIX: usize = 5;

/// Why a stream of frames cannot go on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    #[error("a packet of {0} octets; less than {MAX_PACKET} are accepted")]
    TooLarge(usize),
    #[error("a compressed message; none was negotiated")]
    Compressed,
}

/// The frame of a packet.
///
/// # Errors
/// When it has as many octets as peers refuse.
pub fn encode(packet: &Packet) -> Result<Bytes, FrameError> {
    let packet = packet.to_wire();
    let length = packet.encoded_len();
    let prefix = match u32::try_from(length) {
        Ok(prefix) if length < MAX_PACKET => prefix,
        _ => return Err(FrameError::TooLarge(length)),
    };
    let mut frame = BytesMut::with_capacity(PREFIX + length);
    frame.put_u8(0);
    frame.put_u32(prefix);
    packet.encode_raw(&mut frame);
    Ok(frame.freeze())
}

/// Takes octets as they arrive and gives messages.
#[derive(Debug, Default)]
pub struct Frames(BytesMut);

impl Frames {
    pub fn push(&mut self, octets: &[u8]) {
        self.0.extend_from_slice(octets);
    }

    /// The next message that is whole.
    ///
    /// # Errors
    /// When no message can follow: it is compressed or too large.
    pub fn next_message(&mut self) -> Result<Option<Bytes>, FrameError> {
        let Some(mut prefix) = self.0.get(..PREFIX) else {
            return Ok(None);
        };
        if prefix.get_u8() != 0 {
            return Err(FrameError::Compressed);
        }
        let length = usize::try_from(prefix.get_u32()).unwrap_or(usize::MAX);
        if length >= MAX_PACKET {
            return Err(FrameError::TooLarge(length));
        }
        if self.0.len() < PREFIX + length {
            return Ok(None);
        }
        self.0.advance(PREFIX);
        Ok(Some(self.0.split_to(length).freeze()))
    }
}
