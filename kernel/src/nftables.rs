//! Native tables of nf_tables: rules of statements, sets and verdict maps, changed in transactions. And what others do to the tables of `nf_tables`, as the kernel tells it, and who they are.
//!
//! Everything in a transaction is told, and behind it the generation that it made, with the process that made it
//! (`nf_tables_commit` of net/netfilter/nf_tables_api.c). Ours are the ports of the sockets by which this process writes, and of the
//! programs that it starts for that, whose port is their process id as seen from their own namespace (`netlink_autobind`).

use crate::child_processes;
use crate::netlink::{Error, ReplyPart, Request, Socket};
use nix::sys::socket::SockProtocol;
use std::os::fd::{AsFd, BorrowedFd};

mod changes;
mod listing;
mod set;
mod statement;

pub use changes::{
    BaseChain, Changes, CommitError, ElementsOf, NamedCounter, NfHook, NftRule, Object, Refusal, TableFamily,
    TableName, TableWriter, is_missing,
};
pub use listing::{ListedChain, NftListing, TableReader};
pub use set::{
    Element, ElementKey, ElementValue, ListedElement, ListedSet, PartElement, SetKind, SetSpec, listed_keys,
};
pub use statement::{ConnState, Key, Letters, Statement, Verdict};

use crate::Family;

/// A change of a table that others may have made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TableChange {
    /// None of a table of both families.
    pub family: Option<Family>,
    pub table: String,
    /// The chain that came or went, or whose rules did; none where the table itself went.
    pub chain: Option<String>,
    /// A set, or what it holds, changed: no chain and no table.
    pub is_of_set: bool,
}

/// Who made a change.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ChangeAuthor {
    /// As the first namespace of the system counts processes.
    pub process: u32,
    /// The name of its program, up to 15 letters of it.
    pub name: String,
}

/// The changes of one read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TableChanges {
    /// Who changed what one is concerned about, in order; neither this process nor its children.
    pub authors: Vec<ChangeAuthor>,
    /// Some was lost: anybody may have changed anything.
    pub overrun: bool,
}

impl TableChanges {
    pub fn is_empty(&self) -> bool {
        self.authors.is_empty() && !self.overrun
    }
}

/// Hears of changes; its file descriptor is readable when there is news.
#[derive(Debug)]
pub struct TableMonitor {
    socket: Socket,
    /// Something that one is concerned about is in the transaction that is being told.
    is_concerned: bool,
}

pub(crate) const SUBSYSTEM: u8 = 10;
const DELETE_TABLE: u8 = 2;
pub(crate) const NEW_CHAIN: u8 = 3;
const GET_CHAIN: u8 = 4;
pub(crate) const DELETE_CHAIN: u8 = 5;
pub(crate) const NEW_RULE: u8 = 6;
pub(crate) const DELETE_RULE: u8 = 8;
const DELETE_SET: u8 = 11;
const NEW_ELEMENT: u8 = 12;
const DELETE_ELEMENT: u8 = 14;
const NEW_GENERATION: u8 = 15;
/// `NFT_OBJECT_COUNTER`.
const COUNTER: u32 = 1;

/// The table's name is the first attribute of tables, chains and rules alike.
pub(crate) const ATTRIBUTE_TABLE: u16 = 1;
pub(crate) const ATTRIBUTE_RULE_CHAIN: u16 = 2;
pub(crate) const ATTRIBUTE_CHAIN_NAME: u16 = 3;
const ATTRIBUTE_PROCESS: u16 = 2;
const ATTRIBUTE_PROGRAM: u16 = 3;

impl TableMonitor {
    /// Hears from now on. What this process changes by writers that it has by now does not even wake who waits for news.
    pub fn open() -> Result<Self, Error> {
        /// `NFNLGRP_NFTABLES`, the seventh group, as a bit.
        const GROUP: u32 = 1 << 6;
        /// A transaction of some thousand rules.
        const ROOM: usize = 4 << 20;
        let socket = Socket::listen(SockProtocol::NetlinkNetFilter, GROUP)?;
        socket.widen(ROOM)?;
        // A thousand answers a second are as many transactions. Where it takes no filter, they are told apart when they are read.
        drop(socket.pass_over(&child_processes::sockets()));
        Ok(Self {
            socket,
            is_concerned: false,
        })
    }

