//! Flows the kernel tracks, by ctnetlink: list those of a pod, mark one, forget one or all that carry a mark.
//!
//! Two things that bite: a `DELETE` without a tuple and without a mark empties the whole table, so a mask is never
//! zero here; and deleting a flow does not stop it. With `net.netfilter.nf_conntrack_tcp_loose=1`, the default, the next
//! packet of either side opens it again, maybe in the other direction. To stop flows, mark them and let a rule see the mark.
//!
//! Requests and attributes are those of `linux/netfilter/nfnetlink_conntrack.h`.

mod tuple;

pub use tuple::{ProtocolDetail, Tuple};

use crate::fault_points::{self, Step};
use crate::netlink::{DUMP, Error, MalformedMessage, ReplyPart, Request, Socket};
use crate::{Family, Mark};
use nix::sys::socket::SockProtocol;
use std::net::IpAddr;

/// One tracked flow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Flow {
    /// As the first packet had it, before any translation.
    pub original: Tuple,
    /// As answers are expected; where it is not the mirror of the original, the flow is translated.
    pub reply: Tuple,
    pub mark: u32,
    pub status: Status,
    /// Seconds until it is forgotten without further packets.
    pub timeout: Option<u32>,
    pub zone: u16,
}

/// The bits of `enum ip_conntrack_status`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Status(pub u32);

impl Status {
    /// Packets were seen in both directions.
    pub fn has_seen_reply(self) -> bool {
        self.0 & 1 << 1 != 0
    }

    pub fn is_assured(self) -> bool {
        self.0 & 1 << 2 != 0
    }

    /// A flow table forwards its packets, which therefore pass no rules.
    pub fn is_offloaded(self) -> bool {
        self.0 & (1 << 14 | 1 << 15) != 0
    }
}

/// Which flows to list; a field that says nothing does not restrict.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlowFilter {
    pub family: Option<Family>,
    /// Who began the flow.
    pub original_source: Option<IpAddr>,
    /// Who answers it, after translation: the pod behind a service address.
    pub reply_source: Option<IpAddr>,
    pub mark: Option<Mark>,
}

impl FlowFilter {
    /// All flows. The kernel walks its table once, which it does for each family too.
    pub const ALL: Self = Self {
        family: None,
        original_source: None,
        reply_source: None,
        mark: None,
    };

    pub fn family(family: Family) -> Self {
        Self {
            family: Some(family),
            original_source: None,
            reply_source: None,
            mark: None,
        }
    }

    pub fn from_source(source: IpAddr) -> Self {
        Self {
            original_source: Some(source),
            ..Self::family(Family::of(source))
        }
    }

    pub fn answered_by(source: IpAddr) -> Self {
        Self {
            reply_source: Some(source),
            ..Self::family(Family::of(source))
        }
    }

    fn admits(&self, flow: &Flow) -> bool {
        self.original_source
            .is_none_or(|source| flow.original.source == source)
            && self.reply_source.is_none_or(|source| flow.reply.source == source)
            && self.mark.is_none_or(|mark| mark.is_in(flow.mark))
    }
}

/// The flows of one network namespace: that of the thread which opened it.
#[derive(Debug)]
pub struct Conntrack {
    socket: Socket,
}

impl Conntrack {
    pub fn open() -> Result<Self, Error> {
        Socket::open(SockProtocol::NetlinkNetFilter).map(|socket| Self { socket })
    }

    /// Lists flows. The kernel compares IPv4 addresses itself (since Linux 5.8), which is five times as fast as sending
    /// all; whatever it sends is compared here too.
    pub fn dump(&mut self, filter: &FlowFilter) -> Result<Vec<Flow>, Error> {
        let family = filter.family.map_or(UNSPECIFIED, Family::number);
        let request = Request::netfilter(LIST, SUBSYSTEM, COMMAND_GET, DUMP, family);
        let request = filtered(request, filter);
        of_one_table(buckets, || {
            self.socket.ask(&request, |answer| {
                Ok(Some(read_flow(answer)?).filter(|flow| filter.admits(flow)))
            })
        })
    }

