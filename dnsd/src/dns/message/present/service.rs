//! Service bindings in presentation format (RFC 9460 §2.1, appendix A): `1 . alpn=h2,h3 ipv4hint=192.0.2.1`.

use std::net::{Ipv4Addr, Ipv6Addr};

use super::fields::{name, push, shorts};
use super::words::{Word, Words};
use super::{InvalidRecord, Reason};
use crate::dns::message::record::{Compression, Part};

const KEY: &str =
    "mandatory, alpn, no-default-alpn, port, ipv4hint, ech, ipv6hint, dohpath, ohttp or keyNUMBER, each once";
const NAMES: [(&str, u16); 9] = [
    ("mandatory", 0),
    ("alpn", 1),
    ("no-default-alpn", 2),
    ("port", 3),
    ("ipv4hint", 4),
    ("ech", 5),
    ("ipv6hint", 6),
    ("dohpath", 7),
    ("ohttp", 8),
];

pub(super) fn binding(words: &mut Words<'_>, parts: &mut Vec<Part>) -> Result<(), InvalidRecord> {
    shorts(words, parts, &["the priority"])?;
    name(words, parts, "the target", Compression::Forbidden)?;
    let mut parameters: Vec<(u16, Vec<u8>)> = Vec::new();
    for word in words.rest() {
        let octets = word.octets();
        let (key, value) = match octets.iter().position(|octet| *octet == b'=') {
            Some(at) => (&octets[..at], Some(unquoted(&octets[at + 1..]))),
            None => (&octets[..], None),
        };
        let key = key_of(key)
            .filter(|key| parameters.iter().all(|(known, _)| known != key))
            .ok_or_else(|| word.is_not(KEY))?;
        parameters.push((key, value_of(key, value, &word)?));
    }
    // On the wire they are in the order of their keys (RFC 9460 §2.2).
    parameters.sort();
    for (key, value) in parameters {
        let length = u16::try_from(value.len()).unwrap_or(u16::MAX);
        push(parts, &[key.to_be_bytes(), length.to_be_bytes()].concat());
        push(parts, &value);
    }
    Ok(())
}

fn unquoted(value: &[u8]) -> &[u8] {
    value
        .strip_prefix(b"\"")
        .and_then(|value| value.strip_suffix(b"\""))
        .unwrap_or(value)
}

fn key_of(octets: &[u8]) -> Option<u16> {
    let text = std::str::from_utf8(octets).ok()?.to_ascii_lowercase();
    let known = NAMES.iter().find(|(name, _)| *name == text).map(|(_, key)| *key);
    known.or_else(|| text.strip_prefix("key")?.parse().ok())
}

fn value_of(key: u16, value: Option<&[u8]>, word: &Word<'_>) -> Result<Vec<u8>, InvalidRecord> {
    let Some(value) = value else {
        let may_be_empty = matches!(key, 2 | 8 | 9..);
        return may_be_empty
            .then(Vec::new)
            .ok_or_else(|| word.is_not("a parameter with a value"));
    };
    if value.len() > usize::from(u16::MAX) {
        return Err(word.wrong(Reason::TooLong("a value", value.len(), usize::from(u16::MAX))));
    }
    let text = || std::str::from_utf8(value).ok();
    let items = || text().into_iter().flat_map(|text| text.split(','));
    let (found, what) = match key {
        0 => (keys(items()), "mandatory=KEY[,KEY…]"),
        1 => (protocols(value), "alpn=ID[,ID…], each of 1 to 255 octets"),
        2 | 8 => (value.is_empty().then(Vec::new), "a parameter without a value"),
        3 => (
            text().and_then(|text| Some(text.parse::<u16>().ok()?.to_be_bytes().to_vec())),
            "port=0 to 65535",
        ),
        4 => (
            items()
                .map(|item| Some(item.parse::<Ipv4Addr>().ok()?.octets().to_vec()))
                .collect::<Option<Vec<_>>>()
                .map(|all| all.concat()),
            "ipv4hint=ADDRESS[,ADDRESS…]",
        ),
        5 => (base64(value), "ech=BASE64"),
        6 => (
            items()
                .map(|item| Some(item.parse::<Ipv6Addr>().ok()?.octets().to_vec()))
                .collect::<Option<Vec<_>>>()
                .map(|all| all.concat()),
            "ipv6hint=ADDRESS[,ADDRESS…]",
        ),
        _other => (Some(value.to_vec()), "octets"),
    };
    found.ok_or_else(|| word.is_not(what))
}

fn keys<'a>(items: impl Iterator<Item = &'a str>) -> Option<Vec<u8>> {
    let mut keys = items
        .map(|item| key_of(item.as_bytes()))
        .collect::<Option<Vec<u16>>>()?;
    keys.sort_unstable();
    Some(keys.into_iter().flat_map(u16::to_be_bytes).collect())
}

fn protocols(value: &[u8]) -> Option<Vec<u8>> {
    let mut octets = Vec::with_capacity(value.len() + 1);
    for protocol in value.split(|octet| *octet == b',') {
        octets.push(u8::try_from(protocol.len()).ok().filter(|length| *length > 0)?);
        octets.extend_from_slice(protocol);
    }
    Some(octets)
}

/// Decodes base64 (RFC 4648 §4).
fn base64(value: &[u8]) -> Option<Vec<u8>> {
    let digits = value
        .strip_suffix(b"==")
        .or_else(|| value.strip_suffix(b"="))
        .unwrap_or(value);
    if value.is_empty() || !value.len().is_multiple_of(4) {
        return None;
    }
    let mut octets = Vec::with_capacity(value.len());
    let (mut bits, mut count) = (0_u32, 0);
    for digit in digits {
        let six = match digit {
            b'A'..=b'Z' => digit - b'A',
            b'a'..=b'z' => digit - b'a' + 26,
            b'0'..=b'9' => digit - b'0' + 52,
            b'+' => 62,
            b'/' => 63,
            _other => return None,
        };
        bits = bits << 6 | u32::from(six);
        count += 6;
        if count >= 8 {
            count -= 8;
            octets.push((bits >> count & 0xff) as u8);
        }
    }
    Some(octets)
}
