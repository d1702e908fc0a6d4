//! One question to one upstream: what is asked, and whether a message that arrives answers it.
//!
//! An answer is taken only if it comes from the server and port that were asked (the socket sees to that),
//! with the id, type, class and the exact case of the name. `Matched` is made here for such an answer alone, and for
//! dnsd's own; nothing else can be observed: a message that somebody else made up opens nothing.

mod hop_options;

use egret_shared::switch::{self, Switch};
use egret_shared::time::Timestamp;

use crate::dns::answer::{Answer, TtlLimits, Ttls};
use crate::dns::message::{Edns, HEADER, Message, Query, QueryParts, flag, mix_case, query, rcode};

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
    question_end: usize,
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

impl Matched<Answer> {
    /// What dnsd itself says: by its own files and rules, or of what was proven.
    #[must_use]
    pub const fn own(answer: Answer) -> Self {
        Self(answer)
    }

    /// Brings its TTLs between limits.
    pub fn limit_ttls(&mut self, limits: &TtlLimits) {
        self.0.limit_ttls(limits);
    }
}

impl<T> Matched<T> {
    /// What was proven.
    pub const fn get(&self) -> &T {
        &self.0
    }
}

/// Something that answers a question of ours, from somebody whom nobody here chose. It can be given to who asked that
/// somebody, and there is no way from it to what is observed, kept, or given to others.
#[derive(Clone, Debug)]
pub struct Relayed(Answer);

impl Relayed {
    /// The reply for who asked, no longer than `limit`.
    #[must_use]
    pub fn reply_within(&self, query: &Query, limit: usize, udp_size: u16) -> Vec<u8> {
        self.0.reply_within(query, Ttls::Original, limit, udp_size).0
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
    /// The right id and a code that says no, without the question: some servers answer so what they cannot read.
    Bare,
}

impl Mismatch {
    /// All of them, in the order of their numbers.
    pub const ALL: [Self; 5] = [Self::Unreadable, Self::Id, Self::Question, Self::Case, Self::Bare];

    /// The label of the metric.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::Unreadable => "unreadable",
            Self::Id => "id",
            Self::Question => "question",
            Self::Case => "case",
            Self::Bare => "bare",
        }
    }
}

impl Exchange {
    /// Writes the question; the id and the case are drawn at random.
    #[must_use]
    pub fn new(client: &Query, transport: Transport, case: Case, udp_size: u16) -> Self {
        Self::write(client, transport, case, client.edns.as_ref(), udp_size)
    }

    /// The same without an OPT, for an upstream that does not know EDNS.
    #[must_use]
    pub fn without_edns(client: &Query, transport: Transport, case: Case) -> Self {
        Self::write(client, transport, case, None, 0)
    }

    fn write(client: &Query, transport: Transport, case: Case, edns: Option<&Edns>, udp_size: u16) -> Self {
        let (id, name) = (rand::random(), client.question.name.as_octets());
        let mut octets = query(&QueryParts {
            id,
            flags: client.flags,
            raw_question: &client.raw_question,
            edns,
            udp_size,
        });
        let question_end = HEADER + client.raw_question.len();
        let raw_question = &mut octets[HEADER..question_end];
        raw_question[..name.len()].copy_from_slice(name);
        if case == Case::Mixed {
            mix_case(raw_question, rand::random);
        }
        Self {
            id,
            question_end,
            octets,
            transport,
        }
    }

    /// What is sent.
    #[must_use]
    pub fn octets(&self) -> &[u8] {
        &self.octets
    }

    /// The id.
    #[must_use]
    pub const fn id(&self) -> u16 {
        self.id
    }

    /// The same question by another id: on a connection each that is under way has its own.
    pub fn set_id(&mut self, id: u16) {
        self.id = id;
        self.octets[..2].copy_from_slice(&id.to_be_bytes());
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
        self.accept(octets, now, limits).map(Matched)
    }

    /// The same where somebody is asked whom nobody here chose.
    ///
    /// # Errors
    /// Why it does not answer the question.
    pub fn relay(&self, octets: &[u8], now: Timestamp, limits: &TtlLimits) -> Result<Relayed, Mismatch> {
        self.accept(octets, now, limits).map(Relayed)
    }

    fn accept(&self, octets: &[u8], now: Timestamp, limits: &TtlLimits) -> Result<Answer, Mismatch> {
        let question_end = if self.is_repeated(octets) {
            self.question_end
        } else {
            let message = Message::read(octets).map_err(|_malformed| self.unreadable(octets))?;
            message.question().end
        };
        if !switch::is_off(Switch::MatchAnswer) {
            self.check(octets, &octets[HEADER..question_end])?;
        }
        let octets = hop_options::end_to_end(octets, question_end);
        Ok(Answer::behind(question_end, octets, now, limits))
    }

    /// Whether a message has one question, and that is this one octet by octet, as in nearly every answer: then it need not
    /// be read.
    fn is_repeated(&self, octets: &[u8]) -> bool {
        octets.get(HEADER..self.question_end) == Some(self.raw_question()) && octets[4..6] == [0, 1]
    }

    fn check(&self, octets: &[u8], raw_question: &[u8]) -> Result<(), Mismatch> {
        let [id, flags] = [0, 2].map(|at| u16::from_be_bytes([octets[at], octets[at + 1]]));
        if flags & flag::QR == 0 || flags >> 11 & 0xf != 0 {
            Err(Mismatch::Unreadable)
        } else if id != self.id {
            Err(Mismatch::Id)
        } else if raw_question == self.raw_question() {
            Ok(())
        } else if !raw_question.eq_ignore_ascii_case(self.raw_question()) || !self.is_same(raw_question) {
            Err(Mismatch::Question)
        } else if self.transport == Transport::Udp {
            Err(Mismatch::Case)
        } else {
            Ok(())
        }
    }

    /// Type and class have no case: the octets of one are letters of another.
    fn is_same(&self, raw_question: &[u8]) -> bool {
        raw_question.last_chunk::<4>() == self.raw_question().last_chunk::<4>()
    }

    fn raw_question(&self) -> &[u8] {
        &self.octets[HEADER..self.question_end]
    }

    /// Whether what cannot be read at least says that the question could not be either (RFC 1035 §4.1.1: FORMERR,
    /// NOTIMP), by a header alone.
    fn unreadable(&self, octets: &[u8]) -> Mismatch {
        let is_ours = octets.len() == HEADER
            && octets[..2] == self.id.to_be_bytes()
            && octets[2] & 0xf8 == 0x80
            && matches!(octets[3] & 0xf, rcode::FORMERR | rcode::NOTIMP)
            && octets[4..] == [0; 8];
        if is_ours {
            Mismatch::Bare
        } else {
            Mismatch::Unreadable
        }
    }
}