    /// How many flows there are; costs nothing.
    pub fn count(&mut self) -> Result<u32, Error> {
        let asked = "number of flows";
        let request = Request::netfilter(asked, SUBSYSTEM, COMMAND_GET_STATS, 0, UNSPECIFIED);
        let answers = self.socket.ask(&request, |answer| {
            let (_, attributes) = answer.split::<4>()?;
            Ok(attributes.be32(ENTRIES))
        })?;
        Ok(answers.into_iter().next().unwrap_or(u32::MAX))
    }

    /// Sets the bits under the mask of each flow and leaves the others; whether each flow was there.
    ///
    /// # Errors
    /// The first refusal; marks behind it are set all the same.
    pub fn set_marks(&mut self, marks: &[(&Flow, Mark)]) -> Result<Vec<bool>, Error> {
        let mut requests = Vec::with_capacity(marks.len());
        for (flow, mark) in marks {
            let named = flow.named_in(request("mark a flow", COMMAND_NEW, 0, flow.family()));
            fault_points::before(Step::Flow, || named.asked.to_owned())
                .map_err(|errno| Error::refused(named.asked, errno))?;
            requests.push(with_mark(named, *mark));
        }
        let outcomes = self.socket.tell_all(&requests).into_iter();
        outcomes.map(gone_is_false).collect()
    }

    /// Forgets a flow, or a later one of the same tuples (the kernel's own identity for flows does not tell them apart
    /// reliably: it is a hash of the tuple and of an address in memory that is used again); false if there is none.
    pub fn delete(&mut self, flow: &Flow) -> Result<bool, Error> {
        let request = flow.named_in(request("delete a flow", COMMAND_DELETE, 0, flow.family()));
        fault_points::before(Step::Flow, || request.asked.to_owned())
            .map_err(|errno| Error::refused(request.asked, errno))?;
        gone_is_false(self.socket.tell(&request))
    }

    /// Forgets all flows of both families whose bits under the mask are the mark's.
    pub fn flush_mark(&mut self, mark: Mark) -> Result<(), Error> {
        let request = Request::netfilter("delete flows by mark", SUBSYSTEM, COMMAND_DELETE, 0, UNSPECIFIED);
        fault_points::before(Step::Flow, || request.asked.to_owned())
            .map_err(|errno| Error::refused(request.asked, errno))?;
        self.socket.tell(&with_mark(request, mark))
    }
}

fn gone_is_false(outcome: Result<(), Error>) -> Result<bool, Error> {
    match outcome {
        Ok(()) => Ok(true),
        Err(error) if error.refusal_code() == Some(nix::libc::ENOENT) => Ok(false),
        Err(error) => Err(error),
    }
}

impl Flow {
    pub fn family(&self) -> Family {
        Family::of(self.original.source)
    }

    fn named_in(&self, request: Request) -> Request {
        let request = request.nest(TUPLE_ORIGINAL, |tuple| self.original.encode(tuple));
        if self.zone == 0 {
            request
        } else {
            request.bytes(ZONE, &self.zone.to_be_bytes())
        }
    }
}

const LIST: &str = "list of flows";
/// Somebody resizes the table by hand, if at all.
const LIST_ATTEMPTS: usize = 4;

const SUBSYSTEM: u8 = 1;
const COMMAND_NEW: u8 = 0;
const COMMAND_GET: u8 = 1;
const COMMAND_DELETE: u8 = 2;
const COMMAND_GET_STATS: u8 = 5;
const UNSPECIFIED: u8 = 0;

const TUPLE_ORIGINAL: u16 = 1;
const TUPLE_REPLY: u16 = 2;
const STATUS: u16 = 3;
const TIMEOUT: u16 = 7;
const CTA_MARK: u16 = 8;
const ZONE: u16 = 18;
const MARK_MASK: u16 = 21;
const FILTER: u16 = 25;
/// `CTA_STATS_GLOBAL_ENTRIES`, of the namespace of the socket.
const ENTRIES: u16 = 1;

/// What is listed while the table is resized lacks flows: the kernel goes on at the same number of a bucket in another table,
/// and does not say so (`ctnetlink_dump_table` sets no `NLM_F_DUMP_INTR`). So it is listed again where the number of buckets
/// became another one meanwhile.
fn of_one_table<T>(
    buckets: impl Fn() -> Option<String>,
    mut list: impl FnMut() -> Result<T, Error>,
) -> Result<T, Error> {
    let mut before = buckets();
    for _ in 0..LIST_ATTEMPTS {
        let listed = list()?;
        let after = buckets();
        if before == after {
            return Ok(listed);
        }
        before = after;
    }
    Err(Error::Interrupted { asked: LIST })
}

