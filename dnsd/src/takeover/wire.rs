//! How the two speak: a line of JSON each, the sockets beside one of them.

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
use serde::{Deserialize, Serialize};
use socket2::{SockRef, Socket};

use super::Name;
use crate::takeover::state::Damaged;

/// Descriptors in one message: what the kernel takes (`SCM_MAX_FD`).
pub(super) const MOST_SOCKETS: usize = 253;

/// Octets of a message; the names of as many sockets are far below.
const LARGEST: usize = 64 << 10;

/// What is said.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "say", rename_all = "lowercase")]
pub(super) enum Word {
    /// The successor is there.
    Hello {
        /// Program and version, for logs.
        program: String,
    },
    /// What the sockets are for that come with it, in their order.
    Sockets {
        /// One for each.
        names: Vec<Name>,
        /// The language in which what this one knows can be asked for, if it tells.
        #[serde(default)]
        memory: Option<u16>,
    },
    /// Tell what you know to the socket that comes with this.
    Memory,
    /// Read no more.
    Stop,
    /// Nothing is read any more.
    Stopped,
    /// The successor reads.
    Serving,
}

/// Why a handover failed.
#[derive(Debug, thiserror::Error)]
pub enum HandoverError {
    /// The connection.
    #[error("the connection to the other dnsd: {0}")]
    Connection(#[from] io::Error),
    /// The other one says what nobody understands: it may be of another version.
    #[error("the other dnsd says {0:?}")]
    Said(String),
    /// Something was said out of turn.
    #[error("the other dnsd says {said} where {wanted} is due")]
    Turn {
        /// What.
        said: String,
        /// What should have been.
        wanted: &'static str,
    },
    /// Names and sockets do not fit.
    #[error("the other dnsd gives {given} sockets and names {named}")]
    Count {
        /// How many came.
        given: usize,
        /// How many were named.
        named: usize,
    },
    /// It answers in another network: its sockets are of no use here.
    #[error("the other dnsd is in another network namespace")]
    Elsewhere,
    /// What it knows cannot be taken.
    #[error(transparent)]
    Damaged(#[from] Damaged),
    /// More sockets than one message takes.
    #[error("{0} sockets cannot be handed over; {MOST_SOCKETS} can")]
    TooMany(usize),
}

/// Sends a word, and sockets beside it. The kernel takes all of a message or nothing (`SOCK_SEQPACKET`).
pub(super) fn send(socket: BorrowedFd<'_>, word: &Word, sockets: &[RawFd]) -> io::Result<()> {
    send_octets(socket, &serde_json::to_vec(word)?, sockets)
}

/// Sends octets, and sockets beside them.
pub(super) fn send_octets(socket: BorrowedFd<'_>, octets: &[u8], sockets: &[RawFd]) -> io::Result<()> {
    let beside = [ControlMessage::ScmRights(sockets)];
    let beside = if sockets.is_empty() { &[][..] } else { &beside[..] };
    let (fd, slices) = (socket.as_raw_fd(), [IoSlice::new(octets)]);
    let send =
        || sendmsg::<UnixAddr>(fd, &slices, beside, MsgFlags::MSG_NOSIGNAL, None).map_err(io::Error::from);
    despite_signals(socket, Wait::ToSend, send).map(drop)
}

/// Receives a word, and the sockets beside it; they are closed if nobody takes them.
pub(super) fn receive(socket: BorrowedFd<'_>) -> Result<(Word, Vec<OwnedFd>), HandoverError> {
    let fd = socket.as_raw_fd();
    let wait = || recv(fd, &mut [0], MsgFlags::MSG_PEEK).map_err(io::Error::from);
    despite_signals(socket, Wait::ToReceive, wait)?;
    let mut octets = vec![0; LARGEST];
    let mut room = nix::cmsg_space!([RawFd; MOST_SOCKETS]);
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
    let text = || String::from_utf8_lossy(&octets[..length.min(200)]).into_owned();
    let word = serde_json::from_slice(&octets[..length]).map_err(|_unknown| HandoverError::Said(text()))?;
    Ok((word, sockets))
}

/// What a socket is waited for, and for how long (`SO_RCVTIMEO`, `SO_SNDTIMEO`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wait {
    /// That something comes.
    ToReceive,
    /// That there is room, or somebody who accepts.
    ToSend,
}

impl Wait {
    fn bound(self, socket: &SockRef<'_>) -> io::Result<Option<Duration>> {
        match self {
            Self::ToReceive => socket.read_timeout(),
            Self::ToSend => socket.write_timeout(),
        }
    }

