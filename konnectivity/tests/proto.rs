//! The wire protocol, as octets: what peers of others send and take.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails there and then")]

use std::io;

use std::io::IoSlice;

use bytes::{Buf as _, Bytes};
use egret_konnectivity::proto::{
    DecodeError, Frame, FrameError, Frames, Identifiers, InvalidIdentifiers, MAX_PACKET, Packet, dial_error,
    encode,
};

/// Packet and its message, without the frame. The first is what a kube-apiserver sends first: the type of a dial is 0 and not on the wire.
fn fixtures() -> Vec<(Packet, &'static [u8])> {
    vec![
        (
            Packet::DialRequest {
                protocol: "tcp".into(),
                address: "localhost:8000".into(),
                random: 5,
            },
            b"\x12\x17\x0a\x03tcp\x12\x0elocalhost:8000\x18\x05",
        ),
        (
            Packet::DialResponse {
                error: "no".into(),
                connection: 0,
                random: 300,
            },
            b"\x08\x01\x1a\x07\x0a\x02no\x18\xac\x02",
        ),
        (
            Packet::DialResponse {
                error: String::new(),
                connection: 1,
                random: -1,
            },
            b"\x08\x01\x1a\x0d\x10\x01\x18\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01",
        ),
        (
            Packet::CloseRequest { connection: 7 },
            b"\x08\x02\x2a\x02\x08\x07",
        ),
        (
            Packet::CloseResponse {
                error: "e".into(),
                connection: 7,
            },
            b"\x08\x03\x32\x05\x0a\x01e\x10\x07",
        ),
        (
            Packet::Data {
                connection: 2,
                data: Bytes::from_static(b"abc"),
            },
            b"\x08\x04\x22\x07\x08\x02\x1a\x03abc",
        ),
        (Packet::DialClose { random: 9 }, b"\x08\x05\x3a\x02\x08\x09"),
        (Packet::Drain, b"\x08\x06\x42\x00"),
        (
            Packet::Credit {
                connection: 1,
                octets: 2,
            },
            b"\x08\xe8\x07\xc2\x3e\x04\x08\x01\x10\x02",
        ),
    ]
}

#[test]
fn each_packet_has_its_octets() {
    for (packet, octets) in fixtures() {
        let frame = encode(&packet).unwrap();
        let prefix = [0, 0, 0, 0, u8::try_from(octets.len()).unwrap()];
        assert_eq!(frame[..5], prefix, "{packet:?}");
        assert_eq!(frame[5..], *octets, "{packet:?}");
        assert_eq!(Packet::decode(Bytes::from_static(octets)).unwrap(), Some(packet));
    }
}

#[test]
fn a_drain_without_a_payload_is_one() {
    let read = Packet::decode(Bytes::from_static(b"\x08\x06")).unwrap();
    assert_eq!(read, Some(Packet::Drain));
}

#[test]
fn an_unknown_type_is_ignored_with_any_payload() {
    // Type 7 with an unknown field 9; type 99 with the payload of a close.
    for octets in [&b"\x08\x07\x4a\x02\x08\x01"[..], b"\x08\x63\x2a\x02\x08\x07"] {
        assert_eq!(Packet::decode(Bytes::from_static(octets)).unwrap(), None);
    }
}

#[test]
fn a_payload_of_another_type_is_an_error() {
    // No octets at all are a dial of nothing.
    for octets in [&b""[..], b"\x08\x04\x2a\x02\x08\x07", b"\x08\xe8\x07"] {
        let read = Packet::decode(Bytes::from_static(octets));
        assert!(matches!(read, Err(DecodeError::NoPayload(_))), "{read:?}");
    }
    let read = Packet::decode(Bytes::from_static(b"\x12\x7f"));
    assert!(matches!(read, Err(DecodeError::Protobuf(_))), "{read:?}");
}

#[test]
fn unknown_fields_of_a_known_packet_are_passed_over() {
    let octets = b"\x08\x02\x2a\x04\x08\x07\x78\x01\xf8\x06\x01";
    let read = Packet::decode(Bytes::from_static(octets)).unwrap();
    assert_eq!(read, Some(Packet::CloseRequest { connection: 7 }));
}

#[test]
fn a_packet_that_peers_refuse_is_not_sent_and_not_taken() {
    let data = |length: usize| Packet::Data {
        connection: 1,
        data: Bytes::from(vec![0; length]),
    };
    assert!(encode(&data(MAX_PACKET - 20)).is_ok());
    assert!(matches!(
        encode(&data(MAX_PACKET - 5)),
        Err(FrameError::TooLarge(_))
    ));
    let mut frames = Frames::default();
    frames.push(vec![0, 0, 0x40, 0, 0]);
    assert_eq!(frames.next_message(), Err(FrameError::TooLarge(MAX_PACKET)));
    let mut frames = Frames::default();
    frames.push(vec![1, 0, 0, 0, 0]);
    assert_eq!(frames.next_message(), Err(FrameError::Compressed));
}

