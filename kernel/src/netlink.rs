//! Netlink: one request, one answer (in as many parts as the kernel likes), one error.
//!
//! Small on purpose: the crates that exist either wrap C libraries or know no ipset, and what is needed is
//! four headers and a list of attributes. The layout is that of `linux/netlink.h`; a kernel answers a request
//! while `send` runs, so nothing here waits for longer than a copy takes.

mod message;
mod transaction;

pub(crate) use message::{Attributes, MalformedMessage, ReplyPart, Request};
pub(crate) use transaction::{Transaction, TransactionError};

use message::{Message, Messages};
use nix::errno::Errno;
use nix::sys::socket::{
    AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, bind, getsockname, recv, send,
    setsockopt, socket, sockopt,
};
use nix::sys::time::TimeVal;
use socket2::{SockFilter, SockRef};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

/// Why an exchange with the kernel did not end with an answer that can be used.
#[derive(Clone, Debug, thiserror::Error)]
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
    Refused {
        asked: &'static str,
        refusal: NlmsgError,
    },
    #[error("the listing for \"{asked}\" kept changing while it was read")]
    Interrupted { asked: &'static str },
    #[error("the answer to \"{asked}\" is malformed: {reason}")]
    Malformed {
        asked: &'static str,
        reason: &'static str,
    },
}

impl Error {
    /// A refusal that a fault stands for.
    pub fn refused(asked: &'static str, errno: nix::errno::Errno) -> Self {
        let refusal = NlmsgError {
            code: errno as i32,
            echo: Vec::new(),
        };
        Self::Refused { asked, refusal }
    }

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
pub struct NlmsgError {
    pub code: i32,
    pub(crate) echo: Vec<u8>,
}

impl NlmsgError {
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

const MULTI_INTERRUPTED: u16 = 0x10;
const MESSAGE_ERROR: u16 = 2;
const MESSAGE_DONE: u16 = 3;
/// The kernel fills at most 32 KiB per read of a dump (`netlink_dump`); an error echoes a request, which is smaller.
const READ_SIZE: usize = 64 * 1024;
/// A dump that raced with a change is asked again this often before it is called an error.
const DUMP_ATTEMPTS: usize = 16;
/// Requests in one datagram: their refusals, each with the request that it is about, must fit into what the socket may hold.
const MOST_TOGETHER: usize = 64;
/// The octets of requests in one datagram, unless one alone has more.
const MOST_OCTETS: usize = 32 * 1024;
/// The kernel answers before `send` returns; this only keeps a lost answer from blocking for ever.
const PATIENCE_SECONDS: i64 = 5;

/// A socket to one netlink family, in the network namespace of the thread that opened it.
///
/// Answers are told apart by sequence number. The sender is not checked: only the kernel and holders of
/// `CAP_NET_ADMIN` can send to sockets of these families (`netlink_allowed` in `af_netlink.c`).
#[derive(Debug)]
pub(crate) struct Socket {
    file: OwnedFd,
    /// What the kernel calls it.
    port: u32,
    sequence: u32,
    buffer: Vec<u8>,
    /// How long a datagram may be that it sends; 0 as long as nobody asked.
    sends: usize,
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
        let address: NetlinkAddr = getsockname(file.as_raw_fd()).map_err(Error::Open)?;
        Ok(Self {
            file,
            port: address.pid(),
            sequence: 0,
            buffer: vec![0; READ_SIZE],
            sends: 0,
        })
    }

    /// How many were sent.
    #[cfg(test)]
    pub(crate) const fn requests(&self) -> u32 {
        self.sequence
    }

    /// Sends a request whose answer is only yes or no.
    pub(crate) fn tell(&mut self, request: &Request) -> Result<(), Error> {
        self.ask(request, |_| Ok(None::<()>)).map(drop)
    }

    /// Sends requests whose answers are only yes or no, many in a datagram, and says what became of each. The kernel does them in their
    /// order and goes on behind one that it refuses (`netlink_rcv_skb`), so only the last is to be acknowledged.
    pub(crate) fn tell_all(&mut self, requests: &[Request]) -> Vec<Result<(), Error>> {
        let mut outcomes = Vec::with_capacity(requests.len());
        let mut rest = requests;
        while !rest.is_empty() {
            let (together, behind) = rest.split_at(how_many(rest));
            outcomes.extend(self.tell_together(together));
            rest = behind;
        }
        outcomes
    }

