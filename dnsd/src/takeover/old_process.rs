//! The old process's side. It has a thread of its own, so that a slow or hanging new process blocks no query.

use std::fs::Permissions;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use socket2::{Domain, SockAddr, Socket, Type};
use tokio::sync::{mpsc, oneshot};

use super::new_process::{file, is_served};
use super::wire::{
    MAX_SOCKETS, Message, TakeoverError, check_peer_user, expect_message, receive, send, send_octets,
};
use super::{SocketName, SocketPurpose};
use crate::takeover::state::{STATE_VERSION, StateRecord, write};

/// How long a new process may take for each step.
const STEP_TIMEOUT: Duration = Duration::from_secs(30);
/// How long the sockets are left unread for the new process. It has everything ready then and needs some milliseconds.
pub const PAUSE_TIMEOUT: Duration = Duration::from_secs(1);

/// What the daemon has to do for a new process.
#[derive(Debug)]
pub enum TakeoverEvent {
    /// Duplicate all sockets for it.
    Sockets(oneshot::Sender<Vec<(SocketName, OwnedFd)>>),
    /// Stop reading queries, then answer.
    Pause(oneshot::Sender<()>),
    /// It is gone, or does not read in time: read again.
    Resume,
    /// It reads: drain and exit, and leave interface and rules alone. It takes open connections from this socket, unless its
    /// version is older. It may come after a `Resume`, if it was late.
    Leave(Option<OwnedFd>),
}

/// The state that a new process receives. It is exported in the takeover thread, so that no query waits.
pub trait StateSource: Send + Sync {
    /// Emits all of it, some records at a time.
    ///
    /// # Errors
    /// Those of `emit`.
    fn export(&self, emit: &mut dyn FnMut(&[StateRecord]) -> io::Result<()>) -> io::Result<()>;
}

/// The Unix socket at which a new process asks.
#[derive(Debug)]
pub struct TakeoverSocket {
    listener: Socket,
    path: PathBuf,
    file: (u64, u64),
}

impl TakeoverSocket {
    /// Listens at `path`, for this user alone. It replaces the socket of a dnsd that this one has taken over from.
    ///
    /// # Errors
    /// When the path cannot be listened at.
    pub fn at(path: &Path) -> io::Result<Self> {
        if let Some(folder) = path.parent() {
            std::fs::create_dir_all(folder)?;
        }
        let listener = Socket::new(Domain::UNIX, Type::SEQPACKET, None)?;
        let mut beside = path.as_os_str().to_owned();
        beside.push(".new");
        let beside = PathBuf::from(beside);
        match std::fs::remove_file(&beside) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            Ok(()) | Err(_) => {}
        }
        listener.bind(&SockAddr::unix(&beside)?)?;
        // It gets its final name when it listens, so that no connection is refused.
        std::fs::set_permissions(&beside, Permissions::from_mode(0o600))?;
        listener.listen(4)?;
        let file = file(&beside)?;
        std::fs::rename(&beside, path)?;
        Ok(Self {
            file,
            listener,
            path: path.to_owned(),
        })
    }

    /// Device and inode of the socket file: another dnsd's file differs.
    #[must_use]
    pub const fn file(&self) -> (u64, u64) {
        self.file
    }

    /// Serves new processes one after the other, in a thread of its own. It ends when one has taken over, or when the
    /// receiver of `events` is gone.
    ///
    /// # Errors
    /// When no thread can be started.
    pub fn serve(
        self,
        events: mpsc::UnboundedSender<TakeoverEvent>,
        state: Arc<dyn StateSource>,
    ) -> io::Result<()> {
        let thread = std::thread::Builder::new().name("handover".to_owned());
        thread.spawn(move || self.accept(&events, &*state)).map(drop)
    }

    fn accept(&self, events: &mpsc::UnboundedSender<TakeoverEvent>, state: &dyn StateSource) {
        while !events.is_closed() {
            let served = match self.listener.accept() {
                Ok((connection, _address)) => {
                    let new_process = NewProcessConnection {
                        connection,
                        events,
                        state,
                    };
                    new_process.serve()
                }
                Err(error) => Err(error.into()),
            };
            match served {
                Ok(Request::Takeover) => return,
                Ok(Request::Look) => {}
                Err(error) => {
                    tracing::warn!(path = %self.path.display(), %error, "a takeover failed");
                    std::thread::sleep(Duration::from_millis(10));
                }
            }
        }
    }
}

/// Removes the socket at `path`, unless it is that of another dnsd that listens.
///
/// # Errors
/// When it cannot be removed.
pub fn remove_socket(path: &Path, own: (u64, u64)) -> io::Result<()> {
    if file(path)? == own || !is_served(path) {
        std::fs::remove_file(path)?;
    }
    Ok(())
}

