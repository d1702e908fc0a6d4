//! Header, question and records of a message, read in place.

use std::ops::Range;

use egret_shared::time::Ttl;

use super::malformed::Malformed;
use super::name::{self, WireName};
use super::{HEADER, flag};

/// The question of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Question {
    /// The name, in lower case.
    pub name: WireName,
    /// The type.
    pub kind: u16,
    /// The class.
    pub class: u16,
    /// The offset after it.
    pub end: usize,
}

impl Question {
    /// A question that is not read yet.
    pub(super) const UNREAD: Self = Self {
        name: WireName::EMPTY,
        kind: 0,
        class: 0,
        end: 0,
    };

    /// Reads the only question of a message into `self`.
    pub(super) fn fill(&mut self, octets: &[u8]) -> Result<(), Malformed> {
        let count = u16_at(octets, 4)?;
        if octets.len() < HEADER {
            return Err(Malformed::Cut(0));
        }
        if count != 1 {
            return Err(Malformed::Questions(count));
        }
        let end = self.name.fill(octets, HEADER)?;
        (self.kind, self.class) = (u16_at(octets, end)?, u16_at(octets, end + 2)?);
        self.end = end + 4;
        Ok(())
    }
}

/// A message with one question.
#[derive(Clone, Copy, Debug)]
pub struct Message<'a> {
    octets: &'a [u8],
    question: Question,
}

impl<'a> Message<'a> {
    /// Reads header and question. The records are read on demand.
    ///
    /// # Errors
    /// When the header is incomplete, or there is not exactly one question.
    pub fn read(octets: &'a [u8]) -> Result<Self, Malformed> {
        let mut question = Question::UNREAD;
        question.fill(octets)?;
        Ok(Self { octets, question })
    }

    /// A message whose question is read already.
    pub(crate) const fn of(octets: &'a [u8], question: Question) -> Self {
        Self { octets, question }
    }

    /// The octets.
    #[must_use]
    pub const fn octets(&self) -> &'a [u8] {
        self.octets
    }

    /// The id.
    #[must_use]
    pub fn id(&self) -> u16 {
        self.header_field(0)
    }

    /// The flags, with opcode and response code.
    #[must_use]
    pub fn flags(&self) -> u16 {
        self.header_field(2)
    }

    /// Whether this is a response.
    #[must_use]
    pub fn is_response(&self) -> bool {
        self.flags() & flag::QR != 0
    }

    /// Whether TC is set.
    #[must_use]
    pub fn is_truncated(&self) -> bool {
        self.flags() & flag::TC != 0
    }

    /// The opcode.
    #[must_use]
    pub fn opcode(&self) -> u8 {
        (self.flags() >> 8) as u8 >> 3 & 0xf
    }

    /// The response code of the header, without the upper bits in the OPT.
    #[must_use]
    pub fn rcode(&self) -> u8 {
        (self.flags() & 0xf) as u8
    }

    /// The question.
    #[must_use]
    pub const fn question(&self) -> &Question {
        &self.question
    }

    /// The question as sent: name in its case, type, class.
    #[must_use]
    pub fn raw_question(&self) -> &'a [u8] {
        &self.octets[HEADER..self.question.end]
    }

    /// The records of all sections, in order; ends after the first that cannot be read.
    #[must_use]
    pub fn records(&self) -> Records<'a> {
        Records::behind(self.question.end, self.octets)
    }

    fn header_field(&self, at: usize) -> u16 {
        header_field(self.octets, at)
    }
}

fn header_field(octets: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([octets[at], octets[at + 1]])
}

/// The section of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Section {
    /// Answer.
    Answer,
    /// Authority; with the SOA of a negative answer.
    Authority,
    /// Additional; with the OPT.
    Additional,
}

/// A record, by the offsets of its fields.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// Its section.
    pub section: Section,
    /// The offset of its owner.
    pub owner_at: usize,
    /// Its type.
    pub kind: u16,
    /// Its class; of an OPT the largest datagram that the sender accepts.
    pub class: u16,
    /// The offset of its TTL.
    pub ttl_at: usize,
    /// The range of its data.
    pub data: Range<usize>,
}

