//! Datagrams: what is taken for an answer, and what is not.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use egret_dnsd::config::model::Policy;
use egret_dnsd::net::Transport;
use egret_dnsd::upstream::Failure;
use hickory_proto::rr::RecordType;

use super::world::{
    Asked, Deed, LOOPBACK, Over, Upstream, address, ask, ask_over, forwarder, join_all, nobody, owner, plan,
    query, read, response, until,
};

const EVIL: &str = "192.0.2.66";

fn addresses(
    answer: &egret_dnsd::upstream::pending_query::ValidatedResponse<egret_dnsd::dns::answer::Answer>,
) -> Vec<String> {
    let records = read(answer).answers;
    records.iter().map(|record| record.data.to_string()).collect()
}

fn lie(asked: &Asked) -> Vec<u8> {
    asked.answer(vec![address(&asked.name(), 60, EVIL)])
}

fn by_another_id(asked: &Asked) -> Deed {
    let mut octets = lie(asked);
    octets[0] ^= 1;
    Deed::Say(octets)
}

fn to_another_name(asked: &Asked) -> Deed {
    let mut octets = response(
        &query("evil.example.test", RecordType::A, None),
        vec![address("evil.example.test", 60, EVIL)],
    )
    .to_vec()
    .unwrap();
    octets[..2].copy_from_slice(&asked.octets[..2]);
    Deed::Say(octets)
}

fn to_another_type(asked: &Asked) -> Deed {
    let mut octets = lie(asked);
    let question_end = 12 + asked.name().len() + 1 + 4;
    octets[question_end - 3] = 28;
    Deed::Say(octets)
}

fn from_another_port(asked: &Asked) -> Deed {
    Deed::SayFromElsewhere(lie(asked))
}

fn that_is_no_response(asked: &Asked) -> Deed {
    let mut octets = lie(asked);
    octets[2] &= 0x7f;
    Deed::Say(octets)
}

fn that_is_no_message(asked: &Asked) -> Deed {
    Deed::Say(asked.octets[..7].to_vec())
}

