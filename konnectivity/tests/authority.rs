//! The authority of requests on a Unix socket, octet for octet.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails there and then")]

use egret_konnectivity::server::{AuthorityError, AuthorityRewriter, Rewritten};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
const HEADERS: u8 = 1;
const CONTINUATION: u8 = 9;
const END_HEADERS: u8 = 4;

fn frame(kind: u8, flags: u8, stream: u8, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    [&length[1..], &[kind, flags, 0, 0, 0, stream], payload].concat()
}

fn rewritten(input: &[u8]) -> Result<Vec<u8>, AuthorityError> {
    let mut output = Vec::new();
    AuthorityRewriter::default().push(&[PREFACE, input].concat(), &mut output)?;
    assert_eq!(&output[..PREFACE.len()], PREFACE);
    Ok(output.split_off(PREFACE.len()))
}

/// A block in one frame.
fn block(block: &[u8]) -> Result<Vec<u8>, AuthorityError> {
    rewritten(&frame(HEADERS, END_HEADERS, 1, block)).map(|mut frame| frame.split_off(9))
}

/// As grpc-go writes it: each field once as a literal that is indexed.
fn request() -> Vec<u8> {
    [
        &b"\x83\x86\x44\x13/ProxyService/Proxy"[..],
        b"\x41\x1a%2Ftmp%2Fkonnectivity.sock",
        b"\x40\x02te\x08trailers",
    ]
    .concat()
}

fn rewritten_request() -> Vec<u8> {
    b"\x83\x86\x44\x13/ProxyService/Proxy\x41\x01u\x40\x02te\x08trailers".to_vec()
}

#[test]
fn the_value_of_an_authority_is_replaced_in_every_representation() {
    let table: [(&[u8], &[u8]); 11] = [
        (&request(), &rewritten_request()),
        // Without indexing, never indexed, with the name as a literal.
        (b"\x01\x03%2F", b"\x01\x01u"),
        (b"\x11\x03%2F", b"\x11\x01u"),
        (b"\x40\x0a:authority\x03%2F", b"\x40\x0a:authority\x01u"),
        (b"\x00\x0a:authority\x03%2F", b"\x00\x0a:authority\x01u"),
        // Coded by Huffman.
        (b"\x41\x82\xff\xff", b"\x41\x01u"),
        // Nothing is smaller than nothing.
        (b"\x41\x00", b"\x41\x00"),
        // Other fields, fields of the tables, another size of the table.
        (b"\x44\x03%2F", b"\x44\x03%2F"),
        (b"\x40\x09authority\x03%2F", b"\x40\x09authority\x03%2F"),
        (b"\x81\xbe\xff\x20", b"\x81\xbe\xff\x20"),
        (b"\x3f\xe1\x1f\x41\x03%2F", b"\x3f\xe1\x1f\x41\x01u"),
    ];
    for (input, expected) in table {
        assert_eq!(block(input).unwrap(), expected, "{input:x?}");
    }
    // A length of several octets.
    let long = [&b"\x41\x7f\x80\x01"[..], &[b'a'; 255], b"\x88"].concat();
    assert_eq!(block(&long).unwrap(), b"\x41\x01u\x88");
}

#[test]
fn other_frames_pass_octet_for_octet_in_pieces_of_any_size() {
    let other = [
        frame(4, 0, 0, &[]),
        frame(0, 0, 1, &frame(HEADERS, END_HEADERS, 3, &request())),
        frame(8, 0, 0, &[0, 0, 1, 0]),
    ]
    .concat();
    let input = [
        PREFACE,
        &other,
        &frame(HEADERS, END_HEADERS, 1, &request()),
        &other,
    ]
    .concat();
    let headers = frame(HEADERS, END_HEADERS, 1, &rewritten_request());
    let expected = [PREFACE, &other, &headers, &other].concat();
    for size in 1..input.len() {
        let (mut rewriter, mut output) = (AuthorityRewriter::default(), Vec::new());
        for piece in input.chunks(size) {
            rewriter.push(piece, &mut output).unwrap();
        }
        assert_eq!(output, expected, "in pieces of {size}");
    }
}

