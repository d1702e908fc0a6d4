//! Changes of one table, made together or not at all: one transaction of nf_tables.

use std::sync::Arc;

use nix::errno::Errno;
use nix::sys::socket::SockProtocol;

use crate::child_processes;
use crate::fault_points::{self, Step};
use crate::netlink::{CREATE, Error, Request, Socket, Transaction};

use super::set::{Element, ElementKey, SetSpec};
use super::statement::{Statement, Verdict};
use super::{
    ATTRIBUTE_CHAIN_NAME, ATTRIBUTE_RULE_CHAIN, ATTRIBUTE_TABLE, COUNTER, DELETE_CHAIN, DELETE_ELEMENT,
    DELETE_RULE, DELETE_SET, DELETE_TABLE, NEW_CHAIN, NEW_ELEMENT, NEW_RULE, SUBSYSTEM, comment,
};

/// A family of tables, which is not a family of addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TableFamily {
    /// IPv4 and IPv6 at once.
    Inet,
    /// Ports of bridges.
    Bridge,
}

impl TableFamily {
    pub(super) const fn number(self) -> u8 {
        match self {
            Self::Inet => 1,
            Self::Bridge => 7,
        }
    }
}

/// A table by its family and name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TableName {
    pub family: TableFamily,
    pub name: &'static str,
}

/// Where the kernel calls a chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum NfHook {
    Prerouting = 0,
    Input = 1,
    Forward = 2,
    Output = 3,
}

/// A chain that the kernel calls.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BaseChain {
    pub name: String,
    pub hook: NfHook,
    /// Lower ones are called first.
    pub priority: i32,
}

/// A rule: statements, and what it is for.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NftRule {
    pub statements: Arc<[Statement]>,
    /// Where the packet goes for which all of them hold; without one it goes on to the next rule.
    pub verdict: Option<Verdict>,
    /// Kept by the kernel with the rule; up to 254 octets.
    pub comment: Arc<str>,
}

/// A counter with a name, which stays when the rules that count in it change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedCounter {
    pub name: String,
    /// Kept by the kernel with it; up to 254 octets.
    pub comment: String,
    pub packets: u64,
}

/// What a message of a transaction is about.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Object {
    Table,
    /// A chain or its rules.
    Chain(String),
    /// A set, a map or its elements.
    Set(String),
    Counter(String),
}

/// Whose elements come or go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ElementsOf<'a> {
    /// The kernel's name of the set.
    pub set: &'a str,
    /// What is named where the kernel refuses them: one of the sets that share that one.
    pub named: &'a str,
}

impl<'a> From<&'a str> for ElementsOf<'a> {
    fn from(set: &'a str) -> Self {
        Self { set, named: set }
    }
}

/// A transaction that the kernel did not make: nothing of it is in force.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{error}")]
pub struct CommitError {
    /// The first error.
    pub error: Error,
    /// The messages that the kernel refused, in their order. Others are refused for the sake of them: what a refused message was to make
    /// is missing (`ENOENT`) behind it. Empty where the transaction failed as a whole.
    pub refused: Vec<Refusal>,
}

/// A message that the kernel refused.
#[derive(Clone, Debug)]
pub struct Refusal {
    pub object: Object,
    pub error: Error,
}

const NEW_TABLE: u8 = 0;
const NEW_SET: u8 = 9;
const NEW_OBJECT: u8 = 18;
const DELETE_OBJECT: u8 = 20;
/// Deletes what is there; since Linux 6.3.
const DESTROY_ELEMENT: u8 = 30;
/// A command that the subsystem does not know, in the place of one that a test has the kernel refuse.
const NO_COMMAND: u8 = 0x7f;
const APPEND: u16 = 0x800;
/// Elements of one message: an attribute is shorter than 64 KiB.
const ELEMENTS_TOGETHER: usize = 512;

/// Changes to be made.
#[derive(Debug)]
pub struct Changes {
    first: TableName,
    /// Where the next changes are.
    table: TableName,
    requests: Vec<Request>,
    /// What requests are about, each with the number of the first of them.
    objects: Vec<(usize, Object)>,
    sets: u32,
    /// In words, for fault points.
    said: Vec<String>,
}

