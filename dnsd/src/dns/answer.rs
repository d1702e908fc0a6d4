//! An upstream's answer, with the offsets at which it is patched for each client.

use egret_shared::time::{Timestamp, Ttl};

use crate::dns::message::{
    HEADER, Malformed, Message, OPT_SIZE, Query, Question, Records, Section, flag, kind, push_reply_opt,
    truncated_reply,
};
use crate::net::buffers::take_buffer;

/// An answer: its octets, and the offsets in them.
#[derive(Clone, Debug)]
pub struct Answer {
    octets: Vec<u8>,
    question_end: usize,
    arrived: Timestamp,
    /// The offsets of the TTLs. `None` if the records cannot be read: such an answer is relayed once and not cached.
    ttls: Option<Vec<Offset>>,
    opt: Opt,
}

/// An offset in a message, in two octets: a message has at most 65,535 (RFC 1035 §4.2.2), and the cache holds very many
/// offsets.
pub(crate) type Offset = [u8; 2];

/// A borrowed answer, such as one in the cache.
#[derive(Clone, Copy, Debug)]
pub struct AnswerView<'a> {
    pub(crate) octets: &'a [u8],
    pub(crate) question_end: usize,
    pub(crate) arrived: Timestamp,
    pub(crate) ttls: Option<&'a [Offset]>,
    pub(crate) opt: Opt,
}

/// The OPT record. It belongs to one hop: it is removed for clients that sent none, and added for those that did (RFC
/// 6891 §6.1.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Opt {
    /// No OPT.
    Absent,
    /// The last record, at this offset: the octets before it are a message too.
    Last(usize),
    /// A record follows it, or the records cannot be read: the answer goes unchanged to the client that asked.
    Fixed,
}

/// The TTLs of a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ttls {
    /// What remains of them at this time.
    CountedDown(Timestamp),
    /// As received.
    Original,
    /// All equal, in seconds: the answer is stale (RFC 8767 §4).
    All(u32),
}

impl Answer {
    /// An answer whose question was read. Its TTLs are clamped to `limits`.
    #[must_use]
    pub fn new(octets: Vec<u8>, question: &Question, arrived: Timestamp, limits: &TtlLimits) -> Self {
        Self::behind(question.end, octets, arrived, limits)
    }

    /// As [`new`](Self::new), for a message whose question ends at `question_end`.
    pub(crate) fn behind(
        question_end: usize,
        mut octets: Vec<u8>,
        arrived: Timestamp,
        limits: &TtlLimits,
    ) -> Self {
        let parts = find_ttls(Records::behind(question_end, &octets), question_end).ok();
        let (ttls, opt) = parts.map_or((None, Opt::Fixed), |(ttls, opt, end)| {
            // Octets after the last record are not part of the message, and an OPT would be added after them.
            octets.truncate(end);
            (Some(ttls), opt)
        });
        let mut answer = Self {
            octets,
            question_end,
            arrived,
            ttls,
            opt,
        };
        answer.limit_ttls(limits);
        answer
    }

    /// Clamps the TTLs.
    pub fn limit_ttls(&mut self, limits: &TtlLimits) {
        let ttl_offsets = self.ttls.as_deref().unwrap_or_default();
        rewrite_ttls(&mut self.octets, ttl_offsets, |seconds| {
            seconds.clamp(limits.at_least, limits.at_most)
        });
    }

    /// The message.
    ///
    /// # Panics
    /// Never: it was read before.
    #[must_use]
    pub fn message(&self) -> Message<'_> {
        Message::read(&self.octets).expect("the question of an answer was read when it arrived")
    }

    /// The message. If its question is this one, as in nearly every answer, it is not read again.
    pub(crate) fn message_about(&self, question: &Question) -> Message<'_> {
        let (name, end) = (question.name.as_octets(), self.question_end);
        let behind = [question.kind.to_be_bytes(), question.class.to_be_bytes()];
        let (own, own_behind) = self.octets[HEADER..end].split_at(end - HEADER - 4);
        if name.eq_ignore_ascii_case(own) && own_behind == behind.as_flattened() {
            return Message::of(&self.octets, Question { end, ..*question });
        }
        self.message()
    }

    /// The octets.
    pub(crate) fn octets(&self) -> &[u8] {
        &self.octets
    }

    /// The records of all sections, in order; ends after the first that cannot be read.
    pub(crate) fn records(&self) -> Records<'_> {
        Records::behind(self.question_end, &self.octets)
    }

    /// When it arrived from the upstream.
    #[must_use]
    pub const fn arrived(&self) -> Timestamp {
        self.arrived
    }

    /// Whether TC is set.
    #[must_use]
    pub fn is_truncated(&self) -> bool {
        u16::from_be_bytes([self.octets[2], self.octets[3]]) & flag::TC != 0
    }

    /// The response code of the header.
    #[must_use]
    pub fn rcode(&self) -> u8 {
        self.octets[3] & 0xf
    }

    /// Borrows the answer.
    #[must_use]
    pub fn view(&self) -> AnswerView<'_> {
        AnswerView {
            octets: &self.octets,
            question_end: self.question_end,
            arrived: self.arrived,
            ttls: self.ttls.as_deref(),
            opt: self.opt,
        }
    }

    /// Whether its records can be read. If not, it is relayed and nothing is recorded from it.
    #[must_use]
    pub const fn is_readable(&self) -> bool {
        self.ttls.is_some()
    }

    /// Whether its form allows other clients to receive it.
    #[must_use]
    pub const fn is_shareable(&self) -> bool {
        matches!(self.opt, Opt::Absent | Opt::Last(_))
    }

    /// The reply for one client, and whether it is whole: see [`AnswerView::reply_within`].
    #[must_use]
    pub fn reply_within(&self, query: &Query, ttls: Ttls, limit: usize, udp_size: u16) -> (Vec<u8>, bool) {
        self.view().reply_within(query, ttls, limit, udp_size)
    }
}

