//! Frames: `length u32 | version u16 | kind u16 | instance u64 | payload`, integers in little endian.
//!
//! `length` counts what follows it. The payload is postcard. A kind that is not known is skipped and
//! reported, and octets behind a known payload are ignored, so that a newer peer may say more.

use postcard::ser_flavors::Flavor;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::message::{ClusterDns, Hello, Interest, NodePods, ToDnsd, ToEnforcer};
use crate::observation::Observation;
use crate::revision::{DnsdInstance, Sequence};

/// The version that this code writes. A peer that writes a higher major version (the upper octet) is refused.
pub const VERSION: u16 = 0x0100;
/// The most octets that may follow a length: enough for an answer of 64 KiB, small enough to be harmless.
pub const MAX_FRAME: u32 = 1 << 20;
/// Octets of the header behind the length.
const HEADER: usize = 12;

/// A frame that was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Frame<M> {
    /// A message and the run of the program that said it.
    Message(DnsdInstance, M),
    /// A kind that this version does not know; the frame was skipped.
    Unknown(u16),
}

/// Why a stream of frames cannot be read further: the connection is to be closed and begun anew.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CodecError {
    /// A length outside of what any version writes.
    #[error("a frame of {0} octets; 12 to {MAX_FRAME} are accepted")]
    Length(u32),
    /// A peer from the future.
    #[error("the peer speaks version {:#06x} of the link, this program {VERSION:#06x}", .0)]
    Version(u16),
    /// A payload that its kind does not allow.
    #[error("the payload of a frame of kind {kind} cannot be read: {reason}")]
    Payload {
        /// The kind.
        kind: u16,
        /// What postcard says.
        reason: String,
    },
}

/// A direction of the link: messages that have a kind and a payload.
pub trait WireMessage: Sized {
    /// The number of the kind; the payload is written behind what is in `out`.
    fn to_wire(&self, out: &mut Vec<u8>) -> u16;

    /// The message, or nothing where the kind is not known.
    ///
    /// # Errors
    /// What postcard makes of a payload that does not fit.
    fn from_wire(kind: u16, payload: &[u8]) -> Result<Option<Self>, postcard::Error>;
}

/// Writes a frame behind what is in `out`.
pub fn encode<M: WireMessage>(instance: DnsdInstance, message: &M, out: &mut Vec<u8>) {
    let begin = out.len();
    out.extend_from_slice(&[0; 4 + HEADER]);
    let kind = message.to_wire(out);
    let length = u32::try_from(out.len() - begin - 4).expect("a message is far below 4 GiB");
    let header = &mut out[begin..begin + 4 + HEADER];
    header[..4].copy_from_slice(&length.to_le_bytes());
    header[4..6].copy_from_slice(&VERSION.to_le_bytes());
    header[6..8].copy_from_slice(&kind.to_le_bytes());
    header[8..].copy_from_slice(&instance.as_u64().to_le_bytes());
}

/// Takes octets as they arrive and gives frames; holds at most one frame and what was pushed with it.
#[derive(Debug, Default)]
pub struct FrameDecoder {
    buffer: Vec<u8>,
    start: usize,
}

impl FrameDecoder {
    /// Adds octets that arrived.
    pub fn push(&mut self, octets: &[u8]) {
        self.buffer.drain(..self.start);
        self.start = 0;
        self.buffer.extend_from_slice(octets);
    }

    /// The next whole frame, if there is one.
    ///
    /// # Errors
    /// When the stream cannot be read further.
    pub fn next_frame<M: WireMessage>(&mut self) -> Result<Option<Frame<M>>, CodecError> {
        let pending = &self.buffer[self.start..];
        let Some(length) = pending
            .first_chunk::<4>()
            .map(|octets| u32::from_le_bytes(*octets))
        else {
            return Ok(None);
        };
        let size = frame_size(length)?;
        let Some(frame) = pending[4..].get(..size) else {
            return Ok(None);
        };
        let decoded = decode(frame)?;
        self.start += 4 + size;
        Ok(Some(decoded))
    }
}

fn frame_size(length: u32) -> Result<usize, CodecError> {
    usize::try_from(length)
        .ok()
        .filter(|size| *size >= HEADER && length <= MAX_FRAME)
        .ok_or(CodecError::Length(length))
}