impl Changes {
    pub fn of(table: TableName) -> Self {
        Self {
            first: table,
            table,
            requests: Vec::new(),
            objects: Vec::new(),
            sets: 0,
            said: Vec::new(),
        }
    }

    pub fn is_empty(&self) -> bool {
        self.requests.is_empty()
    }

    /// What follows is in this table. What is refused of another than the first is told as one of the table itself.
    pub const fn go_to(&mut self, table: TableName) {
        self.table = table;
    }

    /// Makes the table; one that is there stays as it is.
    pub fn add_table(&mut self) {
        self.push("make the table", About::Table, NEW_TABLE, CREATE, |request| {
            request
        });
    }

    /// Removes the table with all that is in it.
    pub fn delete_table(&mut self) {
        self.push("remove the table", About::Table, DELETE_TABLE, 0, |request| {
            request
        });
    }

    /// Makes a chain that the kernel calls, and that lets through what it does not judge; one that is there stays.
    pub fn add_base_chain(&mut self, chain: &BaseChain) {
        let about = About::Chain(&chain.name);
        self.push("make a hook's chain", about, NEW_CHAIN, CREATE, |request| {
            request
                .text(ATTRIBUTE_CHAIN_NAME, &chain.name)
                .nest(4, |hook| {
                    hook.plain_be32(1, chain.hook as u32)
                        .bytes(2, &chain.priority.to_be_bytes())
                })
                .plain_be32(5, 1)
                .text(7, "filter")
        });
    }

    pub fn add_chain(&mut self, name: &str, about: &str) {
        self.push("make a chain", About::Chain(name), NEW_CHAIN, CREATE, |request| {
            request
                .text(ATTRIBUTE_CHAIN_NAME, name)
                .bytes(12, &comment(0, about))
        });
    }

    pub fn delete_chain(&mut self, name: &str) {
        self.push("remove a chain", About::Chain(name), DELETE_CHAIN, 0, |request| {
            request.text(ATTRIBUTE_CHAIN_NAME, name)
        });
    }

    /// Removes all rules of a chain that is there.
    pub fn flush_chain(&mut self, name: &str) {
        self.push("empty a chain", About::Chain(name), DELETE_RULE, 0, |request| {
            request.text(ATTRIBUTE_RULE_CHAIN, name)
        });
    }

    pub fn add_rule(&mut self, chain: &str, rule: &NftRule) {
        let about = About::Rule(chain, &rule.comment);
        self.push("add a rule", about, NEW_RULE, CREATE | APPEND, |request| {
            let request = request.text(ATTRIBUTE_RULE_CHAIN, chain).nest(4, |list| {
                let list = rule.statements.iter().fold(list, |list, one| one.put(list));
                rule.verdict
                    .iter()
                    .fold(list, |list, verdict| verdict.put_expression(list))
            });
            if rule.comment.is_empty() {
                request
            } else {
                request.bytes(7, &comment(0, &rule.comment))
            }
        });
    }

    pub fn add_set(&mut self, spec: &SetSpec) {
        self.sets += 1;
        let number = self.sets;
        let about = About::Set(&spec.name);
        self.push("make a set", about, NEW_SET, CREATE, |request| {
            spec.put(request.text(2, &spec.name), number)
        });
    }

    pub fn delete_set(&mut self, name: &str) {
        self.push("remove a set", About::Set(name), DELETE_SET, 0, |request| {
            request.text(2, name)
        });
    }

    /// Removes all elements of a set that is there.
    pub fn empty_set(&mut self, name: &str) {
        self.push("empty a set", About::Set(name), DELETE_ELEMENT, 0, |request| {
            request.text(2, name)
        });
    }

