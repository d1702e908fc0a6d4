//! Datagrams of upstreams: which are accepted as answers.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use egret_dnsd::config::model::Policy;
use egret_dnsd::upstream::Failure;
use hickory_proto::rr::RecordType;

use super::world::{
    Action, LOOPBACK, ReceivedQuery, Transport, Upstream, address, ask, ask_over, forwarder, join_all,
    nobody, owner, plan, query, read, response, until,
};

const EVIL: &str = "192.0.2.66";

fn addresses(
    answer: &egret_dnsd::upstream::pending_query::ValidatedResponse<egret_dnsd::dns::answer::Answer>,
) -> Vec<String> {
    let records = read(answer).answers;
    records.iter().map(|record| record.data.to_string()).collect()
}

fn lie(asked: &ReceivedQuery) -> Vec<u8> {
    asked.answer(vec![address(&asked.name(), 60, EVIL)])
}

fn by_another_id(asked: &ReceivedQuery) -> Action {
    let mut octets = lie(asked);
    octets[0] ^= 1;
    Action::Reply(octets)
}

fn to_another_name(asked: &ReceivedQuery) -> Action {
    let mut octets = response(
        &query("evil.example.test", RecordType::A, None),
        vec![address("evil.example.test", 60, EVIL)],
    )
    .to_vec()
    .unwrap();
    octets[..2].copy_from_slice(&asked.octets[..2]);
    Action::Reply(octets)
}

fn to_another_type(asked: &ReceivedQuery) -> Action {
    let mut octets = lie(asked);
    let question_end = 12 + asked.name().len() + 1 + 4;
    octets[question_end - 3] = 28;
    Action::Reply(octets)
}

fn from_another_port(asked: &ReceivedQuery) -> Action {
    Action::ReplyFromOtherPort(lie(asked))
}

fn that_is_no_response(asked: &ReceivedQuery) -> Action {
    let mut octets = lie(asked);
    octets[2] &= 0x7f;
    Action::Reply(octets)
}

fn that_is_no_message(asked: &ReceivedQuery) -> Action {
    Action::Reply(asked.octets[..7].to_vec())
}

#[tokio::test]
async fn datagrams_that_do_not_match_are_ignored_until_the_answer_arrives() {
    type Lie = fn(&ReceivedQuery) -> Action;
    let lies: [(&str, Lie); 6] = [
        ("id", by_another_id),
        ("name", to_another_name),
        ("type", to_another_type),
        ("port", from_another_port),
        ("query", that_is_no_response),
        ("octets", that_is_no_message),
    ];
    for (what, lie) in lies {
        let upstream = Upstream::start(move |asked| {
            vec![
                lie(asked),
                Action::Wait(Duration::from_millis(20)),
                Action::Reply(asked.one()),
            ]
        })
        .await;
        let answer = ask(&forwarder(&plan(&[upstream.address])), "a.test").await;
        let addresses = answer.as_ref().map(addresses);
        assert_eq!(addresses, Ok(vec!["192.0.2.1".to_owned()]), "another {what}");
        assert_eq!(upstream.asked(), 1, "another {what}: the question is asked once");
    }
}

#[tokio::test]
async fn a_duplicate_answer_does_not_match_the_next_query() {
    let last = Mutex::new(None::<Vec<u8>>);
    let upstream = Upstream::start(move |asked| {
        // While the next question waits, twice in one batch.
        let again = last.lock().unwrap().replace(asked.one());
        let again = again.into_iter().flat_map(|octets| [octets.clone(), octets]);
        again.chain([asked.one()]).map(Action::Reply).collect()
    })
    .await;
    let forwarder = forwarder(&plan(&[upstream.address]));
    for number in 0..100 {
        let name = format!("n{number}.test");
        let answered = ask(&forwarder, &name).await.map(|answer| owner(&answer));
        assert_eq!(answered, Ok(format!("{name}.")), "the answer to {name}");
    }
}

#[tokio::test]
async fn a_late_answer_does_not_match_the_next_query() {
    const READ_TIMEOUT: Duration = Duration::from_millis(1_500);
    const LATE: Duration = Duration::from_millis(1_550);
    let upstream = Upstream::start(|asked| {
        if asked.name() == "slow.test." {
            return vec![Action::Wait(LATE), Action::Reply(asked.one())];
        }
        // Meanwhile the late one comes.
        vec![
            Action::Wait(2 * (LATE - READ_TIMEOUT)),
            Action::Reply(asked.one()),
        ]
    })
    .await;
    let mut plan = plan(&[upstream.address]);
    plan.read_timeout = READ_TIMEOUT;
    plan.max_connect_attempts = Some(1);
    let forwarder = forwarder(&plan);
    assert_eq!(
        ask(&forwarder, "first.test").await.map(|it| owner(&it)),
        Ok("first.test.".to_owned())
    );
    assert_eq!(
        ask(&forwarder, "slow.test").await.map(|it| owner(&it)),
        Err(Failure::Timeout)
    );
    for number in 0..3 {
        let name = format!("n{number}.test");
        let answered = ask(&forwarder, &name).await.map(|answer| owner(&answer));
        assert_eq!(answered, Ok(format!("{name}.")), "the answer to {name}");
    }
}

