//! What an upstream sends: whatever it is, it is taken only if it answers the question.

use std::time::Duration;

use egret_dnsd::dns::answer::{Answer, TtlLimits, Ttls};
use egret_dnsd::dns::message::{HEADER, Message, Query, kind};
use egret_dnsd::enforcement::observation::observe;
use egret_dnsd::upstream::pending_query::{Case, PendingQuery, Transport, ValidatedResponse};
use egret_shared::time::Timestamp;

const NOW: Timestamp = Timestamp::from_millis(1_000_000);
const LIMITS: TtlLimits = TtlLimits {
    at_least: 5,
    at_most: 3_600,
};
/// api.example.test A, with an OPT.
const QUESTION: &[u8] =
    b"\x12\x34\x01\x00\x00\x01\x00\x00\x00\x00\x00\x01\x03api\x07example\x04test\x00\x00\x01\x00\x01\
    \x00\x00\x29\x10\x00\x00\x00\x00\x00\x00\x00";

/// The octets as they are; by our id; and behind our question, so that the rest of them is looked at as well.
pub fn check(octets: &[u8]) {
    let query = Query::read(QUESTION).expect("the question can be read");
    for transport in [Transport::Udp, Transport::Tcp] {
        let pending_query = PendingQuery::new(&query, transport, Case::Mixed, 1_232);
        is_answer(&query, &pending_query, transport, octets);
        let mut by_our_id = octets.to_vec();
        by_our_id.splice(..octets.len().min(2), pending_query.id().to_be_bytes());
        is_answer(&query, &pending_query, transport, &by_our_id);
        let answered = behind_our_question(&query, &pending_query, octets);
        is_answer(&query, &pending_query, transport, &answered);
    }
}

fn behind_our_question(query: &Query, pending_query: &PendingQuery, octets: &[u8]) -> Vec<u8> {
    let mut answer = pending_query.octets()[..HEADER + query.raw_question.len()].to_vec();
    answer[2..4].copy_from_slice(&[0x81, 0x80]);
    // The numbers of records are those of the octets.
    if let Some(counts) = octets.get(6..HEADER) {
        answer[6..HEADER].copy_from_slice(counts);
        let rest = Message::read(octets).map_or(HEADER, |message| message.question().end);
        answer.extend_from_slice(&octets[rest..]);
    }
    answer
}

fn is_answer(query: &Query, pending_query: &PendingQuery, transport: Transport, octets: &[u8]) {
    let Ok(answer) = pending_query.validate(octets, NOW, &LIMITS) else {
        return;
    };
    let message = answer.get().message();
    let asked = Message::read(pending_query.octets()).expect("our own question can be read");
    assert!(message.is_response() && message.id() == pending_query.id());
    assert_eq!(message.question(), asked.question());
    if transport == Transport::Udp {
        assert_eq!(message.raw_question(), asked.raw_question());
    }
    assert!(message.octets().len() <= octets.len(), "nothing is added");
    says_nothing_of_one_hop(&message);
    is_given(query, &answer);
}

/// Cookie and keepalive were said to dnsd alone.
fn says_nothing_of_one_hop(message: &Message<'_>) {
    let first = message
        .records()
        .flatten()
        .find(|record| record.kind == kind::OPT);
    let Some(opt) = first else { return };
    let mut options = &message.octets()[opt.data];
    while let Some(header) = options.first_chunk::<4>() {
        let length = 4 + usize::from(u16::from_be_bytes([header[2], header[3]]));
        let Some(rest) = options.get(length..) else { return };
        assert!(![10, 11].contains(&u16::from_be_bytes([header[0], header[1]])));
        options = rest;
    }
}

/// What is made of it for a client can be read, and tells no more than it does.
fn is_given(query: &Query, answer: &ValidatedResponse<Answer>) {
    let later = Ttls::CountedDown(NOW.after(Duration::from_secs(7)));
    for limit in [512, usize::from(u16::MAX)] {
        let (reply, is_whole) = answer.get().reply_within(query, later, limit, 1_232);
        let reply = Message::read(&reply).expect("a reply can be read");
        assert_eq!(
            (reply.id(), reply.question().name),
            (query.id, query.question.name)
        );
        assert!(is_whole || reply.is_truncated());
    }
    let (told, _protected) = observe(answer, &[]);
    let addresses = told.map_or(0, |told| told.addresses().len());
    assert!(addresses * 4 <= answer.get().message().octets().len());
}
