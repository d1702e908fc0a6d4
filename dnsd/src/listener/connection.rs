//! A connection of a client, over TCP or TLS (RFC 7766, RFC 7858): a length of two octets precedes each message. Replies are
//! sent as soon as they are ready, not in the order of their queries, so that a held answer delays no other.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use egret_shared::rt::task;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, BufReader};
use tokio::sync::{Semaphore, mpsc};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::Service;
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

/// Serves a connection until the client, its timeout or the listener ends it.
pub(super) async fn serve<R, W>(
    (reader, writer): (R, W),
    peer: Peer,
    listener_context: ListenerContext,
    timeouts: Timeouts,
) where
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
    let mut writing = std::pin::pin!(write(writer, waiting, timeouts.write));
    tokio::select! {
        () = read(BufReader::new(reader), arrival, &listener_context, timeouts, replies) => {
            tokio::select! {
                () = writing => {}
                () = cut.cancelled() => {}
            }
        }
        () = &mut writing => {}
        () = cut.cancelled() => {}
    }
    if cut.is_cancelled() {
        listener_context.service.metrics.tcp_cut.increment(1);
    }
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

async fn read(
    mut reader: BufReader<impl AsyncRead + Unpin>,
    arrival: PacketInfo,
    listener_context: &ListenerContext,
    timeouts: Timeouts,
    replies: ReplySender,
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
            () = listener_context.closed() => return,
        };
        let Some(octets) = message else {
            return;
        };
        (left, patience) = (left.saturating_sub(1), timeouts.idle);
        match listener_context.service.resolver.answer(
            &octets,
            arrival,
            &listener_context.port.table(),
            ReceivedAt::now(),
        ) {
            Disposition::NoReply => {}
            Disposition::Reply(reply) => {
                if !replies.put(reply).await {
                    return;
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
}

/// The next message: its length within `first`, the rest within `rest`; `None` if it does not arrive.
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

/// Writes replies until all senders are gone, or the client does not read.
async fn write(
    mut writer: impl AsyncWrite + Unpin,
    mut replies: mpsc::Receiver<QueuedReply>,
    patience: Duration,
) {
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
            Ok(Err(_)) | Err(_) => return,
        }
    }
    // TLS sends close_notify; a client that is gone does not need it.
    drop(timeout(patience, writer.shutdown()).await);
}
