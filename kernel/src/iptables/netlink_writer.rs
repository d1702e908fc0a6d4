//! Rules of the flavour `nft` without its programs: batches of both families become one transaction of nf_tables, over nfnetlink.
//!
//! The kernel walks a table once for each transaction that touches it, and waits once until nobody uses the old rules any more; a program
//! for each family costs both twice, and looks up each set in each rule. What is written is what `iptables-nft` 1.8.9 would
//! write, octet for octet, so that its programs list it as ever; but for remarks and the place of interfaces, which are cheaper here and are
//! listed the same.
//!
//! What is read is the text of a [`super::Batch`], and only what is known as a whole is written. All else is refused before anything is
//! sent, and is for the programs ([`super::IpTables::restore`]).

mod tokens;
mod line;
mod extension;
mod expression;
mod rule;
mod set_numbers;

use super::{Hook, Table};
use crate::Family;
use crate::child_processes;
use crate::fault_points::{self, Step};
use crate::netlink::{
    self, Attributes, CREATE, EXCLUSIVE, ReplyPart, Request, Socket, Transaction, TransactionError,
};
use crate::nftables::{
    ATTRIBUTE_CHAIN_NAME as CHAIN_NAME, ATTRIBUTE_RULE_CHAIN as RULE_CHAIN, ATTRIBUTE_TABLE as TABLE,
    DELETE_CHAIN, DELETE_RULE, NEW_CHAIN, NEW_RULE, SUBSYSTEM, has_chain,
};
use line::{Line, RulePosition};
use nix::errno::Errno;
use nix::sys::socket::SockProtocol;
use rule::{Rule, SetIndices};
use set_numbers::{SetNumberCache, SetNumbers};
use std::collections::{BTreeMap, HashSet};
use tokens::UnsupportedToken;

