//! What a predecessor knows, in pieces: how it stands with the enforcer, what it told to whom, what it keeps.
//!
//! It goes over a socket of its own while the predecessor still answers, so that nobody waits for it, and a successor that
//! has heard enough hangs up. The pieces are read strictly: who wrote something else wrote nothing.

use std::time::Duration;

use egret_kernel::links::Attachment;
use egret_shared::link::Interest;
use egret_shared::observation::Observation;
use egret_shared::time::Timestamp;
use serde::{Deserialize, Serialize};

use crate::cache::{Demand, Provenance};
use crate::zones::answer_source::By;
use crate::zones::failure::Failed;

/// How the pieces are written. Another number is another language: nothing is asked for then.
pub const LANGUAGE: u16 = 1;
/// What every message begins with.
const HEAD: [u8; 4] = *b"egm\x01";

/// One thing that is known.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Piece {
    /// Since when an enforcer's first interest was waited for, and whether an enforcer is connected.
    Enforcer {
        /// Since when.
        since: Timestamp,
        /// Whether one is there.
        is_connected: bool,
    },
    /// The names that a pod waits for.
    Interest(Interest),
    /// All interests were told.
    InterestComplete,
    /// What a client was told and still lives.
    Told(Telling),
    /// A block of the plan: what follows was kept by it.
    Block(OfBlock),
    /// An answer that it keeps.
    Answer(KeptAnswer),
    /// There is no more.
    End,
}

/// What a client was told.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Telling {
    /// To whom, and what.
    pub observation: Observation,
    /// What the client was attached to.
    #[serde(with = "attachment")]
    pub attachment: Option<Attachment>,
    /// Whether the kernel has it.
    pub is_realized: bool,
}

/// A block.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OfBlock {
    /// A word that a block has only if it answers alike.
    pub likeness: [u8; 32],
    /// To what TTLs were raised: of answers, and of denials.
    pub raised_to: [Duration; 2],
}

/// An answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeptAnswer {
    /// What it is found by.
    pub key: Vec<u8>,
    /// It, as a message with the TTLs that it had when it arrived.
    pub octets: Vec<u8>,
    /// When that was.
    pub arrived: Timestamp,
    /// Who made it.
    pub provenance: Provenance,
    /// Which part of the chain.
    pub by: By,
    /// Why there is none, if it says so.
    pub failed: Option<Failed>,
    /// How much it was asked for.
    pub demand: Demand,
}

/// Octets that no dnsd of this language wrote.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Damaged {
    /// They begin otherwise.
    #[error("what the other dnsd knows is not told as dnsd tells it")]
    Foreign,
    /// A piece cannot be read.
    #[error("what the other dnsd knows cannot be read: {0}")]
    Unreadable(postcard::Error),
    /// Something stands behind the last piece.
    #[error("{0} octets stand behind what the other dnsd knows")]
    Behind(usize),
    /// A piece says what no dnsd would.
    #[error("the other dnsd knows {0}")]
    Wrong(&'static str),
}

/// One message.
#[must_use]
pub fn write(pieces: &[Piece]) -> Vec<u8> {
    let head = HEAD.to_vec();
    postcard::to_extend(pieces, head).expect("postcard writes every value of these types")
}

/// The pieces of a message.
///
/// # Errors
/// Where it is not one.
pub fn read(octets: &[u8]) -> Result<Vec<Piece>, Damaged> {
    let pieces = octets.strip_prefix(&HEAD).ok_or(Damaged::Foreign)?;
    let (pieces, behind) = postcard::take_from_bytes(pieces).map_err(Damaged::Unreadable)?;
    if behind.is_empty() {
        Ok(pieces)
    } else {
        Err(Damaged::Behind(behind.len()))
    }
}

mod attachment {
    use super::Attachment;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    pub(super) fn serialize<S: Serializer>(it: &Option<Attachment>, to: S) -> Result<S::Ok, S::Error> {
        it.map(Attachment::as_number).serialize(to)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Attachment>, D::Error> {
        Ok(Option::<u64>::deserialize(from)?.map(Attachment::from_number))
    }
}
