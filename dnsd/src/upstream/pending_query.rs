//! One outstanding query to one upstream, and the validation of its response (RFC 5452 §9).
//!
//! A response is accepted only from the queried address and port (the socket filters), with the same id, type, class and
//! exact case of the name (0x20). `ValidatedResponse` is made here for such a response alone, and for dnsd's own answers;
//! nothing else can be observed: a forged message opens no address.

mod hop_options;

use egret_shared::time::Timestamp;

use crate::dns::answer::{Answer, TtlLimits, Ttls};
use crate::dns::message::{Edns, HEADER, Message, Query, QueryParts, flag, mix_case, query, rcode};

/// The case of the letters in the question.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Case {
    /// Random (0x20): the response must repeat it.
    Mixed,
    /// Lower case, for an upstream that does not preserve case.
    Plain,
}

/// An outstanding query.
#[derive(Clone, Debug)]
pub struct PendingQuery {
    id: u16,
    octets: Vec<u8>,
    question_end: usize,
    transport: Transport,
}

/// The transport of a query.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// A datagram: its response can be forged.
    Udp,
    /// A connection: its response cannot be forged off-path, so the case is not checked.
    Tcp,
}

/// A response that was validated against its query.
#[derive(Clone, Debug)]
pub struct ValidatedResponse<T>(T);

impl ValidatedResponse<Answer> {
    /// An answer of dnsd's own: from its files and rules, or derived from validated ones.
    #[must_use]
    pub const fn own(answer: Answer) -> Self {
        Self(answer)
    }

    /// Bounds its TTLs.
    pub fn limit_ttls(&mut self, limits: &TtlLimits) {
        self.0.limit_ttls(limits);
    }
}

impl<T> ValidatedResponse<T> {
    /// The response.
    pub const fn get(&self) -> &T {
        &self.0
    }
}

/// A response of a resolver that the client chose itself. It can be relayed to that client only: it cannot be observed,
/// cached, or given to others.
#[derive(Clone, Debug)]
pub struct Relayed(Answer);

impl Relayed {
    /// The reply to the client, at most `limit` octets.
    #[must_use]
    pub fn reply_within(&self, query: &Query, limit: usize, udp_size: u16) -> Vec<u8> {
        self.0.reply_within(query, Ttls::Original, limit, udp_size).0
    }
}

/// Why a message is not accepted.
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
    /// The right id and FORMERR or NOTIMP without a question: some servers answer so what they cannot parse.
    Bare,
}

labels! {
    Mismatch: Unreadable => "unreadable", Id => "id", Question => "question", Case => "case", Bare => "bare"
}

impl PendingQuery {
    /// Writes a query with a random id, and a random case where `case` says so.
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

    /// The message.
    #[must_use]
    pub fn octets(&self) -> &[u8] {
        &self.octets
    }

    /// The id.
    #[must_use]
    pub const fn id(&self) -> u16 {
        self.id
    }

    /// Changes the id: outstanding queries on one connection have different ones.
    pub fn set_id(&mut self, id: u16) {
        self.id = id;
        self.octets[..2].copy_from_slice(&id.to_be_bytes());
    }

    /// Validates a message that arrived.
    ///
    /// # Errors
    /// Why it is not the response, which may still come.
    pub fn validate(
        &self,
        octets: &[u8],
        now: Timestamp,
        limits: &TtlLimits,
    ) -> Result<ValidatedResponse<Answer>, Mismatch> {
        self.accept(octets, now, limits).map(ValidatedResponse)
    }

    /// As above, for a resolver that the client chose.
    ///
    /// # Errors
    /// Why it is not the response.
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
        self.check(octets, &octets[HEADER..question_end])?;
        let octets = hop_options::end_to_end(octets, question_end);
        Ok(Answer::behind(question_end, octets, now, limits))
    }

    /// Whether a message repeats the question octet by octet, as nearly every response does: then it need not be parsed.
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

    /// Type and class are compared exactly: their octets may be letters.
    fn is_same(&self, raw_question: &[u8]) -> bool {
        raw_question.last_chunk::<4>() == self.raw_question().last_chunk::<4>()
    }

    fn raw_question(&self) -> &[u8] {
        &self.octets[HEADER..self.question_end]
    }

    /// Tells a bare header with FORMERR or NOTIMP (RFC 1035 §4.1.1) from other malformed messages.
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
