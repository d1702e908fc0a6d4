//! TCP by hand, from a namespace whose kernel takes no part.

use std::{net::SocketAddr, time::Duration};

use super::{Adversary, Packet, Seen, Segment};

/// Where our numbers begin.
const FIRST: u32 = 7_000;

pub(super) fn converse(
    adversary: &Adversary,
    from: SocketAddr,
    to: SocketAddr,
    payload: &[u8],
    patience: Duration,
) -> Result<bool, Box<dyn std::error::Error>> {
    let sniffer = adversary.sniff()?;
    let is_answer = |seen: &Seen| seen.ends() == Some((to, from));
    let send = |segment, payload: &[u8]| adversary.send(&Packet::tcp(from, to, segment, payload));
    send(Segment::syn(FIRST), &[])?;
    let is_accepted = |seen: &Seen| {
        is_answer(seen)
            && seen
                .segment()
                .is_some_and(|(segment, _)| segment.syn && segment.acknowledgment == Some(FIRST + 1))
    };
    let accepted = sniffer.next(patience, is_accepted)?;
    let Some((theirs, _)) = accepted.and_then(|seen| seen.segment()) else {
        return Ok(false);
    };
    let next = theirs.sequence.wrapping_add(1);
    send(Segment::ack(FIRST + 1, next), payload)?;
    let echoed = sniffer.next(patience, |seen| is_answer(seen) && seen.holds(payload))?;
    Ok(echoed.is_some())
}
