//! Packets that bear a mark, delivered on this host: a rule of routing that asks for the mark, and a table of its own that
//! says that everything is local.

use crate::netlink::{
    ACKNOWLEDGE, CREATE, DUMP, EXCLUSIVE, Error, MalformedMessage, ReplyPart, Request, Socket,
};
use crate::{Family, Mark};
use nix::libc::{
    EEXIST, ENOENT, ESRCH, RTA_OIF, RTA_TABLE, RTM_DELROUTE, RTM_DELRULE, RTM_GETRULE, RTM_NEWROUTE,
    RTM_NEWRULE, RTN_LOCAL,
};
use nix::sys::socket::SockProtocol;
use std::num::NonZeroU32;

/// What is marked so is delivered here, whatever its destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LocalDelivery {
    pub family: Family,
    pub mark: Mark,
    /// The table, which nobody else uses.
    pub table: u32,
    /// The place among the rules: lower is asked first, and the main table is asked at 32766.
    pub priority: u32,
}

/// A rule of routing that asks for a mark.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MarkRule {
    pub mark: Mark,
    pub table: u32,
    pub priority: u32,
}

/// The routing of one network namespace: that of the thread which opened it.
#[derive(Debug)]
pub struct Routing {
    socket: Socket,
}

impl Routing {
    pub fn open() -> Result<Self, Error> {
        Socket::open(SockProtocol::NetlinkRoute).map(|socket| Self { socket })
    }

    /// The rules that ask for a mark, in the order in which they are asked.
    pub fn mark_rules(&mut self, family: Family) -> Result<Vec<MarkRule>, Error> {
        let mut header = [0; RULE_HEADER];
        header[0] = family.number();
        let request = Request::new("rules of routing", RTM_GETRULE, DUMP, &header);
        self.socket.ask(&request, read_rule)
    }

    /// Makes the rule and its table be there; says whether something was missing.
    pub fn ensure(&mut self, delivery: &LocalDelivery) -> Result<bool, Error> {
        // The table first: a rule that leads into an empty one is passed over.
        let made_route = self.make(&delivery.route(RTM_NEWROUTE, CREATE | EXCLUSIVE))?;
        Ok(self.make(&delivery.rule(RTM_NEWRULE, CREATE | EXCLUSIVE))? || made_route)
    }

    /// Removes both; says whether something was there.
    pub fn remove(&mut self, delivery: &LocalDelivery) -> Result<bool, Error> {
        let had_rule = self.unmake(&delivery.rule(RTM_DELRULE, 0))?;
        Ok(self.unmake(&delivery.route(RTM_DELROUTE, 0))? || had_rule)
    }

    fn make(&mut self, request: &Request) -> Result<bool, Error> {
        unless(self.socket.tell(request), &[EEXIST])
    }

    fn unmake(&mut self, request: &Request) -> Result<bool, Error> {
        unless(self.socket.tell(request), &[ENOENT, ESRCH])
    }
}

/// Whether it was done; a refusal with one of these codes says that it was so before.
fn unless(told: Result<(), Error>, codes: &[i32]) -> Result<bool, Error> {
    match told {
        Ok(()) => Ok(true),
        Err(error) if error.refusal_code().is_some_and(|code| codes.contains(&code)) => Ok(false),
        Err(error) => Err(error),
    }
}

/// `struct fib_rule_hdr` and attributes of `linux/fib_rules.h`; `struct rtmsg` of `linux/rtnetlink.h`.
const RULE_HEADER: usize = 12;
const ROUTE_HEADER: usize = 12;
const FRA_PRIORITY: u16 = 6;
const FRA_FWMARK: u16 = 10;
const FRA_TABLE: u16 = 15;
const FRA_FWMASK: u16 = 16;
const TO_TABLE: u8 = 1;
/// `RT_SCOPE_HOST`, `RTPROT_STATIC`.
const SCOPE_HOST: u8 = 254;
const PROTOCOL_STATIC: u8 = 4;
/// The loopback device has this index in every namespace (`LOOPBACK_IFINDEX`).
const LOOPBACK: u32 = 1;

impl LocalDelivery {
    fn rule(&self, kind: u16, flags: u16) -> Request {
        let mut header = [0; RULE_HEADER];
        (header[0], header[7]) = (self.family.number(), TO_TABLE);
        Request::new("a rule of routing for a mark", kind, ACKNOWLEDGE | flags, &header)
            .bytes(FRA_PRIORITY, &self.priority.to_ne_bytes())
            .bytes(FRA_FWMARK, &self.mark.value().to_ne_bytes())
            .bytes(FRA_FWMASK, &self.mark.mask().get().to_ne_bytes())
            .bytes(FRA_TABLE, &self.table.to_ne_bytes())
    }

    fn route(&self, kind: u16, flags: u16) -> Request {
        let mut header = [0; ROUTE_HEADER];
        (header[0], header[5], header[6]) = (self.family.number(), PROTOCOL_STATIC, SCOPE_HOST);
        header[7] = RTN_LOCAL;
        Request::new("a route to this host", kind, ACKNOWLEDGE | flags, &header)
            .bytes(RTA_TABLE, &self.table.to_ne_bytes())
            .bytes(RTA_OIF, &LOOPBACK.to_ne_bytes())
    }
}

fn read_rule(answer: ReplyPart<'_>) -> Result<Option<MarkRule>, MalformedMessage> {
    if answer.kind != RTM_NEWRULE {
        return Ok(None);
    }
    let (header, attributes) = answer.split::<RULE_HEADER>()?;
    let Some(value) = attributes.native32(FRA_FWMARK) else {
        return Ok(None);
    };
    let mask = attributes.native32(FRA_FWMASK).unwrap_or(u32::MAX);
    Ok(NonZeroU32::new(mask).map(|mask| MarkRule {
        mark: Mark::new(value, mask),
        table: attributes.native32(FRA_TABLE).unwrap_or_else(|| header[4].into()),
        priority: attributes.native32(FRA_PRIORITY).unwrap_or(0),
    }))
}