    fn tell_together(&mut self, requests: &[Request]) -> Vec<Result<(), Error>> {
        let first = self.sequence.wrapping_add(1);
        let mut datagram = Vec::with_capacity(requests.iter().map(Request::octets).sum());
        for (number, request) in requests.iter().enumerate() {
            self.sequence = self.sequence.wrapping_add(1);
            request.put_into(&mut datagram, self.sequence, number + 1 == requests.len());
        }
        let Some(asked) = requests.first().map(|request| request.asked) else {
            return Vec::new();
        };
        if let Err(errno) = send(self.file.as_raw_fd(), &datagram, MsgFlags::empty()) {
            return vec![Err(Error::Send { asked, errno }); requests.len()];
        }
        let mut outcomes = vec![Ok(()); requests.len()];
        loop {
            match self.verdicts(asked, first, &mut outcomes) {
                Ok(false) => {}
                Ok(true) => return outcomes,
                // Nobody knows what became of those that are not known to be refused.
                Err(error) => {
                    let unknown = outcomes
                        .into_iter()
                        .map(|outcome| outcome.and_then(|()| Err(error.clone())));
                    return unknown.collect();
                }
            }
        }
    }

    /// Reads one datagram of verdicts; true when that on the last request was among them.
    fn verdicts(
        &mut self,
        asked: &'static str,
        first: u32,
        outcomes: &mut [Result<(), Error>],
    ) -> Result<bool, Error> {
        let length = self.datagram(asked)?;
        for message in Messages(&self.buffer[..length]) {
            let message = message.map_err(|MalformedMessage(reason)| Error::Malformed { asked, reason })?;
            let number = usize::try_from(message.sequence.wrapping_sub(first)).unwrap_or(usize::MAX - 1);
            let is_last = number + 1 == outcomes.len();
            if let Some(outcome) = outcomes.get_mut(number).filter(|_| message.kind == MESSAGE_ERROR) {
                *outcome = verdict(asked, &message);
                if is_last {
                    return Ok(true);
                }
            }
        }
        Ok(false)
    }