    fn set_bound(self, socket: &SockRef<'_>, bound: Option<Duration>) -> io::Result<()> {
        match self {
            Self::ToReceive => socket.set_read_timeout(bound),
            Self::ToSend => socket.set_write_timeout(bound),
        }
    }
}

/// Acts until no signal ends it. A wait that is bounded ends with any signal, whatever its handler asks for (signal(7)), and
/// each iptables that dnsd runs ends with one. However many come, all waits together are no longer than one may be.
pub(super) fn despite_signals<T>(
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
    let Some(bound) = wait.bound(&socket)? else {
        return again(act);
    };
    let outcome = again_until(begun.after(bound), |left| {
        wait.set_bound(&socket, Some(left))?;
        act()
    });
    wait.set_bound(&socket, Some(bound))?;
    outcome
}

fn is_interrupted<T>(outcome: &io::Result<T>) -> bool {
    matches!(outcome, Err(error) if error.kind() == io::ErrorKind::Interrupted)
}

fn again<T>(mut act: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    loop {
        let outcome = act();
        if !is_interrupted(&outcome) {
            return outcome;
        }
    }
}

/// Acts until no signal ends it, or the time is over. `act` is told how long it may wait.
pub(super) fn again_until<T>(
    end: Timestamp,
    mut act: impl FnMut(Duration) -> io::Result<T>,
) -> io::Result<T> {
    again(|| match end.since(clock::now()) {
        // A socket whose bound is nothing waits for ever, and so it is with what is rounded to that.
        left if left < SHORTEST => Err(io::ErrorKind::WouldBlock.into()),
        left => act(left),
    })
}

/// The shortest wait that can be asked for.
const SHORTEST: Duration = Duration::from_micros(1);

fn owned(beside: ControlMessageOwned) -> Vec<OwnedFd> {
    match beside {
        ControlMessageOwned::ScmRights(descriptors) => descriptors
            .into_iter()
            // SAFETY: the kernel has just made these descriptors for this process, and nobody else knows them.
            .map(|descriptor| unsafe { OwnedFd::from_raw_fd(descriptor) })
            .collect(),
        _other => Vec::new(),
    }
}

/// Whoever may connect may also stop DNS on this node, and whoever listens tells what is opened on it: both run as the
/// same user.
pub(super) fn check_user(connection: &Socket) -> io::Result<()> {
    let peer = getsockopt(connection, PeerCredentials).map_err(io::Error::from)?;
    let own = nix::unistd::geteuid().as_raw();
    if peer.uid() == own {
        return Ok(());
    }
    let refused = format!("it runs as user {}, this one as {own}", peer.uid());
    Err(io::Error::new(io::ErrorKind::PermissionDenied, refused))
}

/// The network namespace of a socket, as the kernel numbers them (`SO_NETNS_COOKIE`).
pub(super) fn namespace(socket: BorrowedFd<'_>) -> io::Result<u64> {
    let mut cookie = 0_u64;
    let mut length = libc::socklen_t::try_from(size_of::<u64>()).expect("eight fits");
    // SAFETY: the kernel writes at most `length` octets to `cookie`, which has as many, and the real length to `length`.
    let outcome = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            NETNS_COOKIE,
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
const NETNS_COOKIE: libc::c_int = 71;

/// The word that was due, or what came instead.
pub(super) fn due<T>(
    word: Word,
    wanted: &'static str,
    take: impl FnOnce(Word) -> Result<T, Word>,
) -> Result<T, HandoverError> {
    take(word).map_err(|said| HandoverError::Turn {
        said: format!("{said:?}"),
        wanted,
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
    fn what_a_signal_ended_is_done_again_and_what_else_goes_wrong_is_told() {
        let (mine, _theirs) = pair();
        mine.set_read_timeout(Some(STORM)).unwrap();
        let unbounded = Socket::pair(Domain::UNIX, Type::SEQPACKET, None).unwrap().0;
        for socket in [mine, unbounded] {
            for (last, wanted) in [
                (Ok(7), Ok(7)),
                (Err(io::ErrorKind::WouldBlock), Err(io::ErrorKind::WouldBlock)),
            ] {
                let mut outcomes = [Err(io::ErrorKind::Interrupted); 3].into_iter().chain([last]);
                let acted = despite_signals(socket.as_fd(), Wait::ToReceive, || {
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
            Err(HandoverError::Connection(error)) => error.kind(),
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
    fn a_storm_of_signals_makes_no_wait_longer_than_its_bound() {
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
