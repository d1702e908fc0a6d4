//! What the kernel says a set is. A listing comes in parts: the first has the set's header, each has some members.

use super::{
    ATTRIBUTE_ADT, ATTRIBUTE_DATA, ATTRIBUTE_FAMILY, ATTRIBUTE_REVISION, ATTRIBUTE_TYPENAME, CREATE_FLAGS,
    CREATE_HASHSIZE, CREATE_MAXELEM, CREATE_TIMEOUT, Entry, Kind, WITH_COUNTERS, member,
};
use crate::Family;
use crate::netlink::{Answer, Malformed};

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
    pub entries: Vec<Entry>,
    /// Members this crate could not have written (exceptions, protocols without ports): somebody else's.
    pub unreadable: usize,
}

const DATA_REFERENCES: u16 = 25;

/// One message of a listing, by itself.
pub(super) fn part(answer: Answer<'_>) -> Result<SetListing, Malformed> {
    let (_, attributes) = answer.split::<4>()?;
    let type_name = attributes
        .text(ATTRIBUTE_TYPENAME)
        .ok_or(Malformed("a set without a type"))?;
    let header = attributes.nest(ATTRIBUTE_DATA)?;
    let mut listing = SetListing {
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
    };
    for (_, data) in attributes.nest(ATTRIBUTE_ADT)?.iter() {
        let data = crate::netlink::Attributes::parse(data)?;
        match listing.kind.and_then(|kind| member::decode(kind, &data)) {
            Some(entry) => listing.entries.push(entry),
            None => listing.unreadable += 1,
        }
    }
    Ok(listing)
}

/// The parts of one set as one; `None` when there are none.
pub(super) fn join(name: &str, parts: Vec<SetListing>) -> Option<SetListing> {
    let mut parts = parts.into_iter();
    let mut whole = parts.next()?;
    whole.name = name.to_owned();
    for part in parts {
        whole.entries.extend(part.entries);
        whole.unreadable += part.unreadable;
    }
    whole.entries = member::folded(whole.entries);
    Some(whole)
}
