//! The link to dnsd: a Unix socket for several dnsds. This module carries frames; the engine interprets them. A dnsd
//! that sends too much waits for the engine; the engine drops one that does not read.
//!
//! Messages are written by the engine's thread as long as the socket takes them, because an answer waits for them.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use egret_shared::link::{Frame, FrameDecoder, Hello, ToDnsd, ToEnforcer, encode};
use egret_shared::revision::DnsdInstance;
use egret_shared::rt::frame_stream::FrameStream;
use egret_shared::rt::task;
use metrics::{counter, gauge};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{Semaphore, mpsc};

use crate::engine::{Input, PeerId, PeerSender, SendQueueFull};
use crate::metrics::{as_gauge, describe_counters, describe_gauges};
use crate::unix_socket;

/// The most connected dnsds: two during a rolling update, and some dead connections.
const MAX_PEERS: usize = 16;
/// Queued messages (of one pass each) before a dnsd is dropped.
const MAX_QUEUED: usize = 256;

const CONNECTIONS: &str = "egret_enforcer_link_connections_total";
const PEERS_LIMIT: &str = "egret_enforcer_link_peers_limit";

/// Binds the socket, creates its folder, and replaces a socket on which nobody listens. Owner and group may connect,
/// whatever the umask: the mode is set before listening.
///
/// # Errors
///
/// The path, if another process listens there or another file is there.
pub fn bind(path: &Path) -> io::Result<UnixListener> {
    unix_socket::bind(path, 0o660).map_err(|error| {
        io::Error::new(
            error.kind(),
            format!("cannot listen on {}: {error}", path.display()),
        )
    })
}

/// Describes the metrics of the link and sets them to 0.
pub fn register_metrics() {
    describe_counters(&[(CONNECTIONS, "Connections that a dnsd made.")]);
    counter!(CONNECTIONS).absolute(0);
    describe_gauges(&[(PEERS_LIMIT, "The most dnsds that may be connected.")]);
    gauge!(PEERS_LIMIT).set(as_gauge(MAX_PEERS));
}

/// Accepts connections until the runtime ends.
pub async fn serve(
    listener: UnixListener,
    path: PathBuf,
    instance: DnsdInstance,
    engine: mpsc::Sender<Input>,
) {
    let permits = Arc::new(Semaphore::new(MAX_PEERS));
    let next_peer = AtomicU64::new(1);
    loop {
        let accepted = listener.accept().await;
        let (Ok((stream, _)), Ok(permit)) = (accepted, Arc::clone(&permits).try_acquire_owned()) else {
            tracing::warn!(path = % path.display(), most = MAX_PEERS, "a connection to the link is refused");
            tokio::time::sleep(std::time::Duration::from_millis(100)).await;
            continue;
        };
        counter!(CONNECTIONS).increment(1);
        let peer = PeerId(next_peer.fetch_add(1, Ordering::Relaxed));
        let engine = engine.clone();
        drop(task::spawn("link", async move {
            if let Err(reason) = serve_peer(stream, peer, instance, &engine).await {
                tracing::warn!(peer = peer.0, reason, "the connection of a dnsd ends");
            }
            // It fails when the engine has ended.
            drop(engine.send(Input::PeerLeft(peer)).await);
            drop(permit);
        }));
    }
}

/// Serves a connection until either side ends it.
async fn serve_peer(
    stream: UnixStream,
    peer: PeerId,
    instance: DnsdInstance,
    engine: &mpsc::Sender<Input>,
) -> Result<(), String> {
    let (mut sender, overflow) = SocketSender::of(stream, instance).map_err(|error| error.to_string())?;
    let (wire, queued) = (Arc::clone(&sender.wire), Arc::clone(&sender.queued));
    let hello = ToDnsd::Hello(Hello {
        program: concat!("enforcer ", env!("CARGO_PKG_VERSION")).to_owned(),
    });
    sender.send(vec![hello]).map_err(|full| full.to_string())?;
    let joined = Input::PeerJoined {
        peer,
        program: "dnsd".to_owned(),
        out: Box::new(sender),
    };
    engine
        .send(joined)
        .await
        .map_err(|_ended| "the engine ended".to_owned())?;
    tokio::select! { ended = read_all(& wire, peer, engine) => ended, ended = write_all(& wire, overflow, & queued) => ended, }
}

