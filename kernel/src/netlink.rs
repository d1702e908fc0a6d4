//! Netlink: one request, one answer (in as many parts as the kernel likes), one error.
//!
//! Small on purpose: the crates that exist either wrap C libraries or know no ipset, and what is needed is
//! four headers and a list of attributes. The layout is that of `linux/netlink.h`; a kernel answers a request
//! while `send` runs, so nothing here waits for longer than a copy takes.

use nix::errno::Errno;
use nix::sys::socket::{
    AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, bind, recv, send, setsockopt,
    socket, sockopt,
};
use nix::sys::time::TimeVal;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

/// Why an exchange with the kernel did not end with an answer that can be used.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("cannot open a netlink socket: {0}")]
    Open(#[source] Errno),
    #[error("cannot send the request \"{asked}\" to the kernel: {errno}")]
    Send { asked: &'static str, errno: Errno },
    #[error("cannot read the answer to \"{asked}\": {errno}")]
    Receive { asked: &'static str, errno: Errno },
    #[error("the answer to \"{asked}\" was lost: the socket's buffer overran")]
    Overrun { asked: &'static str },
    #[error("the kernel refused \"{asked}\": {}", refusal.errno())]
    Refused { asked: &'static str, refusal: Refusal },
    #[error("the listing for \"{asked}\" kept changing while it was read")]
    Interrupted { asked: &'static str },
    #[error("the answer to \"{asked}\" is malformed: {reason}")]
    Malformed {
        asked: &'static str,
        reason: &'static str,
    },
}

impl Error {
    /// The kernel's error number where the kernel refused; subsystems number their own from 4096 up.
    pub fn refusal_code(&self) -> Option<i32> {
        match self {
            Self::Refused { refusal, .. } => Some(refusal.code),
            Self::Open(_)
            | Self::Send { .. }
            | Self::Receive { .. }
            | Self::Overrun { .. }
            | Self::Interrupted { .. }
            | Self::Malformed { .. } => None,
        }
    }

    fn is_interrupted(&self) -> bool {
        matches!(self, Self::Interrupted { .. })
    }
}

/// An `NLMSG_ERROR`: the error number, and the request as the kernel echoed it (ipset writes into it which member failed).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    pub code: i32,
    pub(crate) echo: Vec<u8>,
}

impl Refusal {
    pub fn errno(&self) -> Errno {
        Errno::from_raw(self.code)
    }
}

pub(crate) const REQUEST: u16 = 0x01;
pub(crate) const ACKNOWLEDGE: u16 = 0x04;
/// `NLM_F_ROOT | NLM_F_MATCH`: everything, in several parts.
pub(crate) const DUMP: u16 = 0x300;
/// `NLM_F_EXCL`: fail when it exists. For ipset its absence also means "deleting an absent member is fine".
pub(crate) const EXCLUSIVE: u16 = 0x200;
pub(crate) const CREATE: u16 = 0x400;

const HEADER: usize = 16;
const MULTI_INTERRUPTED: u16 = 0x10;
const MESSAGE_ERROR: u16 = 2;
const MESSAGE_DONE: u16 = 3;
/// The kernel fills at most 32 KiB per read of a dump (`netlink_dump`); an error echoes a request, which is smaller.
const READ_SIZE: usize = 64 * 1024;
/// A dump that raced with a change is asked again this often before it is called an error.
const DUMP_ATTEMPTS: usize = 16;
/// The kernel answers before `send` returns; this only keeps a lost answer from blocking for ever.
const PATIENCE_SECONDS: i64 = 5;

/// A socket to one netlink family, in the network namespace of the thread that opened it.
///
/// Answers are told apart by sequence number. The sender is not checked: only the kernel and holders of
/// `CAP_NET_ADMIN` can send to sockets of these families (`netlink_allowed` in `af_netlink.c`).
#[derive(Debug)]
pub(crate) struct Socket {
    file: OwnedFd,
    sequence: u32,
    buffer: Vec<u8>,
}

impl Socket {
    pub(crate) fn open(protocol: SockProtocol) -> Result<Self, Error> {
        let socket = Self::bound(protocol, 0, SockFlag::SOCK_CLOEXEC)?;
        setsockopt(
            &socket.file,
            sockopt::ReceiveTimeout,
            &TimeVal::new(PATIENCE_SECONDS, 0),
        )
        .map_err(Error::Open)?;
        Ok(socket)
    }

    /// A socket that never blocks and hears the multicast groups whose bits (`RTMGRP_*`) are set.
    pub(crate) fn listen(protocol: SockProtocol, groups: u32) -> Result<Self, Error> {
        Self::bound(protocol, groups, SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK)
    }

    fn bound(protocol: SockProtocol, groups: u32, flags: SockFlag) -> Result<Self, Error> {
        let file = socket(AddressFamily::Netlink, SockType::Raw, flags, protocol).map_err(Error::Open)?;
        bind(file.as_raw_fd(), &NetlinkAddr::new(0, groups)).map_err(Error::Open)?;
        Ok(Self {
            file,
            sequence: 0,
            buffer: vec![0; READ_SIZE],
        })
    }

    /// Sends a request whose answer is only yes or no.
    pub(crate) fn tell(&mut self, request: &Request) -> Result<(), Error> {
        self.ask(request, |_| Ok(None::<()>)).map(drop)
    }

    /// Sends a request and collects what `read` makes of each part of the answer; `None` leaves a part out.
    pub(crate) fn ask<T>(
        &mut self,
        request: &Request,
        read: impl Fn(Answer<'_>) -> Result<Option<T>, Malformed>,
    ) -> Result<Vec<T>, Error> {
        for _ in 1..DUMP_ATTEMPTS {
            match self.ask_once(request, &read) {
                Err(error) if error.is_interrupted() => {}
                outcome => return outcome,
            }
        }
        self.ask_once(request, &read)
    }

    fn ask_once<T>(
        &mut self,
        request: &Request,
        read: &impl Fn(Answer<'_>) -> Result<Option<T>, Malformed>,
    ) -> Result<Vec<T>, Error> {
        let asked = request.asked;
        self.send(request)?;
        let mut collected = Collected {
            parts: Vec::new(),
            interrupted: false,
            malformed: None,
        };
        while !self.receive(asked, read, &mut collected)? {}
        match collected {
            Collected {
                malformed: Some(Malformed(reason)),
                ..
            } => Err(Error::Malformed { asked, reason }),
            Collected {
                interrupted: true, ..
            } => Err(Error::Interrupted { asked }),
            Collected { parts, .. } => Ok(parts),
        }
    }

    fn send(&mut self, request: &Request) -> Result<(), Error> {
        self.sequence = self.sequence.wrapping_add(1);
        let bytes = request.numbered(self.sequence);
        send(self.file.as_raw_fd(), &bytes, MsgFlags::empty())
            .map(drop)
            .map_err(|errno| Error::Send {
                asked: request.asked,
                errno,
            })
    }

    /// Reads one datagram; true when it ended the answer. A part that cannot be read does not stop the reading:
    /// the kernel's dump must run to its end, or the next one is refused with `EBUSY`.
    fn receive<T>(
        &mut self,
        asked: &'static str,
        read: &impl Fn(Answer<'_>) -> Result<Option<T>, Malformed>,
        collected: &mut Collected<T>,
    ) -> Result<bool, Error> {
        let length = self.datagram(asked)?;
        for message in Messages(&self.buffer[..length]) {
            let message = message.map_err(|Malformed(reason)| Error::Malformed { asked, reason })?;
            if message.sequence != self.sequence {
                continue;
            }
            collected.interrupted |= message.flags & MULTI_INTERRUPTED != 0;
            if message.kind == MESSAGE_ERROR || message.kind == MESSAGE_DONE {
                return verdict(asked, &message).map(|()| true);
            }
            match read(Answer {
                kind: message.kind,
                body: message.body,
            }) {
                Ok(part) => collected.parts.extend(part),
                Err(malformed) => collected.malformed = Some(malformed),
            }
        }
        Ok(false)
    }

    fn datagram(&mut self, asked: &'static str) -> Result<usize, Error> {
        let length = loop {
            match recv(self.file.as_raw_fd(), &mut self.buffer, MsgFlags::MSG_TRUNC) {
                Ok(length) => break length,
                Err(Errno::EINTR) => {}
                Err(Errno::ENOBUFS) => return Err(Error::Overrun { asked }),
                Err(errno) => return Err(Error::Receive { asked, errno }),
            }
        };
        if length > self.buffer.len() {
            return Err(Error::Malformed {
                asked,
                reason: "it is longer than the kernel's own limit",
            });
        }
        Ok(length)
    }

    /// The kinds of all notifications that wait, and whether some were lost.
    pub(crate) fn notifications(&mut self) -> Result<(Vec<u16>, bool), Error> {
        const ASKED: &str = "notifications";
        let (mut kinds, mut overrun) = (Vec::new(), false);
        loop {
            match self.datagram(ASKED) {
                Ok(length) => {
                    kinds.extend(
                        Messages(&self.buffer[..length]).filter_map(|message| Some(message.ok()?.kind)),
                    );
                }
                Err(Error::Overrun { .. }) => overrun = true,
                Err(Error::Receive {
                    errno: Errno::EAGAIN, ..
                }) => return Ok((kinds, overrun)),
                Err(error) => return Err(error),
            }
        }
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

struct Collected<T> {
    parts: Vec<T>,
    interrupted: bool,
    malformed: Option<Malformed>,
}

/// `NLMSG_ERROR` and `NLMSG_DONE` both begin with a negative error number, 0 meaning success.
fn verdict(asked: &'static str, message: &Message<'_>) -> Result<(), Error> {
    let Some((code, echo)) = message.body.split_first_chunk::<4>() else {
        return Err(Error::Malformed {
            asked,
            reason: "an error without a number",
        });
    };
    match i32::from_ne_bytes(*code) {
        0 => Ok(()),
        // An echo that goes on behind a DONE is the next listing's business.
        code if code < 0 => Err(Error::Refused {
            asked,
            refusal: Refusal {
                code: code.wrapping_neg(),
                echo: echo.to_vec(),
            },
        }),
        _ => Err(Error::Malformed {
            asked,
            reason: "a positive error number",
        }),
    }
}

/// One part of an answer: its message type and what follows the netlink header.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Answer<'a> {
    pub(crate) kind: u16,
    pub(crate) body: &'a [u8],
}

impl<'a> Answer<'a> {
    /// Splits off the family's own header (`nfgenmsg`, `rtmsg`, `ifinfomsg`, …) of `N` bytes.
    pub(crate) fn split<const N: usize>(self) -> Result<(&'a [u8; N], Attributes<'a>), Malformed> {
        let (header, rest) = self
            .body
            .split_first_chunk()
            .ok_or(Malformed("it is shorter than its header"))?;
        Ok((header, Attributes::parse(rest)?))
    }
}

/// What was wrong with bytes that came from the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Malformed(pub(crate) &'static str);

struct Message<'a> {
    kind: u16,
    flags: u16,
    sequence: u32,
    body: &'a [u8],
}

/// The messages of one datagram.
struct Messages<'a>(&'a [u8]);

impl<'a> Iterator for Messages<'a> {
    type Item = Result<Message<'a>, Malformed>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.0.is_empty() {
            return None;
        }
        let message = message(self.0);
        self.0 = match &message {
            Ok(message) => self
                .0
                .get(aligned(HEADER + message.body.len())..)
                .unwrap_or_default(),
            Err(_) => &[],
        };
        Some(message)
    }
}

fn message(bytes: &[u8]) -> Result<Message<'_>, Malformed> {
    let number = |at: usize| Some(u32::from_ne_bytes(*bytes.get(at..)?.first_chunk()?));
    let half = |at: usize| Some(u16::from_ne_bytes(*bytes.get(at..)?.first_chunk()?));
    let parsed = || {
        let length = usize::try_from(number(0)?).ok()?;
        let body = bytes.get(HEADER..length)?;
        Some(Message {
            kind: half(4)?,
            flags: half(6)?,
            sequence: number(8)?,
            body,
        })
    };
    parsed().ok_or(Malformed("a message is longer than what arrived"))
}

fn aligned(length: usize) -> usize {
    length.next_multiple_of(4)
}

/// A request under construction: the netlink header, the family's header, attributes.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    asked: &'static str,
    bytes: Vec<u8>,
}

const NESTED: u16 = 0x8000;
const NETWORK_ORDER: u16 = 0x4000;
const KIND_MASK: u16 = 0x3fff;

impl Request {
    /// `asked` says in words what is asked, for errors. A dump ends by itself; anything else is to be acknowledged.
    pub(crate) fn new(asked: &'static str, kind: u16, flags: u16, header: &[u8]) -> Self {
        let end = if flags & DUMP == DUMP { 0 } else { ACKNOWLEDGE };
        let mut bytes = vec![0; HEADER];
        bytes[4..6].copy_from_slice(&kind.to_ne_bytes());
        bytes[6..8].copy_from_slice(&(flags | REQUEST | end).to_ne_bytes());
        bytes.extend_from_slice(header);
        Self { asked, bytes }
    }

    /// A request to a netfilter subsystem (`nfnetlink.h`): type `subsystem << 8 | command`, then `nfgenmsg`.
    pub(crate) fn netfilter(asked: &'static str, subsystem: u8, command: u8, flags: u16, family: u8) -> Self {
        Self::new(
            asked,
            u16::from_be_bytes([subsystem, command]),
            flags,
            &[family, 0, 0, 0],
        )
    }

    pub(crate) fn bytes(mut self, kind: u16, payload: &[u8]) -> Self {
        self.put(kind, payload);
        self
    }

    pub(crate) fn byte(self, kind: u16, value: u8) -> Self {
        self.bytes(kind, &[value])
    }

    /// A NUL-terminated string.
    pub(crate) fn text(self, kind: u16, value: &str) -> Self {
        let terminated: Vec<u8> = value.bytes().chain([0]).collect();
        self.bytes(kind, &terminated)
    }

    /// Big-endian, and flagged so (ipset insists on the flag).
    pub(crate) fn be16(self, kind: u16, value: u16) -> Self {
        self.bytes(kind | NETWORK_ORDER, &value.to_be_bytes())
    }

    pub(crate) fn be32(self, kind: u16, value: u32) -> Self {
        self.bytes(kind | NETWORK_ORDER, &value.to_be_bytes())
    }

    /// Big-endian without the flag, as ctnetlink has it.
    pub(crate) fn plain_be32(self, kind: u16, value: u32) -> Self {
        self.bytes(kind, &value.to_be_bytes())
    }

    pub(crate) fn nest(mut self, kind: u16, fill: impl FnOnce(Self) -> Self) -> Self {
        let start = self.bytes.len();
        self.put(kind | NESTED, &[]);
        let mut filled = fill(self);
        let length = filled.bytes.len() - start;
        filled.bytes[start..start + 2].copy_from_slice(&attribute_length(length));
        filled
    }

    fn put(&mut self, kind: u16, payload: &[u8]) {
        self.bytes.extend_from_slice(&attribute_length(payload.len() + 4));
        self.bytes.extend_from_slice(&kind.to_ne_bytes());
        self.bytes.extend_from_slice(payload);
        self.bytes.resize(aligned(self.bytes.len()), 0);
    }

    fn numbered(&self, sequence: u32) -> Vec<u8> {
        let mut bytes = self.bytes.clone();
        let length = u32::try_from(bytes.len()).expect("a request is far below 4 GiB");
        bytes[0..4].copy_from_slice(&length.to_ne_bytes());
        bytes[8..12].copy_from_slice(&sequence.to_ne_bytes());
        bytes
    }

    /// The attributes behind the family's header of `N` bytes.
    #[cfg(test)]
    pub(crate) fn attributes<const N: usize>(&self) -> Attributes<'_> {
        Attributes::parse(&self.bytes[HEADER + N..]).expect("what was just built can be read")
    }
}

fn attribute_length(length: usize) -> [u8; 2] {
    u16::try_from(length)
        .expect("callers keep each attribute below 64 KiB")
        .to_ne_bytes()
}

/// The attributes of one message or of one nest, bounds checked.
#[derive(Clone, Debug, Default)]
pub(crate) struct Attributes<'a>(Vec<(u16, &'a [u8])>);

