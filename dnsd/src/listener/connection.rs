//! A connection of a client, over TCP or TLS (RFC 7766, RFC 7858): a length of two octets precedes each message. Replies are
//! sent as soon as they are ready, not in the order of their queries, so that a held answer delays no other.

use std::future::pending;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Buf, BytesMut};
use egret_shared::rt::task;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::{Semaphore, mpsc};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::Service;
use super::handover::Handover;
use crate::config::model::Timeouts;
use crate::limits::permits::{Permit, PermitLimits};
use crate::limits::quota_key::QuotaKey;
use crate::pipeline::{Disposition, ReceivedAt};
use crate::zones::{Listener, PacketInfo};

/// Queries of one connection under way; above the limit it is not read.
pub(super) const MAX_PIPELINED: usize = 256;
/// Replies of one connection that wait to be written.
const MAX_UNWRITTEN: usize = 64;
/// Octets of replies that wait to be written. A client that reads nothing is disconnected above the limit, long before
/// its timeout: a pod has a hundred connections, and a reply up to 64 KiB.
pub(super) const UNWRITTEN: PermitLimits = PermitLimits {
    per_client: 4 << 20,
    total: 32 << 20,
};
/// How long a closing connection must be quiet. A query may have been sent before the client sees the close: the kernel
/// would answer it with a reset.
const QUIET_TIME: Duration = Duration::from_millis(300);
/// Octets that are read at once.
const READ_SIZE: usize = 2 << 10;

/// What the connections of a listener share.
#[derive(Clone)]
pub(super) struct ListenerContext {
    pub(super) port: Arc<Listener>,
    pub(super) service: Service,
    pub(super) close: CancellationToken,
}

impl ListenerContext {
    /// Waits until the listener is closed, and for a quiet time after it.
    pub(super) async fn closed(&self) {
        self.close.cancelled().await;
        tokio::time::sleep(QUIET_TIME).await;
    }
}

/// The client of a connection.
pub(super) struct Peer {
    pub(super) arrival: PacketInfo,
    pub(super) quota_key: QuotaKey,
    /// Ends the connection at once.
    pub(super) cut: CancellationToken,
    pub(super) _permit: Permit<CancellationToken>,
}

/// What a connection's messages are read from: octets that were received, and how many queries came before.
#[derive(Debug, Default)]
pub(super) struct Received {
    /// Octets of queries that are not answered.
    pub(super) unread: BytesMut,
    /// Queries that were read.
    pub(super) queries: u32,
}

/// Serves a connection until the client, its timeout or the listener ends it. Returns it if a new process is to serve it:
/// then all queries that were read are answered.
pub(super) async fn serve<R, W>(
    (reader, writer): (R, W),
    received: Received,
    peer: Peer,
    listener_context: ListenerContext,
    timeouts: Timeouts,
    handover: Option<&Handover>,
) -> Option<(R, W, Received)>
where
    R: AsyncRead + Unpin,
    W: AsyncWrite + Unpin,
{
    let Peer {
        arrival,
        quota_key,
        cut,
        _permit,
    } = peer;
    let (replies, waiting) = mpsc::channel(MAX_UNWRITTEN);
    let replies = ReplySender {
        replies,
        quota_key,
        service: listener_context.service.clone(),
        cut: cut.clone(),
    };
    let mut messages = MessageReader { reader, received };
    let mut writing = std::pin::pin!(write(writer, waiting, timeouts.write));
    let (end, written) = tokio::select! {
        end = read(&mut messages, arrival, &listener_context, timeouts, replies, handover) => {
            tokio::select! {
                written = writing => (end, written),
                () = cut.cancelled() => (End::Close, None),
            }
        }
        written = &mut writing => (End::Close, written),
        () = cut.cancelled() => (End::Close, None),
    };
    if cut.is_cancelled() {
        listener_context.service.metrics.tcp_cut.increment(1);
    }
    let mut writer = written?;
    if end == End::HandOver {
        return Some((messages.reader, writer, messages.received));
    }
    // TLS sends close_notify; a client that is gone does not need it.
    drop(timeout(timeouts.write, writer.shutdown()).await);
    None
}

/// A reply that waits to be written, with its permit.
type QueuedReply = (Vec<u8>, Permit<CancellationToken>);

/// The sending side of a connection.
#[derive(Clone)]
struct ReplySender {
    replies: mpsc::Sender<QueuedReply>,
    quota_key: QuotaKey,
    service: Service,
    /// Ends the connection at once.
    cut: CancellationToken,
}

impl ReplySender {
    /// Queues a reply; returns false if the connection is gone.
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

/// Why a connection is read no more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// It is closed when the replies are written.
    Close,
    /// A new process reads it.
    HandOver,
}

