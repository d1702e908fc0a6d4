//! Connections (RFC 7766): two octets of length before each message, however the segments split them; questions
//! are answered as answers come, not as they were asked, so that a held answer holds up nothing else.

use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use egret_shared::rt::{clock, task};
use nix::sys::socket::{setsockopt, sockopt};
use socket2::{Domain, Protocol, Socket, Type};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, mpsc};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::{Service, tls};
use crate::config::model::Timeouts;
use crate::enforcement::client::{Identity, Payer, Unattributed};
use crate::limits::permits::{Place, Places};
use crate::listener::udp_socket::beside_others;
use crate::net::packet_info;
use crate::pipeline::{Moment, Step};
use crate::telemetry::metrics::Transport;
use crate::zones::{Arrival, Port};

/// Questions of one connection that are under way at once; beyond, it is not read.
pub(super) const MAX_PIPELINED: usize = 256;
/// Replies of one connection that wait to be written.
const MAX_UNWRITTEN: usize = 64;
/// Octets of replies that wait to be written. Who asks for much and reads nothing is cut off, long before its patience
/// has ended: a pod has a hundred connections, and a reply 64 KiB.
pub(super) const UNWRITTEN: Places = Places {
    per_client: 4 << 20,
    total: 32 << 20,
};
/// What the kernel keeps of replies that were written, for each connection; it doubles this (socket(7)), and would
/// let it grow to megabytes. Connections have it from the socket that listens.
const SEND_BUFFER: usize = 128 << 10;

/// How long a connection has to be quiet when it is to end. What has arrived or is about to was asked of a server that had
/// not closed: the kernel would answer a close with a reset then, and the question be lost.
const LAST_CALL: Duration = Duration::from_millis(300);

/// Binds and listens. The flag for packet information is inherited by connections: it makes the kernel tell by
/// which interface one came in.
pub(super) fn bind(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_reuse_address(true)?;
    socket.set_send_buffer_size(SEND_BUFFER)?;
    if address.is_ipv6() {
        socket.set_only_v6(true)?;
        setsockopt(&socket, sockopt::Ipv6RecvPacketInfo, &true)?;
    } else {
        setsockopt(&socket, sockopt::Ipv4PacketInfo, &true)?;
    }
    // The kernel looks for others again when it is to listen (`inet_csk_listen_start`).
    beside_others(&socket, || {
        socket.bind(&address.into())?;
        socket.listen(1024)
    })?;
    socket.set_nonblocking(true)?;
    TcpListener::from_std(socket.into())
}

/// A socket that listens already, perhaps for another process.
pub(super) fn inherit(socket: OwnedFd) -> io::Result<TcpListener> {
    TcpListener::from_std(socket.into())
}

/// When it ends.
#[derive(Debug)]
pub(super) struct Ends {
    /// No more connections are accepted.
    pub(super) listener: CancellationToken,
    /// Connections are not read any more.
    pub(super) connections: CancellationToken,
}

pub(super) async fn serve(listener: TcpListener, port: Arc<Port>, service: Service, ends: Ends) {
    let door = Door {
        port,
        service,
        close: ends.connections,
    };
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = ends.listener.cancelled() => return,
        };
        match accepted {
            Ok((stream, peer)) => door.admit(stream, peer),
            Err(error) => {
                tracing::warn!(%error, "a connection cannot be accepted");
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        }
    }
}

/// What the connections of a listener share.
#[derive(Clone)]
pub(super) struct Door {
    pub(super) port: Arc<Port>,
    pub(super) service: Service,
    pub(super) close: CancellationToken,
}

impl Door {
    /// Closed, and quiet for long enough since it was.
    pub(super) async fn closed(&self) {
        self.close.cancelled().await;
        tokio::time::sleep(LAST_CALL).await;
    }

    fn admit(&self, stream: TcpStream, client: SocketAddr) {
        let table = self.port.table();
        let arrival = Arrival {
            source: client,
            asked: stream.local_addr().ok().map(|address| address.ip()),
            interface: packet_info::interface(&stream),
            transport: Transport::Tcp,
        };
        let resolver = &self.service.resolver;
        let Identity { payer, is_forged, .. } = resolver.identify(&arrival, clock::now());
        if is_forged {
            resolver.metrics().unattributed(Unattributed::Interface);
            return;
        }
        let cut = CancellationToken::new();
        let (connections, places) = (&self.service.connections, table.config.tcp.connections);
        match connections.take(payer, 1, places, cut.clone()) {
            Some(place) => {
                let caller = Caller {
                    arrival,
                    payer,
                    cut,
                    _place: place,
                };
                if let Err(error) = stream.set_nodelay(true) {
                    tracing::debug!(%error, "a connection cannot be set to send at once");
                }
                let under_way = &self.service.under_way;
                if table.scheme.is_encrypted() {
                    let serving = under_way.track_future(tls::serve(stream, caller, self.clone(), table));
                    drop(task::spawn("connection", serving));
                } else {
                    let serving = converse(stream.into_split(), caller, self.clone(), table.timeouts);
                    drop(task::spawn("connection", under_way.track_future(serving)));
                }
            }
            None => resolver.metrics().tcp_refused.increment(1),
        }
    }
}