#[tokio::test]
async fn what_does_not_answer_the_question_is_passed_over_and_the_true_answer_is_taken() {
    type Lie = fn(&Asked) -> Deed;
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
                Deed::Wait(Duration::from_millis(20)),
                Deed::Say(asked.one()),
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
async fn an_answer_that_comes_twice_is_not_taken_for_the_next_question() {
    let last = Mutex::new(None::<Vec<u8>>);
    let upstream = Upstream::start(move |asked| {
        // While the next question waits, twice in one batch.
        let again = last.lock().unwrap().replace(asked.one());
        let again = again.into_iter().flat_map(|octets| [octets.clone(), octets]);
        again.chain([asked.one()]).map(Deed::Say).collect()
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
async fn an_answer_that_comes_too_late_is_not_taken_for_the_next_question() {
    const READ_TIMEOUT: Duration = Duration::from_millis(1_500);
    const LATE: Duration = Duration::from_millis(1_550);
    let upstream = Upstream::start(|asked| {
        if asked.name() == "slow.test." {
            return vec![Deed::Wait(LATE), Deed::Say(asked.one())];
        }
        // Meanwhile the late one comes.
        vec![Deed::Wait(2 * (LATE - READ_TIMEOUT)), Deed::Say(asked.one())]
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

fn uses_by_port(asked: &[Asked]) -> BTreeMap<u16, usize> {
    let mut by_port = BTreeMap::new();
    for asked in asked {
        *by_port.entry(asked.from.port()).or_default() += 1;
    }
    by_port
}

#[tokio::test]
async fn towards_who_is_near_a_port_serves_some_questions_and_no_more() {
    let upstream = Upstream::honest().await;
    let one_by_one = forwarder(&plan(&[upstream.address]));
    for number in 0..300 {
        ask(&one_by_one, &format!("n{number}.test")).await.unwrap();
    }
    let by_port = uses_by_port(&upstream.heard());
    assert!((5..20).contains(&by_port.len()), "questions by port: {by_port:?}");
    assert!(
        by_port.values().all(|uses| *uses <= 64),
        "questions by port: {by_port:?}"
    );

    let slow =
        Upstream::start(|asked| vec![Deed::Wait(Duration::from_millis(30)), Deed::Say(asked.one())]).await;
    let at_once = forwarder(&plan(&[slow.address]));
    let names: Vec<String> = (0..200).map(|number| format!("n{number}.test")).collect();
    let answers = join_all(names.iter().map(|name| ask(&at_once, name)).collect()).await;
    for (name, answer) in names.iter().zip(answers) {
        assert_eq!(owner(&answer.unwrap()), format!("{name}."));
    }
    let by_port = uses_by_port(&slow.heard());
    assert!((4..20).contains(&by_port.len()), "questions by port: {by_port:?}");
    assert!(
        by_port.values().all(|uses| *uses <= 64),
        "questions by port: {by_port:?}"
    );
}

#[tokio::test]
async fn of_questions_that_share_a_port_each_has_its_own_answer() {
    let first = Arc::new(Mutex::new(None::<Asked>));
    let upstream = Upstream::start(move |asked| {
        if asked.name() == "first.test." {
            *first.lock().unwrap() = Some(asked.clone());
            return vec![Deed::Wait(Duration::from_millis(60)), Deed::Say(asked.one())];
        }
        let first = first.lock().unwrap().clone().expect("it came first");
        let (mut to_first, mut to_second) = (lie(&first), lie(asked));
        to_first[..2].copy_from_slice(&asked.octets[..2]);
        to_second[..2].copy_from_slice(&first.octets[..2]);
        vec![
            Deed::Say(to_first),
            Deed::Say(to_second),
            Deed::Wait(Duration::from_millis(20)),
            Deed::Say(asked.one()),
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
    assert_eq!(uses_by_port(&upstream.heard()).len(), 1, "they share a port");
}

#[tokio::test]
async fn a_port_that_owes_an_answer_for_long_is_given_no_more_questions() {
    const SILENT: Duration = Duration::from_millis(80);
    let upstream = Upstream::start(|asked| match asked.name().as_str() {
        "slow.test." => vec![Deed::Wait(4 * SILENT), Deed::Say(asked.one())],
        _ => vec![Deed::Say(asked.one())],
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
async fn a_port_on_which_no_answer_came_is_given_no_more_questions() {
    let upstream = Upstream::start(|asked| match asked.name().as_str() {
        "never.test." => Vec::new(),
        _ => vec![Deed::Say(asked.one())],
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
    let heard = upstream.heard();
    let asked = heard.iter().find(|asked| asked.name() == name);
    asked.expect("it was asked").from.port()
}

#[tokio::test]
async fn sockets_that_nobody_uses_are_closed_in_time() {
    let upstream = Upstream::honest().await;
    for (expire, is_kept) in [
        (Duration::from_millis(80), false),
        (Duration::from_secs(3600), true),
    ] {
        let mut plan = plan(&[upstream.address]);
        plan.expire = expire;
        let forwarder = forwarder(&plan);
        ask(&forwarder, "a.test").await.unwrap();
        let from = upstream.heard().pop().unwrap().from;
        if !is_kept {
            until("it is closed though nobody asks any more", || !is_open(from)).await;
        }
        ask(&forwarder, "b.test").await.unwrap();
        let next = upstream.heard().pop().unwrap().from;
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
        let heard = upstream.heard();
        assert_eq!(
            heard[first].from.port() == heard[first + 2].from.port(),
            same,
            "whether the third question has the port of the first, with max_age {max_age:?}"
        );
    }
}

#[tokio::test]
async fn a_cut_answer_is_asked_for_over_tcp_and_given_as_it_is_where_there_is_none() {
    let upstream = Upstream::start(|asked| match asked.over {
        Over::Udp => vec![Deed::Say(asked.cut())],
        Over::Tcp => vec![Deed::Say(asked.one())],
    })
    .await;
    let always = Upstream::start(|asked| vec![Deed::Say(asked.cut())]).await;
    let no_tcp = Upstream::start(|asked| match asked.over {
        Over::Udp => vec![Deed::Say(asked.cut())],
        Over::Tcp => vec![Deed::HangUp],
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
async fn who_does_not_keep_the_case_is_asked_over_tcp_and_that_is_remembered() {
    let upstream = Upstream::start(|asked| {
        let mut octets = asked.octets.clone();
        octets[12..].make_ascii_lowercase();
        let lower = Asked {
            octets,
            ..asked.clone()
        };
        vec![Deed::Say(lower.one())]
    })
    .await;
    let forwarder = forwarder(&plan(&[upstream.address]));
    for name in ["first-with-letters.test", "second-with-letters.test"] {
        assert_eq!(owner(&ask(&forwarder, name).await.unwrap()), format!("{name}."));
    }
    let over = |name: &str| {
        let heard = upstream.heard().into_iter();
        let heard = heard.filter(|asked| asked.name() == name);
        let mut over: Vec<Over> = heard.map(|asked| asked.over).collect();
        // Where the machine is busy, one that is slow is asked again.
        over.dedup();
        over
    };
    let first = over("first-with-letters.test.");
    assert_eq!(first[0], Over::Udp, "the first question: {first:?}");
    assert_eq!(first.last(), Some(&Over::Tcp), "the first question: {first:?}");
    let second = over("second-with-letters.test.");
    assert_eq!(second, [Over::Tcp], "what the second question came by");
}

#[tokio::test]
async fn what_carries_a_question_is_as_configured() {
    let upstream = Upstream::honest().await;
    // force_tcp, prefer_udp, how the client came, what carries it.
    let rows = [
        (false, false, Transport::Udp, Over::Udp),
        (false, false, Transport::Tcp, Over::Tcp),
        (false, true, Transport::Udp, Over::Udp),
        (false, true, Transport::Tcp, Over::Udp),
        (true, false, Transport::Udp, Over::Tcp),
        (true, true, Transport::Udp, Over::Tcp),
        (true, true, Transport::Tcp, Over::Tcp),
    ];
    for (force_tcp, prefer_udp, client, over) in rows {
        let mut plan = plan(&[upstream.address]);
        (plan.force_tcp, plan.prefer_udp) = (force_tcp, prefer_udp);
        ask_over(&forwarder(&plan), "a.test", client).await.unwrap();
        let asked = upstream.heard().pop().unwrap();
        assert_eq!(
            asked.over, over,
            "force_tcp {force_tcp}, prefer_udp {prefer_udp}, a client over {client:?}"
        );
    }
}

#[tokio::test]
async fn a_port_where_nobody_is_is_told_at_once() {
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
async fn an_error_that_anybody_can_send_ends_no_question_whose_answer_comes() {
    let upstream = Upstream::start(|asked| {
        forge_unreachable(
            asked.from,
            SocketAddr::new(LOOPBACK, PORT.load(Ordering::Relaxed)),
        );
        vec![Deed::Wait(Duration::from_millis(20)), Deed::Say(asked.one())]
    })
    .await;
    PORT.store(upstream.address.port(), Ordering::Relaxed);
    let mut plan = plan(&[upstream.address]);
    plan.max_connect_attempts = Some(1);
    let answered = ask(&forwarder(&plan), "a.test").await.map(|it| owner(&it));
    assert!(answered.is_ok(), "{answered:?}");
    assert_eq!(upstream.heard().len(), 1, "and it is asked once");
}

/// Of the upstream that says what anybody could.
static PORT: AtomicU16 = AtomicU16::new(0);

#[tokio::test]
async fn where_nobody_is_another_one_is_asked_though_it_is_a_hint_alone() {
    let upstream = Upstream::start(|asked| vec![Deed::Say(asked.one())]).await;
    let mut plan = plan(&[nobody().await, upstream.address]);
    plan.policy = Policy::Sequential;
    let answered = ask(&forwarder(&plan), "a.test").await.map(|it| owner(&it));
    assert!(answered.is_ok(), "{answered:?}");
}