/// Why a transaction was not made by netlink.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("{}, \"{text}\", has what only iptables can write: {what}", place(*family, *line))]
    Unknown {
        family: Family,
        line: usize,
        text: String,
        what: String,
    },
    #[error("the kernel refuses {}, \"{text}\": {error}", place(*family, *line))]
    Refused {
        family: Family,
        line: usize,
        text: String,
        #[source]
        error: netlink::Error,
    },
    #[error(transparent)]
    Netlink(#[from] netlink::Error),
    #[error("cannot ask for the numbers of sets: {0}")]
    Sets(#[source] Errno),
    #[error("the set {name} became another one while rules that name it were written")]
    OtherSet { name: String },
    #[error("others change the tables all the time")]
    Overtaken,
    #[error("the change was not begun: {0}")]
    NotBegun(#[source] Errno),
}

fn place(family: Family, line: usize) -> String {
    format!("line {line} of {family:?}")
}

const NEW_TABLE: u8 = 0;
const GET_RULE: u8 = 7;
const GET_GENERATION: u8 = 16;
/// `NLM_F_APPEND`.
const APPEND: u16 = 0x800;

const RULE_HANDLE: u16 = 3;
const RULE_EXPRESSIONS: u16 = 4;
const CHAIN_HOOK: u16 = 4;
const CHAIN_POLICY: u16 = 5;
const CHAIN_TYPE: u16 = 7;
const GENERATION_ID: u16 = 1;

/// How often a transaction is built anew when others were faster.
const ATTEMPTS: usize = 16;

/// Writes batches over one socket, and knows where sets were when it wrote the last ones.
#[derive(Debug, Default)]
pub struct TransactionWriter {
    hints: SetNumberCache,
    /// From the first write on, while none fails.
    socket: Option<Socket>,
}

impl TransactionWriter {
    /// Applies batches, each to the tables `filter` and `raw` of a family in the network namespace in which the first ones were: all of all of them,
    /// or nothing.
    pub fn write(&mut self, batches: &[(Family, &str)]) -> Result<(), Error> {
        let mut socket = match self.socket.take() {
            Some(socket) => socket,
            None => Socket::open(SockProtocol::NetlinkNetFilter)?,
        };
        write(&mut socket, batches, &mut self.hints)?;
        self.socket = Some(socket);
        Ok(())
    }

    /// Waits until the kernel has let go of rules that went, and so of the sets that they named: it does that some grace periods of RCU
    /// later by itself, and at once for who closes a socket over which rules were changed (`nft_rcv_nl_event` of
    /// net/netfilter/nf_tables_api.c), as at the end of a program.
    pub fn let_go(&mut self) {
        self.socket = None;
    }
}

fn write(socket: &mut Socket, batches: &[(Family, &str)], hints: &mut SetNumberCache) -> Result<(), Error> {
    let port = socket.port();
    // Most are named by many rules, and equal names are found quicker than they are put in order.
    let names: HashSet<&str> = batches.iter().flat_map(|(_, text)| sets_in(text)).collect();
    let names = names.into_iter().collect();
    let numbers = SetNumbers::open().map_err(Error::Sets)?;
    let mut is_begun = false;
    for attempts in 0..ATTEMPTS {
        let indices = numbers.find(&names, hints).map_err(Error::Sets)?;
        let built = build(socket, batches, &indices)?;
        if !std::mem::replace(&mut is_begun, true) {
            begin(batches)?;
        }
        child_processes::remember(port);
        match hand_over(socket, built.transaction, attempts) {
            Ok(()) => return be_sure_of(&numbers, &indices),
            Err(failed) if is_overtaken(&failed) => {}
            Err(failed) => return Err(blamed(batches, &built.lines, failed)),
        }
    }
    Err(Error::Overtaken)
}

fn hand_over(socket: &mut Socket, transaction: Transaction, attempts: usize) -> Result<(), TransactionError> {
    fault_points::before_handing_over(attempts)
        .map_err(|errno| TransactionError::whole(netlink::Error::Send { asked: CHANGE, errno }))?;
    socket.commit(transaction)
}

fn begin(batches: &[(Family, &str)]) -> Result<(), Error> {
    let mut steps = batches
        .iter()
        .map(|(family, text)| fault_points::before(Step::Rules(*family), || (*text).to_owned()));
    steps.try_for_each(|step| {
        step.map_err(|errno| match errno {
            fault_points::REFUSED => Error::Netlink(netlink::Error::Send { asked: CHANGE, errno }),
            _ => Error::NotBegun(errno),
        })
    })
}

/// The rules hold their sets by now, so that no number can become another set's any more.
fn be_sure_of(numbers: &SetNumbers, indices: &SetIndices<'_>) -> Result<(), Error> {
    match numbers.changed(indices).map_err(Error::Sets)? {
        None => Ok(()),
        Some(name) => Err(Error::OtherSet {
            name: name.to_owned(),
        }),
    }
}

fn build(
    socket: &mut Socket,
    batches: &[(Family, &str)],
    sets: &SetIndices<'_>,
) -> Result<BuiltTransaction, Error> {
    let has_hooks = batches.iter().any(|(_, text)| touches_hooks(text));
    let generation = if has_hooks {
        Some(generation(socket)?)
    } else {
        None
    };
    let room = batches.iter().map(|(_, text)| text.len()).sum::<usize>() * ROOM;
    let transaction = Transaction::begin(CHANGE, SUBSYSTEM, generation, socket, room);
    let built = BuiltTransaction {
        transaction,
        lines: Vec::new(),
    };
    let mut building = TransactionBuilder {
        socket,
        sets,
        hooks: BTreeMap::new(),
        table: Table::Filter,
        built,
        at: (0, 0),
    };
    for (number, (family, text)) in batches.iter().enumerate() {
        for (at, line) in text.lines().enumerate() {
            building.at = (number, at);
            building.line(*family, line).map_err(|why| match why {
                FailureCause::Unknown(UnsupportedToken(what)) => Error::Unknown {
                    family: *family,
                    line: at + 1,
                    text: line.to_owned(),
                    what,
                },
                FailureCause::Netlink(error) => Error::Netlink(error),
            })?;
        }
    }
    Ok(building.built)
}

/// The number of the last transaction in this namespace.
fn generation(socket: &mut Socket) -> Result<u32, netlink::Error> {
    const ASKED: &str = "generation of the tables";
    let request = Request::netfilter(ASKED, SUBSYSTEM, GET_GENERATION, 0, 0);
    let found = socket.ask(&request, |answer| Ok(answer.split::<4>()?.1.be32(GENERATION_ID)))?;
    found.first().copied().ok_or(netlink::Error::Malformed {
        asked: ASKED,
        reason: "it has no number",
    })
}

/// About how much longer a rule is in expressions than as text.
const ROOM: usize = 5;

/// A transaction, and of which line of which batch each of its messages is.
struct BuiltTransaction {
    transaction: Transaction,
    lines: Vec<(usize, usize)>,
}

struct TransactionBuilder<'a> {
    socket: &'a mut Socket,
    sets: &'a SetIndices<'a>,
    hooks: BTreeMap<(Family, Table, Hook), HookChain>,
    /// The table that the lines are about.
    table: Table,
    built: BuiltTransaction,
    at: (usize, usize),
}

/// The chain of a hook.
struct HookChain {
    is_there: bool,
    /// Handles of rules that only jump, in their order, and where to; none where nobody asked.
    jumps: Option<Vec<(u64, String)>>,
}

enum FailureCause {
    Unknown(UnsupportedToken),
    Netlink(netlink::Error),
}

impl From<UnsupportedToken> for FailureCause {
    fn from(unknown: UnsupportedToken) -> Self {
        Self::Unknown(unknown)
    }
}

impl From<netlink::Error> for FailureCause {
    fn from(error: netlink::Error) -> Self {
        Self::Netlink(error)
    }
}

impl TransactionBuilder<'_> {
    fn line(&mut self, family: Family, line: &str) -> Result<(), FailureCause> {
        match Line::read(line)? {
            Line::Table(table) => {
                self.table = table;
                self.push(&self.message(NEW_TABLE, CREATE, family));
            }
            Line::Declare(chain) => {
                self.push(&self.message(NEW_CHAIN, CREATE, family).text(CHAIN_NAME, chain));
                self.push(&self.message(DELETE_RULE, 0, family).text(RULE_CHAIN, chain));
            }
            Line::Flush(chain) => self.push(&self.message(DELETE_RULE, 0, family).text(RULE_CHAIN, chain)),
            Line::Remove(chain) => self.push(&self.message(DELETE_CHAIN, 0, family).text(CHAIN_NAME, chain)),
            Line::Append { place, counted, rule } => {
                self.rule(CREATE | APPEND, family, place, counted, rule)?
            }
            Line::Insert { place, rule } => self.rule(CREATE, family, place, [0, 0], rule)?,
            Line::DeleteJump { hook, to } => self.delete_jump(family, hook, to)?,
            Line::Commit => {}
        }
        Ok(())
    }

    fn message(&self, command: u8, flags: u16, family: Family) -> Request {
        message(command, flags, family, self.table)
    }

    fn push(&mut self, message: &Request) {
        self.built.transaction.push(message);
        self.built.lines.push(self.at);
    }

    fn rule(
        &mut self,
        flags: u16,
        family: Family,
        place: RulePosition<'_>,
        counted: [u64; 2],
        text: &str,
    ) -> Result<(), FailureCause> {
        let rule = Rule::read(text, family, counted, self.sets)?;
        if let RulePosition::Hook(hook) = place {
            self.need_hook(family, hook)?;
        }
        let message = self
            .message(NEW_RULE, flags, family)
            .text(RULE_CHAIN, place.name());
        self.push(&rule.put(message));
        Ok(())
    }

    /// Makes the chain of a hook where nobody did before, as iptables does; one that is there keeps its policy.
    fn need_hook(&mut self, family: Family, hook: Hook) -> Result<(), FailureCause> {
        let chain = self.hook(family, hook)?;
        if !std::mem::replace(&mut chain.is_there, true) {
            self.push(&chain_of(family, self.table, hook));
        }
        Ok(())
    }

    fn hook(&mut self, family: Family, hook: Hook) -> Result<&mut HookChain, netlink::Error> {
        let place = (family, self.table, hook);
        let chain = match self.hooks.remove(&place) {
            Some(chain) => chain,
            None => HookChain {
                is_there: has_chain(self.socket, family, self.table.name(), hook.name())?,
                jumps: None,
            },
        };
        Ok(self.hooks.entry(place).or_insert(chain))
    }

    fn delete_jump(&mut self, family: Family, hook: Hook, to: &str) -> Result<(), FailureCause> {
        if self.hook(family, hook)?.jumps.is_none() {
            let jumps = self.jumps_of(family, hook)?;
            self.hook(family, hook)?.jumps = Some(jumps);
        }
        let jumps = self.hook(family, hook)?.jumps.get_or_insert_default();
        let Some(found) = jumps.iter().position(|(_, chain)| chain == to) else {
            return Err(UnsupportedToken("a jump to be deleted that is not there".to_owned()).into());
        };
        let (handle, _) = jumps.remove(found);
        let message = self
            .message(DELETE_RULE, 0, family)
            .text(RULE_CHAIN, hook.name())
            .bytes(RULE_HANDLE, &handle.to_be_bytes());
        self.push(&message);
        Ok(())
    }

    fn jumps_of(&mut self, family: Family, hook: Hook) -> Result<Vec<(u64, String)>, netlink::Error> {
        let request = Request::netfilter(
            "rules of a hook",
            SUBSYSTEM,
            GET_RULE,
            netlink::DUMP,
            family.number(),
        )
        .text(TABLE, self.table.name())
        .text(RULE_CHAIN, hook.name());
        let listed = self.socket.ask(&request, |answer| jump_in(answer, hook));
        match listed {
            Err(error) if error.refusal_code() == Some(nix::libc::ENOENT) => Ok(Vec::new()),
            listed => listed,
        }
    }
}

