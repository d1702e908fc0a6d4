//! One question to one upstream: what is asked, and whether a message that arrives answers it.
//!
//! An answer is taken only if it comes from the server and port that were asked (the socket sees to that),
//! with the id, type, class and the exact case of the name. `Matched` cannot be made elsewhere, and
//! nothing else can be observed: a message that somebody else made up opens nothing.

use egret_shared::switch::{self, Switch};
use egret_shared::time::Timestamp;

use crate::answer::{Answer, TtlLimits};
use crate::message::{Message, Query, QueryParts, mix_case, query};

/// How the letters of the question are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Case {
    /// At random: they must come back as they were sent.
    Mixed,
    /// In lower case, for an upstream that does not keep them.
    Plain,
}

/// A question under way.
#[derive(Clone, Debug)]
pub struct Exchange {
    id: u16,
    octets: Vec<u8>,
    transport: Transport,
}

/// How a question travels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// In one datagram; anybody may send one back.
    Udp,
    /// On a connection; only who completed it can answer, so the case does not matter.
    Tcp,
}

/// Something that was proven to answer a question of ours.
#[derive(Clone, Debug)]
pub struct Matched<T>(T);

impl<T> Matched<T> {
    /// What was proven.
    pub const fn get(&self) -> &T {
        &self.0
    }
}

/// Why a message is not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mismatch {
    /// Not a response with one question.
    Unreadable,
    /// Another id.
    Id,
    /// Another name, type or class.
    Question,
    /// The right name in another case.
    Case,
}

impl Mismatch {
    /// All of them, in the order of their numbers.
    pub const ALL: [Self; 4] = [Self::Unreadable, Self::Id, Self::Question, Self::Case];

    /// The label of the metric.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::Unreadable => "unreadable",
            Self::Id => "id",
            Self::Question => "question",
            Self::Case => "case",
        }
    }
}

impl Exchange {
    /// Writes the question; the id and the case are drawn at random.
    #[must_use]
    pub fn new(client: &Query, transport: Transport, case: Case, udp_size: u16) -> Self {
        let id = rand::random();
        let mut raw_question = client.raw_question.clone();
        let name = client.question.name.as_octets();
        raw_question[..name.len()].copy_from_slice(name);
        if case == Case::Mixed {
            mix_case(&mut raw_question, rand::random);
        }
        let octets = query(&QueryParts {
            id,
            flags: client.flags,
            raw_question: &raw_question,
            edns: client.edns.as_ref(),
            udp_size,
        });
        Self {
            id,
            octets,
            transport,
        }
    }

    /// What is sent.
    #[must_use]
    pub fn octets(&self) -> &[u8] {
        &self.octets
    }

    /// Takes a message that arrived where the answer is expected.
    ///
    /// # Errors
    /// Why it does not answer the question; the answer may still come.
    pub fn take(
        &self,
        octets: &[u8],
        now: Timestamp,
        limits: &TtlLimits,
    ) -> Result<Matched<Answer>, Mismatch> {
        let message = Message::read(octets).map_err(|_malformed| Mismatch::Unreadable)?;
        if !switch::is_off(Switch::MatchAnswer) {
            self.check(&message)?;
        }
        let answer = Answer::new(octets.to_vec(), message.question(), now, limits);
        Ok(Matched(answer))
    }

    fn check(&self, message: &Message<'_>) -> Result<(), Mismatch> {
        let asked = Message::read(&self.octets).expect("our own question can be read");
        if !message.is_response() || message.opcode() != 0 {
            Err(Mismatch::Unreadable)
        } else if message.id() != self.id {
            Err(Mismatch::Id)
        } else if message.question() != asked.question() {
            Err(Mismatch::Question)
        } else if self.transport == Transport::Udp && message.raw_question() != asked.raw_question() {
            Err(Mismatch::Case)
        } else {
            Ok(())
        }
    }
}
