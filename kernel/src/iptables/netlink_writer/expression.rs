//! The expressions of nf_tables of which iptables makes its rules, and their attributes (`linux/netfilter/nf_tables.h`).

use crate::netlink::Request;

/// All numbers are compared in this register; `NFT_REG_1`.
const REGISTER: u32 = 1;

/// A step of a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Expression {
    /// Loads something that is known of the packet.
    Meta(Meta),
    /// Loads octets of the packet.
    Payload {
        base: Base,
        offset: u32,
        length: u32,
    },
    /// Keeps these bits of what was loaded.
    Mask(Vec<u8>),
    /// Goes on where what was loaded compares so.
    Compare(Comparison, Vec<u8>),
    /// Goes on where it is within these, both included.
    Range(Vec<u8>, Vec<u8>),
    /// Goes on so often a second.
    Limit {
        rate: u64,
        burst: u32,
    },
    /// A match of `x_tables`, by its name, revision and private structure.
    Match(&'static str, u32, Vec<u8>),
    /// A target of `x_tables`.
    Target(&'static str, u32, Vec<u8>),
    Counter {
        packets: u64,
        octets: u64,
    },
    Verdict(Verdict),
    Log {
        prefix: String,
        group: u16,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Meta {
    Mark,
    InputName,
    OutputName,
    Protocol,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Base {
    Network,
    Transport,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Comparison {
    Equal,
    NotEqual,
    AtMost,
}

impl Comparison {
    pub(super) fn of(holds: bool) -> Self {
        if holds { Self::Equal } else { Self::NotEqual }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Drop,
    Accept,
    Return,
    Jump(String),
    Goto(String),
}

const LIST_ELEMENT: u16 = 1;
const EXPRESSION_NAME: u16 = 1;
const EXPRESSION_DATA: u16 = 2;
const DATA_VALUE: u16 = 1;
const DATA_VERDICT: u16 = 2;

impl Expression {
    /// As an element of a list of expressions.
    pub(super) fn put(&self, list: Request) -> Request {
        list.nest(LIST_ELEMENT, |element| {
            let element = element.text(EXPRESSION_NAME, self.name());
            element.nest(EXPRESSION_DATA, |data| self.put_data(data))
        })
    }

    fn name(&self) -> &'static str {
        match self {
            Self::Meta(_) => "meta",
            Self::Payload { .. } => "payload",
            Self::Mask(_) => "bitwise",
            Self::Compare(..) => "cmp",
            Self::Range(..) => "range",
            Self::Limit { .. } => "limit",
            Self::Match(..) => "match",
            Self::Target(..) => "target",
            Self::Counter { .. } => "counter",
            Self::Verdict(_) => "immediate",
            Self::Log { .. } => "log",
        }
    }

    /// In the numbers of each expression's own attributes, `NFTA_META_DREG` and so on.
    fn put_data(&self, data: Request) -> Request {
        match self {
            Self::Meta(meta) => data.plain_be32(2, meta.number()).plain_be32(1, REGISTER),
            Self::Payload { base, offset, length } => data
                .plain_be32(1, REGISTER)
                .plain_be32(2, base.number())
                .plain_be32(3, *offset)
                .plain_be32(4, *length),
            Self::Mask(mask) => {
                let length = u32::try_from(mask.len()).expect("a register has 16 octets");
                let data = data
                    .plain_be32(1, REGISTER)
                    .plain_be32(2, REGISTER)
                    .plain_be32(3, length);
                value(value(data, 4, mask), 5, &vec![0; mask.len()])
            }
            Self::Compare(comparison, with) => value(
                data.plain_be32(1, REGISTER).plain_be32(2, comparison.number()),
                3,
                with,
            ),
            Self::Range(first, last) => {
                let data = data
                    .plain_be32(1, REGISTER)
                    .plain_be32(2, Comparison::Equal.number());
                value(value(data, 3, first), 4, last)
            }
            Self::Limit { rate, burst } => data
                .bytes(1, &rate.to_be_bytes())
                .bytes(2, &1u64.to_be_bytes())
                .plain_be32(3, *burst),
            Self::Match(name, revision, info) | Self::Target(name, revision, info) => {
                data.text(1, name).plain_be32(2, *revision).bytes(3, info)
            }
            Self::Counter { packets, octets } => data
                .bytes(1, &octets.to_be_bytes())
                .bytes(2, &packets.to_be_bytes()),
            Self::Verdict(verdict) => data
                .plain_be32(1, 0)
                .nest(2, |data| data.nest(DATA_VERDICT, |data| verdict.put(data))),
            Self::Log { prefix, group } => {
                let data = data.bytes(1, &group.to_be_bytes());
                if prefix.is_empty() {
                    data
                } else {
                    data.text(2, prefix)
                }
            }
        }
    }
}

fn value(data: Request, kind: u16, octets: &[u8]) -> Request {
    data.nest(kind, |data| data.bytes(DATA_VALUE, octets))
}

impl Meta {
    fn number(self) -> u32 {
        match self {
            Self::Mark => 3,
            Self::InputName => 6,
            Self::OutputName => 7,
            Self::Protocol => 16,
        }
    }
}

impl Base {
    fn number(self) -> u32 {
        match self {
            Self::Network => 1,
            Self::Transport => 2,
        }
    }
}

impl Comparison {
    fn number(self) -> u32 {
        match self {
            Self::Equal => 0,
            Self::NotEqual => 1,
            Self::AtMost => 3,
        }
    }
}

/// The code of `NFT_JUMP`.
pub(super) const JUMP: u32 = u32::MAX - 2;

impl Verdict {
    fn put(&self, data: Request) -> Request {
        let data = data.plain_be32(1, self.code());
        match self {
            Self::Drop | Self::Accept | Self::Return => data,
            Self::Jump(chain) | Self::Goto(chain) => data.text(2, chain),
        }
    }

    fn code(&self) -> u32 {
        match self {
            Self::Drop => 0,
            Self::Accept => 1,
            Self::Jump(_) => JUMP,
            Self::Goto(_) => u32::MAX - 3,
            Self::Return => u32::MAX - 4,
        }
    }
}
