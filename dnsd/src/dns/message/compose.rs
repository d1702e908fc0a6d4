//! Messages that dnsd composes: queries to upstreams, and replies without records.

use super::query::{Edns, Query};
use super::{HEADER, flag, kind, rcode};

/// The parts of a query to an upstream.
#[derive(Clone, Debug)]
pub struct QueryParts<'a> {
    /// Its id.
    pub id: u16,
    /// The client's flags; RD and CD are copied.
    pub flags: u16,
    /// Name in the case to send, type, class.
    pub raw_question: &'a [u8],
    /// The client's EDNS.
    pub edns: Option<&'a Edns>,
    /// The largest datagram that dnsd accepts, in octets.
    pub udp_size: u16,
}

/// Writes a query to an upstream. It has an OPT if the client's query has one, and always AD, so that the answer says
/// whether it was validated (RFC 6840 §5.7).
#[must_use]
pub fn query(parts: &QueryParts<'_>) -> Vec<u8> {
    let flags = parts.flags & (flag::RD | flag::CD) | flag::AD;
    let mut octets = header(parts.id, flags, 1, u16::from(parts.edns.is_some()));
    octets.extend_from_slice(parts.raw_question);
    if let Some(edns) = parts.edns {
        push_opt(&mut octets, parts.udp_size, 0, edns.dnssec, &edns.options);
    }
    octets
}

/// Changes the case of the letters of the question's name at random (draft-vixie-dnsext-dns0x20): the sender of an
/// answer that repeats it has seen the query.
pub fn mix_case(raw_question: &mut [u8], mut random: impl FnMut() -> u64) {
    const TYPE_AND_CLASS: usize = 4;
    let name = raw_question.len().saturating_sub(TYPE_AND_CLASS);
    // A label's length is at most 63, so it is no letter.
    for octets in raw_question[..name].chunks_mut(64) {
        let mut bits = random();
        for octet in octets {
            // Without a branch: a branch on random bits is mispredicted half of the time.
            *octet ^= u8::from(octet.is_ascii_alphabetic() & (bits & 1 == 1)) << 5;
            bits >>= 1;
        }
    }
}

/// A reply without records, with a response code.
#[must_use]
pub fn error_reply(query: &Query, code: u8, udp_size: u16) -> Vec<u8> {
    bare_reply(query, u16::from(code), udp_size)
}

/// As [`error_reply`], with an extended error for a client with EDNS (RFC 8914 §2).
#[must_use]
pub fn explained_reply(query: &Query, code: u8, extended_error: u16, udp_size: u16) -> Vec<u8> {
    const EXTENDED_ERROR: u16 = 15;
    let mut octets = bare_reply(query, u16::from(code), udp_size);
    if query.edns.is_some() {
        let fields = [EXTENDED_ERROR, 2, extended_error];
        let option = fields.iter().flat_map(|field| field.to_be_bytes());
        octets.truncate(octets.len() - 2);
        octets.extend_from_slice(&6_u16.to_be_bytes());
        octets.extend(option);
    }
    octets
}

/// A synthesized NXDOMAIN (RFC 8914 §4.30), with the SOA of the denial that it follows from.
#[must_use]
pub fn synthesized_denial(query: &Query, authority: &[u8], udp_size: u16) -> Vec<u8> {
    const SYNTHESIZED: u16 = 29;
    let mut octets = explained_reply(query, rcode::NXDOMAIN, SYNTHESIZED, udp_size);
    let end = HEADER + query.raw_question.len();
    octets.splice(end..end, authority.iter().copied());
    octets[9] = 1;
    octets
}

/// A reply without records, with TC set.
#[must_use]
pub fn truncated_reply(query: &Query, code: u8, udp_size: u16) -> Vec<u8> {
    bare_reply(query, flag::TC | u16::from(code), udp_size)
}

