//! Server blocks on real sockets: which block answers for a name at an address, and what a reload changes.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod support;
#[path = "support/whole.rs"]
mod whole;

use std::time::Duration;

use hickory_proto::op::Message;
use hickory_proto::rr::{DNSClass, Record, RecordType};
use support::{address, extended_error, query, response};
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpSocket, TcpStream};
use tokio::time::timeout;
use whole::{Dnsd, PATIENCE, Upstream, framed, in_short, read_framed};

/// An upstream that tells this address for each name.
async fn upstream(told: &'static str) -> Upstream {
    Upstream::start(move |query, _| {
        let asked = Message::from_vec(query).unwrap().queries[0].name.to_ascii();
        let records: Vec<Record> = vec![address(&asked, 60, told)];
        vec![response(query, records).to_vec().unwrap()]
    })
    .await
}

#[tokio::test]
async fn the_longest_zone_that_contains_a_name_answers() {
    let (all, corp, deep) = (
        upstream("192.0.2.1").await,
        upstream("192.0.2.2").await,
        upstream("192.0.2.3").await,
    );
    let dnsd = Dnsd::with(
        "zones",
        &format!(
            ". {{\n bind 127.0.0.1\n forward . {}\n}}\n\
             corp.test other.test {{\n bind 127.0.0.1\n forward . {}\n}}\n\
             deep.corp.test {{\n bind 127.0.0.1\n forward . {}\n}}\n",
            all.address, corp.address, deep.address
        ),
    );
    for (name, said) in [
        ("api.example.test", "NoError 192.0.2.1"),
        ("xcorp.test", "NoError 192.0.2.1"),
        ("corp.test", "NoError 192.0.2.2"),
        ("A.B.Corp.Test", "NoError 192.0.2.2"),
        ("x.other.test", "NoError 192.0.2.2"),
        ("deep.corp.test", "NoError 192.0.2.3"),
        ("a.deep.corp.test", "NoError 192.0.2.3"),
    ] {
        assert_eq!(dnsd.says(name).await, said, "{name}");
    }
}

#[tokio::test]
async fn a_name_outside_all_zones_is_refused_with_code_20() {
    let corp = upstream("192.0.2.2").await;
    let dnsd = Dnsd::with(
        "refused",
        &format!("corp.test {{\n bind 127.0.0.1\n forward . {}\n}}\n", corp.address),
    );
    let answer = dnsd.ask("api.example.test").await.unwrap();
    assert_eq!(in_short(&answer), "Refused");
    assert_eq!(extended_error(&answer), Some(20));
    assert_eq!(corp.asked(), 0);
}

#[tokio::test]
async fn a_chain_that_ends_without_an_answer_is_servfail_with_code_20() {
    let corp = upstream("192.0.2.2").await;
    let dnsd = Dnsd::with(
        "chain",
        &format!(". {{\n bind 127.0.0.1\n forward corp.test {}\n}}\n", corp.address),
    );
    assert_eq!(dnsd.says("a.corp.test").await, "NoError 192.0.2.2");
    let answer = dnsd.ask("api.example.test").await.unwrap();
    assert_eq!(
        (in_short(&answer).as_str(), extended_error(&answer)),
        ("ServFail", Some(20))
    );
}

#[tokio::test]
async fn each_block_has_a_cache_of_its_own_or_none() {
    let (kept, fresh) = (upstream("192.0.2.1").await, upstream("192.0.2.2").await);
    let dnsd = Dnsd::with(
        "caches",
        &format!(
            ". {{\n bind 127.0.0.1\n cache 30\n forward . {}\n}}\n\
             corp.test {{\n bind 127.0.0.1\n forward . {}\n}}\n",
            kept.address, fresh.address
        ),
    );
    for _ in 0..3 {
        dnsd.says("api.example.test").await;
        dnsd.says("a.corp.test").await;
    }
    assert_eq!((kept.asked(), fresh.asked()), (1, 3));
}

#[tokio::test]
async fn blocks_bind_to_addresses_and_interfaces_without_their_exceptions() {
    let (one, other) = (upstream("192.0.2.1").await, upstream("192.0.2.2").await);
    let dnsd = Dnsd::with(
        "bind",
        &format!(
            ". {{\n bind lo {{\n except ::1\n }}\n forward . {}\n}}\n\
             example.test {{\n bind 127.0.0.2\n forward . {}\n}}\n",
            one.address, other.address
        ),
    );
    let addresses: Vec<String> = dnsd.addresses.iter().map(|it| it.ip().to_string()).collect();
    assert_eq!(addresses, ["127.0.0.1", "127.0.0.2"]);
    let asked = query("api.example.test", RecordType::A, None);
    for (place, said) in [(0, "NoError 192.0.2.1"), (1, "NoError 192.0.2.2")] {
        let answer = dnsd.ask_at(dnsd.addresses[place], &asked).await.unwrap();
        assert_eq!(in_short(&answer), said);
    }
    let elsewhere = query("api.other.test", RecordType::A, None);
    let answer = dnsd.ask_at(dnsd.addresses[1], &elsewhere).await.unwrap();
    assert_eq!(in_short(&answer), "Refused");
}

