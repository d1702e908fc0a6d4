//! Sets of addresses in the kernel, by hand-written nfnetlink: one element takes about 2 µs, where starting the
//! `ipset` program takes a millisecond.
//!
//! What must not happen, and how the types see to it: a member's timeout of 0 means "for ever", so a lifetime is
//! a `NonZeroU32` and the absence of one is said with `None`; `DESTROY` and `FLUSH` without a name act on *every*
//! set of the namespace, so a name is checked before it is sent; a `hash:net` cannot hold `/0`, so it is written as
//! its two halves and read back as one (see [`Member::Net`]); the same of `hash:net,port`.
//!
//! Requests and attributes are those of `linux/netfilter/ipset/ip_set.h`.

mod member;
mod listing;
mod error;

pub use error::{Command, Error, Reason};
pub use listing::{SetHeader, SetListing};
pub use member::{MAX_TIMEOUT, Member, SetEntry};

use crate::Family;
use crate::fault_points::{self, Step};
use crate::netlink::{self, Request, Socket};
use crate::rcu;
use nix::sys::socket::SockProtocol;
use std::borrow::Cow;
use std::collections::BTreeMap;

/// What kind of members a set has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Kind {
    /// `hash:ip`: single addresses.
    HashIp,
    /// `hash:net`: prefixes of any length.
    HashNet,
    /// `hash:ip,port`: an address with a protocol and a port.
    HashIpPort,
    /// `hash:net,port`: a prefix with a protocol and a port.
    HashNetPort,
}

impl Kind {
    pub const ALL: [Self; 4] = [Self::HashIp, Self::HashNet, Self::HashIpPort, Self::HashNetPort];

    pub fn name(self) -> &'static str {
        match self {
            Self::HashIp => "hash:ip",
            Self::HashNet => "hash:net",
            Self::HashIpPort => "hash:ip,port",
            Self::HashNetPort => "hash:net,port",
        }
    }

    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }

    /// The newest type revision whose attributes this module knows; newer kernels still speak it.
    fn newest_known_revision(self) -> u8 {
        match self {
            Self::HashIp => 6,
            Self::HashNet | Self::HashIpPort => 7,
            Self::HashNetPort => 8,
        }
    }
}

/// What a set is to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SetSpec {
    pub name: String,
    pub kind: Kind,
    pub family: Family,
    /// `None`: members cannot have lifetimes. `Some(0)`: they can, and live for ever unless they say otherwise.
    /// `Some(n)`: they live `n` seconds unless they say otherwise.
    pub timeout: Option<u32>,
    pub counters: bool,
    pub comment: bool,
    /// Buckets to start with. A set that outgrows them rehashes, which stalls the adder for tens of milliseconds.
    pub hashsize: u32,
    /// The most members it takes; beyond, adding fails with [`Reason::Full`].
    pub maxelem: u32,
}

impl SetSpec {
    /// A set with the kernel's own sizes, whose members live for ever and are not counted.
    pub fn new(name: impl Into<String>, kind: Kind, family: Family) -> Self {
        Self {
            name: name.into(),
            kind,
            family,
            timeout: None,
            counters: false,
            comment: false,
            hashsize: 1024,
            maxelem: 65536,
        }
    }
}

/// Members of one set that come and go.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MemberChange {
    /// The set.
    pub name: String,
    /// They come, or live otherwise than before.
    pub added: Vec<SetEntry>,
    /// They go behind those that come; an absent one is not an error.
    pub deleted: Vec<SetEntry>,
}

impl MemberChange {
    /// What a message each says.
    fn messages(&self) -> impl Iterator<Item = (Command, Cow<'_, [SetEntry]>)> {
        let both = [(Command::Add, &self.added), (Command::Delete, &self.deleted)];
        both.into_iter().flat_map(|(command, entries)| {
            let entries = member::halved(entries);
            let starts = (0..entries.len()).step_by(BATCH);
            starts.map(move |start| {
                let range = start..entries.len().min(start + BATCH);
                let batch = match &entries {
                    Cow::Borrowed(entries) => Cow::Borrowed(&entries[range]),
                    Cow::Owned(entries) => Cow::Owned(entries[range].to_vec()),
                };
                (command, batch)
            })
        })
    }
}