fn bare_reply(query: &Query, flags: u16, udp_size: u16) -> Vec<u8> {
    let flags = flag::QR | flag::RA | flags | query.flags & (flag::RD | flag::CD);
    let mut octets = header(query.id, flags, 1, u16::from(query.edns.is_some()));
    octets.extend_from_slice(&query.raw_question);
    if let Some(edns) = &query.edns {
        push_opt(&mut octets, udp_size, 0, edns.dnssec, &[]);
    }
    octets
}

/// The reply to octets of which only the header can be read.
#[must_use]
pub fn header_reply(octets: &[u8], code: u8) -> Vec<u8> {
    let (id, flags) = client_header(octets);
    let kept = flags & (flag::RD | flag::CD | 0xf << 11);
    header(id, flag::QR | kept | u16::from(code), 0, 0)
}

/// The reply to an unknown EDNS version: BADVERS is 16, its upper bits are in the OPT.
#[must_use]
pub fn bad_version_reply(octets: &[u8], udp_size: u16) -> Vec<u8> {
    let (id, flags) = client_header(octets);
    let kept = flags & (flag::RD | flag::CD);
    let mut reply = header(id, flag::QR | kept | u16::from(rcode::NOERROR), 0, 1);
    push_opt(&mut reply, udp_size, 1, false, &[]);
    reply
}

fn client_header(octets: &[u8]) -> (u16, u16) {
    (
        u16::from_be_bytes([octets[0], octets[1]]),
        u16::from_be_bytes([octets[2], octets[3]]),
    )
}

fn header(id: u16, flags: u16, questions: u16, additional: u16) -> Vec<u8> {
    let mut octets = Vec::with_capacity(HEADER + 64);
    for field in [id, flags, questions, 0, 0, additional] {
        octets.extend_from_slice(&field.to_be_bytes());
    }
    octets
}

/// Octets of an OPT without options.
pub(crate) const OPT_SIZE: usize = 11;

/// Adds the OPT of a reply if the client sent one. The caller counts it in the header.
pub(crate) fn push_reply_opt(octets: &mut Vec<u8>, query: &Query, udp_size: u16) {
    if let Some(edns) = &query.edns {
        push_opt(octets, udp_size, 0, edns.dnssec, &[]);
    }
}

fn push_opt(octets: &mut Vec<u8>, udp_size: u16, extended_rcode: u8, dnssec: bool, options: &[u8]) {
    let length = u16::try_from(options.len()).expect("the options came in one message");
    octets.push(0);
    octets.extend_from_slice(&kind::OPT.to_be_bytes());
    octets.extend_from_slice(&udp_size.to_be_bytes());
    octets.extend_from_slice(&[extended_rcode, 0, if dnssec { 0x80 } else { 0 }, 0]);
    octets.extend_from_slice(&length.to_be_bytes());
    octets.extend_from_slice(options);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_letters_of_the_name_change_case() {
        let long = b"\x3fabcdefghijklmnopqrstuvwxyzabcdefghijklmnopqrstuvwxyzabcdefghijk\x02ab";
        // Type 65 (HTTPS) and class 97 have the octets of letters.
        for name in [b"\x04a-9Z\x01b".as_slice(), long, b""] {
            let question = [name, b"\0", b"\0Aa\0"].concat();
            let mixed = |bits: u64| {
                let mut mixed = question.clone();
                mix_case(&mut mixed, || bits);
                mixed
            };
            assert_eq!(mixed(0), question);
            for bits in [u64::MAX, 0x5555_5555_5555_5555, 1 << 63 | 1 << 1] {
                for (at, (before, after)) in question.iter().zip(mixed(bits)).enumerate() {
                    let is_of_name = at <= name.len();
                    let changes = is_of_name && before.is_ascii_alphabetic() && bits >> (at % 64) & 1 == 1;
                    assert_eq!(*before != after, changes, "{at} of {name:?}");
                    assert!(before.eq_ignore_ascii_case(&after));
                }
            }
        }
    }
}
