//! Queries as the RFCs define them, row by row, on real sockets: over UDP, over TCP, and over one connection.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod support;
#[path = "support/whole.rs"]
mod whole;

use std::time::Duration;

use egret_dnsd::dns::message::Message;
use hickory_proto::rr::RecordType;
use support::query;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UdpSocket};
use tokio::time::timeout;
use whole::{Dnsd, LOOPBACK, PATIENCE, Transport, Upstream, framed, read_framed};

const NAME: &str = "api.example.test";
/// The root, OPT, and what it says, at the end of a query with EDNS.
const OPT: usize = 11;

/// What comes back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Expected {
    /// Nothing: the next query is answered first.
    Silence,
    /// This code, with the upper bits of EDNS.
    Code(u16),
    /// An answer with so many records.
    Records(u16),
    /// An answer that is cut.
    Truncated,
}

const NOERROR: Expected = Expected::Code(0);
const FORMERR: Expected = Expected::Code(1);
const NOTIMP: Expected = Expected::Code(4);
const REFUSED: Expected = Expected::Code(5);
const BADVERS: Expected = Expected::Code(16);

/// A row: the section, what is asked, the octets, what comes back over UDP and over TCP.
type Row = (&'static str, &'static str, Vec<u8>, Expected, Expected);

fn plain() -> Vec<u8> {
    query(NAME, RecordType::A, None)
}

fn edns(size: u16) -> Vec<u8> {
    query(NAME, RecordType::A, Some(size))
}

/// A query with some octets written over, from the front or, below zero, from the end.
fn with(mut octets: Vec<u8>, at: isize, new: &[u8]) -> Vec<u8> {
    let length = isize::try_from(octets.len()).unwrap();
    let at = usize::try_from(if at < 0 { length + at } else { at }).unwrap();
    octets[at..at + new.len()].copy_from_slice(new);
    octets
}

/// A question for this type and class, without EDNS.
fn of(kind: u16, class: u16) -> Vec<u8> {
    with(plain(), -4, &[kind.to_be_bytes(), class.to_be_bytes()].concat())
}

fn opcode(code: u8) -> Vec<u8> {
    with(plain(), 2, &[code << 3])
}

/// A query whose name is these octets.
fn named(name: &[u8]) -> Vec<u8> {
    [&plain()[..12], name, &[0, 1, 0, 1]].concat()
}

/// An option behind the OPT.
fn with_options(options: &[u8]) -> Vec<u8> {
    let length = u16::try_from(options.len()).unwrap().to_be_bytes();
    [with(edns(1232), -2, &length), options.to_vec()].concat()
}

fn same(section: &'static str, what: &'static str, octets: Vec<u8>, back: Expected) -> Row {
    (section, what, octets, back, back)
}

