//! Records that dnsd decodes and encodes: its own, and those of answers that a rule changes.
//!
//! Relayed records are not decoded. Names in the data are decoded for the types that may be compressed (RFC 3597 §4),
//! so that the record can be moved to another message. Other data is opaque.

use super::malformed::Malformed;
use super::name::WireName;
use super::read::{Message, Record, Section};

/// A record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResourceRecord {
    /// The owner.
    pub owner: WireName,
    /// The type.
    pub kind: u16,
    /// The class.
    pub class: u16,
    /// The TTL in seconds.
    pub ttl: u32,
    /// The data.
    pub data: Data,
}

/// The data of a record: octets and names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Data(pub(super) Vec<Part>);

/// A part of a record's data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Part {
    Octets(Vec<u8>),
    /// A name; compressible in the types of RFC 1035 (RFC 3597 §4).
    Name(Box<WireName>, Compression),
}

/// Whether a name may be compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Compression {
    Allowed,
    Forbidden,
}

impl Data {
    /// Octets.
    #[must_use]
    pub fn octets(octets: &[u8]) -> Self {
        Self(vec![Part::Octets(octets.to_vec())])
    }

    /// A name, of a type of RFC 1035 (NS, CNAME, PTR).
    #[must_use]
    pub fn name(name: WireName) -> Self {
        Self(vec![Part::Name(Box::new(name), Compression::Allowed)])
    }

    /// Octets, then a name that is not compressed (SRV).
    #[must_use]
    pub fn octets_and_name(octets: &[u8], name: WireName) -> Self {
        Self(vec![
            Part::Octets(octets.to_vec()),
            Part::Name(Box::new(name), Compression::Forbidden),
        ])
    }

    /// The first name in it.
    #[must_use]
    pub fn first_name(&self) -> Option<&WireName> {
        self.0.iter().find_map(|part| match part {
            Part::Name(name, _) => Some(&**name),
            Part::Octets(_) => None,
        })
    }

    /// The first name in it, mutable.
    pub fn first_name_mut(&mut self) -> Option<&mut WireName> {
        self.0.iter_mut().find_map(|part| match part {
            Part::Name(name, _) => Some(&mut **name),
            Part::Octets(_) => None,
        })
    }

    /// The octets, if there is no name in the data.
    #[must_use]
    pub fn as_octets(&self) -> Option<&[u8]> {
        match self.0.as_slice() {
            [Part::Octets(octets)] => Some(octets),
            _other => None,
        }
    }
}

/// The records of a response, by section.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sections {
    /// Answer.
    pub answer: Vec<ResourceRecord>,
    /// Authority.
    pub authority: Vec<ResourceRecord>,
    /// Additional, without the OPT.
    pub additional: Vec<ResourceRecord>,
}

impl Sections {
    /// Decodes the records of a message.
    ///
    /// # Errors
    /// When a record cannot be read.
    pub fn read(message: &Message<'_>) -> Result<Self, Malformed> {
        let mut sections = Self::default();
        for record in message.records() {
            let record = record?;
            if record.kind == super::kind::OPT {
                continue;
            }
            let section = match record.section {
                Section::Answer => &mut sections.answer,
                Section::Authority => &mut sections.authority,
                Section::Additional => &mut sections.additional,
            };
            section.push(ResourceRecord::read(message.octets(), &record)?);
        }
        Ok(sections)
    }

    /// All records.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut ResourceRecord> {
        let Self {
            answer,
            authority,
            additional,
        } = self;
        answer.iter_mut().chain(authority).chain(additional)
    }
}

/// A field of a type with names in its data.
#[derive(Clone, Copy)]
enum Field {
    Octets(usize),
    /// A length octet and as many octets.
    Text,
    Name(Compression),
}

/// The fields of the types that may contain compressed names (RFC 3597 §4). Names of the later types are decompressed
/// when read and not compressed when written.
const fn fields(kind: u16) -> &'static [Field] {
    use Compression::{Allowed, Forbidden};
    const NAME: Field = Field::Name(Allowed);
    const PLAIN: Field = Field::Name(Forbidden);
    match kind {
        // NS, MD, MF, CNAME, MB, MG, MR, PTR
        2..=5 | 7..=9 | 12 => &[NAME],
        // SOA
        6 => &[NAME, NAME],
        // MINFO
        14 => &[NAME, NAME],
        // MX
        15 => &[Field::Octets(2), NAME],
        // RP
        17 => &[PLAIN, PLAIN],
        // AFSDB, RT, KX
        18 | 21 | 36 => &[Field::Octets(2), PLAIN],
        // PX
        26 => &[Field::Octets(2), PLAIN, PLAIN],
        // SRV
        33 => &[Field::Octets(6), PLAIN],
        // NAPTR
        35 => &[Field::Octets(4), Field::Text, Field::Text, Field::Text, PLAIN],
        // DNAME
        39 => &[PLAIN],
        _other => &[],
    }
}

impl ResourceRecord {
    /// Decodes the data of a record.
    ///
    /// # Errors
    /// When a name cannot be read, or the data ends inside a field.
    pub fn read(message: &[u8], record: &Record) -> Result<Self, Malformed> {
        let end = record.data.end;
        let (mut at, mut parts) = (record.data.start, Vec::new());
        for field in fields(record.kind) {
            let after = match field {
                Field::Octets(length) => at + length,
                Field::Text => at + 1 + usize::from(*message.get(at).ok_or(Malformed::Cut(at))?),
                Field::Name(compression) => {
                    let (name, after) = WireName::read(message, at)?;
                    parts.push(Part::Name(Box::new(name), *compression));
                    after
                }
            };
            if after > end {
                return Err(Malformed::Cut(at));
            }
            if !matches!(field, Field::Name(_)) {
                parts.push(Part::Octets(message[at..after].to_vec()));
            }
            at = after;
        }
        if at < end || parts.is_empty() {
            parts.push(Part::Octets(message[at..end].to_vec()));
        }
        Ok(Self {
            owner: record.owner(message)?,
            kind: record.kind,
            class: record.class,
            ttl: record.ttl(message).seconds(),
            data: Data(parts),
        })
    }
}