fn decode<M: WireMessage>(frame: &[u8]) -> Result<Frame<M>, CodecError> {
    let version = u16::from_le_bytes([frame[0], frame[1]]);
    if version >> 8 > VERSION >> 8 {
        return Err(CodecError::Version(version));
    }
    let kind = u16::from_le_bytes([frame[2], frame[3]]);
    let (instance, payload) = frame[4..]
        .split_first_chunk::<8>()
        .expect("a frame has a whole header");
    let message = M::from_wire(kind, payload).map_err(|error| CodecError::Payload {
        kind,
        reason: error.to_string(),
    })?;
    Ok(match message {
        Some(message) => Frame::Message(DnsdInstance::from_random(u64::from_le_bytes(*instance)), message),
        None => Frame::Unknown(kind),
    })
}

/// Writes the payload of a kind; gives the kind.
fn payload<T: Serialize>(kind: u16, value: &T, out: &mut Vec<u8>) -> u16 {
    postcard::serialize_with_flavor(value, PostcardWriter(out))
        .expect("postcard writes every value of these types");
    kind
}

/// What is written goes behind what is there, a piece at a time: `postcard::to_extend` takes octets one by one.
struct PostcardWriter<'a>(&'a mut Vec<u8>);

impl Flavor for PostcardWriter<'_> {
    type Output = ();

    fn try_extend(&mut self, octets: &[u8]) -> postcard::Result<()> {
        self.0.extend_from_slice(octets);
        Ok(())
    }

    fn try_push(&mut self, octet: u8) -> postcard::Result<()> {
        self.0.push(octet);
        Ok(())
    }

    fn finalize(self) -> postcard::Result<()> {
        Ok(())
    }
}

fn read<T: DeserializeOwned>(payload: &[u8]) -> Result<T, postcard::Error> {
    postcard::take_from_bytes(payload).map(|(value, _newer)| value)
}

impl WireMessage for ToEnforcer {
    fn to_wire(&self, out: &mut Vec<u8>) -> u16 {
        match self {
            Self::Hello(hello) => payload(1, hello, out),
            Self::ResyncStarted => 2,
            Self::ResyncEnded { through } => payload(3, through, out),
            Self::Observed {
                sequence,
                observation,
            } => payload(4, &(sequence, observation), out),
            Self::Holding { answers } => payload(5, answers, out),
        }
    }

    fn from_wire(kind: u16, payload: &[u8]) -> Result<Option<Self>, postcard::Error> {
        Ok(Some(match kind {
            1 => Self::Hello(read(payload)?),
            2 => Self::ResyncStarted,
            3 => Self::ResyncEnded {
                through: read(payload)?,
            },
            4 => {
                let (sequence, observation): (Sequence, Observation) = read(payload)?;
                Self::Observed {
                    sequence,
                    observation,
                }
            }
            5 => Self::Holding {
                answers: read(payload)?,
            },
            _ => return Ok(None),
        }))
    }
}

impl WireMessage for ToDnsd {
    fn to_wire(&self, out: &mut Vec<u8>) -> u16 {
        match self {
            Self::Hello(hello) => payload(101, hello, out),
            Self::Interest(interest) => payload(102, interest, out),
            Self::InterestComplete => 103,
            Self::Realized { through, failed } => payload(104, &(through, failed), out),
            Self::Pods(pods) => payload(105, pods, out),
            Self::ClusterDns(dns) => payload(106, dns, out),
        }
    }

