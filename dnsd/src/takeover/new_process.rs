//! The new process's side. It blocks: nothing else can be done before it has the sockets.

use std::collections::BTreeMap;
use std::io::{self, Read};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

use egret_shared::rt::clock;
use socket2::{Domain, SockAddr, Socket, Type};

use super::SocketName;
use super::wire::{
    Message, TakeoverError, Wait, check_peer_user, expect_message, namespace, receive, retry_despite_signals,
    retry_until, send,
};
use crate::takeover::old_process::file;
use crate::takeover::state::{InvalidState, STATE_VERSION, StateRecord, read};

/// Octets of a message with state: one answer of 64 KiB beside a batch of others.
const MAX_STATE_MESSAGE: usize = 160 << 10;
/// Attempts to connect: of several new processes that start together, each takes over from the one before it.
const CONNECT_ATTEMPTS: usize = 8;

/// The old process, which has given its sockets and still answers.
#[derive(Debug)]
pub struct OldProcess {
    connection: Socket,
    /// The version of its state, if it gives any.
    state_version: Option<u16>,
}

/// The sockets of the old process. Those that are not taken are closed in this process.
#[derive(Debug)]
pub struct InheritedSockets(BTreeMap<SocketName, OwnedFd>);

impl InheritedSockets {
    /// None: there is no old process.
    #[must_use]
    pub const fn none() -> Self {
        Self(BTreeMap::new())
    }

    /// Takes the socket of this name.
    pub fn socket(&mut self, name: SocketName) -> Option<OwnedFd> {
        self.0.remove(&name)
    }

    /// The names of those that were not taken.
    pub fn left(&self) -> impl Iterator<Item = &SocketName> {
        self.0.keys()
    }
}

/// The old process, which reads no more queries.
#[derive(Debug)]
pub struct StoppedOldProcess {
    connection: Socket,
}

/// Whether a dnsd listens at `path`.
#[must_use]
pub fn is_served(path: &Path) -> bool {
    let asked = Socket::new(Domain::UNIX, Type::SEQPACKET, None)
        .and_then(|socket| socket.connect(&SockAddr::unix(path)?));
    asked.is_ok()
}

/// Whether another dnsd than the one with this socket file listens at `path`.
#[must_use]
pub fn is_served_by_other(path: &Path, own: (u64, u64)) -> bool {
    file(path).is_ok_and(|found| found != own) && is_served(path)
}

/// Asks the dnsd at `path` for its sockets; none where no dnsd listens. Each step may take `timeout`. A process that exits
/// before it gives the sockets was replaced or stopped: this connects again.
///
/// # Errors
/// When a dnsd listens and gives no usable sockets.
pub fn take(path: &Path, timeout: Duration) -> Result<Option<(OldProcess, InheritedSockets)>, TakeoverError> {
    for _ in 1..CONNECT_ATTEMPTS {
        match ask(path, timeout) {
            Err(TakeoverError::Connection(error)) if is_gone(&error) => {
                tracing::debug!(%error, "the old process exited before it gave its sockets");
            }
            asked => return asked,
        }
    }
    ask(path, timeout)
}

fn is_gone(error: &io::Error) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionReset, UnexpectedEof};
    [BrokenPipe, ConnectionReset, UnexpectedEof].contains(&error.kind())
}

fn ask(path: &Path, timeout: Duration) -> Result<Option<(OldProcess, InheritedSockets)>, TakeoverError> {
    let connection = Socket::new(Domain::UNIX, Type::SEQPACKET, None)?;
    connection.set_read_timeout(Some(timeout))?;
    connection.set_write_timeout(Some(timeout))?;
    let peer = SockAddr::unix(path)?;
    match retry_despite_signals(connection.as_fd(), Wait::ToSend, || connection.connect(&peer)) {
        Ok(()) => {}
        // No file, or that of a killed dnsd.
        Err(error)
            if matches!(
                error.kind(),
                io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused
            ) =>
        {
            return Ok(None);
        }
        Err(error) => return Err(error.into()),
    }
    check_peer_user(&connection)?;
    let program = format!("dnsd {}", env!("CARGO_PKG_VERSION"));
    send(connection.as_fd(), &Message::Hello { program }, &[])?;
    let (word, given) = receive(connection.as_fd())?;
    let (names, state_version) = expect_message(word, "its sockets", |word| match word {
        Message::Sockets { names, state_version } => Ok((names, state_version)),
        other => Err(other),
    })?;
    if names.len() != given.len() {
        return Err(TakeoverError::Count {
            given: given.len(),
            named: names.len(),
        });
    }
    let own = namespace(connection.as_fd())?;
    for socket in &given {
        if namespace(socket.as_fd())? != own {
            return Err(TakeoverError::OtherNamespace);
        }
    }
    let sockets = names.into_iter().zip(given).collect();
    Ok(Some((
        OldProcess {
            connection,
            state_version,
        },
        InheritedSockets(sockets),
    )))
}

impl OldProcess {
    /// Receives its state for at most `timeout`, while it answers. Returns whether the state arrived as a whole: not from a
    /// process that is slow, or has another version.
    ///
    /// # Errors
    /// When the state is invalid, with the error of `take` among others.
    pub fn state(
        &self,
        timeout: Duration,
        mut take: impl FnMut(StateRecord) -> Result<(), InvalidState>,
    ) -> Result<bool, TakeoverError> {
        if self.state_version != Some(STATE_VERSION) {
            return Ok(false);
        }
        let end = clock::now().after(timeout);
        let (mine, theirs) = Socket::pair(Domain::UNIX, Type::SEQPACKET, None)?;
        send(self.connection.as_fd(), &Message::State, &[theirs.as_raw_fd()])?;
        drop(theirs);
        let mut octets = vec![0; MAX_STATE_MESSAGE];
        loop {
            let received = retry_until(end, |left| {
                mine.set_read_timeout(Some(left))?;
                (&mine).read(&mut octets)
            });
            let length = match received {
                Ok(0) => return Ok(false),
                Ok(length) => length,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(error) => return Err(error.into()),
            };
            for record in read(&octets[..length])? {
                if record == StateRecord::End {
                    return Ok(true);
                }
                take(record)?;
            }
        }
    }

    /// Makes it stop reading queries.
    ///
    /// # Errors
    /// When it is gone, or does not confirm; in the second case it goes on reading.
    pub fn pause(self) -> Result<StoppedOldProcess, TakeoverError> {
        send(self.connection.as_fd(), &Message::Stop, &[])?;
        let (word, _none) = receive(self.connection.as_fd())?;
        expect_message(word, "that it stopped", |word| match word {
            Message::Stopped => Ok(StoppedOldProcess {
                connection: self.connection,
            }),
            other => Err(other),
        })
    }
}

impl StoppedOldProcess {
    /// Lets it exit.
    pub fn serving(self) {
        if let Err(error) = send(self.connection.as_fd(), &Message::Serving, &[]) {
            tracing::debug!(%error, "the old process is gone already");
        }
    }
}
