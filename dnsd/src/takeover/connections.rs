//! Open TCP connections on their way from the old process to the new one: a message for each, with the descriptor beside it.
//! Both sides have a thread of their own, so that neither blocks a query.

use std::io;
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use socket2::Socket;
use tokio::sync::{mpsc, oneshot};

use super::wire::{TakeoverError, namespace, receive_octets, send_octets};

/// What every message begins with.
const HEAD: [u8; 4] = *b"egc\x01";
/// Octets of a message: the longest query, and what was read beyond it.
const MAX_CONNECTION_MESSAGE: usize = 160 << 10;
/// How long the new process may take to make room for a message.
const SEND_TIMEOUT: Duration = Duration::from_secs(5);

/// A connection that the old process has served and the new one is to serve.
#[derive(Debug)]
pub struct OpenConnection {
    /// The configured address of its listener.
    pub listener: SocketAddr,
    /// The connection.
    pub stream: TcpStream,
    /// Octets that were received and belong to no query that was answered.
    pub unread: Vec<u8>,
    /// Queries that were read from it.
    pub queries: u32,
}

/// A connection that departs. The sender is dropped when the connection was sent, or cannot be.
pub type Departure = (OpenConnection, oneshot::Sender<()>);

/// The wire form.
#[derive(Debug, Serialize, Deserialize)]
struct ConnectionRecord {
    listener: SocketAddr,
    queries: u32,
    unread: Vec<u8>,
}

/// Sends connections to the new process until the returned sender is dropped.
///
/// # Errors
/// When no thread can be started.
pub fn send_connections(to: OwnedFd) -> io::Result<mpsc::UnboundedSender<Departure>> {
    let to = Socket::from(to);
    to.set_write_timeout(Some(SEND_TIMEOUT))?;
    let (departures, mut departing) = mpsc::unbounded_channel::<Departure>();
    std::thread::Builder::new()
        .name("departures".to_owned())
        .spawn(move || {
            while let Some((connection, _sent)) = departing.blocking_recv() {
                if let Err(error) = send_connection(&to, &connection) {
                    tracing::warn!(%error, "an open connection ends: the new process does not take it");
                }
            }
        })?;
    Ok(departures)
}

fn send_connection(to: &Socket, connection: &OpenConnection) -> io::Result<()> {
    let record = ConnectionRecord {
        listener: connection.listener,
        queries: connection.queries,
        unread: connection.unread.clone(),
    };
    let octets = postcard::to_extend(&record, HEAD.to_vec()).map_err(io::Error::other)?;
    send_octets(to.as_fd(), &octets, &[connection.stream.as_raw_fd()])
}

/// Receives the old process's connections until it closes its side.
///
/// # Errors
/// When no thread can be started.
pub(super) fn receive_connections(from: Socket) -> io::Result<mpsc::UnboundedReceiver<OpenConnection>> {
    let (arrivals, arriving) = mpsc::unbounded_channel();
    std::thread::Builder::new()
        .name("arrivals".to_owned())
        .spawn(move || {
            loop {
                match receive_connection(&from) {
                    Ok(connection) => {
                        if arrivals.send(connection).is_err() {
                            return;
                        }
                    }
                    Err(TakeoverError::Connection(error)) if error.kind() == io::ErrorKind::UnexpectedEof => {
                        return;
                    }
                    Err(error) => {
                        return tracing::warn!(%error, "no more open connections of the old process are taken");
                    }
                }
            }
        })?;
    Ok(arriving)
}

fn receive_connection(from: &Socket) -> Result<OpenConnection, TakeoverError> {
    let (octets, sockets) = receive_octets(from.as_fd(), MAX_CONNECTION_MESSAGE)?;
    let unknown = || TakeoverError::Unknown("something that is no open connection".to_owned());
    let record = octets.strip_prefix(&HEAD).ok_or_else(unknown)?;
    let record: ConnectionRecord = postcard::from_bytes(record).map_err(|_invalid| unknown())?;
    let [socket] = <[OwnedFd; 1]>::try_from(sockets).map_err(|given| TakeoverError::Count {
        given: given.len(),
        named: 1,
    })?;
    if namespace(socket.as_fd())? != namespace(from.as_fd())? {
        return Err(TakeoverError::OtherNamespace);
    }
    Ok(OpenConnection {
        listener: record.listener,
        stream: socket.into(),
        unread: record.unread,
        queries: record.queries,
    })
}
