//! Octets between a socket and a connection of a stream.

use std::cell::RefCell;
use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::task::{Poll, ready};

use bytes::Bytes;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt as _, ReadBuf};
use tokio::sync::Notify;

use crate::core::{Read, Room};
use crate::proto::MAX_DATA;

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
pub(crate) async fn room(channel: &impl Channel) -> Option<usize> {
    loop {
        match channel.room() {
            Room::Octets(0) => channel.signals().writer.notified().await,
            Room::Octets(octets) => return Some(octets),
            Room::Closed => return None,
        }
    }
}

/// Relays until one end closes: then what it sent is written to the other. There is no half-close in the protocol.
pub(crate) async fn relay<R, W>(channel: &impl Channel, reader: R, writer: W)
where
    R: AsyncRead + Unpin,
    W: AsyncWrite + Unpin,
{
    tokio::select! {
        () = from_socket(channel, reader) => channel.finish(),
        () = to_socket(channel, writer) => {}
    }
}

async fn from_socket<R: AsyncRead + Unpin>(channel: &impl Channel, mut reader: R) {
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
    // Closed by the other end: what it sent is still written.
    std::future::pending().await
}

async fn to_socket<W: AsyncWrite + Unpin>(channel: &impl Channel, mut writer: W) {
    while let Ok(data) = next(channel).await {
        if let Err(error) = writer.write_all(&data).await {
            tracing::debug!(%error, "a connection ended early");
            channel.finish();
            return;
        }
    }
    if let Err(error) = writer.shutdown().await {
        tracing::debug!(%error, "a connection ended early");
    }
}

thread_local! {
    /// A connection that is idle has no buffer of its own.
    static BUFFER: RefCell<Vec<u8>> = RefCell::new(vec![0; MAX_DATA]);
}

async fn read_some<R: AsyncRead + Unpin>(reader: &mut R, most: usize) -> io::Result<Bytes> {
    poll_fn(|context| {
        BUFFER.with_borrow_mut(|buffer| {
            let mut buffer = ReadBuf::new(&mut buffer[..most]);
            ready!(Pin::new(&mut *reader).poll_read(context, &mut buffer))?;
            Poll::Ready(Ok(Bytes::copy_from_slice(buffer.filled())))
        })
    })
    .await
}