/// Who has a connection.
pub(super) struct Caller {
    pub(super) arrival: Arrival,
    pub(super) payer: Payer,
    /// Ends the connection, whatever waits.
    pub(super) cut: CancellationToken,
    pub(super) _place: Place<CancellationToken>,
}

/// Answers what comes by the reader, until the client, its patience or the listener ends it.
pub(super) async fn converse<R, W>((reader, writer): (R, W), caller: Caller, door: Door, timeouts: Timeouts)
where
    R: AsyncRead + Unpin,
    W: AsyncWrite + Unpin,
{
    let Caller {
        arrival,
        payer,
        cut,
        _place,
    } = caller;
    let (replies, waiting) = mpsc::channel(MAX_UNWRITTEN);
    let outbox = Outbox {
        replies,
        payer,
        service: door.service.clone(),
        cut: cut.clone(),
    };
    let mut writing = std::pin::pin!(write(writer, waiting, timeouts.write));
    tokio::select! {
        () = read(BufReader::new(reader), arrival, &door, timeouts, outbox) => {
            tokio::select! {
                () = writing => {}
                () = cut.cancelled() => {}
            }
        }
        () = &mut writing => {}
        () = cut.cancelled() => {}
    }
    if cut.is_cancelled() {
        door.service.resolver.metrics().tcp_cut.increment(1);
    }
}

/// A reply that waits to be written, with what it takes of what its client may leave unread.
type Unwritten = (Vec<u8>, Place<CancellationToken>);

/// Where the replies of a connection wait.
#[derive(Clone)]
struct Outbox {
    replies: mpsc::Sender<Unwritten>,
    payer: Payer,
    service: Service,
    /// Ends the connection, whatever waits.
    cut: CancellationToken,
}

impl Outbox {
    /// Has a reply written when its turn comes; false when the connection is gone, and so is who wanted this.
    async fn put(&self, reply: Vec<u8>) -> bool {
        let unwritten = &self.service.unwritten;
        match unwritten.take(self.payer, reply.len(), UNWRITTEN, self.cut.clone()) {
            Some(place) => self.replies.send((reply, place)).await.is_ok(),
            None => {
                self.cut.cancel();
                false
            }
        }
    }
}

async fn read(
    mut reader: BufReader<impl AsyncRead + Unpin>,
    arrival: Arrival,
    door: &Door,
    timeouts: Timeouts,
    outbox: Outbox,
) {
    let room = Arc::new(Semaphore::new(MAX_PIPELINED));
    let mut left = timeouts.queries_per_connection.unwrap_or(u32::MAX);
    let mut patience = timeouts.read;
    while left > 0 {
        let Ok(permit) = Arc::clone(&room).acquire_owned().await else {
            return;
        };
        let message = tokio::select! {
            message = read_message(&mut reader, patience, timeouts.read) => message,
            () = door.closed() => return,
        };
        let Some(octets) = message else {
            return;
        };
        (left, patience) = (left.saturating_sub(1), timeouts.idle);
        match door
            .service
            .resolver
            .take(&octets, arrival, &door.port.table(), Moment::now())
        {
            Step::Silence => {}
            Step::Reply(reply) => {
                if !outbox.put(reply).await {
                    return;
                }
            }
            Step::Later(pending) => {
                let outbox = outbox.clone();
                let answering = async move {
                    if let Some(reply) = pending.reply().await {
                        outbox.put(reply).await;
                    }
                    drop(permit);
                };
                drop(task::spawn_brief(door.service.under_way.track_future(answering)));
            }
        }
    }
}

/// The next message: its length within `first`, and all of it within `rest`; nothing where it does not come.
async fn read_message(
    reader: &mut BufReader<impl AsyncRead + Unpin>,
    first: Duration,
    rest: Duration,
) -> Option<Vec<u8>> {
    let begun = timeout(first, reader.read_u8()).await.ok()?.ok()?;
    let reading = async {
        let length = u16::from_be_bytes([begun, reader.read_u8().await?]);
        let mut octets = vec![0; length.into()];
        reader.read_exact(&mut octets).await?;
        io::Result::Ok(octets)
    };
    timeout(rest, reading).await.ok()?.ok()
}

/// Writes replies until all who may send one are gone, or the client does not read.
async fn write(
    mut writer: impl AsyncWrite + Unpin,
    mut outbox: mpsc::Receiver<Unwritten>,
    patience: Duration,
) {
    while let Some((reply, _place)) = outbox.recv().await {
        let Ok(length) = u16::try_from(reply.len()) else {
            continue;
        };
        let mut framed = Vec::with_capacity(2 + reply.len());
        framed.extend_from_slice(&length.to_be_bytes());
        framed.extend_from_slice(&reply);
        let writing = async {
            writer.write_all(&framed).await?;
            writer.flush().await
        };
        match timeout(patience, writing).await {
            Ok(Ok(())) => {}
            Ok(Err(_)) | Err(_) => return,
        }
    }
    // TLS says that it ends; who has gone need not hear it.
    drop(timeout(patience, writer.shutdown()).await);
}
