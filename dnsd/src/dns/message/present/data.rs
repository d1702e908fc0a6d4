//! The data of a record, by type.

use std::net::{Ipv4Addr, Ipv6Addr};

use super::fields::{SHORT, name, push, shorts};
use super::words::{Word, Words};
use super::{ACCEPTED_TYPES, InvalidRecord, Reason, service, ttl_of};
use crate::dns::message::record::{Compression, Data, Part};

const BYTE: &str = "a number from 0 to 255";
const LONG: &str = "a number from 0 to 4294967295, or a span of time as 1h30m";

type Parse = fn(&mut Words<'_>, &mut Vec<Part>) -> Result<(), InvalidRecord>;

/// Whether data of this type has a presentation format here.
pub(crate) const fn is_known(kind: u16) -> bool {
    parser(kind).is_some()
}

pub(super) fn parse(kind: u16, words: &mut Words<'_>) -> Result<Data, InvalidRecord> {
    let mut parts = Vec::new();
    match (words.peek(), parser(kind)) {
        (Some(word), _) if word.raw() == "\\#" => generic(words, &mut parts)?,
        (_, Some(parse)) => parse(words, &mut parts)?,
        (Some(word), None) => return Err(word.wrong(Reason::Type(format!("TYPE{kind}"), ACCEPTED_TYPES))),
        (None, None) => words.next("the data").map(|_word| ())?,
    }
    Ok(Data(parts))
}

const fn parser(kind: u16) -> Option<Parse> {
    let parse: Parse = match kind {
        1 => |words, parts| {
            let word = words.next("an IPv4 address")?;
            let address: Ipv4Addr = word.number("an IPv4 address")?;
            push(parts, &address.octets());
            Ok(())
        },
        28 => |words, parts| {
            let word = words.next("an IPv6 address")?;
            let address: Ipv6Addr = word.number("an IPv6 address")?;
            push(parts, &address.octets());
            Ok(())
        },
        2 | 5 | 12 => |words, parts| name(words, parts, "a name", Compression::Allowed),
        39 => |words, parts| name(words, parts, "a name", Compression::Forbidden),
        6 => start_of_authority,
        13 => |words, parts| text_fields(words, parts, &["the processor", "the system"]),
        15 => |words, parts| {
            shorts(words, parts, &["the preference"])?;
            name(words, parts, "the mail server", Compression::Allowed)
        },
        16 | 99 => texts,
        17 => |words, parts| {
            name(words, parts, "the mailbox", Compression::Forbidden)?;
            name(words, parts, "the name of a TXT record", Compression::Forbidden)
        },
        18 => |words, parts| {
            shorts(words, parts, &["the subtype"])?;
            name(words, parts, "the host", Compression::Forbidden)
        },
        33 => |words, parts| {
            shorts(words, parts, &["the priority", "the weight", "the port"])?;
            name(words, parts, "the target", Compression::Forbidden)
        },
        35 => |words, parts| {
            shorts(words, parts, &["the order", "the preference"])?;
            text_fields(words, parts, &["the flags", "the services", "the expression"])?;
            name(words, parts, "the replacement", Compression::Forbidden)
        },
        44 => |words, parts| {
            bytes(words, parts, &["the algorithm", "the fingerprint's type"])?;
            hex(words, parts)
        },
        52 => |words, parts| {
            bytes(words, parts, &["the usage", "the selector", "the matching type"])?;
            hex(words, parts)
        },
        64 | 65 => service::binding,
        256 => |words, parts| {
            shorts(words, parts, &["the priority", "the weight"])?;
            push(parts, &words.next("the target")?.octets());
            Ok(())
        },
        257 => |words, parts| {
            bytes(words, parts, &["the flags"])?;
            text_fields(words, parts, &["the property"])?;
            push(parts, &words.next("the value")?.octets());
            Ok(())
        },
        _other => return None,
    };
    Some(parse)
}

fn bytes(words: &mut Words<'_>, parts: &mut Vec<Part>, fields: &[&'static str]) -> Result<(), InvalidRecord> {
    for field in fields {
        let number: u8 = words.next(field)?.number(BYTE)?;
        push(parts, &[number]);
    }
    Ok(())
}