const SUBSYSTEM: u8 = 6;
/// Members per message: 0.3 µs each instead of 2, and a message that stays well below 64 KiB.
const BATCH: usize = 100;
/// `IPSET_MAXNAMELEN` is 32 with the NUL.
const MAX_NAME: usize = 31;

const ATTRIBUTE_PROTOCOL: u16 = 1;
const ATTRIBUTE_SETNAME: u16 = 2;
const ATTRIBUTE_TYPENAME: u16 = 3;
const ATTRIBUTE_SETNAME2: u16 = 3;
const ATTRIBUTE_REVISION: u16 = 4;
const ATTRIBUTE_FAMILY: u16 = 5;
const ATTRIBUTE_FLAGS: u16 = 6;
const ATTRIBUTE_DATA: u16 = 7;
const ATTRIBUTE_ADT: u16 = 8;
const ATTRIBUTE_LINENO: u16 = 9;
const ATTRIBUTE_REVISION_MIN: u16 = 10;

const CREATE_TIMEOUT: u16 = 6;
const CREATE_FLAGS: u16 = 8;
const CREATE_HASHSIZE: u16 = 18;
const CREATE_MAXELEM: u16 = 19;
const WITH_COUNTERS: u32 = 1 << 3;
const WITH_COMMENT: u32 = 1 << 4;
const LIST_SETNAME: u32 = 1 << 1;
const LIST_HEADER: u32 = 1 << 2;

const NEWEST_PROTOCOL: u8 = 7;
const OLDEST_PROTOCOL: u8 = 6;

/// The sets of one network namespace.
#[derive(Debug)]
pub struct IpSets {
    socket: Socket,
    protocol: u8,
    /// Of kinds of sets, as this kernel and this crate both know them.
    revisions: BTreeMap<(Kind, Family), u8>,
}

impl IpSets {
    /// Opens the namespace of the calling thread and agrees on a protocol version with its kernel.
    pub fn open() -> Result<Self, Error> {
        let mut socket =
            Socket::open(SockProtocol::NetlinkNetFilter).map_err(|e| Error::kernel(Command::Open, "", e))?;
        let request = Request::netfilter("ipset protocol", SUBSYSTEM, Command::Open.number(), 0, 0)
            .byte(ATTRIBUTE_PROTOCOL, NEWEST_PROTOCOL);
        let newest = socket
            .ask(&request, |answer| {
                Ok(answer.split::<4>()?.1.byte(ATTRIBUTE_PROTOCOL))
            })
            .map_err(|e| Error::kernel(Command::Open, "", e))?;
        match newest.first() {
            Some(newest) if *newest >= OLDEST_PROTOCOL => Ok(Self {
                socket,
                protocol: NEWEST_PROTOCOL.min(*newest),
                revisions: BTreeMap::new(),
            }),
            other => Err(Error::Protocol {
                newest: other.copied(),
            }),
        }
    }

    /// Creates an empty set; one of that name already there is an error ([`Reason::Exists`]) and stays as it is.
    pub fn create(&mut self, spec: &SetSpec) -> Result<(), Error> {
        let request = self.stepped_creation(spec)?;
        self.tell(Command::Create, &spec.name, &request)
    }

    /// Creates sets in this order, in as few system calls as they fit into; says for each what became of it. One that fails keeps
    /// no other from its turn.
    pub fn create_all(&mut self, specs: &[SetSpec]) -> Vec<Result<(), Error>> {
        let requests = specs.iter().map(|spec| self.stepped_creation(spec)).collect();
        self.tell_each(
            Command::Create,
            specs.iter().map(|spec| spec.name.as_str()),
            requests,
        )
    }

    /// Creates a set, unless one of that name is there, of whatever kind.
    pub fn ensure(&mut self, spec: &SetSpec) -> Result<(), Error> {
        forgive(Reason::Exists, self.create(spec))
    }

    /// Removes a set; while a rule refers to it, it stays and the reason is [`Reason::InUse`].
    pub fn destroy(&mut self, name: &str) -> Result<(), Error> {
        self.simple(Command::Destroy, name)
    }

