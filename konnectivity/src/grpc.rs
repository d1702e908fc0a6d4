//! Packets over a stream of HTTP/2, as gRPC has them.

use std::future::poll_fn;
use std::time::Duration;

use bytes::Buf as _;
use h2::{RecvStream, SendStream};
use http::{HeaderMap, HeaderValue, Response, StatusCode};

use crate::proto::{DecodeError, Frame, FrameError, Frames, Packet, metadata};

/// Octets of a stream that are on their way at most.
pub(crate) const STREAM_WINDOW: u32 = 4 << 20;
/// Octets of all streams of a connection.
pub(crate) const CONNECTION_WINDOW: u32 = 16 << 20;
/// Octets of a frame of HTTP/2 that ours may send us: a packet of data with its heads, in one piece.
pub(crate) const MAX_FRAME: u32 = 64 << 10;
/// What grpc-go waits for the answer to a ping.
const PONG_WITHIN: Duration = Duration::from_secs(20);

/// Why a stream ended.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StreamError {
    #[error(transparent)]
    Http(#[from] h2::Error),
    #[error(transparent)]
    Frame(#[from] FrameError),
    #[error(transparent)]
    Packet(#[from] DecodeError),
    #[error("the stream is closed")]
    Closed,
}

#[derive(Debug)]
pub(crate) struct PacketReader {
    body: RecvStream,
    frames: Frames,
}

impl PacketReader {
    pub(crate) fn new(body: RecvStream) -> Self {
        Self {
            body,
            frames: Frames::default(),
        }
    }

    /// The next packet of a known type; none at the end. Nothing is lost where this is given up.
    pub(crate) async fn next(&mut self) -> Result<Option<Packet>, StreamError> {
        loop {
            while let Some(message) = self.frames.next_message()? {
                if let Some(packet) = Packet::decode(message)? {
                    return Ok(Some(packet));
                }
            }
            let Some(octets) = self.body.data().await else {
                return Ok(None);
            };
            let octets = octets?;
            self.body.flow_control().release_capacity(octets.len())?;
            self.frames.push(octets);
        }
    }
}

#[derive(Debug)]
pub(crate) struct PacketWriter {
    stream: SendStream<Frame>,
    /// The rest of a frame whose sending was given up: it goes first.
    rest: Frame,
}

impl PacketWriter {
    pub(crate) fn new(stream: SendStream<Frame>) -> Self {
        Self {
            stream,
            rest: Frame::default(),
        }
    }

    pub(crate) async fn send(&mut self, packet: &Packet) -> Result<(), StreamError> {
        self.flush().await?;
        self.rest = Frame::of(packet)?;
        self.flush().await
    }

    async fn flush(&mut self) -> Result<(), StreamError> {
        while self.rest.has_remaining() {
            self.stream.reserve_capacity(self.rest.remaining());
            // Capacity that is there already is not told again.
            let mut capacity = self.stream.capacity();
            if capacity == 0 {
                let more = poll_fn(|context| self.stream.poll_capacity(context)).await;
                capacity = more.ok_or(StreamError::Closed)??;
            }
            let piece = self.rest.split_to(capacity.min(self.rest.remaining()));
            self.stream.send_data(piece, false)?;
        }
        Ok(())
    }

    /// Ends the stream as one that went well; what was not sent whole is cut.
    pub(crate) fn end(mut self) -> Result<(), StreamError> {
        if self.rest.has_remaining() {
            self.stream.send_reset(h2::Reason::CANCEL);
            return Ok(());
        }
        let mut trailers = HeaderMap::new();
        trailers.insert("grpc-status", HeaderValue::from_static("0"));
        self.stream.send_trailers(trailers)?;
        Ok(())
    }
}

/// The head of an answer that packets follow.
pub(crate) fn head() -> Response<()> {
    let mut head = Response::new(());
    let grpc = HeaderValue::from_static("application/grpc");
    head.headers_mut().insert(http::header::CONTENT_TYPE, grpc);
    head
}

/// An answer without packets: why a call is refused. The codes are those of gRPC.
pub(crate) fn refusal(code: u16, text: &str) -> Response<()> {
    let mut head = head();
    *head.status_mut() = StatusCode::OK;
    head.headers_mut().insert("grpc-status", HeaderValue::from(code));
    // Our texts are printable ASCII without a per cent sign; what a peer wrote into one may be neither.
    let printable = |letter: char| (letter.is_ascii_graphic() && letter != '%') || letter == ' ';
    let text: String = text.chars().filter(|letter| printable(*letter)).collect();
    if let Ok(text) = HeaderValue::from_str(&text) {
        head.headers_mut().insert("grpc-message", text);
    }
    head
}

/// The one value of a header.
pub(crate) fn single<'a>(headers: &'a HeaderMap, name: &str) -> Result<Option<&'a str>, String> {
    let mut values = headers.get_all(name).iter();
    let Some(value) = values.next() else {
        return Ok(None);
    };
    if values.next().is_some() {
        return Err(format!("{name} is there more than once"));
    }
    let value = value.to_str().map_err(|_opaque| format!("{name} is no text"))?;
    Ok(Some(value))
}

/// What the peer announces of its credits.
pub(crate) fn window(headers: &HeaderMap) -> Result<Option<u32>, String> {
    let Some(text) = single(headers, metadata::WINDOW)? else {
        return Ok(None);
    };
    let window = text.parse().ok().filter(|window| *window > 0);
    let accepted = format!("{}: {text:?} is no number of 1 to {}", metadata::WINDOW, u32::MAX);
    window.map(Some).ok_or(accepted)
}

/// Asks the peer every `interval` whether it is there; returns when it does not answer.
pub(crate) async fn keep_alive(mut pings: h2::PingPong, interval: Duration) {
    loop {
        tokio::time::sleep(interval).await;
        let pong = pings.ping(h2::Ping::opaque());
        match tokio::time::timeout(PONG_WITHIN, pong).await {
            Ok(Ok(_pong)) => {}
            Ok(Err(_)) | Err(_) => return,
        }
    }
}