fn uses_by_port(asked: &[ReceivedQuery]) -> BTreeMap<u16, usize> {
    let mut by_port = BTreeMap::new();
    for asked in asked {
        *by_port.entry(asked.from.port()).or_default() += 1;
    }
    by_port
}

#[tokio::test]
async fn a_shared_port_serves_a_limited_number_of_queries() {
    let upstream = Upstream::honest().await;
    let one_by_one = forwarder(&plan(&[upstream.address]));
    for number in 0..300 {
        ask(&one_by_one, &format!("n{number}.test")).await.unwrap();
    }
    let by_port = uses_by_port(&upstream.received());
    assert!((5..20).contains(&by_port.len()), "questions by port: {by_port:?}");
    assert!(
        by_port.values().all(|uses| *uses <= 64),
        "questions by port: {by_port:?}"
    );

    let slow = Upstream::start(|asked| {
        vec![
            Action::Wait(Duration::from_millis(30)),
            Action::Reply(asked.one()),
        ]
    })
    .await;
    let at_once = forwarder(&plan(&[slow.address]));
    let names: Vec<String> = (0..200).map(|number| format!("n{number}.test")).collect();
    let answers = join_all(names.iter().map(|name| ask(&at_once, name)).collect()).await;
    for (name, answer) in names.iter().zip(answers) {
        assert_eq!(owner(&answer.unwrap()), format!("{name}."));
    }
    let by_port = uses_by_port(&slow.received());
    assert!((4..20).contains(&by_port.len()), "questions by port: {by_port:?}");
    assert!(
        by_port.values().all(|uses| *uses <= 64),
        "questions by port: {by_port:?}"
    );
}

#[tokio::test]
async fn queries_on_a_shared_port_get_their_own_answers() {
    let first = Arc::new(Mutex::new(None::<ReceivedQuery>));
    let upstream = Upstream::start(move |asked| {
        if asked.name() == "first.test." {
            *first.lock().unwrap() = Some(asked.clone());
            return vec![
                Action::Wait(Duration::from_millis(60)),
                Action::Reply(asked.one()),
            ];
        }
        let first = first.lock().unwrap().clone().expect("it came first");
        let (mut to_first, mut to_second) = (lie(&first), lie(asked));
        to_first[..2].copy_from_slice(&asked.octets[..2]);
        to_second[..2].copy_from_slice(&first.octets[..2]);
        vec![
            Action::Reply(to_first),
            Action::Reply(to_second),
            Action::Wait(Duration::from_millis(20)),
            Action::Reply(asked.one()),
        ]
    })
    .await;
    let forwarder = forwarder(&plan(&[upstream.address]));
    let asking = vec![ask(&forwarder, "first.test"), ask(&forwarder, "other.test")];
    for answer in join_all(asking).await {
        let addresses = addresses(&answer.unwrap());
        assert_eq!(
            addresses,
            ["192.0.2.1"],
            "what is said by the other's id is taken"
        );
    }
    assert_eq!(uses_by_port(&upstream.received()).len(), 1, "they share a port");
}

#[tokio::test]
async fn a_port_with_an_old_pending_query_gets_no_more_queries() {
    const SILENT: Duration = Duration::from_millis(80);
    let upstream = Upstream::start(|asked| match asked.name().as_str() {
        "slow.test." => vec![Action::Wait(4 * SILENT), Action::Reply(asked.one())],
        _ => vec![Action::Reply(asked.one())],
    })
    .await;
    let forwarder = forwarder(&plan(&[upstream.address]));
    let later = async {
        tokio::time::sleep(SILENT).await;
        ask(&forwarder, "later.test").await
    };
    let (slow, later) = tokio::join!(ask(&forwarder, "slow.test"), later);
    assert_eq!(
        (owner(&slow.unwrap()), owner(&later.unwrap())),
        ("slow.test.".into(), "later.test.".into())
    );
    assert_ne!(
        port_of(&upstream, "slow.test."),
        port_of(&upstream, "later.test."),
        "the port owes an answer"
    );
}

