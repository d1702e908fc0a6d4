//! The messages between the two processes: one JSON object each, with file descriptors beside it (`SCM_RIGHTS`).

#![allow(unsafe_code, reason = "a descriptor that came in belongs to nobody yet")]

use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::time::Duration;

use egret_shared::rt::clock;
use egret_shared::time::Timestamp;
use nix::sys::socket::sockopt::PeerCredentials;
use nix::sys::socket::{
    ControlMessage, ControlMessageOwned, MsgFlags, UnixAddr, getsockopt, recv, recvmsg, sendmsg,
};
use nix::unistd::Pid;
use serde::{Deserialize, Serialize};
use socket2::{SockRef, Socket};

use super::SocketName;
use crate::takeover::state::InvalidState;

/// Descriptors in one message: the kernel's limit (`SCM_MAX_FD`).
pub(super) const MAX_SOCKETS: usize = 253;

/// Octets of a message; the names of 253 sockets need far fewer.
const MAX_MESSAGE: usize = 64 << 10;

/// A message. Its JSON names are those of the first version of the protocol.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "say", rename_all = "lowercase")]
pub(super) enum Message {
    /// The new process asks for the sockets.
    Hello {
        /// Program and version, for logs.
        program: String,
    },
    /// The names of the descriptors beside this message, in their order.
    Sockets {
        /// One for each.
        names: Vec<SocketName>,
        /// The version of the state that can be asked for.
        #[serde(default, rename = "memory")]
        state_version: Option<u16>,
    },
    /// Send the state to the socket beside this message.
    #[serde(rename = "memory")]
    State,
    /// Stop reading queries.
    Stop,
    /// The old process has stopped reading.
    Stopped,
    /// The new process reads. It takes open connections from the socket beside this message.
    Serving,
}

/// Why a takeover failed.
#[derive(Debug, thiserror::Error)]
pub enum TakeoverError {
    /// The other process accepts connections and says nothing.
    #[error("the other dnsd does not answer")]
    Silent(Option<Pid>),
    /// The connection.
    #[error("the connection to the other dnsd: {0}")]
    Connection(#[from] io::Error),
    /// The other process sent no known message: it may have another version.
    #[error("the other dnsd sent {0:?}")]
    Unknown(String),
    /// A message came that does not belong there.
    #[error("the other dnsd sent {message} where {expected} was expected")]
    Unexpected {
        /// The message.
        message: String,
        /// What was expected.
        expected: &'static str,
    },
    /// There are not as many names as sockets.
    #[error("the other dnsd sent {given} sockets and {named} names")]
    Count {
        /// How many came.
        given: usize,
        /// How many were named.
        named: usize,
    },
    /// Its sockets are of another network namespace and cannot be used.
    #[error("the other dnsd is in another network namespace")]
    OtherNamespace,
    /// Its state is invalid.
    #[error(transparent)]
    State(#[from] InvalidState),
    /// More sockets than fit into one message.
    #[error("{0} sockets cannot be handed over; {MAX_SOCKETS} can")]
    TooMany(usize),
}

/// Sends a message, and sockets beside it. The kernel takes all of a message or nothing (`SOCK_SEQPACKET`).
pub(super) fn send(socket: BorrowedFd<'_>, message: &Message, sockets: &[RawFd]) -> io::Result<()> {
    send_octets(socket, &serde_json::to_vec(message)?, sockets)
}

/// Sends octets, and sockets beside them.
pub(super) fn send_octets(socket: BorrowedFd<'_>, octets: &[u8], sockets: &[RawFd]) -> io::Result<()> {
    let beside = [ControlMessage::ScmRights(sockets)];
    let beside = if sockets.is_empty() { &[][..] } else { &beside[..] };
    let (fd, slices) = (socket.as_raw_fd(), [IoSlice::new(octets)]);
    let send =
        || sendmsg::<UnixAddr>(fd, &slices, beside, MsgFlags::MSG_NOSIGNAL, None).map_err(io::Error::from);
    retry_despite_signals(socket, Wait::ToSend, send).map(drop)
}

/// Receives a message and the sockets beside it.
pub(super) fn receive(socket: BorrowedFd<'_>) -> Result<(Message, Vec<OwnedFd>), TakeoverError> {
    let (octets, sockets) = receive_octets(socket, MAX_MESSAGE)?;
    let text = || String::from_utf8_lossy(&octets[..octets.len().min(200)]).into_owned();
    let word = serde_json::from_slice(&octets).map_err(|_unknown| TakeoverError::Unknown(text()))?;
    Ok((word, sockets))
}

/// Receives at most this many octets, and the sockets beside them.
pub(super) fn receive_octets(
    socket: BorrowedFd<'_>,
    most: usize,
) -> Result<(Vec<u8>, Vec<OwnedFd>), TakeoverError> {
    let fd = socket.as_raw_fd();
    let wait = || recv(fd, &mut [0], MsgFlags::MSG_PEEK).map_err(io::Error::from);
    retry_despite_signals(socket, Wait::ToReceive, wait)?;
    let mut octets = vec![0; most];
    let mut room = nix::cmsg_space!([RawFd; MAX_SOCKETS]);
    let (length, sockets) = {
        let mut slices = [IoSliceMut::new(&mut octets)];
        let flags = MsgFlags::MSG_CMSG_CLOEXEC;
        let message =
            recvmsg::<UnixAddr>(fd, &mut slices, Some(&mut room), flags).map_err(io::Error::from)?;
        let sockets = message
            .cmsgs()
            .map_err(io::Error::from)?
            .flat_map(owned)
            .collect();
        (message.bytes, sockets)
    };
    if length == 0 {
        return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
    }
    octets.truncate(length);
    Ok((octets, sockets))
}

/// The operation that blocks, and whose time-out applies (`SO_RCVTIMEO`, `SO_SNDTIMEO`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wait {
    /// Receiving.
    ToReceive,
    /// Sending, or connecting.
    ToSend,
}

impl Wait {
    fn timeout(self, socket: &SockRef<'_>) -> io::Result<Option<Duration>> {
        match self {
            Self::ToReceive => socket.read_timeout(),
            Self::ToSend => socket.write_timeout(),
        }
    }

