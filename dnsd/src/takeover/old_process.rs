//! The predecessor's side: from a thread of its own, so that a successor that is slow or hangs stops nothing.

use std::fs::Permissions;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use socket2::{Domain, SockAddr, Socket, Type};
use tokio::sync::{mpsc, oneshot};

use super::wire::{HandoverError, MOST_SOCKETS, Word, check_user, due, receive, send, send_octets};
use super::{Name, Purpose};
use crate::takeover::state::{LANGUAGE, Piece, write};

/// How long a successor may make itself ready, and be between its steps.
const PATIENCE: Duration = Duration::from_secs(30);
/// How long nobody reads because a successor is about to: it has everything ready then, and needs some milliseconds.
pub const UNREAD: Duration = Duration::from_secs(1);

/// What is to be done for a successor.
#[derive(Debug)]
pub enum Event {
    /// It wants the sockets: each with its name, as descriptors of their own.
    Sockets(oneshot::Sender<Vec<(Name, OwnedFd)>>),
    /// Read no more, and say so.
    Pause(oneshot::Sender<()>),
    /// It is gone before it read anything, or does not read in time: read again.
    Resume,
    /// It reads: drain and go, and leave what is set up to it. One that did not read in time may have begun to all the same.
    Leave,
}

/// What this dnsd knows. It is told from the thread that serves successors, so that nothing stops meanwhile.
pub trait Memory: Send + Sync {
    /// Tells it, some pieces at a time.
    ///
    /// # Errors
    /// When nobody hears it any more.
    fn tell(&self, hear: &mut dyn FnMut(&[Piece]) -> io::Result<()>) -> io::Result<()>;
}

/// The place where successors ask.
#[derive(Debug)]
pub struct Offer {
    listener: Socket,
    path: PathBuf,
    file: (u64, u64),
}

impl Offer {
    /// Listens at `path`, for this user alone. What is there is replaced: if a dnsd listens there, this one has taken
    /// over from it.
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
        // Nobody connects before it listens.
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

    /// The file at its path, while nobody else took that place: by device and number.
    #[must_use]
    pub const fn file(&self) -> (u64, u64) {
        self.file
    }

    /// Serves successors, one after the other; `events` does what they want, `memory` is what they are told. Ends when one has taken over, or when
    /// nobody hears the events any more.
    ///
    /// # Errors
    /// When no thread can be started.
    pub fn serve(self, events: mpsc::UnboundedSender<Event>, memory: Arc<dyn Memory>) -> io::Result<()> {
        let thread = std::thread::Builder::new().name("handover".to_owned());
        thread.spawn(move || self.accept(&events, &*memory)).map(drop)
    }

    fn accept(&self, events: &mpsc::UnboundedSender<Event>, memory: &dyn Memory) {
        while !events.is_closed() {
            let met = match self.listener.accept() {
                Ok((connection, _address)) => {
                    let successor = Successor {
                        connection,
                        events,
                        memory,
                    };
                    successor.meet()
                }
                Err(error) => Err(error.into()),
            };
            match met {
                Ok(()) => return,
                Err(error) => {
                    tracing::warn!(path = %self.path.display(), %error, "nothing was handed over");
                    std::thread::sleep(Duration::from_millis(10));
                }
            }
        }
    }
}

/// What is at a path, by device and number.
pub(super) fn file(path: &Path) -> io::Result<(u64, u64)> {
    let found = std::fs::metadata(path)?;
    Ok((found.dev(), found.ino()))
}

struct Successor<'a> {
    connection: Socket,
    events: &'a mpsc::UnboundedSender<Event>,
    memory: &'a dyn Memory,
}

impl Successor<'_> {
    fn meet(&self) -> Result<(), HandoverError> {
        check_user(&self.connection)?;
        self.connection.set_read_timeout(Some(PATIENCE))?;
        self.connection.set_write_timeout(Some(PATIENCE))?;
        let (word, _none) = receive(self.connection.as_fd())?;
        let program = due(word, "hello", |word| match word {
            Word::Hello { program } => Ok(program),
            other => Err(other),
        })?;
        tracing::info!(successor = program, "a successor asks for the sockets");
        let taken_over = self.hand_over();
        if taken_over.is_err() {
            self.tell(Event::Resume)?;
        }
        taken_over
    }

    fn hand_over(&self) -> Result<(), HandoverError> {
        self.give()?;
        let (mut word, mut beside) = receive(self.connection.as_fd())?;
        if word == Word::Memory {
            self.remember(beside.pop());
            (word, _) = receive(self.connection.as_fd())?;
        }
        due(word, "stop", |word| match word {
            Word::Stop => Ok(()),
            other => Err(other),
        })?;
        self.pause()
    }

    fn give(&self) -> Result<(), HandoverError> {
        let mut sockets = self.ask(Event::Sockets)?;
        if sockets.len() > MOST_SOCKETS {
            // A successor can do without them.
            sockets.retain(|(name, _)| name.purpose != Purpose::Replies);
        }
        if sockets.len() > MOST_SOCKETS {
            return Err(HandoverError::TooMany(sockets.len()));
        }
        let (names, sockets): (Vec<_>, Vec<OwnedFd>) = sockets.into_iter().unzip();
        let raw: Vec<_> = sockets.iter().map(AsRawFd::as_raw_fd).collect();
        let memory = Some(LANGUAGE);
        Ok(send(
            self.connection.as_fd(),
            &Word::Sockets { names, memory },
            &raw,
        )?)
    }

    /// Tells what is known until all is told or the successor has heard enough.
    fn remember(&self, to: Option<OwnedFd>) {
        let Some(socket) = to.map(Socket::from) else {
            return;
        };
        let told = socket.set_write_timeout(Some(PATIENCE)).and_then(|()| {
            self.memory
                .tell(&mut |pieces| send_octets(socket.as_fd(), &write(pieces), &[]))
        });
        if let Err(error) = told {
            tracing::debug!(%error, "the successor hears no more of what is known");
        }
    }

    fn pause(&self) -> Result<(), HandoverError> {
        self.ask(Event::Pause)?;
        send(self.connection.as_fd(), &Word::Stopped, &[])?;
        match self.serves_within(UNREAD) {
            Err(HandoverError::Connection(error)) if error.kind() == io::ErrorKind::WouldBlock => {
                tracing::error!("the successor hangs; its turn is over until it goes on");
                self.tell(Event::Resume)?;
                self.serves_within(PATIENCE)?;
            }
            served => served?,
        }
        self.tell(Event::Leave)
    }

    fn serves_within(&self, patience: Duration) -> Result<(), HandoverError> {
        self.connection.set_read_timeout(Some(patience))?;
        let (word, _none) = receive(self.connection.as_fd())?;
        due(word, "that it serves", |word| match word {
            Word::Serving => Ok(()),
            other => Err(other),
        })
    }

    fn ask<T>(&self, event: impl FnOnce(oneshot::Sender<T>) -> Event) -> Result<T, HandoverError> {
        let (sender, answer) = oneshot::channel();
        self.tell(event(sender))?;
        answer.blocking_recv().map_err(|_gone| stopped())
    }

    fn tell(&self, event: Event) -> Result<(), HandoverError> {
        self.events.send(event).map_err(|_gone| stopped())
    }
}

fn stopped() -> HandoverError {
    io::Error::new(io::ErrorKind::BrokenPipe, "this dnsd stops").into()
}
