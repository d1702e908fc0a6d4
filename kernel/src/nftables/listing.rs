//! What the kernel holds in a table.

use std::collections::BTreeMap;

use nix::sys::socket::SockProtocol;

use crate::netlink::{Attributes, DUMP, Error, MalformedMessage, Request, Socket};

use super::changes::{NamedCounter, TableFamily, TableName, is_missing};
use super::set::{ListedElement, ListedSet, listed};
use super::{ATTRIBUTE_CHAIN_NAME, ATTRIBUTE_RULE_CHAIN, ATTRIBUTE_TABLE, COUNTER, GET_CHAIN, SUBSYSTEM};

const GET_TABLE: u8 = 1;
const GET_RULE: u8 = 7;
const GET_SET: u8 = 10;
const GET_ELEMENT: u8 = 13;
const GET_OBJECT: u8 = 19;

/// A table as the kernel lists it, without the elements of its sets.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NftListing {
    pub chains: BTreeMap<String, ListedChain>,
    pub sets: BTreeMap<String, ListedSet>,
}

/// A chain with the comments of its rules.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ListedChain {
    /// Whether the kernel calls it.
    pub is_base: bool,
    pub rules: Vec<String>,
}

/// Lists tables: a socket in the network namespace of the thread that opened it.
#[derive(Debug)]
pub struct TableReader {
    socket: Socket,
}

impl TableReader {
    pub fn open() -> Result<Self, Error> {
        Socket::open(SockProtocol::NetlinkNetFilter).map(|socket| Self { socket })
    }

    /// Whether the table is there.
    pub fn has(&mut self, table: TableName) -> Result<bool, Error> {
        let request = ask("a table", GET_TABLE, 0, table.family).text(ATTRIBUTE_TABLE, table.name);
        match self.socket.ask(&request, |_| Ok(Some(()))) {
            Ok(found) => Ok(!found.is_empty()),
            Err(error) if is_missing(&error) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// The table; none where it is not there.
    pub fn list(&mut self, table: TableName) -> Result<Option<NftListing>, Error> {
        if !self.has(table)? {
            return Ok(None);
        }
        let mut listing = NftListing::default();
        // Dumps of chains cannot be asked for one table.
        let chains = ask("chains", GET_CHAIN, DUMP, table.family);
        let chains = self.socket.ask(&chains, |part| {
            let (_, attributes) = part.split::<4>()?;
            let is_here = attributes.text(ATTRIBUTE_TABLE).as_deref() == Some(table.name);
            let name = attributes.text(ATTRIBUTE_CHAIN_NAME).filter(|_| is_here);
            Ok(name.map(|name| (name, attributes.get(4).is_some())))
        })?;
        for (name, is_base) in chains {
            let rules = Vec::new();
            listing.chains.insert(name, ListedChain { is_base, rules });
        }
        let rules = ask("rules", GET_RULE, DUMP, table.family).text(ATTRIBUTE_TABLE, table.name);
        let rules = self.socket.ask(&rules, |part| {
            let (_, attributes) = part.split::<4>()?;
            let chain = attributes.text(ATTRIBUTE_RULE_CHAIN);
            Ok(chain.map(|chain| (chain, comment(&attributes, 7, 0))))
        })?;
        for (chain, comment) in rules {
            listing.chains.entry(chain).or_default().rules.push(comment);
        }
        let sets = ask("sets", GET_SET, DUMP, table.family).text(ATTRIBUTE_TABLE, table.name);
        let sets = self.socket.ask(&sets, |part| {
            let (_, attributes) = part.split::<4>()?;
            let set = ListedSet {
                flags: attributes.be32(3).unwrap_or(0),
                key_octets: attributes.be32(5).unwrap_or(0),
            };
            Ok(attributes.text(2).map(|name| (name, set)))
        })?;
        listing.sets.extend(sets);
        Ok(Some(listing))
    }

    /// The elements of a set.
    pub fn elements(&mut self, table: TableName, set: &str) -> Result<Vec<ListedElement>, Error> {
        let request = ask("members of a set", GET_ELEMENT, DUMP, table.family)
            .text(ATTRIBUTE_TABLE, table.name)
            .text(2, set);
        let parts = self.socket.ask(&request, |part| {
            let (_, attributes) = part.split::<4>()?;
            listed(&attributes).map(Some)
        })?;
        Ok(parts.into_iter().flatten().collect())
    }

    /// What a counter of this name counted; none where it is not there.
    pub fn counter(&mut self, table: TableName, name: &str) -> Result<Option<u64>, Error> {
        let request = ask("a counter", GET_OBJECT, 0, table.family)
            .text(ATTRIBUTE_TABLE, table.name)
            .text(2, name)
            .plain_be32(3, COUNTER);
        let found = self.socket.ask(&request, |part| {
            let (_, attributes) = part.split::<4>()?;
            counter(&attributes, table)
        });
        match found {
            Ok(found) => Ok(found.first().map(|counter| counter.packets)),
            Err(error) if is_missing(&error) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The counters with names; none where the table is not there.
    pub fn counters(&mut self, table: TableName) -> Result<Vec<NamedCounter>, Error> {
        let request = ask("counters", GET_OBJECT, DUMP, table.family)
            .text(ATTRIBUTE_TABLE, table.name)
            .plain_be32(3, COUNTER);
        self.socket.ask(&request, |part| {
            let (_, attributes) = part.split::<4>()?;
            counter(&attributes, table)
        })
    }
}

fn counter(attributes: &Attributes<'_>, table: TableName) -> Result<Option<NamedCounter>, MalformedMessage> {
    let is_here = attributes.text(ATTRIBUTE_TABLE).as_deref() == Some(table.name);
    let packets = attributes
        .nest(4)?
        .get(2)
        .and_then(|octets| octets.first_chunk().copied());
    let named = attributes.text(2).zip(packets).filter(|_| is_here);
    Ok(named.map(|(name, packets)| NamedCounter {
        name,
        comment: comment(attributes, 8, 0),
        packets: u64::from_be_bytes(packets),
    }))
}

fn ask(asked: &'static str, command: u8, flags: u16, family: TableFamily) -> Request {
    Request::netfilter(asked, SUBSYSTEM, command, flags, family.number())
}

/// The remark of this kind in user data; empty where there is none.
fn comment(attributes: &Attributes<'_>, attribute: u16, kind: u8) -> String {
    let mut rest = attributes.get(attribute).unwrap_or_default();
    while let [found, length, behind @ ..] = rest {
        let Some((value, next)) = behind.split_at_checked(usize::from(*length)) else {
            break;
        };
        if *found == kind {
            let text = value.strip_suffix(&[0]).unwrap_or(value);
            return String::from_utf8_lossy(text).into_owned();
        }
        rest = next;
    }
    String::new()
}