/// What a connection was for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Request {
    /// A new process has taken over.
    Takeover,
    /// To see whether a dnsd listens here: it ended without a word.
    Look,
}

struct NewProcessConnection<'a> {
    connection: Socket,
    events: &'a mpsc::UnboundedSender<TakeoverEvent>,
    state: &'a dyn StateSource,
}

impl NewProcessConnection<'_> {
    fn serve(&self) -> Result<Request, TakeoverError> {
        let _pid = check_peer_user(&self.connection)?;
        self.connection.set_read_timeout(Some(STEP_TIMEOUT))?;
        self.connection.set_write_timeout(Some(STEP_TIMEOUT))?;
        let (word, _none) = match receive(self.connection.as_fd()) {
            Err(TakeoverError::Connection(error)) if error.kind() == io::ErrorKind::UnexpectedEof => {
                return Ok(Request::Look);
            }
            received => received?,
        };
        let program = expect_message(word, "hello", |word| match word {
            Message::Hello { program } => Ok(program),
            other => Err(other),
        })?;
        tracing::info!(program, "a new process asks for the sockets");
        let taken_over = self.hand_over();
        if taken_over.is_err() {
            self.tell(TakeoverEvent::Resume)?;
        }
        taken_over.map(|()| Request::Takeover)
    }

    fn hand_over(&self) -> Result<(), TakeoverError> {
        self.give()?;
        let (mut word, mut beside) = receive(self.connection.as_fd())?;
        if word == Message::State {
            self.send_state(beside.pop());
            (word, _) = receive(self.connection.as_fd())?;
        }
        expect_message(word, "stop", |word| match word {
            Message::Stop => Ok(()),
            other => Err(other),
        })?;
        self.pause()
    }

    fn give(&self) -> Result<(), TakeoverError> {
        let mut sockets = self.ask(TakeoverEvent::Sockets)?;
        if sockets.len() > MAX_SOCKETS {
            // The new process can bind its own.
            sockets.retain(|(name, _)| name.purpose != SocketPurpose::Replies);
        }
        if sockets.len() > MAX_SOCKETS {
            return Err(TakeoverError::TooMany(sockets.len()));
        }
        let (names, sockets): (Vec<_>, Vec<OwnedFd>) = sockets.into_iter().unzip();
        let raw: Vec<_> = sockets.iter().map(AsRawFd::as_raw_fd).collect();
        let state_version = Some(STATE_VERSION);
        Ok(send(
            self.connection.as_fd(),
            &Message::Sockets { names, state_version },
            &raw,
        )?)
    }

    /// Sends the state until its end, or until the new process closes the socket.
    fn send_state(&self, to: Option<OwnedFd>) {
        let Some(socket) = to.map(Socket::from) else {
            return;
        };
        let sent = socket.set_write_timeout(Some(STEP_TIMEOUT)).and_then(|()| {
            self.state
                .export(&mut |records| send_octets(socket.as_fd(), &write(records), &[]))
        });
        if let Err(error) = sent {
            tracing::debug!(%error, "the state was not sent as a whole");
        }
    }

    fn pause(&self) -> Result<(), TakeoverError> {
        self.ask(TakeoverEvent::Pause)?;
        send(self.connection.as_fd(), &Message::Stopped, &[])?;
        let connections = match self.serves_within(PAUSE_TIMEOUT) {
            Err(TakeoverError::Connection(error)) if error.kind() == io::ErrorKind::WouldBlock => {
                tracing::error!("the new process hangs; this one answers until it goes on");
                self.tell(TakeoverEvent::Resume)?;
                self.serves_within(STEP_TIMEOUT)?
            }
            served => served?,
        };
        self.tell(TakeoverEvent::Leave(connections))
    }

    /// Waits until it serves; returns the socket for open connections.
    fn serves_within(&self, patience: Duration) -> Result<Option<OwnedFd>, TakeoverError> {
        self.connection.set_read_timeout(Some(patience))?;
        let (word, mut beside) = receive(self.connection.as_fd())?;
        expect_message(word, "that it serves", |word| match word {
            Message::Serving => Ok(beside.pop()),
            other => Err(other),
        })
    }

    fn ask<T>(&self, event: impl FnOnce(oneshot::Sender<T>) -> TakeoverEvent) -> Result<T, TakeoverError> {
        let (sender, answer) = oneshot::channel();
        self.tell(event(sender))?;
        answer.blocking_recv().map_err(|_gone| stopped())
    }

    fn tell(&self, event: TakeoverEvent) -> Result<(), TakeoverError> {
        self.events.send(event).map_err(|_gone| stopped())
    }
}

fn stopped() -> TakeoverError {
    io::Error::new(io::ErrorKind::BrokenPipe, "this dnsd stops").into()
}
