//! The frames that the two daemons send each other.

use egret_shared::link::{Frame, FrameDecoder, ToDnsd, ToEnforcer, WireMessage, encode};

/// Reading ends; the pieces in which octets arrive make no difference; and what was read is written so that it
/// is read as the same.
pub fn check(octets: &[u8]) {
    let Some((piece, stream)) = octets.split_first() else {
        return;
    };
    both_ways::<ToEnforcer>(stream, usize::from(*piece).max(1));
    both_ways::<ToDnsd>(stream, usize::from(*piece).max(1));
}

fn both_ways<M: WireMessage + PartialEq + std::fmt::Debug>(stream: &[u8], piece: usize) {
    let frames = read::<M>(stream, stream.len().max(1));
    assert_eq!(frames, read::<M>(stream, piece), "in pieces of {piece}");
    for frame in frames {
        let Frame::Message(instance, message) = frame else {
            continue;
        };
        let mut written = Vec::new();
        encode(instance, &message, &mut written);
        assert_eq!(
            read::<M>(&written, written.len()),
            [Frame::Message(instance, message)]
        );
    }
}

/// All frames up to the first that cannot be read.
fn read<M: WireMessage>(stream: &[u8], piece: usize) -> Vec<Frame<M>> {
    let (mut decoder, mut frames) = (FrameDecoder::default(), Vec::new());
    for octets in stream.chunks(piece) {
        decoder.push(octets);
        loop {
            match decoder.next_frame() {
                Ok(Some(frame)) => frames.push(frame),
                Ok(None) => break,
                Err(error) => {
                    assert!(!error.to_string().is_empty());
                    return frames;
                }
            }
        }
    }
    frames
}