impl<'a> Attributes<'a> {
    pub(crate) fn parse(mut bytes: &'a [u8]) -> Result<Self, Malformed> {
        let mut attributes = Vec::new();
        while let Some(length) = bytes
            .first_chunk()
            .map(|length| usize::from(u16::from_ne_bytes(*length)))
        {
            let (Some(&[_, _, low, high]), Some(payload)) = (bytes.first_chunk(), bytes.get(4..length))
            else {
                return Err(Malformed("an attribute is longer than what holds it"));
            };
            attributes.push((u16::from_ne_bytes([low, high]) & KIND_MASK, payload));
            bytes = bytes.get(aligned(length)..).unwrap_or_default();
        }
        Ok(Self(attributes))
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (u16, &'a [u8])> {
        self.0.iter().copied()
    }

    pub(crate) fn get(&self, kind: u16) -> Option<&'a [u8]> {
        self.iter()
            .find(|(found, _)| *found == kind)
            .map(|(_, payload)| payload)
    }

    /// An absent nest reads as an empty one: whoever needs something inside will miss it there.
    pub(crate) fn nest(&self, kind: u16) -> Result<Self, Malformed> {
        Self::parse(self.get(kind).unwrap_or_default())
    }

    pub(crate) fn byte(&self, kind: u16) -> Option<u8> {
        self.get(kind)?.first().copied()
    }