    fn from_wire(kind: u16, payload: &[u8]) -> Result<Option<Self>, postcard::Error> {
        Ok(Some(match kind {
            101 => Self::Hello(read::<Hello>(payload)?),
            102 => Self::Interest(read::<Interest>(payload)?),
            103 => Self::InterestComplete,
            104 => {
                let (through, failed) = read(payload)?;
                Self::Realized { through, failed }
            }
            105 => Self::Pods(read::<NodePods>(payload)?),
            106 => Self::ClusterDns(read::<ClusterDns>(payload)?),
            _ => return Ok(None),
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observation::ObservedAddress;
    use crate::time::Timestamp;

    const INSTANCE: DnsdInstance = DnsdInstance::from_random(7);

    fn observed(addresses: usize) -> ToEnforcer {
        let address = ObservedAddress {
            address: [192, 0, 2, 1].into(),
            expires: Timestamp::from_millis(5),
        };
        ToEnforcer::Observed {
            sequence: Sequence::ZERO.next(),
            observation: Observation {
                client: [10, 0, 0, 1].into(),
                question: "api.example.test".parse().unwrap(),
                chain: vec!["edge.example.test".parse().unwrap()],
                addresses: vec![address; addresses],
            },
        }
    }

    fn to_enforcer() -> Vec<ToEnforcer> {
        let through = Sequence::ZERO.next();
        let hello = ToEnforcer::Hello(Hello {
            program: "dnsd 0.1.0".into(),
        });
        vec![
            hello,
            ToEnforcer::ResyncStarted,
            observed(0),
            observed(200),
            ToEnforcer::ResyncEnded { through },
            ToEnforcer::Holding { answers: 300 },
        ]
    }

    fn to_dnsd() -> Vec<ToDnsd> {
        let interest = Interest {
            pod: [10, 0, 0, 1].into(),
            patterns: vec!["*.example.test".parse().unwrap()],
        };
        vec![
            ToDnsd::Hello(Hello {
                program: "enforcer 0.1.0".into(),
            }),
            ToDnsd::Interest(interest),
            ToDnsd::InterestComplete,
            ToDnsd::Pods(NodePods {
                caught: vec![[10, 0, 0, 1].into()],
                spared: Vec::new(),
            }),
            ToDnsd::ClusterDns(ClusterDns {
                endpoints: vec![
                    "10.0.0.53:53".parse().unwrap(),
                    "[fd00::53]:5353".parse().unwrap(),
                ],
                services: vec![[10, 96, 0, 10].into()],
            }),
            ToDnsd::Realized {
                through: Sequence::ZERO.next(),
                failed: vec![Sequence::ZERO],
            },
        ]
    }

    fn arrives_whole<M: WireMessage + PartialEq + std::fmt::Debug>(messages: &[M], piece: usize) {
        let mut wire = Vec::new();
        messages
            .iter()
            .for_each(|message| encode(INSTANCE, message, &mut wire));
        let (mut decoder, mut read) = (FrameDecoder::default(), Vec::new());
        for octets in wire.chunks(piece) {
            decoder.push(octets);
            while let Some(Frame::Message(instance, message)) = decoder.next_frame::<M>().unwrap() {
                assert_eq!(instance, INSTANCE);
                read.push(message);
            }
        }
        assert_eq!(read, messages);
    }

    #[test]
    fn whatever_the_pieces_every_message_arrives_whole_and_in_order() {
        for piece in [1, 2, 3, 7, 64, 4096] {
            arrives_whole(&to_enforcer(), piece);
            arrives_whole(&to_dnsd(), piece);
        }
    }

    #[test]
    fn an_unknown_kind_is_skipped_and_what_follows_is_read() {
        let mut wire = Vec::new();
        encode(INSTANCE, &ToDnsd::InterestComplete, &mut wire);
        encode(INSTANCE, &ToEnforcer::ResyncStarted, &mut wire);
        let mut decoder = FrameDecoder::default();
        decoder.push(&wire);
        assert_eq!(
            decoder.next_frame::<ToEnforcer>().unwrap(),
            Some(Frame::Unknown(103))
        );
        assert_eq!(
            decoder.next_frame().unwrap(),
            Some(Frame::Message(INSTANCE, ToEnforcer::ResyncStarted))
        );
    }

    #[test]
    fn a_newer_peer_may_say_more_in_a_known_frame() {
        let mut wire = Vec::new();
        encode(INSTANCE, &ToEnforcer::ResyncStarted, &mut wire);
        wire.extend_from_slice(b"more");
        wire[0] += 4;
        let mut decoder = FrameDecoder::default();
        decoder.push(&wire);
        assert_eq!(
            decoder.next_frame().unwrap(),
            Some(Frame::Message(INSTANCE, ToEnforcer::ResyncStarted))
        );
    }

    #[test]
    fn lengths_and_versions_that_no_peer_writes_end_the_connection() {
        let mut decoder = FrameDecoder::default();
        decoder.push(&(MAX_FRAME + 1).to_le_bytes());
        assert_eq!(
            decoder.next_frame::<ToDnsd>(),
            Err(CodecError::Length(MAX_FRAME + 1))
        );
        let mut wire = Vec::new();
        encode(INSTANCE, &ToDnsd::InterestComplete, &mut wire);
        wire[5] = 2;
        let mut decoder = FrameDecoder::default();
        decoder.push(&wire);
        assert_eq!(decoder.next_frame::<ToDnsd>(), Err(CodecError::Version(0x0200)));
    }

    proptest::proptest! {
        #[test]
        fn no_octets_make_the_decoder_panic(octets in proptest::collection::vec(proptest::num::u8::ANY, 0..200)) {
            let mut decoder = FrameDecoder::default();
            decoder.push(&octets);
            while let Ok(Some(_)) = decoder.next_frame::<ToEnforcer>() {}
        }
    }
}