    fn set_timeout(self, socket: &SockRef<'_>, timeout: Option<Duration>) -> io::Result<()> {
        match self {
            Self::ToReceive => socket.set_read_timeout(timeout),
            Self::ToSend => socket.set_write_timeout(timeout),
        }
    }
}

/// Repeats `act` when a signal interrupts it. A blocking call with a time-out is not restarted, whatever `SA_RESTART` says
/// (signal(7)), and each iptables that dnsd runs ends with SIGCHLD. All attempts together take no longer than the time-out.
pub(super) fn retry_despite_signals<T>(
    socket: BorrowedFd<'_>,
    wait: Wait,
    mut act: impl FnMut() -> io::Result<T>,
) -> io::Result<T> {
    let begun = clock::now();
    let first = act();
    if !is_interrupted(&first) {
        return first;
    }
    let socket = SockRef::from(&socket);
    let Some(timeout) = wait.timeout(&socket)? else {
        return retry_interrupted(act);
    };
    let outcome = retry_until(begun.after(timeout), |left| {
        wait.set_timeout(&socket, Some(left))?;
        act()
    });
    wait.set_timeout(&socket, Some(timeout))?;
    outcome
}

fn is_interrupted<T>(outcome: &io::Result<T>) -> bool {
    matches!(outcome, Err(error) if error.kind() == io::ErrorKind::Interrupted)
}

fn retry_interrupted<T>(mut act: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    loop {
        let outcome = act();
        if !is_interrupted(&outcome) {
            return outcome;
        }
    }
}

/// Repeats `act` when a signal interrupts it, until `end`. `act` is given the time that is left.
pub(super) fn retry_until<T>(
    end: Timestamp,
    mut act: impl FnMut(Duration) -> io::Result<T>,
) -> io::Result<T> {
    retry_interrupted(|| match end.since(clock::now()) {
        // A time-out of zero means none, and the kernel rounds down.
        left if left < SHORTEST => Err(io::ErrorKind::WouldBlock.into()),
        left => act(left),
    })
}

/// The shortest time-out.
const SHORTEST: Duration = Duration::from_micros(1);

fn owned(beside: ControlMessageOwned) -> Vec<OwnedFd> {
    match beside {
        ControlMessageOwned::ScmRights(descriptors) => descriptors
            .into_iter()
            // SAFETY: the kernel has just made these descriptors for this process; nothing else owns them.
            .map(|descriptor| unsafe { OwnedFd::from_raw_fd(descriptor) })
            .collect(),
        _other => Vec::new(),
    }
}

/// A peer may stop DNS on this node, or decide which addresses are opened: both processes must run as the same user. Returns
/// the peer's process; none if it is in another PID namespace.
pub(super) fn check_peer_user(connection: &Socket) -> io::Result<Option<Pid>> {
    let peer = getsockopt(connection, PeerCredentials).map_err(io::Error::from)?;
    let own = nix::unistd::geteuid().as_raw();
    if peer.uid() == own {
        return Ok(Some(Pid::from_raw(peer.pid())).filter(|pid| pid.as_raw() > 0));
    }
    let refused = format!("it runs as user {}, this one as {own}", peer.uid());
    Err(io::Error::new(io::ErrorKind::PermissionDenied, refused))
}

/// The kernel's number of a socket's network namespace (`SO_NETNS_COOKIE`).
pub(super) fn namespace(socket: BorrowedFd<'_>) -> io::Result<u64> {
    let mut cookie = 0_u64;
    let mut length = libc::socklen_t::try_from(size_of::<u64>()).expect("eight fits");
    // SAFETY: the kernel writes at most `length` octets to `cookie`, which has as many, and the real length to `length`.
    let outcome = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            SO_NETNS_COOKIE,
            (&raw mut cookie).cast(),
            &raw mut length,
        )
    };
    if outcome == 0 {
        Ok(cookie)
    } else {
        Err(io::Error::last_os_error())
    }
}