    /// Sends a request and collects what `read` makes of each part of the answer; `None` leaves a part out.
    pub(crate) fn ask<T>(
        &mut self,
        request: &Request,
        read: impl Fn(ReplyPart<'_>) -> Result<Option<T>, MalformedMessage>,
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
        read: &impl Fn(ReplyPart<'_>) -> Result<Option<T>, MalformedMessage>,
    ) -> Result<Vec<T>, Error> {
        let asked = request.asked;
        self.send(request)?;
        let mut collected = Replies {
            parts: Vec::new(),
            interrupted: false,
            malformed: None,
        };
        while !self.receive(asked, read, &mut collected)? {}
        match collected {
            Replies {
                malformed: Some(MalformedMessage(reason)),
                ..
            } => Err(Error::Malformed { asked, reason }),
            Replies {
                interrupted: true, ..
            } => Err(Error::Interrupted { asked }),
            Replies { parts, .. } => Ok(parts),
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
        read: &impl Fn(ReplyPart<'_>) -> Result<Option<T>, MalformedMessage>,
        collected: &mut Replies<T>,
    ) -> Result<bool, Error> {
        let length = self.datagram(asked)?;
        for message in Messages(&self.buffer[..length]) {
            let message = message.map_err(|MalformedMessage(reason)| Error::Malformed { asked, reason })?;
            if message.sequence != self.sequence {
                continue;
            }
            collected.interrupted |= message.flags & MULTI_INTERRUPTED != 0;
            if message.kind == MESSAGE_ERROR || message.kind == MESSAGE_DONE {
                return verdict(asked, &message).map(|()| true);
            }
            match read(ReplyPart {
                kind: message.kind,
                port: message.port,
                body: message.body,
            }) {
                Ok(part) => collected.parts.extend(part),
                Err(malformed) => collected.malformed = Some(malformed),
            }
        }
        Ok(false)
    }

    fn datagram(&mut self, asked: &'static str) -> Result<usize, Error> {
        self.datagram_as(asked, MsgFlags::empty())
    }

    fn datagram_as(&mut self, asked: &'static str, flags: MsgFlags) -> Result<usize, Error> {
        let length = loop {
            match recv(
                self.file.as_raw_fd(),
                &mut self.buffer,
                flags | MsgFlags::MSG_TRUNC,
            ) {
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

    /// What the kernel calls this socket where it tells others who did something.
    pub(crate) const fn port(&self) -> u32 {
        self.port
    }

    /// The kinds of all notifications that wait, and whether some were lost.
    pub(crate) fn notifications(&mut self) -> Result<(Vec<u16>, bool), Error> {
        let mut kinds = Vec::new();
        let overrun = self.hear(usize::MAX, |answer| kinds.push(answer.kind))?;
        Ok((kinds, overrun))
    }

    /// Hands over the messages of at most so many datagrams that wait; whether some were lost.
    pub(crate) fn hear(
        &mut self,
        datagrams: usize,
        mut take: impl FnMut(ReplyPart<'_>),
    ) -> Result<bool, Error> {
        const ASKED: &str = "notifications";
        let mut overrun = false;
        for _ in 0..datagrams {
            match self.datagram(ASKED) {
                Ok(length) => {
                    for message in Messages(&self.buffer[..length]).filter_map(Result::ok) {
                        take(ReplyPart {
                            kind: message.kind,
                            port: message.port,
                            body: message.body,
                        });
                    }
                }
                Err(Error::Overrun { .. }) => overrun = true,
                Err(Error::Receive {
                    errno: Errno::EAGAIN, ..
                }) => break,
                Err(error) => return Err(error),
            }
        }
        Ok(overrun)
    }

    /// Hears nothing of what these sockets do: the kernel names the one that asked in the header of each message of a datagram.
    pub(crate) fn pass_over(&self, ports: &[u32]) -> Result<(), Error> {
        const PORT_OF_HEADER: u32 = 12;
        let code = |code: u32| u16::try_from(code).expect("codes of BPF are short");
        let load = code(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS);
        let compare = code(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K);
        let end = code(libc::BPF_RET | libc::BPF_K);
        let mut filter = vec![SockFilter::new(load, 0, 0, PORT_OF_HEADER)];
        for (ahead, port) in (1..=u8::MAX).zip(ports).rev() {
            // A load takes octets in the order of the network.
            let port = u32::from_be_bytes(port.to_ne_bytes());
            filter.push(SockFilter::new(compare, ahead, 0, port));
        }
        filter.push(SockFilter::new(end, 0, 0, u32::MAX));
        filter.push(SockFilter::new(end, 0, 0, 0));
        SockRef::from(&self.file)
            .attach_filter(&filter)
            .map_err(|error| Error::Open(Errno::from_raw(error.raw_os_error().unwrap_or_default())))
    }

    /// Lets more wait to be read: with less, more is lost in a burst.
    pub(crate) fn widen(&self, bytes: usize) -> Result<(), Error> {
        setsockopt(&self.file, sockopt::RcvBufForce, &bytes)
            .or_else(|_not_permitted| setsockopt(&self.file, sockopt::RcvBuf, &bytes))
            .map_err(Error::Open)
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

/// How many of these go together; at least one.
fn how_many(requests: &[Request]) -> usize {
    let mut octets = 0;
    let fits = |request: &&Request| {
        octets += request.octets();
        octets <= MOST_OCTETS
    };
    let fitting = requests.iter().take(MOST_TOGETHER).take_while(fits).count();
    fitting.max(1)
}

struct Replies<T> {
    parts: Vec<T>,
    interrupted: bool,
    malformed: Option<MalformedMessage>,
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
        code if code < 0 => Err(Error::Refused {
            asked,
            refusal: NlmsgError {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_number_of_zero_is_success_and_anything_else_is_told_with_what_was_asked() {
        let verdict = |asked, body: &[u8]| {
            verdict(
                asked,
                &Message {
                    kind: MESSAGE_ERROR,
                    flags: 0,
                    sequence: 1,
                    port: 0,
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