/// Data goes from the socket to where it is read; blocks, and heads that are cut, go another way.
#[tokio::test]
async fn what_is_read_of_a_connection_is_what_was_written_anew_in_pieces_of_any_size() {
    let data = frame(0, 0, 1, &[HEADERS; 300]);
    let block = frame(HEADERS, END_HEADERS, 1, &request());
    let large = [PREFACE, &block, &data, &data, &block, &data].concat();
    let mut expected = Vec::new();
    AuthorityRewriter::default().push(&large, &mut expected).unwrap();
    for (piece, room) in
        (1..60).flat_map(|piece| [(piece, 1), (piece, 7), (piece * 17, 64), (piece * 17, 4096)])
    {
        let (mut writer, reader) = tokio::io::duplex(piece);
        let (octets, mut reader) = (large.clone(), Rewritten::new(reader));
        let writes = async move { writer.write_all(&octets).await.unwrap() };
        let reads = async {
            let (mut read, mut buffer) = (Vec::new(), vec![0; room]);
            loop {
                match reader.read(&mut buffer).await.unwrap() {
                    0 => return read,
                    length => read.extend_from_slice(&buffer[..length]),
                }
            }
        };
        let ((), read) = tokio::join!(writes, reads);
        assert_eq!(read, expected, "pieces of {piece}, read by {room}");
    }
}

#[test]
fn a_block_in_several_frames_with_padding_and_priority_becomes_one() {
    let request = request();
    let (first, rest) = request.split_at(30);
    let (second, third) = rest.split_at(3);
    let padded = [&[4u8, 0, 0, 0, 0, 16][..], first, &[0; 4]].concat();
    let input = [
        frame(HEADERS, 0x1 | 0x8 | 0x20, 7, &padded),
        frame(CONTINUATION, 0, 7, second),
        frame(CONTINUATION, 0, 7, &[]),
        frame(CONTINUATION, END_HEADERS, 7, third),
    ]
    .concat();
    let expected = frame(HEADERS, 0x1 | END_HEADERS, 7, &rewritten_request());
    assert_eq!(rewritten(&input).unwrap(), expected);
}

#[test]
fn a_large_block_stays_in_frames_that_are_taken() {
    // The value has 127 + 16,384 octets (RFC 7541, section 5.1).
    let head = b"\x00\x01a\x7f\x80\x80\x01";
    let block = [&head[..], &vec![b'x'; 127 + 16_384]].concat();
    let (first, second) = block.split_at(16_384);
    let input = [
        frame(HEADERS, 0, 1, first),
        frame(CONTINUATION, END_HEADERS, 1, second),
    ]
    .concat();
    assert_eq!(rewritten(&input).unwrap(), input);
}

#[test]
fn what_is_no_block_ends_the_connection() {
    let large = vec![0x88; 16_385];
    let full = vec![0x88; 16_384];
    let too_many = [
        frame(HEADERS, 0, 1, &full),
        frame(CONTINUATION, 0, 1, &full).repeat(4),
    ]
    .concat();
    let table = [
        (frame(HEADERS, END_HEADERS, 1, &large), AuthorityError::Frame),
        (too_many, AuthorityError::Block),
        (frame(HEADERS, END_HEADERS, 1, &[]), AuthorityError::Malformed),
        // More padding than payload; less than a priority.
        (frame(HEADERS, 0xc, 1, &[9, 0x88]), AuthorityError::Malformed),
        (frame(HEADERS, 0x24, 1, &[0, 0, 0, 0]), AuthorityError::Malformed),
        // Another frame, or another stream, in the middle.
        (
            [frame(HEADERS, 0, 1, &[0x88]), frame(0, 0, 1, &[1])].concat(),
            AuthorityError::Malformed,
        ),
        (
            [frame(HEADERS, 0, 1, &[0x88]), frame(CONTINUATION, 4, 3, &[0x88])].concat(),
            AuthorityError::Malformed,
        ),
        // Cut; a number that has no end.
        (
            frame(HEADERS, END_HEADERS, 1, b"\x41\x05%2F"),
            AuthorityError::Hpack,
        ),
        (
            frame(HEADERS, END_HEADERS, 1, b"\xff\xff\xff\xff\xff\xff\xff"),
            AuthorityError::Hpack,
        ),
    ];
    for (input, expected) in table {
        assert_eq!(rewritten(&input), Err(expected));
    }
}

/// The second request names the fields of the first by their index: both tables agree.
#[tokio::test]
async fn h2_takes_the_requests_and_finds_their_fields_in_its_table() {
    let again = b"\x83\x86\xc0\xbf\xbe";
    let input = [
        frame(4, 0, 0, &[]),
        frame(HEADERS, END_HEADERS, 1, &request()),
        frame(HEADERS, END_HEADERS, 3, again),
    ]
    .concat();
    let rewritten = [PREFACE, &rewritten(&input).unwrap()].concat();
    let (mut client, server) = tokio::io::duplex(64 << 10);
    client.write_all(&rewritten).await.unwrap();
    let mut connection = h2::server::handshake(server).await.unwrap();
    for _ in 0..2 {
        let (request, _respond) = connection.accept().await.unwrap().unwrap();
        assert_eq!(request.uri().path(), "/ProxyService/Proxy");
        assert_eq!(request.uri().authority().unwrap(), "u");
        assert_eq!(request.headers()["te"], "trailers");
    }
}