impl<'a> AnswerView<'a> {
    /// The message.
    ///
    /// # Panics
    /// Never: it was read before.
    #[must_use]
    pub fn message(&self) -> Message<'a> {
        Message::read(self.octets).expect("the question of an answer was read when it arrived")
    }

    /// Copies the answer.
    #[must_use]
    pub fn to_answer(&self) -> Answer {
        Answer {
            octets: self.octets.to_vec(),
            question_end: self.question_end,
            arrived: self.arrived,
            ttls: self.ttls.map(<[Offset]>::to_vec),
            opt: self.opt,
        }
    }

    /// The reply for one client, at most `limit` octets long, and whether it is complete: the client's id, question and
    /// flags, these TTLs, and an OPT if it sent one. An answer that does not fit is cut after the last record that
    /// fits, with TC set (RFC 2181 §9): resolvers without TCP, such as musl's before 1.2.4, depend on these records.
    #[must_use]
    pub fn reply_within(&self, query: &Query, ttls: Ttls, limit: usize, udp_size: u16) -> (Vec<u8>, bool) {
        let (kept, adds_opt) = match (self.opt, &query.edns) {
            (Opt::Last(at), None) => (&self.octets[..at], false),
            (Opt::Absent, Some(_)) => (self.octets, true),
            (Opt::Absent, None) | (Opt::Last(_), Some(_)) | (Opt::Fixed, _) => (self.octets, false),
        };
        let length = kept.len() + if adds_opt { OPT_SIZE } else { 0 };
        if length > limit {
            return (self.beginning_within(query, ttls, limit, udp_size), false);
        }
        let mut reply = take_buffer(length);
        reply.extend_from_slice(kept);
        self.patch(&mut reply, query, ttls);
        if adds_opt {
            push_reply_opt(&mut reply, query, udp_size);
        }
        if adds_opt || kept.len() < self.octets.len() {
            let before = u16::from_be_bytes([reply[10], reply[11]]);
            let count = if adds_opt {
                before.saturating_add(1)
            } else {
                before - 1
            };
            reply[10..HEADER].copy_from_slice(&count.to_be_bytes());
        }
        (reply, true)
    }

    /// The first records of the answer section that fit, with TC set.
    fn beginning_within(&self, query: &Query, ttls: Ttls, limit: usize, udp_size: u16) -> Vec<u8> {
        let room = limit - if query.edns.is_some() { OPT_SIZE } else { 0 };
        let (ttl_offsets, end) = self.beginning(room);
        let Ok(count @ 1..) = u16::try_from(ttl_offsets.len()) else {
            return truncated_reply(query, self.message().rcode(), udp_size);
        };
        let mut reply = Vec::with_capacity(limit);
        reply.extend_from_slice(&self.octets[..end]);
        self.patch_at(ttl_offsets, &mut reply, query, ttls);
        push_reply_opt(&mut reply, query, udp_size);
        let flags = u16::from_be_bytes([reply[2], reply[3]]) | flag::TC;
        reply[2..4].copy_from_slice(&flags.to_be_bytes());
        let counts = [count, 0, u16::from(query.edns.is_some())];
        for (field, count) in reply[6..HEADER].chunks_exact_mut(2).zip(counts) {
            field.copy_from_slice(&count.to_be_bytes());
        }
        reply
    }

    /// The TTL offsets of the first records of the answer section that end before `room`, and the end of the last of
    /// them.
    fn beginning(&self, room: usize) -> (&'a [Offset], usize) {
        let ttl_offsets = match (self.ttls, self.opt) {
            (Some(ttl_offsets), Opt::Absent | Opt::Last(_)) => ttl_offsets,
            (None, _) | (_, Opt::Fixed) => &[],
        };
        let answers = usize::from(u16::from_be_bytes([self.octets[6], self.octets[7]]));
        let ttl_offsets = &ttl_offsets[..answers.min(ttl_offsets.len())];
        let fitting = ttl_offsets.partition_point(|at| self.record_end(*at) <= room);
        let end = ttl_offsets[..fitting].last().map(|at| self.record_end(*at));
        (&ttl_offsets[..fitting], end.unwrap_or(self.question_end))
    }

    /// The end of the record whose TTL is at this offset: data length and data follow the TTL.
    fn record_end(&self, ttl_at: Offset) -> usize {
        let ttl_at = at(ttl_at);
        let length = u16::from_be_bytes([self.octets[ttl_at + 4], self.octets[ttl_at + 5]]);
        ttl_at + 6 + usize::from(length)
    }

    fn patch(&self, reply: &mut [u8], query: &Query, ttls: Ttls) {
        self.patch_at(self.ttls.unwrap_or_default(), reply, query, ttls);
    }

    fn patch_at(&self, ttl_offsets: &[Offset], reply: &mut [u8], query: &Query, ttls: Ttls) {
        match ttls {
            Ttls::CountedDown(now) => {
                let age = u32::try_from(now.since(self.arrived).as_secs()).unwrap_or(u32::MAX);
                if age > 0 {
                    rewrite_ttls(reply, ttl_offsets, |seconds| seconds.saturating_sub(age));
                }
            }
            Ttls::Original => {}
            Ttls::All(seconds) => rewrite_ttls(reply, ttl_offsets, |_| seconds),
        }
        reply[..2].copy_from_slice(&query.id.to_be_bytes());
        let flags = client_flags(u16::from_be_bytes([reply[2], reply[3]]), query);
        reply[2..4].copy_from_slice(&flags.to_be_bytes());
        if self.question_end - HEADER == query.raw_question.len() {
            reply[HEADER..self.question_end].copy_from_slice(&query.raw_question);
        }
    }
}

