//! EDNS towards upstreams: the options that are sent, and upstreams without EDNS.

use egret_dnsd::dns::message::Query;
use hickory_proto::op::{Edns, Message, ResponseCode};
use hickory_proto::rr::RecordType;
use hickory_proto::rr::rdata::opt::EdnsOption;

use super::world::{
    Action, PATIENCE, ReceivedQuery, Transport, Upstream, ask, forwarder, limits, owner, plan, query,
    question, read, response,
};

fn refusal(asked: &ReceivedQuery) -> Vec<u8> {
    let mut message = Message::from_vec(&asked.code(ResponseCode::FormErr)).unwrap();
    message.edns = None;
    message.to_vec().unwrap()
}

fn refusal_without_question(asked: &ReceivedQuery) -> Vec<u8> {
    let mut header = refusal(asked)[..12].to_vec();
    header[4..].fill(0);
    header
}

fn bad_version(asked: &ReceivedQuery) -> Vec<u8> {
    let mut message = response(&asked.octets, Vec::new());
    message.metadata.response_code = ResponseCode::BADVERS;
    message.set_edns(Edns::new());
    message.to_vec().unwrap()
}

fn not_implemented(asked: &ReceivedQuery) -> Vec<u8> {
    let mut message = Message::from_vec(&asked.code(ResponseCode::NotImp)).unwrap();
    message.edns = None;
    message.to_vec().unwrap()
}

#[tokio::test]
async fn an_upstream_without_edns_is_remembered_and_queried_without() {
    type Refusal = fn(&ReceivedQuery) -> Vec<u8>;
    let rows: [(&str, Refusal); 4] = [
        ("FORMERR", refusal),
        ("FORMERR without the question", refusal_without_question),
        ("BADVERS", bad_version),
        ("NOTIMP", not_implemented),
    ];
    for (what, refusal) in rows {
        let upstream = Upstream::start(move |asked| match asked.message().edns {
            Some(_) => vec![Action::Reply(refusal(asked))],
            None => vec![Action::Reply(asked.one())],
        })
        .await;
        let forwarder = forwarder(&plan(&[upstream.address]));
        assert_eq!(
            owner(&ask(&forwarder, "a.test").await.unwrap()),
            "a.test.",
            "{what}"
        );
        assert_eq!(
            owner(&ask(&forwarder, "b.test").await.unwrap()),
            "b.test.",
            "{what}"
        );
        let with_edns: Vec<bool> = upstream
            .received()
            .iter()
            .map(|asked| asked.message().edns.is_some())
            .collect();
        assert_eq!(with_edns, [true, false, false], "{what}");
    }
}

#[tokio::test]
async fn formerr_with_and_without_edns_is_relayed_and_not_remembered() {
    let upstream = Upstream::start(|asked| vec![Action::Reply(refusal(asked))]).await;
    let forwarder = forwarder(&plan(&[upstream.address]));
    for _ in 0..2 {
        let answer = ask(&forwarder, "a.test").await.unwrap();
        assert_eq!(answer.get().rcode(), 1);
    }
    let with_edns = upstream
        .received()
        .iter()
        .filter(|asked| asked.message().edns.is_some())
        .count();
    assert_eq!((with_edns, upstream.asked()), (2, 4));
}

#[tokio::test]
async fn formerr_with_an_opt_is_relayed() {
    let upstream = Upstream::start(|asked| {
        let mut message = Message::from_vec(&asked.code(ResponseCode::FormErr)).unwrap();
        message.set_edns(Edns::new());
        vec![Action::Reply(message.to_vec().unwrap())]
    })
    .await;
    let answer = ask(&forwarder(&plan(&[upstream.address])), "a.test")
        .await
        .unwrap();
    assert_eq!((answer.get().rcode(), upstream.asked()), (1, 1));
}

#[tokio::test]
async fn queries_have_dnsds_udp_size_and_the_clients_end_to_end_options() {
    let upstream = Upstream::honest().await;
    let mut message = Message::from_vec(&query("a.test", RecordType::A, Some(4096))).unwrap();
    let mut edns = Edns::new();
    edns.set_max_payload(4096);
    edns.set_dnssec_ok(true);
    for code in [10, 11, 12, 65_001] {
        edns.options_mut().insert(EdnsOption::Unknown(code, vec![0; 8]));
    }
    message.set_edns(edns);
    let query = Query::read(&message.to_vec().unwrap()).unwrap().owned();
    for (client, over) in [(Transport::Udp, Transport::Udp), (Transport::Tcp, Transport::Tcp)] {
        let forwarder = forwarder(&plan(&[upstream.address]));
        forwarder.ask(&query, client, &limits(PATIENCE)).await.unwrap();
        let asked = upstream.received().pop().unwrap();
        let edns = asked.message().edns.unwrap();
        let codes: Vec<u16> = edns
            .options()
            .as_ref()
            .iter()
            .map(|(code, _)| (*code).into())
            .collect();
        assert_eq!(
            (asked.over, edns.max_payload(), edns.flags().dnssec_ok),
            (over, 1232, true)
        );
        assert_eq!(codes, [65_001]);
    }
}

#[tokio::test]
async fn hop_by_hop_options_of_an_upstream_are_not_relayed() {
    let upstream = Upstream::start(|asked| {
        let mut message = Message::from_vec(&asked.one()).unwrap();
        let mut edns = Edns::new();
        for code in [10, 11, 12, 15] {
            edns.options_mut().insert(EdnsOption::Unknown(code, vec![0; 8]));
        }
        message.set_edns(edns);
        vec![Action::Reply(message.to_vec().unwrap())]
    })
    .await;
    let answer = ask(&forwarder(&plan(&[upstream.address])), "a.test")
        .await
        .unwrap();
    let edns = read(&answer).edns.unwrap();
    let codes: Vec<u16> = edns
        .options()
        .as_ref()
        .iter()
        .map(|(code, _)| (*code).into())
        .collect();
    assert_eq!(codes, [15]);
    assert_eq!(owner(&answer), "a.test.");
}

#[tokio::test]
async fn a_query_without_edns_is_sent_without() {
    let upstream = Upstream::honest().await;
    let mut query = question("a.test");
    query.edns = None;
    let forwarder = forwarder(&plan(&[upstream.address]));
    forwarder
        .ask(&query, Transport::Udp, &limits(PATIENCE))
        .await
        .unwrap();
    assert!(upstream.received()[0].message().edns.is_none());
}
