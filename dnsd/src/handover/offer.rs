//! The predecessor's side: from a thread of its own, so that a successor that is slow or hangs stops nothing.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};
use socket2::{Domain, SockAddr, Socket, Type};
use tokio::sync::{mpsc, oneshot};

use super::Name;
use super::wire::{HandoverError, MOST_SOCKETS, Word, due, receive, send};

/// How long a successor may make itself ready, and be between its steps.
const PATIENCE: Duration = Duration::from_secs(30);

/// What is to be done for a successor.
#[derive(Debug)]
pub enum Event {
    /// It wants the sockets: each with its name, as descriptors of their own.
    Sockets(oneshot::Sender<Vec<(Name, OwnedFd)>>),
    /// Read no more, and say so.
    Pause(oneshot::Sender<()>),
    /// It is gone before it read anything: read again.
    Resume,
    /// It reads: drain and go, and leave what is set up to it.
    Leave,
}

/// The place where successors ask.
#[derive(Debug)]
pub struct Offer {
    listener: Socket,
    path: PathBuf,
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
        listener.listen(4)?;
        std::fs::rename(&beside, path)?;
        Ok(Self {
            listener,
            path: path.to_owned(),
        })
    }

    /// Serves successors, one after the other; `events` does what they want. Ends when one has taken over, or when
    /// nobody hears the events any more.
    ///
    /// # Errors
    /// When no thread can be started.
    pub fn serve(self, events: mpsc::UnboundedSender<Event>) -> io::Result<()> {
        let thread = std::thread::Builder::new().name("handover".to_owned());
        thread.spawn(move || self.accept(&events)).map(drop)
    }

    fn accept(&self, events: &mpsc::UnboundedSender<Event>) {
        while !events.is_closed() {
            let met = match self.listener.accept() {
                Ok((connection, _address)) => Successor { connection, events }.meet(),
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

struct Successor<'a> {
    connection: Socket,
    events: &'a mpsc::UnboundedSender<Event>,
}

impl Successor<'_> {
    fn meet(&self) -> Result<(), HandoverError> {
        self.check_user()?;
        self.connection.set_read_timeout(Some(PATIENCE))?;
        self.connection.set_write_timeout(Some(PATIENCE))?;
        let (word, _none) = receive(self.connection.as_fd())?;
        let program = due(word, "hello", |word| match word {
            Word::Hello { program } => Ok(program),
            other => Err(other),
        })?;
        tracing::info!(successor = program, "a successor asks for the sockets");
        self.give()?;
        let (word, _none) = receive(self.connection.as_fd())?;
        due(word, "stop", |word| match word {
            Word::Stop => Ok(()),
            other => Err(other),
        })?;
        let taken_over = self.pause();
        if taken_over.is_err() {
            self.tell(Event::Resume)?;
        }
        taken_over
    }

    fn give(&self) -> Result<(), HandoverError> {
        let sockets = self.ask(Event::Sockets)?;
        if sockets.len() > MOST_SOCKETS {
            return Err(HandoverError::TooMany(sockets.len()));
        }
        let (names, sockets): (Vec<_>, Vec<OwnedFd>) = sockets.into_iter().unzip();
        let raw: Vec<_> = sockets.iter().map(AsRawFd::as_raw_fd).collect();
        Ok(send(self.connection.as_fd(), &Word::Sockets { names }, &raw)?)
    }

    fn pause(&self) -> Result<(), HandoverError> {
        self.ask(Event::Pause)?;
        send(self.connection.as_fd(), &Word::Stopped, &[])?;
        let (word, _none) = receive(self.connection.as_fd())?;
        due(word, "that it serves", |word| match word {
            Word::Serving => Ok(()),
            other => Err(other),
        })?;
        self.tell(Event::Leave)
    }

    /// Whoever may connect may also stop DNS on this node: only who runs as this one.
    fn check_user(&self) -> Result<(), HandoverError> {
        let peer = getsockopt(&self.connection, PeerCredentials).map_err(io::Error::from)?;
        let own = nix::unistd::geteuid().as_raw();
        if peer.uid() == own {
            return Ok(());
        }
        let refused = format!("it runs as user {}, this one as {own}", peer.uid());
        Err(io::Error::new(io::ErrorKind::PermissionDenied, refused).into())
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