/// Sends messages to a dnsd, in order.
#[derive(Debug)]
struct SocketSender {
    wire: Arc<FrameStream>,
    instance: DnsdInstance,
    /// Takes octets for which the socket has no space.
    overflow: mpsc::Sender<Vec<u8>>,
    /// Queued items that are not written yet: later messages go behind them.
    queued: Arc<AtomicUsize>,
}

impl SocketSender {
    fn of(stream: UnixStream, instance: DnsdInstance) -> io::Result<(Self, mpsc::Receiver<Vec<u8>>)> {
        let (overflow, waiting) = mpsc::channel(MAX_QUEUED);
        let sender = Self {
            wire: Arc::new(FrameStream::new(stream)?),
            instance,
            overflow,
            queued: Arc::default(),
        };
        Ok((sender, waiting))
    }
}

impl PeerSender for SocketSender {
    fn send(&mut self, messages: Vec<ToDnsd>) -> Result<(), SendQueueFull> {
        let mut octets = frames(self.instance, &messages);
        if self.queued.load(Ordering::Acquire) == 0 {
            // The task that writes the overflow notices a broken connection.
            let written = self.wire.write_some(&octets).unwrap_or(0);
            octets.drain(..written);
        }
        if octets.is_empty() {
            return Ok(());
        }
        self.queued.fetch_add(1, Ordering::AcqRel);
        match self.overflow.try_send(octets) {
            // Messages that the peer sent before may still wait for the engine, followed by its end.
            Ok(()) | Err(TrySendError::Closed(_)) => Ok(()),
            Err(TrySendError::Full(_)) => Err(SendQueueFull),
        }
    }
}

/// Writes the overflow. When the peer is gone, the overflow is discarded and what it sent is still read.
async fn write_all(
    wire: &FrameStream,
    mut overflow: mpsc::Receiver<Vec<u8>>,
    queued: &AtomicUsize,
) -> Result<(), String> {
    while let Some(octets) = overflow.recv().await {
        match wire.write_all(&octets).await {
            Ok(()) => drop(queued.fetch_sub(1, Ordering::AcqRel)),
            Err(error) if is_gone(&error) => while overflow.recv().await.is_some() {},
            Err(error) => return Err(error.to_string()),
        }
    }
    Err("it did not read what it was told".to_owned())
}

fn is_gone(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset
    )
}

fn frames(instance: DnsdInstance, messages: &[ToDnsd]) -> Vec<u8> {
    let mut octets = Vec::new();
    for message in messages {
        encode(instance, message, &mut octets);
    }
    octets
}

async fn read_all(wire: &FrameStream, peer: PeerId, engine: &mpsc::Sender<Input>) -> Result<(), String> {
    let mut decoder = FrameDecoder::default();
    let mut buffer = vec![0; 64 * 1024];
    let mut instance_of_peer: Option<DnsdInstance> = None;
    loop {
        let length = wire.read(&mut buffer).await.map_err(|error| error.to_string())?;
        if length == 0 {
            return Ok(());
        }
        decoder.push(&buffer[..length]);
        while let Some(frame) = decoder
            .next_frame::<ToEnforcer>()
            .map_err(|error| error.to_string())?
        {
            let message = match frame {
                Frame::Unknown(kind) => {
                    tracing::debug!(
                        peer = peer.0,
                        kind,
                        "a dnsd said something that this version does not know"
                    );
                    continue;
                }
                Frame::Message(from, message) => {
                    if *instance_of_peer.get_or_insert(from) != from {
                        return Err("two instances speak on one connection".to_owned());
                    }
                    message
                }
            };
            engine
                .send(Input::PeerMessage(peer, message))
                .await
                .map_err(|_ended| "the engine ended".to_owned())?;
        }
    }
}
