//! What the kernel says a set is. A listing comes in parts: the first has the set's header, each has some members.

use super::{
    ATTRIBUTE_ADT, ATTRIBUTE_DATA, ATTRIBUTE_FAMILY, ATTRIBUTE_REVISION, ATTRIBUTE_SETNAME,
    ATTRIBUTE_TYPENAME, CREATE_FLAGS, CREATE_HASHSIZE, CREATE_MAXELEM, CREATE_TIMEOUT, Kind, SetEntry,
    WITH_COUNTERS, member,
};
use crate::Family;
use crate::netlink::{Attributes, MalformedMessage, ReplyPart};

/// A set as the kernel holds it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SetListing {
    pub name: String,
    /// `None`: of a type this crate does not handle (`type_name` says which); its members are then all unreadable.
    pub kind: Option<Kind>,
    pub type_name: String,
    pub family: Option<Family>,
    pub revision: u8,
    /// As in [`super::SetSpec::timeout`].
    pub timeout: Option<u32>,
    pub counters: bool,
    pub hashsize: u32,
    pub maxelem: u32,
    /// How many rules and sets refer to it.
    pub references: u32,
    /// In order; a lifetime is what remains of it.
    pub entries: Vec<SetEntry>,
    /// Members this crate could not have written (exceptions, protocols without ports): somebody else's.
    pub unreadable: usize,
}

/// A set without its members.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SetHeader {
    pub name: String,
    /// As in [`SetListing::kind`].
    pub kind: Option<Kind>,
    pub family: Option<Family>,
    /// How many members it holds, without those whose time is over.
    pub elements: u32,
}

const DATA_ELEMENTS: u16 = 24;
const DATA_REFERENCES: u16 = 25;

pub(super) fn short(answer: ReplyPart<'_>) -> Result<Option<SetHeader>, MalformedMessage> {
    let (_, attributes) = answer.split::<4>()?;
    let name = attributes.text(ATTRIBUTE_SETNAME);
    let Some((name, type_name)) = name.zip(attributes.text(ATTRIBUTE_TYPENAME)) else {
        return Ok(None);
    };
    Ok(Some(SetHeader {
        name,
        kind: Kind::from_name(&type_name),
        family: attributes.byte(ATTRIBUTE_FAMILY).and_then(Family::from_number),
        elements: attributes.nest(ATTRIBUTE_DATA)?.be32(DATA_ELEMENTS).unwrap_or(0),
    }))
}

/// One message of a listing: the header, if it is the first, and members; one that cannot be read is `None`.
pub(super) struct ListingPart {
    header: Option<SetListing>,
    members: Vec<Option<SetEntry>>,
}

pub(super) fn part(answer: ReplyPart<'_>) -> Result<ListingPart, MalformedMessage> {
    let (_, attributes) = answer.split::<4>()?;
    let header = attributes
        .text(ATTRIBUTE_TYPENAME)
        .map(|type_name| header(type_name, &attributes))
        .transpose()?;
    let members = attributes.nest(ATTRIBUTE_ADT)?;
    let members = members
        .iter()
        .map(|(_, data)| Ok(member::decode(&Attributes::parse(data)?)));
    Ok(ListingPart {
        header,
        members: members.collect::<Result<_, _>>()?,
    })
}

fn header(type_name: String, attributes: &Attributes<'_>) -> Result<SetListing, MalformedMessage> {
    let header = attributes.nest(ATTRIBUTE_DATA)?;
    Ok(SetListing {
        name: String::new(),
        kind: Kind::from_name(&type_name),
        type_name,
        family: attributes.byte(ATTRIBUTE_FAMILY).and_then(Family::from_number),
        revision: attributes.byte(ATTRIBUTE_REVISION).unwrap_or(0),
        timeout: header.be32(CREATE_TIMEOUT),
        counters: header
            .be32(CREATE_FLAGS)
            .is_some_and(|flags| flags & WITH_COUNTERS != 0),
        hashsize: header.be32(CREATE_HASHSIZE).unwrap_or(0),
        maxelem: header.be32(CREATE_MAXELEM).unwrap_or(0),
        references: header.be32(DATA_REFERENCES).unwrap_or(0),
        entries: Vec::new(),
        unreadable: 0,
    })
}

/// The parts of one set as one; `None` when none of them says what the set is.
pub(super) fn join(name: &str, mut parts: Vec<ListingPart>) -> Option<SetListing> {
    let whole = parts.iter_mut().find_map(|part| part.header.take())?;
    let members: Vec<_> = parts.into_iter().flat_map(|part| part.members).collect();
    let count = members.len();
    let fits = |entry: &SetEntry| Some(entry.member.kind()) == whole.kind;
    let entries: Vec<_> = members.into_iter().flatten().filter(fits).collect();
    let unreadable = count - entries.len();
    Some(SetListing {
        name: name.to_owned(),
        unreadable,
        entries: member::folded(entries),
        ..whole
    })
}