fn rows() -> Vec<Row> {
    let one = Expected::Records(1);
    let second_opt = [with(edns(1232), 11, &[2]), edns(1232)[plain().len()..].to_vec()].concat();
    let large = |size| query("large.example.test", RecordType::A, size);
    let long = [[63; 64].repeat(4), vec![0]].concat();
    vec![
        same("1035 4.1.1", "a query", plain(), one),
        same(
            "1035 4.1.1",
            "a response",
            with(plain(), 2, &[0x81]),
            Expected::Silence,
        ),
        same(
            "1035 4.1.1",
            "AA, TC and RA in a query",
            with(plain(), 2, &[0x07, 0x80]),
            one,
        ),
        same("6895 2.1", "the reserved bit", with(plain(), 3, &[0x40]), one),
        same("1035 4.1.1", "a code in a query", with(plain(), 3, &[0x0f]), one),
        same("9619 4", "no question", with(plain(), 4, &[0, 0]), FORMERR),
        same("9619 4", "two questions", with(plain(), 4, &[0, 2]), FORMERR),
        same(
            "9619 4",
            "65535 questions",
            with(plain(), 4, &[0xff, 0xff]),
            FORMERR,
        ),
        same(
            "1035 4.1.1",
            "eleven octets",
            plain()[..11].to_vec(),
            Expected::Silence,
        ),
        same("1035 4.1.2", "a header alone", plain()[..12].to_vec(), FORMERR),
        same("1035 4.1.2", "half a question", plain()[..20].to_vec(), FORMERR),
        same(
            "1035 4.1.2",
            "a record that is not there",
            with(plain(), 10, &[0, 1]),
            FORMERR,
        ),
        same("3425 3", "IQUERY", opcode(1), NOTIMP),
        same("1035 4.1.1", "STATUS", opcode(2), NOTIMP),
        same("1035 4.1.1", "opcode 3", opcode(3), NOTIMP),
        same("1996 3.10", "NOTIFY", opcode(4), NOTIMP),
        same("2136 3.1", "UPDATE", opcode(5), NOTIMP),
        same("8490 5.1", "DSO", opcode(6), NOTIMP),
        same("1035 4.1.1", "opcode 15", opcode(15), NOTIMP),
        same("5936 2.2.1", "AXFR", of(252, 1), REFUSED),
        same("1995 2", "IXFR", of(251, 1), REFUSED),
        same("8482 4", "ANY goes to the upstream", of(255, 1), NOERROR),
        same("1035 3.2.4", "CHAOS goes to the upstream", of(16, 3), NOERROR),
        same("3597 5", "a type of the future", of(65_280, 1), NOERROR),
        same(
            "1035 4.1.4",
            "a name that is a pointer to itself",
            named(&[0xc0, 12]),
            FORMERR,
        ),
        same(
            "1035 4.1.4",
            "a loop of pointers",
            named(&[1, b'a', 0xc0, 12]),
            FORMERR,
        ),
        same("1035 4.1.4", "a pointer forward", named(&[0xc0, 40]), FORMERR),
        same("6891 5", "a label of kind 01", named(&[0x41, 1, 0]), FORMERR),
        same("6891 5", "a label of kind 10", named(&[0x81, 1, 0]), FORMERR),
        same("1035 3.1", "a name of 257 octets", named(&long), FORMERR),
        same("6891 6.1.1", "two OPTs", second_opt, FORMERR),
        same(
            "6891 6.1.2",
            "an OPT below another name than the root",
            {
                let mut octets = edns(1232);
                let at = octets.len() - OPT;
                octets.splice(at..=at, [1, b'a', 0]);
                octets
            },
            FORMERR,
        ),
        same(
            "6891 6.1.2",
            "an option that is unknown",
            with_options(&[0xfd, 0xe9, 0, 2, 1, 2]),
            one,
        ),
        same(
            "6891 6.1.2",
            "an option that is cut",
            with_options(&[0xfd, 0xe9, 0, 9, 1, 2]),
            FORMERR,
        ),
        same(
            "6891 6.1.2",
            "half an option's header",
            with_options(&[0xfd, 0xe9, 0]),
            FORMERR,
        ),
        same("6891 6.1.3", "version 1", with(edns(1232), -5, &[1]), BADVERS),
        same("6891 6.1.3", "version 255", with(edns(1232), -5, &[255]), BADVERS),
        same(
            "6891 6.1.4",
            "flags that are unknown",
            with(edns(1232), -4, &[0x7f, 0xff]),
            one,
        ),
        same(
            "6891 6.1.3",
            "a code in the OPT of a query",
            with(edns(1232), -6, &[9]),
            one,
        ),
        same(
            "7873 5.2",
            "a cookie",
            with_options(&[0, 10, 0, 8, 1, 2, 3, 4, 5, 6, 7, 8]),
            one,
        ),
        same("7828 3.1", "a keepalive", with_options(&[0, 11, 0, 0]), one),
        same("7830 3", "padding", with_options(&[0, 12, 0, 3, 0, 0, 0]), one),
        (
            "6891 6.2.3",
            "a size of 0 is 512",
            large(Some(0)),
            Expected::Truncated,
            Expected::Records(100),
        ),
        (
            "6891 6.2.3",
            "a size of 511 is 512",
            large(Some(511)),
            Expected::Truncated,
            Expected::Records(100),
        ),
        (
            "6891 6.2.5",
            "65535 is 1232",
            large(Some(65_535)),
            Expected::Truncated,
            Expected::Records(100),
        ),
        (
            "1035 4.2.1",
            "512 without EDNS",
            large(None),
            Expected::Truncated,
            Expected::Records(100),
        ),
    ]
}