/// RD and CD are copied from the query (RFC 1035 §4.1.1, RFC 4035 §3.2.2). AD is kept if the query has AD or DO (RFC
/// 6840 §5.8).
fn client_flags(flags: u16, query: &Query) -> u16 {
    let copied = flag::RD | flag::CD;
    let wants_ad = query.flags & flag::AD != 0 || query.edns.as_ref().is_some_and(|edns| edns.dnssec);
    let kept = if wants_ad { flags } else { flags & !flag::AD };
    kept & !copied | query.flags & copied
}

/// The bounds of TTLs, applied when an answer arrives, so that the observation has the TTL that the client receives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TtlLimits {
    /// Seconds.
    pub at_least: u32,
    /// Seconds.
    pub at_most: u32,
}

fn rewrite_ttls(octets: &mut [u8], ttl_offsets: &[Offset], rewrite: impl Fn(u32) -> u32) {
    for offset in ttl_offsets {
        let at = at(*offset);
        let field = &mut octets[at..at + 4];
        let seconds = Ttl::from_wire(u32::from_be_bytes([field[0], field[1], field[2], field[3]]));
        field.copy_from_slice(&rewrite(seconds.seconds()).to_be_bytes());
    }
}

fn at(offset: Offset) -> usize {
    u16::from_be_bytes(offset).into()
}

fn offset(at: usize) -> Result<Offset, Malformed> {
    u16::try_from(at)
        .map(u16::to_be_bytes)
        .map_err(|_too_far| Malformed::Cut(at))
}

/// The offsets of the TTLs, the OPT, and the end of the last record.
fn find_ttls(records: Records<'_>, question_end: usize) -> Result<(Vec<Offset>, Opt, usize), Malformed> {
    let mut ttls = Vec::with_capacity(4);
    let (mut opt, mut end) = (Opt::Absent, question_end);
    for record in records {
        let record = record?;
        let is_opt = record.kind == kind::OPT;
        opt = match opt {
            Opt::Absent if is_opt && record.section == Section::Additional => Opt::Last(record.owner_at),
            Opt::Absent if !is_opt => Opt::Absent,
            Opt::Absent | Opt::Last(_) | Opt::Fixed => Opt::Fixed,
        };
        if !is_opt {
            ttls.push(offset(record.ttl_at)?);
        }
        end = record.data.end;
    }
    Ok((ttls, opt, end))
}

#[cfg(test)]
mod tests {
    use super::*;

    const ANY: TtlLimits = TtlLimits {
        at_least: 0,
        at_most: u32::MAX,
    };

    fn answer(question: &[u8]) -> Answer {
        let octets = [&[0, 1, 0x81, 0x80, 0, 1, 0, 0, 0, 0, 0, 0], question].concat();
        let question = *Message::read(&octets).unwrap().question();
        Answer::new(octets, &question, Timestamp::from_millis(1), &ANY)
    }

    #[test]
    fn an_answer_has_its_own_question_whichever_is_expected() {
        let expected = *answer(b"\x01a\x04test\0\0\x01\0\x01").message().question();
        for question in [
            b"\x01a\x04test\0\0\x01\0\x01".as_slice(),
            b"\x01A\x04tEST\0\0\x01\0\x01",
            b"\x01b\x04test\0\0\x01\0\x01",
            b"\x01a\x04test\0\0\x1c\0\x01",
            b"\x01a\x04test\0\0\x01\0\x03",
            b"\x04test\0\0\x01\0\x01",
            b"\0\0\x01\0\x01",
        ] {
            let answer = answer(question);
            let about = answer.message_about(&expected);
            assert_eq!(about.question(), answer.message().question(), "{question:?}");
            assert_eq!(about.octets(), answer.octets());
        }
    }
}