    /// Removes a set that no rule names any more. What rules referred to the kernel lets go of a moment after they went
    /// (`nf_tables_trans_destroy_work` of net/netfilter/nf_tables_api.c), behind a wait for packets that met them: as long is waited
    /// here, as often as `waits` says at most, which is counted down.
    pub fn destroy_unnamed(&mut self, name: &str, waits: &mut u32) -> Result<(), Error> {
        let mut outcome = self.destroy(name);
        while *waits > 0
            && outcome
                .as_ref()
                .is_err_and(|error| error.reason() == Some(Reason::InUse))
        {
            *waits -= 1;
            // Where nobody can wait it is tried at once.
            if rcu::wait().is_err() {
                std::thread::yield_now();
            }
            let request = self.request(Command::Destroy, netlink::EXCLUSIVE, name)?;
            outcome = self.tell(Command::Destroy, name, &request);
        }
        outcome
    }

    /// Removes sets in this order, in as few system calls as they fit into; says for each what became of it.
    pub fn destroy_all(&mut self, names: &[String]) -> Vec<Result<(), Error>> {
        let asked = |name: &String| {
            let request = self.request(Command::Destroy, netlink::EXCLUSIVE, name)?;
            step(Command::Destroy, name, &[])?;
            Ok(request)
        };
        let requests = names.iter().map(asked).collect();
        self.tell_each(Command::Destroy, names.iter().map(String::as_str), requests)
    }

    /// Removes a set, if there is one of that name.
    pub fn remove(&mut self, name: &str) -> Result<(), Error> {
        forgive(Reason::NoSuchSet, self.destroy(name))
    }

    /// Removes all members.
    pub fn flush(&mut self, name: &str) -> Result<(), Error> {
        self.simple(Command::Flush, name)
    }

    /// Exchanges the contents of two sets of the same kind and family; rules see the one or the other, never neither.
    pub fn swap(&mut self, one: &str, other: &str) -> Result<(), Error> {
        checked(other)?;
        let request = self
            .request(Command::Swap, 0, one)?
            .text(ATTRIBUTE_SETNAME2, other);
        step(Command::Swap, one, &[])?;
        self.tell(Command::Swap, one, &request)
    }

    /// Adds members, many to a message. A member already there takes the new lifetime, a shorter one too.
    ///
    /// On an error the members before the one it names are in the set and those behind it are not.
    pub fn add(&mut self, name: &str, entries: &[SetEntry]) -> Result<(), Error> {
        self.change(Command::Add, name, &member::halved(entries))
    }

    /// Deletes members, whatever their lifetimes; an absent one is not an error.
    pub fn delete(&mut self, name: &str, entries: &[SetEntry]) -> Result<(), Error> {
        self.change(Command::Delete, name, &member::halved(entries))
    }

