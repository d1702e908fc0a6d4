//! The reader of DNS messages, and the replies that are made of what it read.

use egret_dnsd::dns::message::{
    HEADER, Message, Query, QueryParts, Refusal, bad_version_reply, error_reply, header_reply, mix_case,
    query, rcode, truncated_reply,
};

/// Reading ends, within the message; every reply can be read again and asks the same question.
pub fn check(octets: &[u8]) {
    if let Ok(message) = Message::read(octets) {
        let question = message.question();
        assert!((HEADER..=octets.len()).contains(&question.end));
        for record in message.records().flatten() {
            assert!(record.data.end <= octets.len() && record.owner_at < record.data.start);
            assert!(record.ttl(octets) >= egret_shared::time::Ttl::from_wire(0));
            if let Ok(owner) = record.owner(octets) {
                assert!(owner.as_octets().len() <= 255);
                assert!(owner.labels().all(|label| (1..=63).contains(&label.len())));
            }
        }
    }
    match Query::read(octets) {
        Ok(read) => is_answered(&read),
        Err(Refusal::Reply(code)) => assert_eq!(header_reply(octets, code).len(), HEADER),
        Err(Refusal::BadVersion) => assert!(bad_version_reply(octets, 1232).len() > HEADER),
        Err(Refusal::Silence) => {}
    }
}

fn is_answered(asked: &Query) {
    let mut mixed = asked.raw_question.to_vec();
    mix_case(&mut mixed, || u64::MAX);
    let parts = QueryParts {
        id: asked.id,
        flags: asked.flags,
        raw_question: &mixed,
        edns: asked.edns.as_ref(),
        udp_size: 1232,
    };
    for octets in [
        query(&parts),
        error_reply(asked, rcode::SERVFAIL, 1232),
        truncated_reply(asked, rcode::NOERROR, 1232),
    ] {
        let message = Message::read(&octets).expect("what dnsd writes can be read");
        assert_eq!(message.id(), asked.id);
        assert_eq!(message.question().name, asked.question.name);
        assert_eq!(message.question().kind, asked.question.kind);
        assert!(message.records().all(|record| record.is_ok()));
    }
}