    pub fn add_elements<'a>(&mut self, set: impl Into<ElementsOf<'a>>, elements: &[Element]) {
        self.elements("add members", NEW_ELEMENT, CREATE, set.into(), elements);
    }

    /// Removes elements that are there; one that is not is an error.
    pub fn delete_elements<'a>(&mut self, set: impl Into<ElementsOf<'a>>, elements: &[Element]) {
        self.elements("remove members", DELETE_ELEMENT, 0, set.into(), elements);
    }

    /// Removes elements, as far as they are there.
    pub fn destroy_elements<'a>(&mut self, set: impl Into<ElementsOf<'a>>, elements: &[Element]) {
        self.elements("remove members", DESTROY_ELEMENT, 0, set.into(), elements);
    }

    pub fn add_counter(&mut self, counter: &NamedCounter) {
        let about = About::Counter(&counter.name);
        self.push("make a counter", about, NEW_OBJECT, CREATE, |request| {
            request
                .text(2, &counter.name)
                .plain_be32(3, COUNTER)
                .nest(4, |data| {
                    data.bytes(1, &0u64.to_be_bytes())
                        .bytes(2, &counter.packets.to_be_bytes())
                })
                .bytes(8, &comment(0, &counter.comment))
        });
    }

    pub fn delete_counter(&mut self, name: &str) {
        self.push(
            "remove a counter",
            About::Counter(name),
            DELETE_OBJECT,
            0,
            |request| request.text(2, name).plain_be32(3, COUNTER),
        );
    }

    fn elements(
        &mut self,
        asked: &'static str,
        command: u8,
        flags: u16,
        of: ElementsOf<'_>,
        elements: &[Element],
    ) {
        let mut room = Vec::new();
        for some in elements.chunks(ELEMENTS_TOGETHER) {
            self.push(asked, About::Set(of.named), command, flags, |request| {
                let mut put = |list, one: &Element| one.put(list, &mut room);
                request
                    .text(2, of.set)
                    .nest(3, |list| some.iter().fold(list, &mut put))
            });
        }
    }

    fn push(
        &mut self,
        asked: &'static str,
        about: About<'_>,
        command: u8,
        flags: u16,
        fill: impl FnOnce(Request) -> Request,
    ) {
        let about = if self.table == self.first {
            about
        } else {
            About::Table
        };
        let family = self.table.family.number();
        let request =
            Request::of_set(asked, SUBSYSTEM, command, flags, family).text(ATTRIBUTE_TABLE, self.table.name);
        if self.objects.last().is_none_or(|(_, last)| !about.is(last)) {
            self.objects.push((self.requests.len(), about.object()));
        }
        self.requests.push(fill(request));
        if cfg!(feature = "faults") {
            self.said.push(format!("{asked} {}", about.words()));
        }
    }

    /// What the request of this number is about.
    fn object(&self, number: usize) -> Object {
        let behind = self.objects.partition_point(|(first, _)| *first <= number);
        let found = behind.checked_sub(1).and_then(|at| self.objects.get(at));
        found.map_or(Object::Table, |(_, object)| object.clone())
    }
}