#[tokio::test]
async fn a_port_with_a_timed_out_query_gets_no_more_queries() {
    let upstream = Upstream::start(|asked| match asked.name().as_str() {
        "never.test." => Vec::new(),
        _ => vec![Action::Reply(asked.one())],
    })
    .await;
    let forwarder = forwarder(&plan(&[upstream.address]));
    tokio::select! {
        _answered = ask(&forwarder, "never.test") => panic!("nobody answers it"),
        () = until("it is asked", || upstream.asked() > 0) => {}
    }
    ask(&forwarder, "after.test").await.unwrap();
    assert_ne!(
        port_of(&upstream, "never.test."),
        port_of(&upstream, "after.test."),
        "no answer came on the port"
    );
}

/// The port that a question came from.
fn port_of(upstream: &Upstream, name: &str) -> u16 {
    let received = upstream.received();
    let asked = received.iter().find(|asked| asked.name() == name);
    asked.expect("it was asked").from.port()
}

#[tokio::test]
async fn idle_sockets_are_closed() {
    let upstream = Upstream::honest().await;
    for (expire, is_kept) in [
        (Duration::from_millis(80), false),
        (Duration::from_secs(3600), true),
    ] {
        let mut plan = plan(&[upstream.address]);
        plan.expire = expire;
        let forwarder = forwarder(&plan);
        ask(&forwarder, "a.test").await.unwrap();
        let from = upstream.received().pop().unwrap().from;
        if !is_kept {
            until("it is closed though nobody asks any more", || !is_open(from)).await;
        }
        ask(&forwarder, "b.test").await.unwrap();
        let next = upstream.received().pop().unwrap().from;
        assert_eq!(
            next == from,
            is_kept,
            "{from} and then {next} with expire {expire:?}"
        );
    }
}

/// Whether there is a socket for datagrams at this address (proc_pid_net(5)).
fn is_open(at: SocketAddr) -> bool {
    let SocketAddr::V4(at) = at else {
        unreachable!("the tests ask over IPv4")
    };
    let address = u32::from_ne_bytes(at.ip().octets());
    let local = format!(" {address:08X}:{:04X} ", at.port());
    std::fs::read_to_string("/proc/self/net/udp")
        .unwrap()
        .contains(&local)
}

#[tokio::test]
async fn a_port_is_used_no_longer_than_max_age() {
    let upstream = Upstream::honest().await;
    for (max_age, same) in [(Duration::ZERO, true), (Duration::from_millis(60), false)] {
        let mut plan = plan(&[upstream.address]);
        plan.max_age = max_age;
        let forwarder = forwarder(&plan);
        let first = upstream.asked();
        for name in ["a.test", "b.test", "c.test"] {
            ask(&forwarder, name).await.unwrap();
            tokio::time::sleep(Duration::from_millis(40)).await;
        }
        let received = upstream.received();
        assert_eq!(
            received[first].from.port() == received[first + 2].from.port(),
            same,
            "whether the third question has the port of the first, with max_age {max_age:?}"
        );
    }
}

#[tokio::test]
async fn a_truncated_answer_is_queried_over_tcp_and_relayed_without_tcp() {
    let upstream = Upstream::start(|asked| match asked.over {
        Transport::Udp => vec![Action::Reply(asked.cut())],
        Transport::Tcp | Transport::Quic => vec![Action::Reply(asked.one())],
    })
    .await;
    let always = Upstream::start(|asked| vec![Action::Reply(asked.cut())]).await;
    let no_tcp = Upstream::start(|asked| match asked.over {
        Transport::Udp => vec![Action::Reply(asked.cut())],
        Transport::Tcp | Transport::Quic => vec![Action::Close],
    })
    .await;
    for (over_tcp, upstream, is_cut) in [
        ("whole", upstream, false),
        ("cut, too", always, true),
        ("not there", no_tcp, true),
    ] {
        let answer = ask(&forwarder(&plan(&[upstream.address])), "a.test").await;
        let given = answer.map(|answer| read(&answer).metadata.truncation);
        assert_eq!(
            given,
            Ok(is_cut),
            "whether the answer is cut that over TCP is {over_tcp}"
        );
    }
}

#[tokio::test]
async fn an_upstream_that_changes_case_is_remembered_and_queried_over_tcp() {
    let upstream = Upstream::start(|asked| {
        let mut octets = asked.octets.clone();
        octets[12..].make_ascii_lowercase();
        let lower = ReceivedQuery {
            octets,
            ..asked.clone()
        };
        vec![Action::Reply(lower.one())]
    })
    .await;
    let forwarder = forwarder(&plan(&[upstream.address]));
    for name in ["first-with-letters.test", "second-with-letters.test"] {
        assert_eq!(owner(&ask(&forwarder, name).await.unwrap()), format!("{name}."));
    }
    let over = |name: &str| {
        let received = upstream.received().into_iter();
        let received = received.filter(|asked| asked.name() == name);
        let mut over: Vec<Transport> = received.map(|asked| asked.over).collect();
        // Where the machine is busy, one that is slow is asked again.
        over.dedup();
        over
    };
    let first = over("first-with-letters.test.");
    assert_eq!(first[0], Transport::Udp, "the first question: {first:?}");
    assert_eq!(
        first.last(),
        Some(&Transport::Tcp),
        "the first question: {first:?}"
    );
    let second = over("second-with-letters.test.");
    assert_eq!(second, [Transport::Tcp], "what the second question came by");
}