#[tokio::test]
async fn a_block_at_one_address_shares_the_socket_of_one_at_all_addresses() {
    let (everywhere, here) = (upstream("192.0.2.1").await, upstream("192.0.2.2").await);
    let dnsd = Dnsd::with(
        "wildcard",
        &format!(
            ". {{\n forward . {}\n}}\ncorp.test {{\n bind 127.0.0.2\n forward . {}\n}}\n",
            everywhere.address, here.address
        ),
    );
    let port = dnsd.addresses[0].port();
    for (address, name, said) in [
        ("127.0.0.1", "a.corp.test", "NoError 192.0.2.1"),
        ("127.0.0.2", "a.corp.test", "NoError 192.0.2.2"),
        ("127.0.0.2", "a.test", "Refused"),
    ] {
        let at = std::net::SocketAddr::new(address.parse().unwrap(), port);
        let asked = query(name, RecordType::A, None);
        assert_eq!(
            in_short(&dnsd.ask_at(at, &asked).await.unwrap()),
            said,
            "{address} {name}"
        );
    }
}

#[tokio::test]
async fn a_cluster_name_is_not_sent_to_an_outside_resolver() {
    let (outside, cluster) = (upstream("192.0.2.1").await, upstream("192.0.2.2").await);
    let resolv_conf = std::env::temp_dir().join(format!("egret-resolv-{}.conf", std::process::id()));
    std::fs::write(&resolv_conf, "nameserver 192.0.2.53\n").unwrap();
    let corefile = format!(
        "cluster.local {{\n bind 127.0.0.2\n forward . {}\n}}\n\
         . {{\n bind 127.0.0.1 127.0.0.2\n forward kept.test {}\n forward . {}\n}}\n",
        cluster.address,
        outside.address,
        resolv_conf.display()
    );
    let dnsd = Dnsd::with("outside", &corefile);
    let asked = query("kubernetes.default.svc.cluster.local", RecordType::A, Some(1232));
    let refused = dnsd.ask_at(dnsd.addresses[0], &asked).await.unwrap();
    assert_eq!(
        (in_short(&refused).as_str(), extended_error(&refused)),
        ("Refused", Some(18))
    );
    let answered = dnsd.ask_at(dnsd.addresses[1], &asked).await.unwrap();
    assert_eq!(in_short(&answered), "NoError 192.0.2.2");
    assert_eq!(dnsd.says("a.kept.test").await, "NoError 192.0.2.1");
    drop(std::fs::remove_file(&resolv_conf));
}

/// What comes of a query, by its octets: code, or silence.
#[tokio::test]
async fn unusual_queries_are_answered_as_the_rfcs_say() {
    let up = upstream("192.0.2.1").await;
    let with_upstream = format!(". {{\n bind 127.0.0.1\n forward . {}\n}}\n", up.address);
    let without = ". {\n bind 127.0.0.1\n whoami\n}\n".to_owned();
    let (answering, alone) = (
        Dnsd::with("odd", &with_upstream),
        Dnsd::with("odd-alone", &without),
    );
    let plain = query("version.bind", RecordType::TXT, None);
    let class = |class: DNSClass| {
        let mut octets = plain.clone();
        let length = octets.len();
        octets[length - 2..].copy_from_slice(&u16::from(class).to_be_bytes());
        octets
    };
    let kind = |kind: RecordType| query("example.test", kind, None);
    let opcode = |opcode: u8| {
        let mut octets = kind(RecordType::SOA);
        octets[2] = octets[2] & 0x87 | opcode << 3;
        octets
    };
    for (what, octets, code, of_alone) in [
        // RFC 8482 §4.3: any of the records there are will do, so the upstream's are given.
        ("ANY", kind(RecordType::ANY), "NoError", None),
        // RFC 5936 §2.2, RFC 1995 §2: from who has the zone.
        ("AXFR", kind(RecordType::AXFR), "Refused", Some("Refused")),
        ("IXFR", kind(RecordType::IXFR), "Refused", Some("Refused")),
        // As CoreDNS without `chaos`: upstreams may be asked, else it is refused (RFC 4892 asks for nothing).
        ("CHAOS", class(DNSClass::CH), "NoError", Some("Refused")),
        ("HESIOD", class(DNSClass::HS), "NoError", Some("Refused")),
        // RFC 1035 §4.1.1: NOTIMP. NOTIFY (RFC 1996), UPDATE (RFC 2136), STATUS, and DSO (RFC 8490 §5.1).
        ("STATUS", opcode(2), "NotImp", Some("NotImp")),
        ("NOTIFY", opcode(4), "NotImp", Some("NotImp")),
        ("UPDATE", opcode(5), "NotImp", Some("NotImp")),
        ("DSO", opcode(6), "NotImp", Some("NotImp")),
    ] {
        let answer = answering.ask_at(answering.address, &octets).await.unwrap();
        assert_eq!(in_short(&answer).split(' ').next(), Some(code), "{what}");
        if let Some(code) = of_alone {
            let answer = alone.ask_at(alone.address, &octets).await.unwrap();
            assert_eq!(in_short(&answer), code, "{what}, no upstream");
        }
    }
}