    /// Changes the members of many sets in this order, in as few system calls as they fit into; says for each what became of it.
    /// One that fails keeps no other from its turn. On an error some of its members may be as they were.
    pub fn change_all<'a>(
        &mut self,
        changes: impl IntoIterator<Item = &'a MemberChange>,
    ) -> Vec<Result<(), Error>> {
        let changes = changes.into_iter();
        let (room, _) = changes.size_hint();
        let mut outcomes = Vec::with_capacity(room);
        let (mut sent, mut requests) = (Vec::with_capacity(room), Vec::with_capacity(room));
        for (number, change) in changes.enumerate() {
            outcomes.push(Ok(()));
            for (command, batch) in change.messages() {
                match self.stepped(command, &change.name, &batch) {
                    Ok(request) => {
                        sent.push((number, change, command, batch));
                        requests.push(request);
                    }
                    Err(error) => {
                        outcomes[number] = Err(error);
                        break;
                    }
                }
            }
        }
        for ((number, change, command, batch), verdict) in
            sent.into_iter().zip(self.socket.tell_all(&requests))
        {
            if let (Err(error), outcome @ Ok(())) = (verdict, &mut outcomes[number]) {
                *outcome = Err(Error::in_batch(command, &change.name, error, &batch));
            }
        }
        outcomes
    }

    /// Whether a packet with these values would match: a `hash:net` also contains what its prefixes cover.
    /// The kernel says no, not an error, to a member of the other family or kind.
    pub fn test(&mut self, name: &str, member: Member) -> Result<bool, Error> {
        let entry = SetEntry {
            member,
            timeout: None,
        };
        let request = self
            .request(Command::Test, netlink::EXCLUSIVE, name)?
            .nest(ATTRIBUTE_DATA, |data| member::encode(data, &entry));
        match self.tell(Command::Test, name, &request) {
            Ok(()) => Ok(true),
            Err(error) if error.reason() == Some(Reason::Exists) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// The names of all sets of the namespace, other people's too.
    pub fn names(&mut self) -> Result<Vec<String>, Error> {
        let request = self
            .nameless(Command::List, netlink::DUMP)
            .be32(ATTRIBUTE_FLAGS, LIST_SETNAME);
        let read = |answer: netlink::ReplyPart<'_>| Ok(answer.split::<4>()?.1.text(ATTRIBUTE_SETNAME));
        self.socket
            .ask(&request, read)
            .map_err(|e| Error::kernel(Command::List, "", e))
    }

    /// What all sets of the namespace are, other people's too, without their members.
    pub fn headers(&mut self) -> Result<Vec<SetHeader>, Error> {
        let request = self
            .nameless(Command::List, netlink::DUMP)
            .be32(ATTRIBUTE_FLAGS, LIST_HEADER);
        self.socket
            .ask(&request, listing::short)
            .map_err(|e| Error::kernel(Command::List, "", e))
    }

    /// All sets whose names begin so, with their members, in the order of their names.
    pub fn list(&mut self, prefix: &str) -> Result<Vec<SetListing>, Error> {
        self.list_those(|name| name.starts_with(prefix))
    }

    /// The same of the sets whose names are such.
    pub fn list_those(&mut self, is_such: impl Fn(&str) -> bool) -> Result<Vec<SetListing>, Error> {
        let mut names = self.names()?;
        names.retain(|name| is_such(name));
        names.sort();
        let listings = names
            .iter()
            .map(|name| self.list_one(name))
            .collect::<Result<Vec<_>, _>>()?;
        Ok(listings.into_iter().flatten().collect())
    }

    /// One set with its members; `None` if there is none of that name.
    pub fn list_one(&mut self, name: &str) -> Result<Option<SetListing>, Error> {
        let request = self.request(Command::List, netlink::DUMP, name)?;
        match self
            .socket
            .ask(&request, |answer| listing::part(answer).map(Some))
        {
            Ok(parts) => Ok(listing::join(name, parts)),
            Err(error) if error.refusal_code() == Some(nix::libc::ENOENT) => Ok(None),
            Err(error) => Err(Error::kernel(Command::List, name, error)),
        }
    }

    fn revision(&mut self, spec: &SetSpec) -> Result<u8, Error> {
        let of = (spec.kind, spec.family);
        if let Some(known) = self.revisions.get(&of) {
            return Ok(*known);
        }
        let revision = self.ask_revision(spec)?;
        self.revisions.insert(of, revision);
        Ok(revision)
    }

    fn ask_revision(&mut self, spec: &SetSpec) -> Result<u8, Error> {
        let request = self
            .nameless(Command::Type, 0)
            .text(ATTRIBUTE_TYPENAME, spec.kind.name())
            .byte(ATTRIBUTE_FAMILY, spec.family.number());
        let read = |answer: netlink::ReplyPart<'_>| {
            let (_, attributes) = answer.split::<4>()?;
            let newest = attributes.byte(ATTRIBUTE_REVISION);
            Ok(newest.map(|newest| (attributes.byte(ATTRIBUTE_REVISION_MIN).unwrap_or(newest), newest)))
        };
        let ranges = self
            .socket
            .ask(&request, read)
            .map_err(|e| Error::kernel(Command::Type, &spec.name, e))?;
        let known = spec.kind.newest_known_revision();
        match ranges.first() {
            Some((oldest, newest)) if *oldest <= known => Ok(known.min(*newest)),
            other => Err(Error::Revision {
                kind: spec.kind,
                known,
                kernel: other.copied(),
            }),
        }
    }

    fn change(&mut self, command: Command, name: &str, entries: &[SetEntry]) -> Result<(), Error> {
        for batch in entries.chunks(BATCH) {
            let request = self.stepped(command, name, batch)?;
            self.socket
                .tell(&request)
                .map_err(|error| Error::in_batch(command, name, error, batch))?;
        }
        Ok(())
    }

    /// A message that creates a set, which is about to be sent.
    fn stepped_creation(&mut self, spec: &SetSpec) -> Result<Request, Error> {
        let revision = self.revision(spec)?;
        let request = self
            .request(Command::Create, netlink::EXCLUSIVE | netlink::CREATE, &spec.name)?
            .text(ATTRIBUTE_TYPENAME, spec.kind.name())
            .byte(ATTRIBUTE_REVISION, revision)
            .byte(ATTRIBUTE_FAMILY, spec.family.number())
            .nest(ATTRIBUTE_DATA, |data| creation(data, spec));
        step(Command::Create, &spec.name, &[])?;
        Ok(request)
    }

    /// A message about members of a set, which is about to be sent.
    fn stepped(&self, command: Command, name: &str, batch: &[SetEntry]) -> Result<Request, Error> {
        let request = self.request(command, 0, name)?.be32(ATTRIBUTE_LINENO, 0);
        let request = request.nest(ATTRIBUTE_ADT, |adt| (1..).zip(batch).fold(adt, numbered_member));
        step(command, name, batch)?;
        Ok(request)
    }

    fn simple(&mut self, command: Command, name: &str) -> Result<(), Error> {
        // Without the flag some kernels (6.18 for one) take the destruction of an absent set for done.
        let request = self.request(command, netlink::EXCLUSIVE, name)?;
        step(command, name, &[])?;
        self.tell(command, name, &request)
    }

    fn tell(&mut self, command: Command, name: &str, request: &Request) -> Result<(), Error> {
        self.socket
            .tell(request)
            .map_err(|error| Error::kernel(command, name, error))
    }

    /// Sends the requests that there are, one about each set; what became of each, or why there is none.
    fn tell_each<'a>(
        &mut self,
        command: Command,
        names: impl Iterator<Item = &'a str>,
        requests: Vec<Result<Request, Error>>,
    ) -> Vec<Result<(), Error>> {
        let (mut outcomes, mut sent) = (Vec::with_capacity(requests.len()), Vec::new());
        for request in requests {
            outcomes.push(request.map(|request| sent.push(request)));
        }
        let told = names.zip(&mut outcomes).filter(|(_, outcome)| outcome.is_ok());
        for ((name, outcome), verdict) in told.zip(self.socket.tell_all(&sent)) {
            *outcome = verdict.map_err(|error| Error::kernel(command, name, error));
        }
        outcomes
    }

    fn request(&self, command: Command, flags: u16, name: &str) -> Result<Request, Error> {
        checked(name)?;
        Ok(self.nameless(command, flags).text(ATTRIBUTE_SETNAME, name))
    }

    fn nameless(&self, command: Command, flags: u16) -> Request {
        Request::of_set(
            command.words(),
            SUBSYSTEM,
            command.number(),
            flags,
            Family::V4.number(),
        )
        .byte(ATTRIBUTE_PROTOCOL, self.protocol)
    }
}

