//! The successor's side. It waits: nothing else is to be done before it has the sockets.

use std::collections::BTreeMap;
use std::io::{self, Read};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

use egret_shared::rt::clock;
use socket2::{Domain, SockAddr, Socket, Type};

use super::Name;
use super::wire::{
    HandoverError, Wait, Word, again_until, check_user, despite_signals, due, namespace, receive, send,
};
use crate::takeover::old_process::file;
use crate::takeover::state::{Damaged, LANGUAGE, Piece, read};

/// Octets of a message about what is known: an answer of the largest size, and some more.
const LARGEST_PIECES: usize = 160 << 10;
/// How often it is looked who is there: of several successors that start together each has one before it.
const LOOKS: usize = 8;

/// A predecessor that has given its sockets, and still answers.
#[derive(Debug)]
pub struct Taken {
    connection: Socket,
    /// The language in which it tells what it knows.
    memory: Option<u16>,
}

/// Sockets of a predecessor; those that nobody takes are closed, for this process.
#[derive(Debug)]
pub struct Inheritance(BTreeMap<Name, OwnedFd>);

impl Inheritance {
    /// There was no predecessor.
    #[must_use]
    pub const fn none() -> Self {
        Self(BTreeMap::new())
    }

    /// The socket of this name, if there is one; it is the caller's then.
    pub fn socket(&mut self, name: Name) -> Option<OwnedFd> {
        self.0.remove(&name)
    }

    /// What nobody has taken.
    pub fn left(&self) -> impl Iterator<Item = &Name> {
        self.0.keys()
    }
}

/// The predecessor reads no more: the successor's turn.
#[derive(Debug)]
pub struct Granted {
    connection: Socket,
}

/// Whether somebody gives sockets at `path`: a dnsd that answers.
#[must_use]
pub fn is_somebody_at(path: &Path) -> bool {
    let asked = Socket::new(Domain::UNIX, Type::SEQPACKET, None)
        .and_then(|socket| socket.connect(&SockAddr::unix(path)?));
    asked.is_ok()
}

/// Whether somebody gives sockets at `path`, and is not who has this file there.
#[must_use]
pub fn is_somebody_else_at(path: &Path, own: (u64, u64)) -> bool {
    file(path).is_ok_and(|found| found != own) && is_somebody_at(path)
}

/// Asks whoever listens at `path` for its sockets; nothing where nobody does. The other one is waited for by
/// `patience` at each step. One that goes before it gives anything has a successor already, or is at its end: it is looked
/// again who is there.
///
/// # Errors
/// When somebody listens and gives nothing that can be used.
pub fn take(path: &Path, patience: Duration) -> Result<Option<(Taken, Inheritance)>, HandoverError> {
    for _ in 1..LOOKS {
        match ask(path, patience) {
            Err(HandoverError::Connection(error)) if is_gone(&error) => {
                tracing::debug!(%error, "who was asked for its sockets is gone");
            }
            asked => return asked,
        }
    }
    ask(path, patience)
}

fn is_gone(error: &io::Error) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionReset, UnexpectedEof};
    [BrokenPipe, ConnectionReset, UnexpectedEof].contains(&error.kind())
}

fn ask(path: &Path, patience: Duration) -> Result<Option<(Taken, Inheritance)>, HandoverError> {
    let connection = Socket::new(Domain::UNIX, Type::SEQPACKET, None)?;
    connection.set_read_timeout(Some(patience))?;
    connection.set_write_timeout(Some(patience))?;
    let place = SockAddr::unix(path)?;
    match despite_signals(connection.as_fd(), Wait::ToSend, || connection.connect(&place)) {
        Ok(()) => {}
        // No file, or one that a dnsd left which was killed.
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
    check_user(&connection)?;
    let program = format!("dnsd {}", env!("CARGO_PKG_VERSION"));
    send(connection.as_fd(), &Word::Hello { program }, &[])?;
    let (word, given) = receive(connection.as_fd())?;
    let (names, memory) = due(word, "its sockets", |word| match word {
        Word::Sockets { names, memory } => Ok((names, memory)),
        other => Err(other),
    })?;
    if names.len() != given.len() {
        return Err(HandoverError::Count {
            given: given.len(),
            named: names.len(),
        });
    }
    let own = namespace(connection.as_fd())?;
    for socket in &given {
        if namespace(socket.as_fd())? != own {
            return Err(HandoverError::Elsewhere);
        }
    }
    let sockets = names.into_iter().zip(given).collect();
    Ok(Some((Taken { connection, memory }, Inheritance(sockets))))
}

impl Taken {
    /// Hears what the predecessor knows, as long as `hear` wants more and for no longer than `patience`; it answers
    /// meanwhile. Says whether all was heard. One that speaks another language, or is silent, knows nothing.
    ///
    /// # Errors
    /// When what it says is nothing that a dnsd would say.
    pub fn memory(
        &self,
        patience: Duration,
        mut hear: impl FnMut(Piece) -> Result<(), Damaged>,
    ) -> Result<bool, HandoverError> {
        if self.memory != Some(LANGUAGE) {
            return Ok(false);
        }
        let end = clock::now().after(patience);
        let (mine, theirs) = Socket::pair(Domain::UNIX, Type::SEQPACKET, None)?;
        send(self.connection.as_fd(), &Word::Memory, &[theirs.as_raw_fd()])?;
        drop(theirs);
        let mut octets = vec![0; LARGEST_PIECES];
        loop {
            let heard = again_until(end, |left| {
                mine.set_read_timeout(Some(left))?;
                (&mine).read(&mut octets)
            });
            let length = match heard {
                Ok(0) => return Ok(false),
                Ok(length) => length,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(error) => return Err(error.into()),
            };
            for piece in read(&octets[..length])? {
                if piece == Piece::End {
                    return Ok(true);
                }
                hear(piece)?;
            }
        }
    }

    /// Tells the predecessor to read no more, and waits until it does not.
    ///
    /// # Errors
    /// When it is gone, or says something else. It reads on then, unless it is gone.
    pub fn stop_predecessor(self) -> Result<Granted, HandoverError> {
        send(self.connection.as_fd(), &Word::Stop, &[])?;
        let (word, _none) = receive(self.connection.as_fd())?;
        due(word, "that it stopped", |word| match word {
            Word::Stopped => Ok(Granted {
                connection: self.connection,
            }),
            other => Err(other),
        })
    }
}

impl Granted {
    /// Tells the predecessor that it may go. One that is gone need not be told.
    pub fn serving(self) {
        if let Err(error) = send(self.connection.as_fd(), &Word::Serving, &[]) {
            tracing::debug!(%error, "the predecessor is gone already");
        }
    }
}