/// Answers any question: 100 addresses for `large…`, 4000 for `huge…`, one for other names, nothing of other types.
async fn upstream() -> Upstream {
    Upstream::start(|asked, over| {
        let message = Message::read(asked).unwrap();
        let (question, raw) = (message.question(), message.raw_question());
        let all: u16 = match raw[1..5].to_ascii_lowercase().as_slice() {
            _ if question.kind != 1 => 0,
            b"larg" => 100,
            b"huge" => 4000,
            _ => 1,
        };
        let is_cut = all > 1 && over == Transport::Udp;
        let count = if is_cut { 0 } else { all };
        let (flags, [high, low]) = (0x81 | u8::from(is_cut) << 1, count.to_be_bytes());
        let header = [asked[0], asked[1], flags, 0x80, 0, 1, high, low, 0, 0, 0, 0];
        let address = |n: u16| (0xc000_0200 + u32::from(n)).to_be_bytes();
        let record = |n| [&[0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 60, 0, 4][..], &address(n)].concat();
        let records = (0..count).map(record);
        vec![[&header[..], raw, &records.flatten().collect::<Vec<u8>>()].concat()]
    })
    .await
}

/// What came back for these octets; `reply` is none where the next query was answered first.
fn back(section: &str, what: &str, asked: &[u8], reply: Option<&[u8]>) -> Expected {
    let Some(reply) = reply else {
        return Expected::Silence;
    };
    assert!(reply.len() >= 12, "{section}: {what}: {reply:02x?}");
    assert_eq!(reply[..2], asked[..2], "{section}: {what}: the id");
    assert_eq!(reply[2] & 0x80, 0x80, "{section}: {what}: QR");
    assert_eq!(reply[2] & 0x78, asked[2] & 0x78, "{section}: {what}: the opcode");
    assert_eq!(reply[3] & 0x40, 0, "{section}: {what}: the reserved bit is zero");
    let field = |at: usize| u16::from_be_bytes([reply[at], reply[at + 1]]);
    let asks_by_edns = asked.len() > 12 && asked[10..12] != [0, 0] && field(4) == 1;
    let opt = (field(10) == 1).then(|| &reply[reply.len() - OPT..]);
    if let Some(opt) = opt {
        assert_eq!(opt[..3], [0, 0, 41], "{section}: {what}: the OPT");
        assert_eq!(opt[3..5], 1232_u16.to_be_bytes(), "{section}: {what}: our size");
        assert_eq!(opt[6], 0, "{section}: {what}: our version");
        assert_eq!(
            (opt[7] & 0x7f, opt[8]),
            (0, 0),
            "{section}: {what}: unknown flags are not repeated"
        );
    }
    assert!(
        opt.is_some() || !asks_by_edns,
        "{section}: {what}: EDNS is answered by EDNS"
    );
    let upper = opt.map_or(0, |opt| u16::from(opt[5]) << 4);
    match (u16::from(reply[3] & 0xf) | upper, field(6)) {
        _ if reply[2] & 2 != 0 => Expected::Truncated,
        (0, records @ 1..) => Expected::Records(records),
        (code, _) => Expected::Code(code),
    }
}

/// ReceivedQuery after each row: its reply tells that there was none to the row.
fn marker(row: usize) -> Vec<u8> {
    let id = 0xf000 | u16::try_from(row).unwrap();
    with(plain(), 0, &id.to_be_bytes())
}

fn with_id(row: usize, octets: &[u8]) -> Vec<u8> {
    let id = u16::try_from(row).unwrap().to_be_bytes();
    let mut octets = octets.to_vec();
    octets[..2].copy_from_slice(&id);
    octets
}

#[tokio::test]
async fn each_row_over_udp() {
    let upstream = upstream().await;
    let dnsd = Dnsd::start("rfc-udp", &[&upstream], "");
    let client = UdpSocket::bind((LOOPBACK, 0)).await.unwrap();
    client.connect(dnsd.address).await.unwrap();
    let mut buffer = vec![0; 65_535];
    for (number, (section, what, octets, expected, _)) in rows().into_iter().enumerate() {
        let asked = with_id(number, &octets);
        client.send(&asked).await.unwrap();
        if expected == Expected::Silence {
            client.send(&marker(number)).await.unwrap();
        }
        let length = timeout(PATIENCE, client.recv(&mut buffer)).await;
        let length = length
            .unwrap_or_else(|_elapsed| panic!("RFC {section}: {what}: no reply"))
            .unwrap();
        let reply = (buffer[..2] != marker(number)[..2]).then_some(&buffer[..length]);
        assert!(length <= 1232, "RFC {section}: {what}");
        assert_eq!(
            back(section, what, &asked, reply),
            expected,
            "RFC {section}: {what}"
        );
    }
}