#[tokio::test]
async fn a_reload_keeps_sockets_and_caches_of_unchanged_blocks() {
    let (one, other) = (upstream("192.0.2.1").await, upstream("192.0.2.2").await);
    let block = |zone: &str, more: &str, upstream: &Upstream| {
        format!(
            "{zone} {{\n bind 127.0.0.1\n cache 60\n {more}\n forward . {}\n}}\n",
            upstream.address
        )
    };
    let mut dnsd = Dnsd::with("plans", &block(".", "", &one));
    assert_eq!(dnsd.says("a.example.test").await, "NoError 192.0.2.1");

    dnsd.put_in_force(&format!(
        "# moved\n\n{}{}",
        block("corp.test", "", &other),
        block(".", "errors", &one)
    ))
    .unwrap();
    assert_eq!(dnsd.says("a.example.test").await, "NoError 192.0.2.1");
    assert_eq!(one.asked(), 1, "what was kept is kept");
    assert_eq!(dnsd.says("a.corp.test").await, "NoError 192.0.2.2");

    dnsd.put_in_force(&block(".", "", &other)).unwrap();
    assert_eq!(dnsd.says("a.example.test").await, "NoError 192.0.2.2");

    let twice = format!("{0}{0}", block(".", "", &one));
    let error = dnsd.put_in_force(&twice);
    assert!(error.is_err(), "{error:?}");
    assert_eq!(
        dnsd.says("b.example.test").await,
        "NoError 192.0.2.2",
        "the old plan stays"
    );
}

#[tokio::test]
async fn a_reload_with_an_address_in_use_changes_nothing() {
    let up = upstream("192.0.2.1").await;
    let taken = std::net::UdpSocket::bind("127.0.0.3:0").unwrap();
    let port = taken.local_addr().unwrap().port();
    let plain = format!(". {{\n bind 127.0.0.1\n forward . {}\n}}\n", up.address);
    let mut dnsd = Dnsd::with("taken", &plain);
    let more = format!("{plain}corp.test:{port} {{\n bind 127.0.0.3\n whoami\n}}\n");
    let error = dnsd.put_in_force(&more).unwrap_err();
    assert!(error.contains(&format!("127.0.0.3:{port}")), "{error}");
    assert_eq!(dnsd.says("a.example.test").await, "NoError 192.0.2.1");
}

#[tokio::test]
async fn queries_under_way_are_answered_across_a_reload() {
    let slow = Upstream::start(|query, _| {
        std::thread::sleep(Duration::from_millis(100));
        vec![
            response(query, vec![address("a.example.test", 60, "192.0.2.1")])
                .to_vec()
                .unwrap(),
        ]
    });
    let slow = slow.await;
    let other = upstream("192.0.2.2").await;
    let at = |bind: &str, upstream: &Upstream| {
        format!(". {{\n bind {bind}\n forward . {}\n}}\n", upstream.address)
    };
    let mut dnsd = Dnsd::with("under-way", &at("127.0.0.1", &slow));
    let client = tokio::net::UdpSocket::bind("127.0.0.1:0").await.unwrap();
    client.connect(dnsd.address).await.unwrap();
    // The first is read before the plan changes; the second waits in the socket that goes.
    client
        .send(&query("a.example.test", RecordType::A, None))
        .await
        .unwrap();
    while dnsd.service.resolver.waiting() == 0 {
        tokio::task::yield_now().await;
    }
    client
        .send(&query("b.example.test", RecordType::A, None))
        .await
        .unwrap();
    dnsd.put_in_force(&at("127.0.0.2", &other)).unwrap();
    let mut buffer = [0; 512];
    for _ in 0..2 {
        timeout(PATIENCE, client.recv(&mut buffer))
            .await
            .unwrap()
            .unwrap();
    }
}