    pub(crate) fn be16(&self, kind: u16) -> Option<u16> {
        Some(u16::from_be_bytes(*self.get(kind)?.first_chunk()?))
    }

    pub(crate) fn be32(&self, kind: u16) -> Option<u32> {
        Some(u32::from_be_bytes(*self.get(kind)?.first_chunk()?))
    }

    /// In the byte order of this machine, as rtnetlink has it.
    pub(crate) fn native32(&self, kind: u16) -> Option<u32> {
        Some(u32::from_ne_bytes(*self.get(kind)?.first_chunk()?))
    }

    /// A string, without the NUL that most senders append.
    pub(crate) fn text(&self, kind: u16) -> Option<String> {
        let bytes = self.get(kind)?;
        let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
        Some(String::from_utf8_lossy(&bytes[..end]).into_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nests_and_byte_orders_are_laid_out_as_the_kernel_reads_them() {
        let request = Request::netfilter("test", 6, 9, 0, 2)
            .nest(7, |data| data.be16(4, 80).byte(7, 6))
            .text(2, "ab");
        let bytes = request.numbered(5);
        assert_eq!(&bytes[..4], &(16 + 4 + 20 + 8u32).to_ne_bytes());
        assert_eq!(&bytes[4..8], &[9, 6, 5, 0]); // type 6 << 8 | 9, REQUEST | ACK (little-endian machines)
        assert_eq!(&bytes[16..20], &[2, 0, 0, 0]);
        assert_eq!(
            &bytes[20..],
            b"\x14\0\x07\x80\x06\0\x04\x40\0\x50\0\0\x05\0\x07\0\x06\0\0\0\x07\0\x02\0ab\0\0"
        );
        let attributes = request.attributes::<4>();
        let data = attributes.nest(7).unwrap();
        assert_eq!(
            (data.be16(4), data.byte(7), attributes.text(2).as_deref()),
            (Some(80), Some(6), Some("ab"))
        );
    }

    #[test]
    fn attributes_that_lie_about_their_length_are_malformed() {
        for bytes in [
            &[8, 0, 1, 0, 9][..],
            &[3, 0, 1, 0],
            &[0, 0, 1, 0],
            &[4, 0],
            &[255, 255, 1, 0],
        ] {
            assert!(Attributes::parse(bytes).is_err(), "{bytes:?}");
        }
        assert_eq!(Attributes::parse(&[5, 0, 1, 0, 9]).unwrap().byte(1), Some(9));
    }

    #[test]
    fn a_datagram_that_ends_early_is_malformed_and_ends_the_reading() {
        let whole = Request::new("test", 20, 0, &[1, 2, 3, 4]).numbered(1);
        for cut in 1..whole.len() {
            let outcomes: Vec<_> = Messages(&whole[..cut]).map(|message| message.is_ok()).collect();
            assert_eq!(outcomes, [false], "cut at {cut}");
        }
        let twice = [&whole[..], &whole[..]].concat();
        assert_eq!(
            Messages(&twice)
                .filter_map(Result::ok)
                .map(|message| message.body.len())
                .collect::<Vec<_>>(),
            [4, 4]
        );
    }

    #[test]
    fn an_error_number_of_zero_is_success_and_anything_else_is_told_with_what_was_asked() {
        let verdict = |asked, body: &[u8]| {
            verdict(
                asked,
                &Message {
                    kind: MESSAGE_ERROR,
                    flags: 0,
                    sequence: 1,
                    body,
                },
            )
        };
        assert!(verdict("x", &0i32.to_ne_bytes()).is_ok());
        let error = verdict("list sets", &(-2i32).to_ne_bytes()).unwrap_err();
        assert_eq!(error.refusal_code(), Some(2));
        assert!(
            error.to_string().contains("list sets") && error.to_string().contains("ENOENT"),
            "{error}"
        );
        assert!(matches!(verdict("x", &[1]), Err(Error::Malformed { .. })));
    }
}
