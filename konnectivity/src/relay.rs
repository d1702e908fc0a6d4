//! Octets between a socket and a connection of a stream.

use std::cell::RefCell;
use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt as _, ReadBuf};
use tokio::sync::Notify;

use crate::core::{Read, Room};
use crate::proto::MAX_DATA;

/// A socket that takes nothing for so long is cut, where the other end has closed already.
const STUCK_AFTER: Duration = Duration::from_secs(30);

/// A connection of a stream, at the end that this program holds.
pub(crate) trait Channel: Sync {
    fn read(&self) -> Read;
    fn room(&self) -> Room;
    fn write(&self, data: Bytes);
    /// See `finish` of [`crate::core::Server`] and [`crate::core::Agent`].
    fn finish(&self);
    fn signals(&self) -> &Signals;
}

/// Wake-ups of a connection: one task reads it, one writes it.
#[derive(Debug, Default)]
pub(crate) struct Signals {
    pub(crate) reader: Notify,
    pub(crate) writer: Notify,
}

impl Signals {
    pub(crate) fn wake(&self) {
        self.reader.notify_one();
        self.writer.notify_one();
    }
}

/// What comes next; the text of the end otherwise.
pub(crate) async fn next(channel: &impl Channel) -> Result<Bytes, String> {
    loop {
        match channel.read() {
            Read::Data(data) => return Ok(data),
            Read::End(error) => return Err(error),
            Read::Empty => channel.signals().reader.notified().await,
        }
    }
}

/// Waits until there is room; none where it is closed.
async fn room(channel: &impl Channel) -> Option<usize> {
    loop {
        match channel.room() {
            Room::Octets(0) => channel.signals().writer.notified().await,
            Room::Octets(octets) => return Some(octets),
            Room::Closed => return None,
        }
    }
}

/// Writes when there is room. What comes for a connection that is closed is dropped.
pub(crate) async fn write(channel: &impl Channel, data: Bytes) {
    if room(channel).await.is_some() {
        channel.write(data);
    }
}

/// Relays until one end closes: then what it sent is written to the other. There is no half-close in the protocol.
pub(crate) async fn relay<R, W>(channel: &impl Channel, reader: R, writer: W)
where
    R: AsyncRead + Unpin,
    W: AsyncWrite + Unpin,
{
    let written = AtomicU64::new(0);
    tokio::select! {
        () = from_socket(channel, reader, &written) => channel.finish(),
        () = to_socket(channel, writer, &written) => {}
    }
}

async fn from_socket<R: AsyncRead + Unpin>(channel: &impl Channel, mut reader: R, written: &AtomicU64) {
    while let Some(room) = room(channel).await {
        match read_some(&mut reader, room.min(MAX_DATA)).await {
            Ok(data) if !data.is_empty() => channel.write(data),
            Ok(_end) => return,
            Err(error) => {
                tracing::debug!(%error, "a connection ended early");
                return;
            }
        }
    }
    // Closed by the other end: what it sent is still written, as long as some of it is taken.
    let mut before = None;
    while before != Some(written.load(Ordering::Relaxed)) {
        before = Some(written.load(Ordering::Relaxed));
        tokio::time::sleep(STUCK_AFTER).await;
    }
    tracing::debug!("a connection is cut: it takes nothing");
}

async fn to_socket<W: AsyncWrite + Unpin>(channel: &impl Channel, mut writer: W, written: &AtomicU64) {
    while let Ok(data) = next(channel).await {
        if let Err(error) = writer.write_all(&data).await {
            tracing::debug!(%error, "a connection ended early");
            channel.finish();
            return;
        }
        written.fetch_add(1, Ordering::Relaxed);
    }
    if let Err(error) = writer.shutdown().await {
        tracing::debug!(%error, "a connection ended early");
    }
}

thread_local! {
    /// A connection that is idle has no buffer of its own.
    static BUFFER: RefCell<Vec<u8>> = RefCell::new(vec![0; MAX_DATA]);
}

/// Nothing is read where this is given up; empty at the end.
pub(crate) async fn read_some<R: AsyncRead + Unpin>(reader: &mut R, most: usize) -> io::Result<Bytes> {
    poll_fn(|context| {
        BUFFER.with_borrow_mut(|buffer| {
            let mut buffer = ReadBuf::new(&mut buffer[..most]);
            ready!(Pin::new(&mut *reader).poll_read(context, &mut buffer))?;
            Poll::Ready(Ok(Bytes::copy_from_slice(buffer.filled())))
        })
    })
    .await
}