#[tokio::test]
async fn connections_have_the_timeouts_of_the_block() {
    let up = upstream("192.0.2.1").await;
    for (timeouts, answered) in [("", 3), ("timeouts {\n idle 1s\n maxtcpqueries 2\n }", 2)] {
        let corefile = format!(
            ". {{\n bind 127.0.0.1\n {timeouts}\n forward . {}\n}}\n",
            up.address
        );
        let dnsd = Dnsd::with(&format!("timeouts-{answered}"), &corefile);
        let mut stream = TcpStream::connect(dnsd.address).await.unwrap();
        for _ in 0..3 {
            let asked = framed(&query("a.example.test", RecordType::A, None));
            drop(stream.write_all(&asked).await);
        }
        for _ in 0..answered {
            timeout(PATIENCE, read_framed(&mut stream)).await.unwrap();
        }
    }
}

#[tokio::test]
async fn a_client_that_does_not_read_is_disconnected_after_the_write_timeout() {
    let many = Upstream::start(|query, _| {
        let records = (0..2000).map(|last| {
            address(
                "a.example.test",
                60,
                &format!("192.0.{}.{}", last / 250, last % 250),
            )
        });
        vec![response(query, records.collect()).to_vec().unwrap()]
    });
    let many = many.await;
    let begin = async |write: &str| {
        let corefile = format!(
            ". {{\n bind 127.0.0.1\n timeouts {{\n read 1h\n idle 1h\n write {write}\n }}\n forward . {} {{\n force_tcp\n }}\n}}\n",
            many.address
        );
        let dnsd = Dnsd::with(&format!("unread-{write}"), &corefile);
        let socket = TcpSocket::new_v4().unwrap();
        socket.set_recv_buffer_size(4096).unwrap();
        let mut stream = socket.connect(dnsd.address).await.unwrap();
        // Of 32 KiB each: more than the kernel takes, less than a client may leave unread.
        for _ in 0..60 {
            let asked = framed(&query("a.example.test", RecordType::A, None));
            stream.write_all(&asked).await.unwrap();
        }
        (dnsd, stream)
    };
    let ((short, _unread), (long, _unread_either)) = (begin("1s").await, begin("1h").await);
    let is_left = async {
        while !short.service.under_way.is_empty() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(PATIENCE * 4, is_left)
        .await
        .expect("the connection is left");
    assert!(!long.service.under_way.is_empty(), "an hour is not over");
}

#[tokio::test]
async fn bufsize_limits_datagrams() {
    let many = Upstream::start(|query, _| {
        let records = (0..60).map(|last| address("a.example.test", 60, &format!("192.0.2.{last}")));
        vec![response(query, records.collect()).to_vec().unwrap()]
    });
    let many = many.await;
    for (bufsize, is_cut) in [("bufsize 512", true), ("bufsize 4096", false)] {
        let corefile = format!(
            ". {{\n bind 127.0.0.1\n {bufsize}\n forward . {}\n}}\n",
            many.address
        );
        let dnsd = Dnsd::with(&bufsize.replace(' ', "-"), &corefile);
        let asked = query("a.example.test", RecordType::A, Some(4096));
        let answer = dnsd.ask_at(dnsd.address, &asked).await.unwrap();
        assert_eq!(answer.metadata.truncation, is_cut, "{bufsize}");
    }
}

#[tokio::test]
async fn a_reload_changes_a_single_address_to_a_wildcard_and_back() {
    let all = upstream("192.0.2.1").await;
    // Below those that are drawn for connections (net.ipv4.ip_local_port_range).
    let port = 10_000 + u16::try_from(std::process::id() % 20_000).unwrap();
    let plan = |bind: &str| format!(".:{port} {{\n {bind}\n forward . {}\n}}\n", all.address);
    let single = plan("bind 127.0.0.1");
    let mut dnsd = Dnsd::with("everywhere", &single);
    for (bind, answers_elsewhere) in [
        ("", true),
        ("bind 127.0.0.1", false),
        ("bind 127.0.0.1 127.0.0.2", true),
    ] {
        dnsd.put_in_force(&plan(bind)).unwrap();
        for address in ["127.0.0.1", "127.0.0.2"] {
            let address = format!("{address}:{port}").parse().unwrap();
            if address == dnsd.address || answers_elsewhere {
                let asked = query("api.example.test", RecordType::A, None);
                let answer = dnsd.ask_at(address, &asked).await.expect("an answer");
                assert_eq!(in_short(&answer), "NoError 192.0.2.1", "{bind:?} {address}");
                let mut stream = TcpStream::connect(address).await.unwrap();
                stream.write_all(&framed(&asked)).await.unwrap();
                let octets = timeout(PATIENCE, read_framed(&mut stream)).await.unwrap();
                assert_eq!(
                    in_short(&Message::from_vec(&octets).unwrap()),
                    "NoError 192.0.2.1"
                );
            }
        }
    }
    let other = std::net::UdpSocket::bind(("127.0.0.1", port));
    assert!(other.is_err(), "nobody else can be bound there");
}