#[tokio::test]
async fn the_transport_is_as_configured() {
    let upstream = Upstream::honest().await;
    // force_tcp, prefer_udp, how the client came, what carries it.
    let rows = [
        (false, false, Transport::Udp, Transport::Udp),
        (false, false, Transport::Tcp, Transport::Tcp),
        (false, true, Transport::Udp, Transport::Udp),
        (false, true, Transport::Tcp, Transport::Udp),
        (true, false, Transport::Udp, Transport::Tcp),
        (true, true, Transport::Udp, Transport::Tcp),
        (true, true, Transport::Tcp, Transport::Tcp),
    ];
    for (force_tcp, prefer_udp, client, over) in rows {
        let mut plan = plan(&[upstream.address]);
        (plan.force_tcp, plan.prefer_udp) = (force_tcp, prefer_udp);
        ask_over(&forwarder(&plan), "a.test", client).await.unwrap();
        let asked = upstream.received().pop().unwrap();
        assert_eq!(
            asked.over, over,
            "force_tcp {force_tcp}, prefer_udp {prefer_udp}, a client over {client:?}"
        );
    }
}

#[tokio::test]
async fn a_closed_port_fails_at_once() {
    let mut plan = plan(&[nobody().await]);
    plan.max_connect_attempts = Some(1);
    let failure = ask(&forwarder(&plan), "a.test").await.map(|it| owner(&it));
    assert_eq!(
        failure,
        Err(Failure::Unreachable),
        "what is told of a port where nobody is"
    );
}

/// Says to the kernel, by ICMP, that nobody listens at a port, as anybody can who guesses both ports (RFC 792).
fn forge_unreachable(of: SocketAddr, about: SocketAddr) {
    let (IpAddr::V4(client), IpAddr::V4(server)) = (of.ip(), about.ip()) else {
        panic!("the upstreams of these tests have IPv4");
    };
    let quoted_header = [
        &[0x45, 0, 0, 28, 0, 0, 0, 0, 64, 17, 0, 0][..],
        &client.octets(),
        &server.octets(),
    ]
    .concat();
    let quoted_ports = [
        of.port().to_be_bytes(),
        about.port().to_be_bytes(),
        [0, 8],
        [0, 0],
    ]
    .concat();
    let mut message = [&[3, 3, 0, 0, 0, 0, 0, 0][..], &quoted_header, &quoted_ports].concat();
    let sum: u32 = message
        .chunks(2)
        .map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]])))
        .sum();
    let folded = (sum & 0xffff) + (sum >> 16);
    let checksum = !u16::try_from((folded & 0xffff) + (folded >> 16)).unwrap();
    message[2..4].copy_from_slice(&checksum.to_be_bytes());
    let raw = socket2::Socket::new(
        socket2::Domain::IPV4,
        socket2::Type::RAW,
        Some(socket2::Protocol::ICMPV4),
    )
    .unwrap();
    raw.send_to(&message, &SocketAddr::new(of.ip(), 0).into())
        .unwrap();
}

#[tokio::test]
async fn an_icmp_error_ends_no_query_whose_answer_arrives() {
    let upstream = Upstream::start(|asked| {
        forge_unreachable(
            asked.from,
            SocketAddr::new(LOOPBACK, PORT.load(Ordering::Relaxed)),
        );
        vec![
            Action::Wait(Duration::from_millis(20)),
            Action::Reply(asked.one()),
        ]
    })
    .await;
    PORT.store(upstream.address.port(), Ordering::Relaxed);
    let mut plan = plan(&[upstream.address]);
    plan.max_connect_attempts = Some(1);
    let answered = ask(&forwarder(&plan), "a.test").await.map(|it| owner(&it));
    assert!(answered.is_ok(), "{answered:?}");
    assert_eq!(upstream.received().len(), 1, "and it is asked once");
}

/// Of the upstream that says what anybody could.
static PORT: AtomicU16 = AtomicU16::new(0);

#[tokio::test]
async fn after_an_icmp_error_another_upstream_is_queried() {
    let upstream = Upstream::start(|asked| vec![Action::Reply(asked.one())]).await;
    let mut plan = plan(&[nobody().await, upstream.address]);
    plan.policy = Policy::Sequential;
    let answered = ask(&forwarder(&plan), "a.test").await.map(|it| owner(&it));
    assert!(answered.is_ok(), "{answered:?}");
}