async fn read(
    messages: &mut MessageReader<impl AsyncRead + Unpin>,
    arrival: PacketInfo,
    listener_context: &ListenerContext,
    timeouts: Timeouts,
    replies: ReplySender,
    handover: Option<&Handover>,
) -> End {
    let room = Arc::new(Semaphore::new(MAX_PIPELINED));
    let most = timeouts.queries_per_connection.unwrap_or(u32::MAX);
    while messages.received.queries < most {
        let Ok(permit) = Arc::clone(&room).acquire_owned().await else {
            return End::Close;
        };
        let message = tokio::select! {
            // The order saves the wait for the others where a message is there.
            biased;
            message = next_message(messages, timeouts, handover) => message,
            () = all_answered(&room, handover) => return End::HandOver,
            () = closed(listener_context, handover) => return End::Close,
        };
        let Some(octets) = message else {
            return End::Close;
        };
        match listener_context.service.resolver.answer(
            &octets,
            arrival,
            &listener_context.port.table(),
            ReceivedAt::now(),
        ) {
            Disposition::NoReply => {}
            Disposition::Reply(reply) => {
                if !replies.put(reply).await {
                    return End::Close;
                }
            }
            Disposition::Pending(pending) => {
                let replies = replies.clone();
                let answering = async move {
                    if let Some(reply) = pending.reply().await {
                        replies.put(reply).await;
                    }
                    drop(permit);
                };
                drop(task::spawn_brief(
                    listener_context.service.under_way.track_future(answering),
                ));
            }
        }
    }
    End::Close
}

/// Waits until a new process takes connections over and no query of this one is under way. The caller has one permit.
async fn all_answered(room: &Semaphore, handover: Option<&Handover>) {
    let Some(handover) = handover else {
        return pending().await;
    };
    handover.begun().await;
    let others = u32::try_from(MAX_PIPELINED - 1).expect("it is a small number");
    if room.acquire_many(others).await.is_err() {
        pending().await
    }
}

/// Waits until the listener is closed. A connection that a new process takes over is not closed.
async fn closed(listener_context: &ListenerContext, handover: Option<&Handover>) {
    listener_context.closed().await;
    if handover.is_some_and(Handover::has_begun) {
        pending().await
    }
}

/// The next message; `None` if it does not arrive. A connection that always has queries under way is read no more a while
/// after a takeover, so that they are answered and it is handed over.
async fn next_message(
    messages: &mut MessageReader<impl AsyncRead + Unpin>,
    timeouts: Timeouts,
    handover: Option<&Handover>,
) -> Option<Vec<u8>> {
    let first = match messages.received.queries {
        0 => timeouts.read,
        1.. => timeouts.idle,
    };
    let overdue = async {
        match handover {
            Some(handover) => handover.overdue().await,
            None => pending().await,
        }
    };
    tokio::select! {
        biased;
        () = overdue => pending().await,
        message = messages.next(first, timeouts.read) => message,
    }
}

/// Reads messages. Nothing is lost when its future is dropped.
struct MessageReader<R> {
    reader: R,
    received: Received,
}

impl<R: AsyncRead + Unpin> MessageReader<R> {
    /// The next message: its first octet within `first`, the rest within `rest`; `None` if it does not arrive.
    async fn next(&mut self, first: Duration, rest: Duration) -> Option<Vec<u8>> {
        if self.received.unread.is_empty() {
            timeout(first, self.receive()).await.ok()?.ok()?;
        }
        let whole = async {
            loop {
                if let Some(message) = self.received.message() {
                    return io::Result::Ok(message);
                }
                self.receive().await?;
            }
        };
        timeout(rest, whole).await.ok()?.ok()
    }

    async fn receive(&mut self) -> io::Result<()> {
        let unread = &mut self.received.unread;
        unread.reserve(READ_SIZE);
        match self.reader.read_buf(unread).await? {
            0 => Err(io::ErrorKind::UnexpectedEof.into()),
            _some => Ok(()),
        }
    }
}

impl Received {
    /// Takes the first message, if it is there as a whole.
    fn message(&mut self) -> Option<Vec<u8>> {
        let (length, rest) = self.unread.split_first_chunk::<2>()?;
        let length = usize::from(u16::from_be_bytes(*length));
        let message = rest.get(..length)?.to_vec();
        self.unread.advance(2 + length);
        self.queries = self.queries.saturating_add(1);
        Some(message)
    }
}

/// Writes replies until all senders are gone; `None` if the client does not read.
async fn write<W: AsyncWrite + Unpin>(
    mut writer: W,
    mut replies: mpsc::Receiver<QueuedReply>,
    patience: Duration,
) -> Option<W> {
    while let Some((reply, _permit)) = replies.recv().await {
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
            Ok(Err(_)) | Err(_) => return None,
        }
    }
    Some(writer)
}
