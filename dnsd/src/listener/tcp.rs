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
use tokio::io::{AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, mpsc};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::Service;
use crate::config::model::Timeouts;
use crate::enforcement::client::{Identity, Unidentified};
use crate::limits::permits::{Permit, PermitLimits};
use crate::limits::quota_key::QuotaKey;
use crate::listener::udp_socket::beside_others;
use crate::net::Transport;
use crate::net::packet_info;
use crate::pipeline::{Disposition, ReceivedAt};
use crate::zones::{Listener, PacketInfo};

/// Questions of one connection that are under way at once; beyond, it is not read.
const MAX_PIPELINED: usize = 256;
/// Replies of one connection that wait to be written.
const MAX_UNWRITTEN: usize = 64;
/// Octets of replies that wait to be written. Who asks for much and reads nothing is cut off, long before its patience
/// has ended: a pod has a hundred connections, and a reply 64 KiB.
const UNWRITTEN: PermitLimits = PermitLimits {
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

pub(super) async fn serve(listener: TcpListener, port: Arc<Listener>, service: Service, ends: Ends) {
    let door = Door {
        port,
        service,
        close: ends.connections,
    };
    loop {
        let accepted = tokio::select! { accepted = listener.accept() => accepted, () = ends.listener.cancelled() => return, };
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
struct Door {
    port: Arc<Listener>,
    service: Service,
    close: CancellationToken,
}

impl Door {
    /// Closed, and quiet for long enough since it was.
    async fn closed(&self) {
        self.close.cancelled().await;
        tokio::time::sleep(LAST_CALL).await;
    }

    fn admit(&self, stream: TcpStream, client: SocketAddr) {
        let table = self.port.table();
        let arrival = PacketInfo {
            source: client,
            asked: stream.local_addr().ok().map(|address| address.ip()),
            interface: packet_info::interface(&stream),
            transport: Transport::Tcp,
        };
        let resolver = &self.service.resolver;
        let Identity {
            quota_key, is_forged, ..
        } = resolver.identify(&arrival, clock::now());
        if is_forged {
            resolver.metrics().unattributed(Unidentified::Interface);
            return;
        }
        let cut = CancellationToken::new();
        let (connections, limits) = (&self.service.connections, table.config.tcp.connections);
        match connections.take(quota_key, 1, limits, cut.clone()) {
            Some(permit) => {
                let caller = Caller {
                    arrival,
                    quota_key,
                    cut,
                    _place: permit,
                };
                let serving = converse(stream, caller, self.clone(), table.timeouts);
                let serving = self.service.under_way.track_future(serving);
                drop(task::spawn("connection", serving));
            }
            None => self.service.metrics.tcp_refused.increment(1),
        }
    }
}

/// Who has a connection.
struct Caller {
    arrival: PacketInfo,
    quota_key: QuotaKey,
    /// Ends the connection, whatever waits.
    cut: CancellationToken,
    _place: Permit<CancellationToken>,
}

async fn converse(stream: TcpStream, caller: Caller, door: Door, timeouts: Timeouts) {
    let Caller {
        arrival,
        quota_key,
        cut,
        _place,
    } = caller;
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(%error, "a connection cannot be set to send at once");
    }
    let (reader, writer) = stream.into_split();
    let (replies, waiting) = mpsc::channel(MAX_UNWRITTEN);
    let send_batch = SendBatch {
        replies,
        quota_key,
        service: door.service.clone(),
        cut: cut.clone(),
    };
    let mut writing = std::pin::pin!(write(writer, waiting, timeouts.write));
    tokio::select! {
        () = read(BufReader::new(reader), arrival, &door, timeouts, send_batch) => {
            tokio::select! {
                () = writing => {}
                () = cut.cancelled() => {}
            }
        }
        () = &mut writing => {}
        () = cut.cancelled() => {}
    }
    if cut.is_cancelled() {
        door.service.metrics.tcp_cut.increment(1);
    }
}

/// A reply that waits to be written, with what it takes of what its client may leave unread.
type Unwritten = (Vec<u8>, Permit<CancellationToken>);

/// Where the replies of a connection wait.
#[derive(Clone)]
struct SendBatch {
    replies: mpsc::Sender<Unwritten>,
    quota_key: QuotaKey,
    service: Service,
    /// Ends the connection, whatever waits.
    cut: CancellationToken,
}

impl SendBatch {
    /// Has a reply written when its turn comes; false when the connection is gone, and so is who wanted this.
    async fn put(&self, reply: Vec<u8>) -> bool {
        let unwritten = &self.service.unwritten;
        match unwritten.take(self.quota_key, reply.len(), UNWRITTEN, self.cut.clone()) {
            Some(permit) => self.replies.send((reply, permit)).await.is_ok(),
            None => {
                self.cut.cancel();
                false
            }
        }
    }
}

async fn read(
    mut reader: BufReader<OwnedReadHalf>,
    arrival: PacketInfo,
    door: &Door,
    timeouts: Timeouts,
    send_batch: SendBatch,
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
            .answer(&octets, arrival, &door.port.table(), ReceivedAt::now())
        {
            Disposition::NoReply => {}
            Disposition::Reply(reply) => {
                if !send_batch.put(reply).await {
                    return;
                }
            }
            Disposition::Pending(pending) => {
                let send_batch = send_batch.clone();
                let answering = async move {
                    if let Some(reply) = pending.reply().await {
                        send_batch.put(reply).await;
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
    reader: &mut BufReader<OwnedReadHalf>,
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
async fn write(mut writer: OwnedWriteHalf, mut send_batch: mpsc::Receiver<Unwritten>, patience: Duration) {
    while let Some((reply, _place)) = send_batch.recv().await {
        let Ok(length) = u16::try_from(reply.len()) else {
            continue;
        };
        let mut framed = Vec::with_capacity(2 + reply.len());
        framed.extend_from_slice(&length.to_be_bytes());
        framed.extend_from_slice(&reply);
        match timeout(patience, writer.write_all(&framed)).await {
            Ok(Ok(())) => {}
            Ok(Err(_)) | Err(_) => return,
        }
    }
}