#[test]
fn data_of_any_length_is_read_as_it_was_written() {
    for length in [0_u32, 1, 4095, 4096, 70_000] {
        let packet = Packet::Data {
            connection: 300,
            data: (0..length)
                .map(|octet| octet.to_be_bytes()[3])
                .collect::<Vec<u8>>()
                .into(),
        };
        let whole = encode(&packet).unwrap();
        for size in [whole.len(), 16_384, 1000, 7] {
            let (mut frames, mut read) = (Frames::default(), Vec::new());
            for piece in whole.chunks(size) {
                frames.push(piece.to_vec());
                read.extend(
                    frames
                        .next_message()
                        .unwrap()
                        .map(|it| Packet::decode(it).unwrap()),
                );
            }
            assert_eq!(read, [Some(packet.clone())], "{length} in pieces of {size}");
        }
        // However it is split to be sent, the octets are these.
        let (mut frame, mut sent) = (Frame::of(&packet).unwrap(), Vec::new());
        while frame.has_remaining() {
            let mut piece = frame.split_to(frame.remaining().min(9));
            let mut slices = [IoSlice::new(&[]); 4];
            let count = piece.chunks_vectored(&mut slices);
            let octets: Vec<u8> = slices[..count].iter().flat_map(|slice| slice.to_vec()).collect();
            assert_eq!(octets, piece.copy_to_bytes(piece.remaining()));
            sent.extend(octets);
        }
        assert_eq!(sent, whole, "{length}");
    }
}

#[test]
fn frames_come_out_whole_however_they_arrive() {
    let packets: Vec<_> = fixtures().into_iter().map(|(packet, _)| packet).collect();
    let octets = packets
        .iter()
        .map(|packet| encode(packet).unwrap())
        .collect::<Vec<_>>()
        .concat();
    for size in 1..=octets.len() {
        let (mut frames, mut read) = (Frames::default(), Vec::new());
        for piece in octets.chunks(size) {
            frames.push(piece.to_vec());
            while let Some(message) = frames.next_message().unwrap() {
                read.extend(Packet::decode(message).unwrap());
            }
        }
        assert_eq!(read, packets, "in pieces of {size}");
    }
}

#[test]
fn identifiers_are_a_query() {
    let text = "ipv4=10.0.0.1&ipv6=fd00%3A%3A1&host=node-1&cidr=10.0.0.0%2F8&default-route=true";
    let identifiers = Identifiers::parse(text).unwrap();
    assert_eq!(identifiers.to_string(), text);
    assert!(identifiers.is_default_route());
    for host in ["10.0.0.1", "fd00::1", "fd00:0::1", "node-1"] {
        assert!(identifiers.has_host(host), "{host}");
    }
    for host in ["10.0.0.2", "node", "", "10.0.0.0/8"] {
        assert!(!identifiers.has_host(host), "{host}");
    }
    assert_eq!(Identifiers::parse("").unwrap(), Identifiers::default());
}

// Manifests say `ipv4=$(HOST_IP)`, also where that is an address of IPv6. Upstream's agent looks at the key alone.
#[test]
fn an_address_of_either_family_may_stand_under_either_key() {
    for (text, host) in [("ipv4=fd00::1", "fd00::1"), ("ipv6=10.0.0.1", "10.0.0.1")] {
        let identifiers = Identifiers::parse(text).unwrap();
        assert!(identifiers.has_host(host), "{text}");
        let (identifiers, left_out) = Identifiers::of_agent(text);
        assert!(identifiers.has_host(host) && left_out.is_empty(), "{text}");
    }
}

#[test]
fn an_operators_unknown_identifier_is_an_error_and_an_agents_is_passed_over() {
    let refused = ["colour=a", "ipv4=node", "default-route=yes", "cidr=x"];
    for text in refused {
        assert!(Identifiers::parse(text).is_err(), "{text}");
        let (identifiers, left_out) = Identifiers::of_agent(&format!("{text}&host=n"));
        assert!(identifiers.has_host("n"), "{text}");
        assert_eq!(left_out.len(), 1, "{text}");
    }
    let unknown = Identifiers::parse("colour=a").unwrap_err();
    assert_eq!(unknown, InvalidIdentifiers::Key("colour".into()));
}

#[test]
fn dial_errors_have_the_words_of_go() {
    let table = [
        (io::ErrorKind::ConnectionRefused, "connect: connection refused"),
        (io::ErrorKind::TimedOut, "i/o timeout"),
        (io::ErrorKind::HostUnreachable, "connect: no route to host"),
        (
            io::ErrorKind::NetworkUnreachable,
            "connect: network is unreachable",
        ),
    ];
    for (kind, expected) in table {
        let said = dial_error("10.0.0.1:80", &kind.into());
        assert_eq!(said, format!("dial tcp 10.0.0.1:80: {expected}"));
    }
    let said = dial_error("a:1", &io::Error::from_raw_os_error(24));
    assert_eq!(said, "dial tcp a:1: socket: too many open files");
}