const CHANGE: &str = "change of rules";

fn message(command: u8, flags: u16, family: Family, table: Table) -> Request {
    Request::netfilter(CHANGE, SUBSYSTEM, command, flags, family.number()).text(TABLE, table.name())
}

/// The chain of a hook where there is none. One that somebody made meanwhile, with a policy of his own, is refused: kernels that do not
/// know generations (before 4.10) would give it ours.
fn chain_of(family: Family, table: Table, hook: Hook) -> Request {
    /// `NF_ACCEPT`.
    const ACCEPT: u32 = 1;
    message(NEW_CHAIN, CREATE | EXCLUSIVE, family, table)
        .text(CHAIN_NAME, hook.name())
        .nest(CHAIN_HOOK, |place| {
            place
                .plain_be32(1, number_of(hook))
                .plain_be32(2, priority_of(table).cast_unsigned())
        })
        .plain_be32(CHAIN_POLICY, ACCEPT)
        .text(CHAIN_TYPE, "filter")
}

/// The handle of a listed rule and where to it jumps, if it is one of this hook that does nothing else but count: older kernels list the
/// rules of all chains, whatever chain was asked for.
fn jump_in(answer: ReplyPart<'_>, hook: Hook) -> Result<Option<(u64, String)>, netlink::MalformedMessage> {
    let (_, attributes) = answer.split::<4>()?;
    let handle = attributes
        .get(RULE_HANDLE)
        .and_then(|octets| octets.first_chunk());
    let handle = handle.map(|octets| u64::from_be_bytes(*octets));
    let jump = jump_of(&attributes.nest(RULE_EXPRESSIONS)?)?;
    Ok(handle
        .filter(|_| attributes.text(RULE_CHAIN).as_deref() == Some(hook.name()))
        .zip(jump))
}

