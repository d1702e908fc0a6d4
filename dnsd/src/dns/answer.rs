//! An answer as it came from an upstream, with the places where it is patched for each client.

use egret_shared::time::{Timestamp, Ttl};

use crate::dns::message::{
    HEADER, Malformed, Message, OPT_SIZE, Query, Question, Records, Section, flag, kind, push_reply_opt,
    truncated_reply,
};
use crate::net::buffers::take_buffer;

/// The octets of an answer and what dnsd needs to know of them.
#[derive(Clone, Debug)]
pub struct Answer {
    octets: Vec<u8>,
    question_end: usize,
    arrived: Timestamp,
    /// Where TTLs stand; nothing where the records cannot be read: such an answer is relayed as it is, for once.
    ttls: Option<Vec<Place>>,
    opt: Opt,
}

/// Where something stands in a message, in two octets: messages have 65,535 at most (RFC 1035 §4.2.2), and a cache has very
/// many of these.
pub(crate) type Place = [u8; 2];

/// An answer that is kept somewhere, looked at.
#[derive(Clone, Copy, Debug)]
pub struct AnswerView<'a> {
    pub(crate) octets: &'a [u8],
    pub(crate) question_end: usize,
    pub(crate) arrived: Timestamp,
    pub(crate) ttls: Option<&'a [Place]>,
    pub(crate) opt: Opt,
}

/// Where the OPT stands. It speaks of one hop, so it is taken off for clients that sent none and added for those
/// that did (RFC 6891 §6.1.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Opt {
    /// There is none.
    Absent,
    /// It is the last record, and begins here: all that is before it is a message too.
    Last(usize),
    /// Something stands behind it, or the records cannot be read: it goes to its own client as it is.
    Fixed,
}

/// With which TTLs an answer is given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ttls {
    /// What is left of them at this moment.
    CountedDown(Timestamp),
    /// As they came.
    Original,
    /// All the same: the answer is stale (RFC 8767 §4).
    All(u32),
}

impl Answer {
    /// Takes the octets of a message whose question was read. TTLs are brought between `limits`.
    #[must_use]
    pub fn new(octets: Vec<u8>, question: &Question, arrived: Timestamp, limits: &TtlLimits) -> Self {
        Self::behind(question.end, octets, arrived, limits)
    }