/// What a request is about, borrowed: that of the one before is mostly the same.
#[derive(Clone, Copy)]
enum About<'a> {
    Table,
    Chain(&'a str),
    /// A rule of a chain, with its comment.
    Rule(&'a str, &'a str),
    Set(&'a str),
    Counter(&'a str),
}

impl About<'_> {
    fn is(self, object: &Object) -> bool {
        match (self, object) {
            (Self::Table, Object::Table) => true,
            (Self::Chain(own) | Self::Rule(own, _), Object::Chain(name))
            | (Self::Set(own), Object::Set(name))
            | (Self::Counter(own), Object::Counter(name)) => own == name,
            (
                Self::Table | Self::Chain(_) | Self::Rule(..) | Self::Set(_) | Self::Counter(_),
                Object::Table | Object::Chain(_) | Object::Set(_) | Object::Counter(_),
            ) => false,
        }
    }

    fn object(self) -> Object {
        match self {
            Self::Table => Object::Table,
            Self::Chain(name) | Self::Rule(name, _) => Object::Chain(name.to_owned()),
            Self::Set(name) => Object::Set(name.to_owned()),
            Self::Counter(name) => Object::Counter(name.to_owned()),
        }
    }

    fn words(self) -> String {
        match self {
            Self::Table => String::new(),
            Self::Chain(name) | Self::Set(name) | Self::Counter(name) => name.to_owned(),
            Self::Rule(chain, comment) => format!("{chain} {comment}"),
        }
    }
}

/// Writes tables: a socket in the network namespace of the thread that opened it.
#[derive(Debug)]
pub struct TableWriter {
    socket: Socket,
}

impl TableWriter {
    pub fn open() -> Result<Self, Error> {
        let socket = Socket::open(SockProtocol::NetlinkNetFilter)?;
        // Who listens from now on passes over it.
        child_processes::remember(socket.port());
        Ok(Self { socket })
    }

    /// Whether the kernel can destroy elements that may be there: Linux 6.3 can. Asks by a transaction about a table that nobody has.
    pub fn can_destroy_elements(&mut self) -> Result<bool, Error> {
        let nobodys = TableName {
            family: TableFamily::Inet,
            name: "egret-asks",
        };
        let mut changes = Changes::of(nobodys);
        let element = Element::lasting(ElementKey::Address([192, 0, 2, 1].into()));
        changes.destroy_elements("none", &[element]);
        match self.commit(changes) {
            // The subsystem knows no such message (`nfnetlink_rcv_batch` of net/netfilter/nfnetlink.c).
            Err(error) if error.refusal_code() == Some(Errno::EINVAL as i32) => Ok(false),
            Err(error) if error.refusal_code().is_none() => Err(error),
            Ok(()) | Err(_) => Ok(true),
        }
    }

    /// Whether the kernel knows tables of bridges. Asks by a transaction that leaves nothing.
    pub fn knows_bridges(&mut self) -> Result<bool, Error> {
        let nobodys = TableName {
            family: TableFamily::Bridge,
            name: "egret-asks",
        };
        let mut changes = Changes::of(nobodys);
        changes.add_table();
        changes.add_base_chain(&BaseChain {
            name: "asks".to_owned(),
            hook: NfHook::Prerouting,
            priority: 0,
        });
        changes.delete_table();
        match self.commit(changes) {
            Ok(()) => Ok(true),
            Err(error) if error.refusal_code().is_some() => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Makes all changes, or none.
    pub fn commit(&mut self, changes: Changes) -> Result<(), Error> {
        self.commit_or_name(changes).map_err(|failed| failed.error)
    }

    /// Makes all changes, or none; names what the kernel refuses.
    pub fn commit_or_name(&mut self, changes: Changes) -> Result<(), CommitError> {
        let whole = |error| CommitError {
            error,
            refused: Vec::new(),
        };
        if changes.requests.is_empty() {
            return Ok(());
        }
        let asked = "change a table of nf_tables";
        fault_points::before(Step::Rules(crate::Family::V4), || changes.said.join("\n"))
            .map_err(|errno| whole(Error::refused(asked, errno)))?;
        // What this process does is no news.
        child_processes::remember(self.socket.port());
        let room = changes.requests.iter().map(Request::octets).sum();
        let mut transaction = Transaction::begin(asked, SUBSYSTEM, None, &self.socket, room);
        for (number, request) in changes.requests.iter().enumerate() {
            let words = || changes.said.get(number).cloned().unwrap_or_default();
            match fault_points::has_refused_message(words) {
                false => transaction.push(request),
                true => transaction.push(&Request::of_set(asked, SUBSYSTEM, NO_COMMAND, 0, 0)),
            }
        }
        self.socket.commit(transaction).map_err(|failed| {
            let named = |(number, error): (usize, Error)| {
                let asked = changes
                    .requests
                    .get(number)
                    .map_or(asked, |request| request.asked);
                let error = match error {
                    Error::Refused { refusal, .. } => Error::Refused { asked, refusal },
                    error => error,
                };
                let object = changes.object(number);
                Refusal { object, error }
            };
            let first = failed.message.map(|number| (number, failed.error.clone()));
            let refused: Vec<Refusal> = first.into_iter().chain(failed.others).map(named).collect();
            let error = refused.first().map_or(failed.error, |first| first.error.clone());
            CommitError { error, refused }
        })
    }
}

/// Whether the kernel refused because something is not there.
pub fn is_missing(error: &Error) -> bool {
    error.refusal_code() == Some(Errno::ENOENT as i32)
}