/// Where a rule jumps to that does nothing else but count.
fn jump_of(expressions: &Attributes<'_>) -> Result<Option<String>, netlink::MalformedMessage> {
    let mut jump = None;
    for (_, expression) in expressions.iter() {
        let expression = Attributes::parse(expression)?;
        match expression.text(1).as_deref() {
            Some("counter") if jump.is_none() => {}
            Some("immediate") if jump.is_none() => {
                let verdict = expression.nest(2)?.nest(2)?.nest(2)?;
                match (verdict.be32(1), verdict.text(2)) {
                    (Some(expression::JUMP), Some(chain)) => jump = Some(chain),
                    _ => return Ok(None),
                }
            }
            _ => return Ok(None),
        }
    }
    Ok(jump)
}

/// `NF_IP_PRI_*` of linux/netfilter_ipv4.h; those of IPv6 are the same.
fn priority_of(table: Table) -> i32 {
    match table {
        Table::Raw => -300,
        Table::Mangle => -150,
        Table::Nat => -100,
        Table::Filter => 0,
    }
}

fn number_of(hook: Hook) -> u32 {
    match hook {
        Hook::Prerouting => 0,
        Hook::Input => 1,
        Hook::Forward => 2,
        Hook::Output => 3,
        Hook::Postrouting => 4,
    }
}