impl Record {
    /// The owner's name.
    ///
    /// # Errors
    /// When a compression pointer is invalid.
    pub fn owner(&self, message: &[u8]) -> Result<WireName, Malformed> {
        WireName::read(message, self.owner_at).map(|(name, _)| name)
    }

    /// Whether `name` is its owner; compared in place.
    #[must_use]
    pub fn is_of(&self, name: &WireName, message: &[u8]) -> bool {
        name.stands_at(message, self.owner_at)
    }

    /// Whether the question's name is its owner: usually a pointer to it.
    #[must_use]
    pub fn is_of_question(&self, question: &Question, message: &[u8]) -> bool {
        message.get(self.owner_at..self.owner_at + 2) == Some(&TO_QUESTION)
            || self.is_of(&question.name, message)
    }

    /// The TTL.
    #[must_use]
    pub fn ttl(&self, message: &[u8]) -> Ttl {
        Ttl::from_wire(u32_at(message, self.ttl_at).unwrap_or(0))
    }
}

/// A pointer to the question's name, which follows the header (RFC 1035 §4.1.4).
const TO_QUESTION: [u8; 2] = [0xc0, 12];

/// The records of a message.
#[derive(Clone, Debug)]
pub struct Records<'a> {
    octets: &'a [u8],
    at: usize,
    left: [u16; 3],
}

impl<'a> Records<'a> {
    /// The records of a message whose question ends at `question_end`.
    pub(crate) fn behind(question_end: usize, octets: &'a [u8]) -> Self {
        Self {
            octets,
            at: question_end,
            left: [
                header_field(octets, 6),
                header_field(octets, 8),
                header_field(octets, 10),
            ],
        }
    }

    fn next_section(&mut self) -> Option<Section> {
        let index = self.left.iter().position(|left| *left > 0)?;
        self.left[index] -= 1;
        Some([Section::Answer, Section::Authority, Section::Additional][index])
    }

    fn read(&mut self, section: Section) -> Result<Record, Malformed> {
        let (owner_at, fixed_at) = (self.at, name::skip(self.octets, self.at)?);
        let behind_owner = self.octets.get(fixed_at..).and_then(|rest| rest.first_chunk());
        let fixed: &[u8; 10] = behind_owner.ok_or(Malformed::Cut(fixed_at))?;
        let [kind, class, _, _, length] = fixed.as_chunks().0 else {
            return Err(Malformed::Cut(fixed_at));
        };
        let data = fixed_at + fixed.len();
        let end = data + usize::from(u16::from_be_bytes(*length));
        if end > self.octets.len() {
            return Err(Malformed::Cut(owner_at));
        }
        self.at = end;
        Ok(Record {
            section,
            owner_at,
            kind: u16::from_be_bytes(*kind),
            class: u16::from_be_bytes(*class),
            ttl_at: fixed_at + 4,
            data: data..end,
        })
    }
}

impl Iterator for Records<'_> {
    type Item = Result<Record, Malformed>;

    fn next(&mut self) -> Option<Self::Item> {
        let section = self.next_section()?;
        let record = self.read(section);
        if record.is_err() {
            self.left = [0; 3];
        }
        Some(record)
    }
}

fn u16_at(octets: &[u8], at: usize) -> Result<u16, Malformed> {
    octets
        .get(at..)
        .and_then(|rest| rest.first_chunk::<2>())
        .map(|pair| u16::from_be_bytes(*pair))
        .ok_or(Malformed::Cut(at))
}

fn u32_at(octets: &[u8], at: usize) -> Result<u32, Malformed> {
    octets
        .get(at..)
        .and_then(|rest| rest.first_chunk::<4>())
        .map(|four| u32::from_be_bytes(*four))
        .ok_or(Malformed::Cut(at))
}
