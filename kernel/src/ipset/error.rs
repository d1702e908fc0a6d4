//! What can go wrong with a set, in words: which set, what was tried, and the kernel's reason.

use super::{ATTRIBUTE_LINENO, Kind, Member, SetEntry};
use crate::netlink::{self, Attributes};
use nix::errno::Errno;
use std::fmt;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(
        "\"{name}\" cannot be the name of a set: 1 to 31 printable ASCII characters without spaces are accepted"
    )]
    Name { name: String },
    #[error("this kernel speaks ipset protocol {newest:?}; 6 or newer is needed")]
    Protocol { newest: Option<u8> },
    #[error("this kernel has {} in revisions {kernel:?}; one up to {known} is needed", kind.name())]
    Revision {
        kind: Kind,
        known: u8,
        kernel: Option<(u8, u8)>,
    },
    #[error("{} \"{set}\"{}: {reason}", command.words(), at(member.as_ref()))]
    Refused {
        command: Command,
        set: String,
        member: Option<Member>,
        reason: Reason,
    },
    #[error("{} \"{set}\": {error}", command.words())]
    Netlink {
        command: Command,
        set: String,
        #[source]
        error: netlink::Error,
    },
}

impl Error {
    /// The kernel's reason, where the kernel said no.
    pub fn reason(&self) -> Option<Reason> {
        match self {
            Self::Refused { reason, .. } => Some(*reason),
            Self::Name { .. } | Self::Protocol { .. } | Self::Revision { .. } | Self::Netlink { .. } => None,
        }
    }

    pub(super) fn kernel(command: Command, set: &str, error: netlink::Error) -> Self {
        Self::in_batch(command, set, error, &[])
    }

    /// Also finds out which member it was: the kernel wrote its number into the echoed request.
    pub(super) fn in_batch(command: Command, set: &str, error: netlink::Error, batch: &[SetEntry]) -> Self {
        let set = set.to_owned();
        match error {
            netlink::Error::Refused { refusal, .. } => {
                let member =
                    line(&refusal.echo).and_then(|line| Some(batch.get(line.checked_sub(1)?)?.member));
                Self::Refused {
                    command,
                    set,
                    member,
                    reason: Reason::of(command, refusal.code),
                }
            }
            error @ (netlink::Error::Open(_)
            | netlink::Error::Send { .. }
            | netlink::Error::Receive { .. }
            | netlink::Error::Overrun { .. }
            | netlink::Error::Interrupted { .. }
            | netlink::Error::Malformed { .. }) => Self::Netlink { command, set, error },
        }
    }
}

/// The echo holds the request's netlink header (16 bytes) and `nfgenmsg` (4), then its attributes.
fn line(echo: &[u8]) -> Option<usize> {
    let attributes = Attributes::parse(echo.get(20..)?).ok()?;
    usize::try_from(attributes.be32(ATTRIBUTE_LINENO)?).ok()
}

fn at(member: Option<&Member>) -> String {
    member
        .map(|member| format!(", at member {member}"))
        .unwrap_or_default()
}

/// What was asked of ipset; the numbers are `enum ipset_cmd`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command {
    Open,
    Create,
    Destroy,
    Flush,
    Swap,
    List,
    Add,
    Delete,
    Test,
    Type,
}

impl Command {
    pub(super) fn number(self) -> u8 {
        match self {
            Self::Open => 1,
            Self::Create => 2,
            Self::Destroy => 3,
            Self::Flush => 4,
            Self::Swap => 6,
            Self::List => 7,
            Self::Add => 9,
            Self::Delete => 10,
            Self::Test => 11,
            Self::Type => 13,
        }
    }

    pub(super) fn words(self) -> &'static str {
        match self {
            Self::Open => "cannot agree on an ipset protocol",
            Self::Create => "cannot create the set",
            Self::Destroy => "cannot destroy the set",
            Self::Flush => "cannot flush the set",
            Self::Swap => "cannot swap the set",
            Self::List => "cannot list the set",
            Self::Add => "cannot add to the set",
            Self::Delete => "cannot delete from the set",
            Self::Test => "cannot look into the set",
            Self::Type => "cannot ask the kernel about the type of the set",
        }
    }
}

/// The kernel's reasons, `enum ipset_errno` and the type-specific ones of `ip_set_hash.h`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    NoSuchSet,
    /// The set exists already, or (for a test) the member is not in it.
    Exists,
    /// A rule or another set refers to it.
    InUse,
    Full,
    TooManySets,
    TypeUnsupported,
    TypeMismatch,
    MemberMismatch,
    TimeoutsUnsupported,
    PrefixLength,
    NullMember,
    Range,
    ProtocolNumber,
    NotPermitted,
    /// The message was not understood: this module and the kernel disagree.
    Malformed,
    /// Any other number.
    Other(i32),
}

impl Reason {
    fn of(command: Command, code: i32) -> Self {
        match code {
            nix::libc::ENOENT => Self::NoSuchSet,
            nix::libc::EEXIST | 4103 => Self::Exists,
            nix::libc::EPERM => Self::NotPermitted,
            // A member without what the set's type needs: an address of its family, a port.
            4097 if command == Command::Add || command == Command::Delete => Self::MemberMismatch,
            4097 => Self::Malformed,
            4098 => Self::TypeUnsupported,
            4099 => Self::TooManySets,
            // A swap of sets of two kinds or families is a mismatch; destroying what rules refer to is "busy".
            4100 | 4108 => Self::InUse,
            4101 if command == Command::Swap => Self::NoSuchSet,
            4102 => Self::TypeMismatch,
            4104 | 4105 => Self::PrefixLength,
            4106 | 4109 | 4110 => Self::MemberMismatch,
            4107 => Self::TimeoutsUnsupported,
            4352 => Self::Full,
            4353 => Self::NullMember,
            4354 | 4355 => Self::ProtocolNumber,
            4356 | 4357 | nix::libc::ERANGE => Self::Range,
            code => Self::Other(code),
        }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::NoSuchSet => "there is no such set",
            Self::Exists => "it exists already",
            Self::InUse => "a rule or another set refers to it",
            Self::Full => "it is full (its maxelem is reached)",
            Self::TooManySets => "the kernel holds as many sets as it can",
            Self::TypeUnsupported => "this kernel does not support the set's type or revision",
            Self::TypeMismatch => "the two sets are of different types or families",
            Self::MemberMismatch => "the member's kind or address family is not the set's",
            Self::TimeoutsUnsupported => {
                "the set was created without timeouts, so members cannot have lifetimes"
            }
            Self::PrefixLength => "the prefix length is not accepted by this type of set",
            Self::NullMember => "the unspecified address (0.0.0.0 or ::) cannot be a member",
            Self::Range => "the prefix covers more addresses than the set may be expanded to",
            Self::ProtocolNumber => "a member of this type needs a protocol with ports",
            Self::NotPermitted => "not permitted (CAP_NET_ADMIN is needed)",
            Self::Malformed => "the kernel did not understand the message",
            Self::Other(code) => return write!(formatter, "error {code} ({})", Errno::from_raw(*code)),
        })
    }
}