/// How many buckets the table has, which all network namespaces share; none where the kernel does not tell.
fn buckets() -> Option<String> {
    std::fs::read_to_string("/sys/module/nf_conntrack/parameters/hashsize").ok()
}

fn request(asked: &'static str, command: u8, flags: u16, family: Family) -> Request {
    Request::netfilter(asked, SUBSYSTEM, command, flags, family.number())
}

fn with_mark(request: Request, mark: Mark) -> Request {
    request
        .plain_be32(CTA_MARK, mark.value())
        .plain_be32(MARK_MASK, mark.mask().get())
}

/// `CTA_FILTER` says which parts of the tuples count: bit 0 of either is the source address (`nf_internals.h`).
///
/// Not for IPv6: `ctnetlink_filter_match_tuple` takes `!ipv6_addr_cmp()` for "differs" where it means "equals", so
/// that the kernel sends every flow *but* those asked for (seen on Linux 6.18).
fn filtered(request: Request, filter: &FlowFilter) -> Request {
    let by_kernel = |source: Option<IpAddr>| {
        source.filter(|source| filter.family == Some(Family::V4) && source.is_ipv4())
    };
    let original = by_kernel(filter.original_source);
    let reply = by_kernel(filter.reply_source);
    let request = with_source(with_source(request, TUPLE_ORIGINAL, original), TUPLE_REPLY, reply);
    let request = if original.or(reply).is_some() {
        with_flags(request, original, reply)
    } else {
        request
    };
    match filter.mark {
        Some(mark) => with_mark(request, mark),
        None => request,
    }
}

fn with_source(request: Request, which: u16, source: Option<IpAddr>) -> Request {
    match source {
        Some(source) => request.nest(which, |tuple| tuple::encode_source(tuple, source)),
        None => request,
    }
}

fn with_flags(request: Request, original: Option<IpAddr>, reply: Option<IpAddr>) -> Request {
    const ORIGINAL_FLAGS: u16 = 1;
    const REPLY_FLAGS: u16 = 2;
    let flag = |source: Option<IpAddr>| u32::from(source.is_some()).to_ne_bytes();
    request.nest(FILTER, |flags| {
        flags
            .bytes(ORIGINAL_FLAGS, &flag(original))
            .bytes(REPLY_FLAGS, &flag(reply))
    })
}

fn read_flow(answer: ReplyPart<'_>) -> Result<Flow, MalformedMessage> {
    let (_, attributes) = answer.split::<4>()?;
    let tuple = |which| Tuple::decode(&attributes.nest(which)?);
    Ok(Flow {
        original: tuple(TUPLE_ORIGINAL)?,
        reply: tuple(TUPLE_REPLY)?,
        mark: attributes.be32(CTA_MARK).unwrap_or(0),
        status: Status(attributes.be32(STATUS).unwrap_or(0)),
        timeout: attributes.be32(TIMEOUT),
        zone: attributes.be16(ZONE).unwrap_or(0),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    #[test]
    fn flows_are_listed_again_while_the_table_is_resized() {
        // The numbers of buckets as they are read, how often flows are listed, whether that is an answer.
        let rows: [(&[Option<&str>], usize, bool); 5] = [
            (&[Some("1"), Some("1")], 1, true),
            (&[Some("1"), Some("2"), Some("2")], 2, true),
            (&[Some("1"), Some("2"), Some("3"), Some("3")], 3, true),
            (&[Some("1"), Some("2"), Some("1"), Some("2"), Some("1")], 4, false),
            (&[None, None], 1, true),
        ];
        for (numbers, lists, is_answer) in rows {
            let (read, listed) = (Cell::new(0), Cell::new(0));
            let buckets = || {
                let number = numbers[read.replace(read.get() + 1)];
                number.map(str::to_owned)
            };
            let outcome = of_one_table(buckets, || Ok(listed.replace(listed.get() + 1)));
            assert_eq!(
                listed.get(),
                lists,
                "times that flows were listed, with {numbers:?}"
            );
            assert_eq!(outcome.ok(), is_answer.then_some(lists - 1), "{numbers:?}");
        }
    }
}