    /// The same of a message whose question ends there.
    pub(crate) fn behind(
        question_end: usize,
        mut octets: Vec<u8>,
        arrived: Timestamp,
        limits: &TtlLimits,
    ) -> Self {
        let places = places(Records::behind(question_end, &octets), question_end).ok();
        let (ttls, opt) = places.map_or((None, Opt::Fixed), |(ttls, opt, end)| {
            // What is behind the last record is no part of the message: an OPT would be added behind it.
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

    /// Brings the TTLs between limits.
    pub fn limit_ttls(&mut self, limits: &TtlLimits) {
        let places = self.ttls.as_deref().unwrap_or_default();
        rewrite_ttls(&mut self.octets, places, |seconds| {
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

    /// The message, whose question need not be read again where it is this one, as in nearly every answer.
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

    /// Whether it was cut.
    #[must_use]
    pub fn is_truncated(&self) -> bool {
        u16::from_be_bytes([self.octets[2], self.octets[3]]) & flag::TC != 0
    }

    /// The code of the header.
    #[must_use]
    pub fn rcode(&self) -> u8 {
        self.octets[3] & 0xf
    }

    /// The same, looked at.
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

    /// Whether its records can be read; if not, it is relayed and nothing is learned from it.
    #[must_use]
    pub const fn is_readable(&self) -> bool {
        self.ttls.is_some()
    }

    /// Whether others may be given it too, as far as its form goes.
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

    /// The same for itself, as it came.
    #[must_use]
    pub fn to_answer(&self) -> Answer {
        Answer {
            octets: self.octets.to_vec(),
            question_end: self.question_end,
            arrived: self.arrived,
            ttls: self.ttls.map(<[Place]>::to_vec),
            opt: self.opt,
        }
    }

    /// The reply for one client, no longer than `limit`, and whether it is whole: its id, its question as it wrote
    /// it, its flags, TTLs as told, an OPT if it sent one. Of an answer that does not fit, the client gets the records
    /// that do, and hears that there are more (RFC 2181 §9): resolvers without TCP, as musl's before 1.2.4, live on them.
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

    /// As many records of the answer section as fit, in their order.
    fn beginning_within(&self, query: &Query, ttls: Ttls, limit: usize, udp_size: u16) -> Vec<u8> {
        let room = limit - if query.edns.is_some() { OPT_SIZE } else { 0 };
        let (places, end) = self.beginning(room);
        let Ok(count @ 1..) = u16::try_from(places.len()) else {
            return truncated_reply(query, self.message().rcode(), udp_size);
        };
        let mut reply = Vec::with_capacity(limit);
        reply.extend_from_slice(&self.octets[..end]);
        self.patch_at(places, &mut reply, query, ttls);
        push_reply_opt(&mut reply, query, udp_size);
        let flags = u16::from_be_bytes([reply[2], reply[3]]) | flag::TC;
        reply[2..4].copy_from_slice(&flags.to_be_bytes());
        let counts = [count, 0, u16::from(query.edns.is_some())];
        for (field, count) in reply[6..HEADER].chunks_exact_mut(2).zip(counts) {
            field.copy_from_slice(&count.to_be_bytes());
        }
        reply
    }

    /// The TTLs of the first records of the answer section that end before `room`, and where the last of them ends.
    fn beginning(&self, room: usize) -> (&'a [Place], usize) {
        let places = match (self.ttls, self.opt) {
            (Some(places), Opt::Absent | Opt::Last(_)) => places,
            (None, _) | (_, Opt::Fixed) => &[],
        };
        let answers = usize::from(u16::from_be_bytes([self.octets[6], self.octets[7]]));
        let places = &places[..answers.min(places.len())];
        let fitting = places.partition_point(|at| self.record_end(*at) <= room);
        let end = places[..fitting].last().map(|at| self.record_end(*at));
        (&places[..fitting], end.unwrap_or(self.question_end))
    }

    /// Where a record ends whose TTL stands here: behind TTL and length come its data.
    fn record_end(&self, ttl_at: Place) -> usize {
        let ttl_at = at(ttl_at);
        let length = u16::from_be_bytes([self.octets[ttl_at + 4], self.octets[ttl_at + 5]]);
        ttl_at + 6 + usize::from(length)
    }

    fn patch(&self, reply: &mut [u8], query: &Query, ttls: Ttls) {
        self.patch_at(self.ttls.unwrap_or_default(), reply, query, ttls);
    }

    fn patch_at(&self, places: &[Place], reply: &mut [u8], query: &Query, ttls: Ttls) {
        match ttls {
            Ttls::CountedDown(now) => {
                let age = u32::try_from(now.since(self.arrived).as_secs()).unwrap_or(u32::MAX);
                if age > 0 {
                    rewrite_ttls(reply, places, |seconds| seconds.saturating_sub(age));
                }
            }
            Ttls::Original => {}
            Ttls::All(seconds) => rewrite_ttls(reply, places, |_| seconds),
        }
        reply[..2].copy_from_slice(&query.id.to_be_bytes());
        let flags = client_flags(u16::from_be_bytes([reply[2], reply[3]]), query);
        reply[2..4].copy_from_slice(&flags.to_be_bytes());
        if self.question_end - HEADER == query.raw_question.len() {
            reply[HEADER..self.question_end].copy_from_slice(&query.raw_question);
        }
    }
}

/// RD and CD are the client's (RFC 1035 §4.1.1, RFC 4035 §3.2.2); AD is for who asked for it or for signatures
/// (RFC 6840 §5.8).
fn client_flags(flags: u16, query: &Query) -> u16 {
    let copied = flag::RD | flag::CD;
    let wants_ad = query.flags & flag::AD != 0 || query.edns.as_ref().is_some_and(|edns| edns.dnssec);
    let kept = if wants_ad { flags } else { flags & !flag::AD };
    kept & !copied | query.flags & copied
}

/// Between what TTLs are brought when an answer arrives; what the client is told is what is observed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TtlLimits {
    /// Seconds.
    pub at_least: u32,
    /// Seconds.
    pub at_most: u32,
}

fn rewrite_ttls(octets: &mut [u8], places: &[Place], rewrite: impl Fn(u32) -> u32) {
    for place in places {
        let at = at(*place);
        let place = &mut octets[at..at + 4];
        let seconds = Ttl::from_wire(u32::from_be_bytes([place[0], place[1], place[2], place[3]]));
        place.copy_from_slice(&rewrite(seconds.seconds()).to_be_bytes());
    }
}

fn at(place: Place) -> usize {
    u16::from_be_bytes(place).into()
}

fn place(at: usize) -> Result<Place, Malformed> {
    u16::try_from(at)
        .map(u16::to_be_bytes)
        .map_err(|_too_far| Malformed::Cut(at))
}

/// Where TTLs and the OPT stand, and where the last record ends.
fn places(records: Records<'_>, question_end: usize) -> Result<(Vec<Place>, Opt, usize), Malformed> {
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
            ttls.push(place(record.ttl_at)?);
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
    fn an_answer_is_about_its_own_question_whichever_is_expected() {
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
