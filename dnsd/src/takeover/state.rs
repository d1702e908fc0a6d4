//! The wire form of the state that an old process gives to a new one: records of the response gate and of the caches.
//!
//! It goes over a socket of its own while the old process still answers. A new process that has enough closes the socket.
//! Reading is strict: a message with one bad record counts as no message. Each owner defines its records
//! ([`GateRecord`], [`BlockRecord`], [`AnswerRecord`]) and checks their content.

use serde::{Deserialize, Serialize};

use crate::enforcement::gate::GateRecord;
use crate::zones::{AnswerRecord, BlockRecord, InvalidCacheRecord};

/// The version of the wire form. A new process asks for no state of another version.
pub const STATE_VERSION: u16 = 2;
/// What every message begins with.
const HEAD: [u8; 4] = *b"egm\x01";

/// One record of the state.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum StateRecord {
    /// Of the response gate.
    Gate(GateRecord),
    /// A server block: the answers that follow are from its cache.
    Block(BlockRecord),
    /// A cached answer.
    Answer(AnswerRecord),
    /// The end of the state.
    End,
}

/// Why octets are no state.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidState {
    /// They do not begin with the magic number.
    #[error("the other dnsd's state is not in dnsd's format")]
    Foreign,
    /// A record cannot be decoded.
    #[error("the other dnsd's state cannot be decoded: {0}")]
    Unreadable(postcard::Error),
    /// There are octets after the last record.
    #[error("the other dnsd's state has {0} octets after the last record")]
    Trailing(usize),
    /// A record has a value that no dnsd writes.
    #[error("the other dnsd's state has {0}")]
    Record(#[from] InvalidCacheRecord),
}

/// Encodes one message.
#[must_use]
pub fn write(records: &[StateRecord]) -> Vec<u8> {
    let head = HEAD.to_vec();
    postcard::to_extend(records, head).expect("postcard writes every value of these types")
}

/// Decodes one message.
///
/// # Errors
/// When the octets are no message of this version.
pub fn read(octets: &[u8]) -> Result<Vec<StateRecord>, InvalidState> {
    let records = octets.strip_prefix(&HEAD).ok_or(InvalidState::Foreign)?;
    let (records, rest) = postcard::take_from_bytes(records).map_err(InvalidState::Unreadable)?;
    if rest.is_empty() {
        Ok(records)
    } else {
        Err(InvalidState::Trailing(rest.len()))
    }
}
