//! The packets of the API server's network proxy, and what an agent says of itself.

use egret_konnectivity::proto::{Frames, Identifiers, Packet, encode};

/// Reading ends; the pieces in which octets arrive make no difference; and what was read is written so that it is read as the same.
pub fn check(octets: &[u8]) {
    let Some((piece, stream)) = octets.split_first() else {
        return;
    };
    let packets = read(stream, stream.len().max(1));
    assert_eq!(
        packets,
        read(stream, usize::from(*piece).max(1)),
        "in pieces of {piece}"
    );
    for packet in packets {
        let written = encode(&packet).expect("it was shorter than the most");
        assert_eq!(read(&written, written.len()), [packet]);
    }
    let (identifiers, _) = Identifiers::of_agent(&String::from_utf8_lossy(stream));
    assert_eq!(Identifiers::parse(&identifiers.to_string()), Ok(identifiers));
}

/// All packets up to the first that cannot be read.
fn read(stream: &[u8], piece: usize) -> Vec<Packet> {
    let (mut frames, mut packets) = (Frames::default(), Vec::new());
    for octets in stream.chunks(piece) {
        frames.push(octets.to_vec());
        loop {
            match frames.next_message() {
                Ok(Some(message)) => match Packet::decode(message) {
                    Ok(packet) => packets.extend(packet),
                    Err(error) => {
                        assert!(!error.to_string().is_empty());
                        return packets;
                    }
                },
                Ok(None) => break,
                Err(error) => {
                    assert!(!error.to_string().is_empty());
                    return packets;
                }
            }
        }
    }
    packets
}