/// All of them, each behind the other (RFC 7766 §6.2.1): a row that is bad ends nothing for the others.
#[tokio::test]
async fn each_row_over_one_connection() {
    let upstream = upstream().await;
    let dnsd = Dnsd::start("rfc-tcp", &[&upstream], "");
    let mut stream = TcpStream::connect(dnsd.address).await.unwrap();
    for (number, (section, what, octets, _, expected)) in rows().into_iter().enumerate() {
        let asked = with_id(number, &octets);
        stream.write_all(&framed(&asked)).await.unwrap();
        if expected == Expected::Silence {
            stream.write_all(&framed(&marker(number))).await.unwrap();
        }
        let reply = timeout(PATIENCE, read_framed(&mut stream)).await;
        let reply = reply.unwrap_or_else(|_elapsed| panic!("RFC {section}: {what}: no reply"));
        let reply = (reply[..2] != marker(number)[..2]).then_some(&reply[..]);
        assert_eq!(
            back(section, what, &asked, reply),
            expected,
            "RFC {section}: {what}"
        );
    }
}

/// RFC 7766 §8: a message may be 65535 octets, and need not be one that can be read; one of no octets is passed over.
#[tokio::test]
async fn messages_of_all_lengths_leave_the_connection_as_it_was() {
    let upstream = upstream().await;
    let dnsd = Dnsd::start("rfc-lengths", &[&upstream], "");
    let mut stream = TcpStream::connect(dnsd.address).await.unwrap();
    for length in [0, 1, 11] {
        stream.write_all(&framed(&vec![0; length])).await.unwrap();
    }
    let mut padded = plain();
    padded.resize(65_535, 0);
    for (octets, code) in [
        (vec![0; 65_535], 1),
        (with(padded, 10, &[0xff, 0xff]), 1),
        (plain(), 0),
    ] {
        stream.write_all(&framed(&octets)).await.unwrap();
        let reply = timeout(PATIENCE, read_framed(&mut stream)).await.unwrap();
        assert_eq!(reply[3] & 0xf, code, "{} octets", octets.len());
        assert!(reply.len() < 100, "nothing is amplified: {}", reply.len());
    }
}

/// RFC 7766 §6.2.3: a client may close its half behind its last question, and wait for what it asked.
#[tokio::test]
async fn a_half_closed_connection_gets_all_replies() {
    let upstream = upstream().await;
    let dnsd = Dnsd::start("rfc-half", &[&upstream], "");
    let mut stream = TcpStream::connect(dnsd.address).await.unwrap();
    let names = (0..30).map(|number| format!("n{number}.example.test"));
    let asked: Vec<u8> = names
        .flat_map(|name| framed(&query(&name, RecordType::A, None)))
        .collect();
    stream.write_all(&asked).await.unwrap();
    stream.shutdown().await.unwrap();
    for number in 0..30 {
        let reply = timeout(PATIENCE, read_framed(&mut stream)).await;
        assert_eq!(reply.expect("an answer")[6..8], [0, 1], "{number}");
    }
    let end = timeout(PATIENCE, stream.read(&mut [0])).await;
    assert_eq!(end.expect("the end").unwrap(), 0);
}

/// RFC 7766 §6.2.3, §10: who does not go on, and who does not read, is left.
#[tokio::test]
async fn an_idle_client_and_one_that_does_not_read_are_disconnected() {
    let upstream = upstream().await;
    let dnsd = Dnsd::start("rfc-idle", &[&upstream], "tcpIdle: 300ms");
    for begun in [&[][..], &[0], &[0, 29, 1, 2, 3]] {
        let mut stream = TcpStream::connect(dnsd.address).await.unwrap();
        stream.write_all(&framed(&plain())).await.unwrap();
        timeout(PATIENCE, read_framed(&mut stream)).await.unwrap();
        stream.write_all(begun).await.unwrap();
        let ended = timeout(PATIENCE, stream.read(&mut [0])).await;
        assert!(
            matches!(ended, Ok(Ok(0) | Err(_))),
            "after {} octets: {ended:?}",
            begun.len()
        );
    }
    // 12 MiB of answers, of which buffers and what one client may leave unread hold less than half.
    let mut deaf = TcpStream::connect(dnsd.address).await.unwrap();
    let huge = framed(&query("huge.example.test", RecordType::A, None)).repeat(200);
    deaf.write_all(&huge).await.unwrap();
    let forgotten = async {
        while dnsd.service.connections.taken() + dnsd.service.unwritten.taken() > 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    timeout(PATIENCE, forgotten)
        .await
        .expect("nothing is kept for anybody");
}
