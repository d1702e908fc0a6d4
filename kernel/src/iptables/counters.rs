//! What the rules of single chains have counted, in the flavour `nft`: by netlink, where `iptables-save` would list the
//! whole table. Requests and attributes are those of `linux/netfilter/nf_tables.h`; the kernel finds the chain by its name and
//! sends its rules in their order (`nf_tables_dump_rules` of net/netfilter/nf_tables_api.c).

use super::Table;
use crate::Family;
use crate::netlink::{Attributes, DUMP, Error, MalformedMessage, Request, Socket};
use nix::sys::socket::SockProtocol;

const SUBSYSTEM: u8 = 10;
const GET_RULE: u8 = 7;
const RULE_TABLE: u16 = 1;
const RULE_CHAIN: u16 = 2;
const RULE_EXPRESSIONS: u16 = 4;
const EXPRESSION_NAME: u16 = 1;
const EXPRESSION_DATA: u16 = 2;
const COUNTER_PACKETS: u16 = 2;

/// The counters of chains, in the network namespace of the thread that opened it.
#[derive(Debug)]
pub struct ChainCounters {
    socket: Socket,
}

impl ChainCounters {
    /// Opens a socket.
    pub fn open() -> Result<Self, Error> {
        Socket::open(SockProtocol::NetlinkNetFilter).map(|socket| Self { socket })
    }

    /// Packets that met each rule of a chain, in the order of the rules; of a chain that is not there, none.
    pub fn packets(&mut self, family: Family, table: Table, chain: &str) -> Result<Vec<u64>, Error> {
        let request = Request::netfilter("counters of a chain", SUBSYSTEM, GET_RULE, DUMP, family.number())
            .text(RULE_TABLE, table.name())
            .text(RULE_CHAIN, chain);
        self.socket.ask(&request, |answer| {
            let (_, rule) = answer.split::<4>()?;
            if rule.text(RULE_CHAIN).as_deref() != Some(chain) {
                return Ok(None);
            }
            packets_of(&rule.nest(RULE_EXPRESSIONS)?).map(Some)
        })
    }
}

/// iptables gives each rule one counter.
fn packets_of(expressions: &Attributes<'_>) -> Result<u64, MalformedMessage> {
    for (_, expression) in expressions.iter() {
        let expression = Attributes::parse(expression)?;
        if expression.text(EXPRESSION_NAME).as_deref() == Some("counter") {
            let data = expression.nest(EXPRESSION_DATA)?;
            let packets = data.get(COUNTER_PACKETS).and_then(|bytes| bytes.first_chunk());
            return packets
                .map(|bytes| u64::from_be_bytes(*bytes))
                .ok_or(MalformedMessage("a counter has no packets"));
        }
    }
    Err(MalformedMessage("a rule counts nothing"))
}
