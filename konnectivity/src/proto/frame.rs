//! Frames of gRPC: a flag, a length, a message (`PROTOCOL-HTTP2.md` of grpc/grpc, "Length-Prefixed-Message").

use std::io::IoSlice;

use bytes::{Buf, BufMut as _, Bytes, BytesMut};
use prost::Message as _;
use prost::encoding::{WireType, encode_key, encode_varint};

use super::packet::wire;
use super::{MAX_PACKET, Packet};

const PREFIX: usize = 5;
/// What a message may have before it is there: more is taken as it comes.
const RESERVE: usize = 64 << 10;
/// Smaller messages are copied: a slice would keep the whole buffer in which they came.
const SMALL: usize = 4 << 10;

/// Why a stream of frames cannot go on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    #[error("a packet of {0} octets; less than {MAX_PACKET} are accepted")]
    TooLarge(usize),
    #[error("a compressed message; none was negotiated")]
    Compressed,
}

/// The octets of a frame. The data of a packet is at its end, and is not copied.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Frame {
    head: Bytes,
    data: Bytes,
}

impl Frame {
    /// The frame of a packet.
    ///
    /// # Errors
    /// When it has as many octets as peers refuse.
    pub fn of(packet: &Packet) -> Result<Self, FrameError> {
        let (message, data) = match packet {
            Packet::Data { connection, data } => (data_head(*connection, data.len()), data.clone()),
            Packet::DialRequest { .. }
            | Packet::DialResponse { .. }
            | Packet::CloseRequest { .. }
            | Packet::CloseResponse { .. }
            | Packet::DialClose { .. }
            | Packet::Drain
            | Packet::Credit { .. } => (packet.to_wire().encode_to_vec(), Bytes::new()),
        };
        let length = message.len() + data.len();
        let prefix = match u32::try_from(length) {
            Ok(prefix) if length < MAX_PACKET => prefix,
            _ => return Err(FrameError::TooLarge(length)),
        };
        let mut head = BytesMut::with_capacity(PREFIX + message.len());
        head.put_u8(0);
        head.put_u32(prefix);
        head.extend_from_slice(&message);
        let head = head.freeze();
        Ok(Self { head, data })
    }

    /// The first octets; the rest stays.
    #[must_use]
    pub fn split_to(&mut self, length: usize) -> Self {
        let head = self.head.split_to(length.min(self.head.len()));
        let data = self.data.split_to((length - head.len()).min(self.data.len()));
        Self { head, data }
    }
}

impl Buf for Frame {
    fn remaining(&self) -> usize {
        self.head.len() + self.data.len()
    }

    fn chunk(&self) -> &[u8] {
        match self.head.is_empty() {
            true => &self.data,
            false => &self.head,
        }
    }

    fn chunks_vectored<'a>(&'a self, slices: &mut [IoSlice<'a>]) -> usize {
        let parts = [&self.head, &self.data]
            .into_iter()
            .filter(|part| !part.is_empty());
        let mut count = 0;
        for (slice, part) in slices.iter_mut().zip(parts) {
            *slice = IoSlice::new(part);
            count += 1;
        }
        count
    }

    fn advance(&mut self, count: usize) {
        let of_head = count.min(self.head.len());
        self.head.advance(of_head);
        self.data.advance(count - of_head);
    }
}

/// All of a packet with so much data but the data itself: the last field of the last field.
fn data_head(connection: i64, length: usize) -> Vec<u8> {
    let mut inner = wire::Data {
        connection,
        error: String::new(),
        data: Bytes::new(),
    }
    .encode_to_vec();
    // As prost writes it: nothing where there is nothing.
    if length > 0 {
        encode_key(wire::DATA_OF_DATA, WireType::LengthDelimited, &mut inner);
        encode_varint(length as u64, &mut inner);
    }
    let mut head = wire::Packet {
        kind: wire::DATA,
        payload: None,
    }
    .encode_to_vec();
    encode_key(wire::DATA_OF_PACKET, WireType::LengthDelimited, &mut head);
    encode_varint((inner.len() + length) as u64, &mut head);
    head.extend_from_slice(&inner);
    head
}

/// The frame of a packet, in one piece.
///
/// # Errors
/// When it has as many octets as peers refuse.
pub fn encode(packet: &Packet) -> Result<Bytes, FrameError> {
    let mut frame = Frame::of(packet)?;
    Ok(frame.copy_to_bytes(frame.remaining()))
}

/// Takes octets as they arrive and gives messages.
#[derive(Debug, Default)]
pub struct Frames {
    /// Of a message whose end is not there.
    begun: BytesMut,
    chunk: Bytes,
}

impl Frames {
    pub fn push(&mut self, octets: impl Into<Bytes>) {
        if !self.chunk.is_empty() {
            self.begun.extend_from_slice(&self.chunk);
        }
        self.chunk = octets.into();
    }

    /// The next message that is whole.
    ///
    /// # Errors
    /// When no message can follow: it is compressed or too large.
    pub fn next_message(&mut self) -> Result<Option<Bytes>, FrameError> {
        if self.begun.is_empty()
            && let Some(length) = length(&self.chunk)?
            && self.chunk.len() >= length
        {
            let message = self.chunk.split_to(length).slice(PREFIX..);
            let is_small = message.len() < SMALL;
            return Ok(Some(if is_small {
                Bytes::copy_from_slice(&message)
            } else {
                message
            }));
        }
        self.begin(PREFIX);
        let Some(length) = length(&self.begun)? else {
            return Ok(None);
        };
        self.begin(length);
        if self.begun.len() < length {
            return Ok(None);
        }
        let mut message = self.begun.split_to(length);
        message.advance(PREFIX);
        // What is left of its room is given back with it.
        if self.begun.is_empty() {
            self.begun = BytesMut::new();
        }
        Ok(Some(message.freeze()))
    }

    /// Takes what comes, until so many octets have begun.
    fn begin(&mut self, length: usize) {
        let missing = length.saturating_sub(self.begun.len());
        self.begun.reserve(missing.min(RESERVE));
        let more = self.chunk.split_to(missing.min(self.chunk.len()));
        self.begun.extend_from_slice(&more);
    }
}

/// Of a frame, with its prefix; none while that is not there.
fn length(octets: &[u8]) -> Result<Option<usize>, FrameError> {
    let Some(mut prefix) = octets.get(..PREFIX) else {
        return Ok(None);
    };
    if prefix.get_u8() != 0 {
        return Err(FrameError::Compressed);
    }
    let length = usize::try_from(prefix.get_u32()).unwrap_or(usize::MAX);
    if length >= MAX_PACKET {
        return Err(FrameError::TooLarge(length));
    }
    Ok(Some(PREFIX + length))
}