/// An outcome for which this refusal is none.
fn forgive(reason: Reason, outcome: Result<(), Error>) -> Result<(), Error> {
    match outcome {
        Err(error) if error.reason() == Some(reason) => Ok(()),
        outcome => outcome,
    }
}

/// Before a message that changes a set.
fn step(command: Command, name: &str, entries: &[SetEntry]) -> Result<(), Error> {
    let what = || {
        let members = entries.iter().map(|entry| format!(" {}", entry.member));
        format!("{} {name}{}", command.words(), members.collect::<String>())
    };
    fault_points::before(Step::Sets, what)
        .map_err(|errno| Error::kernel(command, name, netlink::Error::refused(command.words(), errno)))
}

/// One member of a batch; the kernel echoes the number of the one that failed.
fn numbered_member(adt: Request, (line, entry): (u32, &SetEntry)) -> Request {
    adt.nest(ATTRIBUTE_DATA, |data| {
        member::encode(data, entry).be32(ATTRIBUTE_LINENO, line)
    })
}

fn creation(data: Request, spec: &SetSpec) -> Request {
    let flag = |wanted, flag| if wanted { flag } else { 0 };
    let flags = flag(spec.counters, WITH_COUNTERS) | flag(spec.comment, WITH_COMMENT);
    let data = data
        .be32(CREATE_HASHSIZE, spec.hashsize)
        .be32(CREATE_MAXELEM, spec.maxelem)
        .be32(CREATE_FLAGS, flags);
    match spec.timeout {
        Some(seconds) => data.be32(CREATE_TIMEOUT, seconds),
        None => data,
    }
}

fn checked(name: &str) -> Result<(), Error> {
    let fits = (1..=MAX_NAME).contains(&name.len());
    if fits && name.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Ok(());
    }
    Err(Error::Name {
        name: name.to_owned(),
    })
}
