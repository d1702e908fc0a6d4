//! Fields that several types share, from tokens to octets.

use super::InvalidRecord;
use super::words::Words;
use crate::dns::message::record::{Compression, Part};

pub(super) const SHORT: &str = "a number from 0 to 65535";

pub(super) fn push(parts: &mut Vec<Part>, octets: &[u8]) {
    parts.push(Part::Octets(octets.to_vec()));
}

pub(super) fn name(
    words: &mut Words<'_>,
    parts: &mut Vec<Part>,
    what: &'static str,
    compression: Compression,
) -> Result<(), InvalidRecord> {
    parts.push(Part::Name(Box::new(words.name(what)?), compression));
    Ok(())
}

pub(super) fn shorts(
    words: &mut Words<'_>,
    parts: &mut Vec<Part>,
    fields: &[&'static str],
) -> Result<(), InvalidRecord> {
    for field in fields {
        let number: u16 = words.next(field)?.number(SHORT)?;
        push(parts, &number.to_be_bytes());
    }
    Ok(())
}
