//! Records in presentation format (RFC 1035 §5.1): `owner [ttl] [class] type data`.
//!
//! There is no origin: names are absolute with or without the last dot. The default TTL is 3600 s. Data of an unknown
//! type is written as `\# 4 c0000201` (RFC 3597 §5).

mod data;
mod service;
mod fields;
mod words;

use super::name::{InvalidText, WireName};
use super::record::ResourceRecord;
use super::{CLASS_IN, CLASSES, TYPES};

use words::{Word, Words};

pub(crate) use data::is_known;

/// CoreDNS' default.
const DEFAULT_TTL: u32 = 3600;

/// Why a text is not a record.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{reason}")]
pub struct InvalidRecord {
    /// The offset of the error in the text, from 0.
    pub at: usize,
    /// What is wrong, and what is accepted.
    pub reason: Reason,
}

/// What is wrong.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Reason {
    /// The text ends before this field.
    #[error("the record ends where {0} is expected")]
    Ends(&'static str),
    /// Text after the last field.
    #[error("{0:?} stands behind the end of the record")]
    Rest(String),
    /// An open quote or parenthesis.
    #[error("{0} is not closed")]
    Open(&'static str),
    /// Not a name.
    #[error("{0:?} is no name: {1}")]
    Name(String, InvalidText),
    /// Not a type.
    #[error("{0:?} is no type of records that can be written here; {1}")]
    Type(String, &'static str),
    /// Not a value of this field.
    #[error("{0:?} is not {1}")]
    Not(String, &'static str),
    /// Too long for its field.
    #[error("{0} has {1} octets; at most {2} are accepted")]
    TooLong(&'static str, usize, usize),
}

/// The types that are accepted.
pub(crate) const ACCEPTED_TYPES: &str = "A, AAAA, CNAME, DNAME, NS, PTR, MX, SRV, SOA, TXT, SPF, HINFO, RP, AFSDB, CAA, URI, \
     NAPTR, SVCB, HTTPS, TLSA and SSHFP are, and any other type with its data as octets (\\# LENGTH HEX)";

/// Reads a record.
///
/// # Errors
/// What is wrong with it, and where.
pub fn parse_record(text: &str) -> Result<ResourceRecord, InvalidRecord> {
    let mut words = Words::new(text)?;
    let owner = words.name("the owner")?;
    let (mut ttl, mut class) = (DEFAULT_TTL, CLASS_IN);
    let kind = loop {
        let word = words.next("the type")?;
        let text = word.text();
        if let Some(seconds) = ttl_of(&text) {
            ttl = seconds;
        } else if let Some(number) = CLASSES.number(&text).filter(|_| !is_type(&text)) {
            class = number;
        } else {
            break type_of(&word)?;
        }
    };
    let data = data::parse(kind, &mut words)?;
    words.end()?;
    Ok(ResourceRecord {
        owner,
        kind,
        class,
        ttl,
        data,
    })
}

/// The number of a type's name, `TYPE257` included (RFC 3597 §5).
pub(crate) fn type_number(text: &str) -> Option<u16> {
    let generic = || {
        let (word, number) = text.split_at_checked(4)?;
        number.parse().ok().filter(|_| word.eq_ignore_ascii_case("TYPE"))
    };
    TYPES.number(text).or_else(generic)
}

fn is_type(text: &str) -> bool {
    type_number(text).is_some_and(|kind| kind != super::kind::ANY)
}

fn type_of(word: &Word<'_>) -> Result<u16, InvalidRecord> {
    let text = word.text();
    type_number(&text).ok_or_else(|| word.wrong(Reason::Type(text, ACCEPTED_TYPES)))
}

/// A TTL in seconds, or a span such as `1h30m`.
pub(crate) fn ttl_of(text: &str) -> Option<u32> {
    let (mut total, mut number) = (0_u32, None);
    for octet in text.bytes() {
        if octet.is_ascii_digit() {
            let digit = u32::from(octet - b'0');
            number = Some(number.unwrap_or(0_u32).checked_mul(10)?.checked_add(digit)?);
            continue;
        }
        let unit = match octet.to_ascii_lowercase() {
            b's' => 1,
            b'm' => 60,
            b'h' => 3_600,
            b'd' => 86_400,
            b'w' => 604_800,
            _other => return None,
        };
        total = total.checked_add(number.take()?.checked_mul(unit)?)?;
    }
    match number {
        Some(seconds) => total.checked_add(seconds),
        None => (!text.is_empty()).then_some(total),
    }
}

impl Words<'_> {
    fn name(&mut self, what: &'static str) -> Result<WireName, InvalidRecord> {
        let word = self.next(what)?;
        WireName::parse(word.raw()).map_err(|error| word.wrong(Reason::Name(word.raw().to_owned(), error)))
    }
}
