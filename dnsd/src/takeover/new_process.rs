//! The new process's side. It blocks: nothing else can be done before it has the sockets.

use std::collections::BTreeMap;
use std::io::{self, Read};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Duration;

use egret_shared::rt::clock;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use socket2::{Domain, SockAddr, Socket, Type};
use tokio::sync::mpsc;

use super::SocketName;
use super::connections::{OpenConnection, receive_connections};
use super::wire::{
    Message, TakeoverError, Wait, check_peer_user, expect_message, namespace, receive, retry_despite_signals,
    retry_until, send,
};
use crate::takeover::state::{InvalidState, STATE_VERSION, StateRecord, read};

/// Octets of a message with state: one answer of 64 KiB beside a batch of others.
const MAX_STATE_MESSAGE: usize = 160 << 10;
/// How long a process that was killed may take to close its files.
const END_TIMEOUT: Duration = Duration::from_secs(5);
const END_INTERVAL: Duration = Duration::from_millis(1);
/// Attempts to connect: of several new processes that start together, each takes over from the one before it.
const CONNECT_ATTEMPTS: usize = 8;

/// The old process, which has given its sockets and still answers.
#[derive(Debug)]
pub struct OldProcess {
    connection: Socket,
    pid: Option<Pid>,
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

/// Whether a dnsd listens at `path`. One that accepts nothing, and whose backlog is full, counts.
#[must_use]
pub fn is_served(path: &Path) -> bool {
    connect(path).map_or_else(|error| error.kind() == io::ErrorKind::WouldBlock, |_socket| true)
}

/// Whether a dnsd listens at `path` that is in the PID namespace of this process: of two pods on one node, the one that answers.
///
/// # Errors
/// When none listens there, or one in another PID namespace does.
pub fn is_served_from_here(path: &Path) -> io::Result<()> {
    match check_peer_user(&connect(path)?)? {
        Some(_pid) => Ok(()),
        None => Err(io::Error::other(
            "the dnsd that answers is in another PID namespace",
        )),
    }
}

fn connect(path: &Path) -> io::Result<Socket> {
    let socket = Socket::new(Domain::UNIX, Type::SEQPACKET, None)?;
    socket.set_nonblocking(true)?;
    socket.connect(&SockAddr::unix(path)?)?;
    Ok(socket)
}

/// Ends a process that does not answer, if it is stopped by a signal (SIGSTOP) or a debugger: it can hand nothing over, and
/// would answer beside this process when it goes on. Any other process may be slow. Returns whether it has ended.
///
/// # Errors
/// When it cannot be seen or ended, or does not end.
pub fn end_stopped(pid: Pid) -> io::Result<bool> {
    if !matches!(process_state(pid)?, Some('T' | 't')) {
        return Ok(false);
    }
    kill(pid, Signal::SIGKILL)?;
    let begun = clock::now();
    while !has_ended(pid)? {
        if clock::now().since(begun) > END_TIMEOUT {
            return Err(io::ErrorKind::TimedOut.into());
        }
        std::thread::sleep(END_INTERVAL);
    }
    Ok(true)
}

/// Whether a process is gone or a zombie without further threads: then its files are closed.
fn has_ended(pid: Pid) -> io::Result<bool> {
    let is_over = matches!(process_state(pid)?, None | Some('Z' | 'X'));
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).map_or(0, Iterator::count);
    Ok(is_over && threads <= 1)
}

/// The state of a process (`proc_pid_stat(5)`); none if it is gone.
fn process_state(pid: Pid) -> io::Result<Option<char>> {
    let stat = match std::fs::read_to_string(format!("/proc/{pid}/stat")) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        // It has gone between open and read.
        Err(error) if error.raw_os_error() == Some(libc::ESRCH) => return Ok(None),
        stat => stat?,
    };
    // The name is in parentheses, and may have some.
    let state = stat
        .rsplit_once(") ")
        .and_then(|(_, fields)| fields.chars().next());
    state.map(Some).ok_or_else(|| io::ErrorKind::InvalidData.into())
}

/// Whether another dnsd than the one with this socket file listens at `path`.
#[must_use]
pub fn is_served_by_other(path: &Path, own: (u64, u64)) -> bool {
    file(path).is_ok_and(|found| found != own) && is_served(path)
}

/// Device and inode of the file at a path.
pub(super) fn file(path: &Path) -> io::Result<(u64, u64)> {
    let found = std::fs::metadata(path)?;
    Ok((found.dev(), found.ino()))
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

/// A process that sends nothing within the time-out.
fn silence(error: TakeoverError, pid: Option<Pid>) -> TakeoverError {
    match error {
        TakeoverError::Connection(error) if error.kind() == io::ErrorKind::WouldBlock => {
            TakeoverError::Silent(pid)
        }
        other => other,
    }
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
        // Its backlog is full of connections that it does not accept.
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Err(TakeoverError::Silent(None)),
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
    let pid = check_peer_user(&connection)?;
    let program = format!("dnsd {}", env!("CARGO_PKG_VERSION"));
    send(connection.as_fd(), &Message::Hello { program }, &[])?;
    let (word, given) = receive(connection.as_fd()).map_err(|error| silence(error, pid))?;
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
            pid,
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
        let answer = receive(self.connection.as_fd());
        let (word, _none) = answer.map_err(|error| silence(error, self.pid))?;
        expect_message(word, "that it stopped", |word| match word {
            Message::Stopped => Ok(StoppedOldProcess {
                connection: self.connection,
            }),
            other => Err(other),
        })
    }
}

impl StoppedOldProcess {
    /// Lets it exit; returns its open connections, as they come.
    pub fn serving(self) -> mpsc::UnboundedReceiver<OpenConnection> {
        self.receive_connections().unwrap_or_else(|error| {
            tracing::debug!(%error, "the old process is gone already");
            mpsc::unbounded_channel().1
        })
    }

    fn receive_connections(&self) -> io::Result<mpsc::UnboundedReceiver<OpenConnection>> {
        let (mine, theirs) = Socket::pair(Domain::UNIX, Type::SEQPACKET, None)?;
        send(self.connection.as_fd(), &Message::Serving, &[theirs.as_raw_fd()])?;
        drop(theirs);
        receive_connections(mine)
    }
}