/// What may be the name of a set that rules of a batch have: remarks may have the same words.
fn sets_in(text: &str) -> impl Iterator<Item = &str> {
    const MATCH: &str = "--match-set ";
    text.match_indices(MATCH)
        .filter_map(|(at, _)| text[at + MATCH.len()..].split([' ', '\n']).next())
}

fn touches_hooks(text: &str) -> bool {
    let mut lines = text.lines().rev();
    lines.any(|line| {
        let touches = |verb: &str| line.strip_prefix(verb).is_some_and(is_of_hook);
        touches("-I ") || touches("-D ") || touches("-A ")
    })
}

fn is_of_hook(rest: &str) -> bool {
    let name = rest.split(' ').next().unwrap_or_default();
    Hook::ALL.iter().any(|hook| hook.name() == name)
}

/// Another generation than that on which the transaction was built.
fn is_overtaken(failed: &TransactionError) -> bool {
    failed.error.refusal_code() == Some(nix::libc::ERESTART)
}

fn blamed(batches: &[(Family, &str)], lines: &[(usize, usize)], failed: TransactionError) -> Error {
    let at = failed.message.and_then(|number| lines.get(number));
    let found = at.and_then(|(batch, line)| {
        let (family, text) = batches.get(*batch)?;
        Some((*family, *line, text.lines().nth(*line)?))
    });
    match found {
        Some((family, line, text)) => Error::Refused {
            family,
            line: line + 1,
            text: text.to_owned(),
            error: failed.error,
        },
        None => Error::Netlink(failed.error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use expression::{Base, Comparison, Expression, Verdict};

    /// No test can be between the look for a hook and the transaction: where generations count, that is refused for them.
    #[test]
    fn a_hook_is_created_only_if_missing() {
        let made = chain_of(Family::V4, Table::Filter, Hook::Forward);
        assert_eq!(made.flags() & (CREATE | EXCLUSIVE), CREATE | EXCLUSIVE);
    }

    #[test]
    fn each_change_of_a_hook_is_checked_for_conflicts() {
        for (line, is_of_hook) in [
            ("-I INPUT -j A", true),
            ("-A OUTPUT -j A", true),
            ("-D FORWARD -j A", true),
            ("-A EG-A -j A", false),
            (":EG-A - [0:0]", false),
        ] {
            let text = format!("*filter\n{line}\nCOMMIT\n");
            assert_eq!(touches_hooks(&text), is_of_hook, "{line}");
        }
    }

    fn listed(chain: &str, expressions: &[Expression]) -> Option<(u64, String)> {
        let rule = message(NEW_RULE, 0, Family::V4, Table::Filter).text(RULE_CHAIN, chain);
        let rule = rule.bytes(RULE_HANDLE, &7u64.to_be_bytes());
        let rule = rule.nest(RULE_EXPRESSIONS, |list| {
            expressions.iter().fold(list, |list, one| one.put(list))
        });
        let body = [&[0; 4], rule.attribute_bytes::<4>()].concat();
        let answer = ReplyPart {
            kind: 0,
            port: 0,
            body: &body,
        };
        jump_in(answer, Hook::Input).unwrap()
    }

    #[test]
    fn a_rule_is_a_jump_of_a_hook_where_it_is_there_and_does_nothing_else_but_count() {
        const COUNTER: Expression = Expression::Counter {
            packets: 3,
            octets: 4,
        };
        let verdict = |verdict: fn(String) -> Verdict| Expression::Verdict(verdict("A".to_owned()));
        let (jump, goto) = (|| verdict(Verdict::Jump), || verdict(Verdict::Goto));
        let asks = [
            Expression::Payload {
                base: Base::Network,
                offset: 12,
                length: 4,
            },
            Expression::Compare(Comparison::Equal, vec![10, 0, 0, 1]),
        ];
        let found = Some((7, "A".to_owned()));
        for (chain, expressions, jump) in [
            ("INPUT", vec![COUNTER, jump()], found.clone()),
            ("INPUT", vec![jump()], found),
            ("FORWARD", vec![COUNTER, jump()], None),
            ("INPUT", vec![COUNTER, goto()], None),
            ("INPUT", vec![jump(), COUNTER], None),
            ("INPUT", vec![COUNTER], None),
            ("INPUT", [&asks[..], &[COUNTER, jump()]].concat(), None),
        ] {
            assert_eq!(listed(chain, &expressions), jump, "{chain} {expressions:?}");
        }
    }
}