/// `SO_NETNS_COOKIE` of asm-generic/socket.h.
const SO_NETNS_COOKIE: libc::c_int = 71;

/// The content of an expected message.
pub(super) fn expect_message<T>(
    message: Message,
    expected: &'static str,
    take: impl FnOnce(Message) -> Result<T, Message>,
) -> Result<T, TakeoverError> {
    take(message).map_err(|message| TakeoverError::Unexpected {
        message: format!("{message:?}"),
        expected,
    })
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;
    use std::os::unix::thread::JoinHandleExt;
    use std::sync::mpsc::{RecvTimeoutError, channel};
    use std::thread::{sleep, spawn};

    use nix::libc::pthread_kill;
    use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction};
    use socket2::{Domain, Type};

    use super::*;

    const BOUND: Duration = Duration::from_millis(200);
    /// How long signals come: nobody waits that long who is bounded.
    const STORM: Duration = Duration::from_secs(10);

    fn pair() -> (Socket, Socket) {
        let (mine, theirs) = Socket::pair(Domain::UNIX, Type::SEQPACKET, None).unwrap();
        mine.set_read_timeout(Some(BOUND)).unwrap();
        mine.set_write_timeout(Some(BOUND)).unwrap();
        (mine, theirs)
    }

    #[test]
    fn an_interrupted_call_is_repeated_and_other_errors_are_returned() {
        let (mine, _theirs) = pair();
        mine.set_read_timeout(Some(STORM)).unwrap();
        let unbounded = Socket::pair(Domain::UNIX, Type::SEQPACKET, None).unwrap().0;
        for socket in [mine, unbounded] {
            for (last, wanted) in [
                (Ok(7), Ok(7)),
                (Err(io::ErrorKind::WouldBlock), Err(io::ErrorKind::WouldBlock)),
            ] {
                let mut outcomes = [Err(io::ErrorKind::Interrupted); 3].into_iter().chain([last]);
                let acted = retry_despite_signals(socket.as_fd(), Wait::ToReceive, || {
                    let outcome = outcomes.next().expect("it ends with the last");
                    outcome.map_err(io::Error::from)
                });
                assert_eq!(acted.map_err(|error| error.kind()), wanted);
                assert_eq!(outcomes.next(), None, "each was asked for");
            }
        }
    }

    extern "C" fn heard(_signal: libc::c_int) {}

    /// Signals whoever waits, again and again, until it ends or the storm does; says what it came to, and how long it took.
    fn in_a_storm<T: Send + 'static>(act: impl FnOnce() -> T + Send + 'static) -> (T, Duration) {
        let handler = SigAction::new(SigHandler::Handler(heard), SaFlags::SA_RESTART, SigSet::empty());
        // SAFETY: the handler does nothing, and nobody else uses this signal.
        unsafe { sigaction(Signal::SIGUSR2, &handler) }.unwrap();
        let (sender, done) = channel();
        let begun = clock::now();
        let (go, may_end) = channel::<()>();
        let waiting = spawn(move || {
            sender.send((act(), clock::now().since(begun))).unwrap();
            // A thread that has ended cannot be signalled.
            may_end.recv().unwrap_err();
        });
        let outcome = loop {
            match done.recv_timeout(BOUND / 10) {
                Ok(outcome) => break outcome,
                Err(RecvTimeoutError::Timeout) if clock::now().since(begun) < STORM => {
                    // SAFETY: the thread is there until it is allowed to end, below.
                    unsafe { pthread_kill(waiting.as_pthread_t(), Signal::SIGUSR2 as libc::c_int) };
                }
                Err(_) => sleep(BOUND / 10),
            }
        };
        drop(go);
        waiting.join().unwrap();
        outcome
    }

    fn hear(socket: &Socket) -> io::ErrorKind {
        match receive(socket.as_fd()) {
            Err(TakeoverError::Connection(error)) => error.kind(),
            other => panic!("nothing comes: {other:?}"),
        }
    }

    fn fill(socket: &Socket) -> io::ErrorKind {
        loop {
            if let Err(error) = send_octets(socket.as_fd(), &[0; 1 << 10], &[]) {
                return error.kind();
            }
        }
    }

    #[test]
    fn signals_do_not_extend_a_timeout() {
        for wait in [hear, fill] {
            let (mine, _theirs) = pair();
            let (end, took) = in_a_storm(move || {
                let end = wait(&mine);
                (end, mine.read_timeout().unwrap(), mine.write_timeout().unwrap())
            });
            assert!(took < STORM / 2, "{took:?}");
            assert_eq!(end, (io::ErrorKind::WouldBlock, Some(BOUND), Some(BOUND)));
        }
    }
}