    /// Takes all news that wait, without waiting for any: those in which something is concerned.
    pub fn drain(&mut self, concerns: impl Fn(&TableChange) -> bool) -> Result<TableChanges, Error> {
        let Self { socket, is_concerned } = self;
        let mut authors = Vec::new();
        let overrun = socket.hear(usize::MAX, |notice| match read(notice) {
            Some(Notification::Change(change)) => *is_concerned |= concerns(&change),
            Some(Notification::End { port, author }) => {
                let is_news = std::mem::take(is_concerned) && !child_processes::is_child(port);
                authors.extend(is_news.then_some(author));
            }
            None => {}
        })?;
        Ok(TableChanges { authors, overrun })
    }
}

impl AsFd for TableMonitor {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Whether a table has one of these chains. Makes nothing.
pub fn has_any_chain(family: Family, table: &str, chains: &[&str]) -> Result<bool, Error> {
    let mut socket = Socket::open(SockProtocol::NetlinkNetFilter)?;
    for chain in chains {
        if has_chain(&mut socket, family, table, chain)? {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Whether a table has this chain.
pub(crate) fn has_chain(
    socket: &mut Socket,
    family: Family,
    table: &str,
    chain: &str,
) -> Result<bool, Error> {
    let request = Request::netfilter("a chain", SUBSYSTEM, GET_CHAIN, 0, family.number())
        .text(ATTRIBUTE_TABLE, table)
        .text(ATTRIBUTE_CHAIN_NAME, chain);
    match socket.ask(&request, |_| Ok(Some(()))) {
        Ok(found) => Ok(!found.is_empty()),
        Err(error) if error.refusal_code() == Some(nix::libc::ENOENT) => Ok(false),
        Err(error) => Err(error),
    }
}

enum Notification {
    Change(TableChange),
    End { port: u32, author: ChangeAuthor },
}

/// A remark as nft reads it: kind, length, text with a NUL.
fn comment(kind: u8, text: &str) -> Vec<u8> {
    const MOST: usize = 254;
    let mut end = text.len().min(MOST - 1);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    let text = &text.as_bytes()[..end];
    let length = u8::try_from(text.len() + 1).expect("it was cut");
    [&[kind, length], text, &[0]].concat()
}

fn read(notice: ReplyPart<'_>) -> Option<Notification> {
    let [subsystem, command] = notice.kind.to_be_bytes();
    if subsystem != SUBSYSTEM {
        return None;
    }
    let of = |name| change(notice, name).map(Notification::Change);
    match command {
        DELETE_TABLE => of(None),
        NEW_CHAIN | DELETE_CHAIN => of(Some(ATTRIBUTE_CHAIN_NAME)),
        NEW_RULE | DELETE_RULE => of(Some(ATTRIBUTE_RULE_CHAIN)),
        NEW_ELEMENT | DELETE_ELEMENT | DELETE_SET => {
            let change = change(notice, None)?;
            Some(Notification::Change(TableChange {
                is_of_set: true,
                ..change
            }))
        }
        NEW_GENERATION => author(notice).map(|author| Notification::End {
            port: notice.port,
            author,
        }),
        _ => None,
    }
}

fn change(answer: ReplyPart<'_>, chain: Option<u16>) -> Option<TableChange> {
    let ([family, ..], attributes) = answer.split::<4>().ok()?;
    Some(TableChange {
        family: Family::from_number(*family),
        table: attributes.text(ATTRIBUTE_TABLE)?,
        chain: chain.and_then(|name| attributes.text(name)),
        is_of_set: false,
    })
}

fn author(answer: ReplyPart<'_>) -> Option<ChangeAuthor> {
    let (_, attributes) = answer.split::<4>().ok()?;
    Some(ChangeAuthor {
        process: attributes.be32(ATTRIBUTE_PROCESS).unwrap_or(0),
        name: attributes.text(ATTRIBUTE_PROGRAM).unwrap_or_default(),
    })
}