fn start_of_authority(words: &mut Words<'_>, parts: &mut Vec<Part>) -> Result<(), InvalidRecord> {
    name(words, parts, "the first server", Compression::Allowed)?;
    name(words, parts, "the mailbox", Compression::Allowed)?;
    for field in ["the serial", "refresh", "retry", "expire", "the minimum"] {
        let word = words.next(field)?;
        let number = ttl_of(&word.text()).ok_or_else(|| word.is_not(LONG))?;
        push(parts, &number.to_be_bytes());
    }
    Ok(())
}

/// A text of more than 255 octets continues in the next one, as in CoreDNS.
fn texts(words: &mut Words<'_>, parts: &mut Vec<Part>) -> Result<(), InvalidRecord> {
    let first = words.next("a text")?;
    for word in std::iter::once(first).chain(words.rest()) {
        let (mut octets, longest) = (word.octets(), usize::from(u8::MAX));
        while octets.len() > longest {
            let rest = octets.split_off(longest);
            push_text(&word, &octets, parts)?;
            octets = rest;
        }
        push_text(&word, &octets, parts)?;
    }
    Ok(())
}

fn text_fields(
    words: &mut Words<'_>,
    parts: &mut Vec<Part>,
    fields: &[&'static str],
) -> Result<(), InvalidRecord> {
    fields
        .iter()
        .try_for_each(|field| text(&words.next(field)?, parts))
}

fn text(word: &Word<'_>, parts: &mut Vec<Part>) -> Result<(), InvalidRecord> {
    push_text(word, &word.octets(), parts)
}

/// A length octet and a text (RFC 1035 §3.3).
fn push_text(word: &Word<'_>, octets: &[u8], parts: &mut Vec<Part>) -> Result<(), InvalidRecord> {
    let length = u8::try_from(octets.len())
        .map_err(|_error| word.wrong(Reason::TooLong("a text", octets.len(), 255)))?;
    push(parts, &[length]);
    push(parts, octets);
    Ok(())
}

/// Hexadecimal digits, in any number of tokens.
fn hex(words: &mut Words<'_>, parts: &mut Vec<Part>) -> Result<(), InvalidRecord> {
    const WHAT: &str = "an even number of hexadecimal digits";
    let first = words.next(WHAT)?;
    let mut digits = first.raw().to_owned();
    words.rest().for_each(|word| digits.push_str(word.raw()));
    let (pairs, rest) = digits.as_bytes().as_chunks::<2>();
    let octets: Option<Vec<u8>> = pairs
        .iter()
        .map(|pair| {
            let text = std::str::from_utf8(pair)
                .ok()
                .filter(|text| !text.starts_with('+'))?;
            u8::from_str_radix(text, 16).ok()
        })
        .collect();
    let octets = octets
        .filter(|_| rest.is_empty())
        .ok_or_else(|| first.is_not(WHAT))?;
    push(parts, &octets);
    Ok(())
}

/// Data of an unknown type (RFC 3597 §5).
fn generic(words: &mut Words<'_>, parts: &mut Vec<Part>) -> Result<(), InvalidRecord> {
    words.next("\\#")?;
    let length = words.next("the length")?;
    let expected: usize = length.number(SHORT)?;
    if expected > 0 {
        hex(words, parts)?;
    }
    let found: usize = parts
        .iter()
        .map(|part| {
            if let Part::Octets(octets) = part {
                octets.len()
            } else {
                0
            }
        })
        .sum();
    if found == expected {
        Ok(())
    } else {
        Err(length.is_not("the number of octets that follow"))
    }
}
