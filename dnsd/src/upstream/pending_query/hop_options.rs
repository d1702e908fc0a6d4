//! What an upstream says to dnsd alone does not go on to the client: cookie (RFC 7873 §1), keepalive (RFC 7828 §3.3),
//! padding (RFC 7830 §3).

use std::ops::Range;

use crate::dns::message::{Records, kind};

const COOKIE: u16 = 10;
const KEEPALIVE: u16 = 11;
const PADDING: u16 = 12;

/// The octets of a message, whose question ends there, without such options.
pub(super) fn end_to_end(message: &[u8], question_end: usize) -> Vec<u8> {
    let mut octets = message.to_vec();
    let mut records = Records::behind(question_end, message).flatten();
    let opt = records.find(|record| record.kind == kind::OPT);
    let Some(data) = opt.map(|opt| opt.data) else {
        return octets;
    };
    let options = options(&octets, data.clone());
    if options.iter().all(|(code, _)| !is_hop_by_hop(*code)) {
        return octets;
    }
    if data.end == octets.len() {
        take_out(&mut octets, data.start, &options);
    } else {
        blank(&mut octets, &options);
    }
    octets
}

const fn is_hop_by_hop(code: u16) -> bool {
    matches!(code, COOKIE | KEEPALIVE | PADDING)
}

/// The options that are whole: their code, and where they stand with it.
fn options(octets: &[u8], data: Range<usize>) -> Vec<(u16, Range<usize>)> {
    let (mut found, mut at) = (Vec::new(), data.start);
    while let Some(header) = octets[at..data.end].first_chunk::<4>() {
        let length = usize::from(u16::from_be_bytes([header[2], header[3]]));
        let end = at + 4 + length;
        if end > data.end {
            break;
        }
        found.push((u16::from_be_bytes([header[0], header[1]]), at..end));
        at = end;
    }
    found
}

/// The OPT is what the message ends with: nothing that is pointed to moves.
fn take_out(octets: &mut Vec<u8>, start: usize, options: &[(u16, Range<usize>)]) {
    for (_, place) in options.iter().rev().filter(|(code, _)| is_hop_by_hop(*code)) {
        octets.drain(place.clone());
    }
    let length = u16::try_from(octets.len() - start).expect("it was a whole record and became shorter");
    octets[start - 2..start].copy_from_slice(&length.to_be_bytes());
}

/// Names behind the OPT may be pointed to: the places stay, and say nothing.
fn blank(octets: &mut [u8], options: &[(u16, Range<usize>)]) {
    for (_, place) in options.iter().filter(|(code, _)| is_hop_by_hop(*code)) {
        octets[place.start..place.start + 2].copy_from_slice(&PADDING.to_be_bytes());
        octets[place.start + 4..place.end].fill(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dns::message::Message;

    const COOKIE_OPTION: &[u8] = &[0, 10, 0, 2, 7, 7];
    const ERROR_OPTION: &[u8] = &[0, 15, 0, 2, 0, 3];

    fn with_opt(options: &[&[u8]], behind: &[u8]) -> Vec<u8> {
        let additional = if behind.is_empty() { 1 } else { 2 };
        let mut octets = vec![0, 1, 0x80, 0, 0, 1, 0, 0, 0, 0, 0, additional, 0, 0, 1, 0, 1];
        let data = options.concat();
        octets.extend_from_slice(&[0, 0, 41, 4, 208, 0, 0, 0, 0, 0, u8::try_from(data.len()).unwrap()]);
        octets.extend_from_slice(&data);
        octets.extend_from_slice(behind);
        octets
    }

    fn relayed(octets: &[u8]) -> Vec<u8> {
        end_to_end(octets, Message::read(octets).unwrap().question().end)
    }

    #[test]
    fn hop_by_hop_options_are_removed_and_others_stay() {
        let octets = with_opt(&[COOKIE_OPTION, ERROR_OPTION, COOKIE_OPTION], &[]);
        assert_eq!(relayed(&octets), with_opt(&[ERROR_OPTION], &[]));
        let clean = with_opt(&[ERROR_OPTION], &[]);
        assert_eq!(relayed(&clean), clean);
    }

    #[test]
    fn before_other_records_an_option_is_blanked_in_place() {
        let behind = [0, 0, 1, 0, 1, 0, 0, 0, 60, 0, 4, 192, 0, 2, 1];
        let octets = with_opt(&[COOKIE_OPTION, ERROR_OPTION], &behind);
        let blanked = with_opt(&[&[0, 12, 0, 2, 0, 0], ERROR_OPTION], &behind);
        assert_eq!(relayed(&octets), blanked);
    }

    #[test]
    fn incomplete_options_are_ignored() {
        let octets = with_opt(&[&[0, 10, 0, 9, 1]], &[]);
        assert_eq!(relayed(&octets), octets);
    }
}
