//! Where dnsd connects: a Unix socket, several dnsds at once. This side only carries frames; what they mean is the
//! engine's. A dnsd that floods waits for the engine; one that does not read is dropped by it.

use std::io;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use egret_shared::link::{Decoder, Frame, Hello, ToDnsd, ToEnforcer, encode};
use egret_shared::revision::Instance;
use egret_shared::rt::task;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{Semaphore, mpsc};

use crate::engine::{Input, PeerId};

/// The most dnsds at once: two while one is rolled, and some that died and were not noticed.
pub const MOST_PEERS: usize = 16;
/// Messages (of a pass each) that wait for a dnsd before it is dropped.
const MOST_WAITING: usize = 256;

/// Makes the socket: its folder where that is missing, in place of one that nobody listens on.
///
/// # Errors
/// With the path: when somebody listens there, or something else is in the way.
pub fn bind(path: &Path) -> io::Result<UnixListener> {
    make_way(path)
        .and_then(|()| UnixListener::bind(path))
        .and_then(|listener| {
            std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o660))?;
            Ok(listener)
        })
        .map_err(|error| {
            io::Error::new(
                error.kind(),
                format!("cannot listen on {}: {error}", path.display()),
            )
        })
}

fn make_way(path: &Path) -> io::Result<()> {
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder)?;
    }
    match std::fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
        Ok(there) if !there.file_type().is_socket() => {
            return Err(io::Error::new(
                io::ErrorKind::AlreadyExists,
                "something that is no socket is there",
            ));
        }
        Ok(_) => {}
    }
    match std::os::unix::net::UnixStream::connect(path) {
        Ok(_) => Err(io::Error::new(
            io::ErrorKind::AddrInUse,
            "another enforcer listens there",
        )),
        Err(_nobody) => std::fs::remove_file(path),
    }
}

/// Takes connections until the runtime ends.
pub async fn serve(listener: UnixListener, path: PathBuf, instance: Instance, engine: mpsc::Sender<Input>) {
    let places = std::sync::Arc::new(Semaphore::new(MOST_PEERS));
    let numbers = AtomicU64::new(1);
    loop {
        let accepted = listener.accept().await;
        let (Ok((stream, _)), Ok(place)) = (accepted, std::sync::Arc::clone(&places).try_acquire_owned())
        else {
            tracing::warn!(path = %path.display(), most = MOST_PEERS, "a connection to the link is refused");
            tokio::time::sleep(std::time::Duration::from_millis(100)).await;
            continue;
        };
        metrics::counter!("egret_enforcer_link_connections_total").increment(1);
        let peer = PeerId(numbers.fetch_add(1, Ordering::Relaxed));
        let engine = engine.clone();
        drop(task::spawn("link", async move {
            if let Err(reason) = carry(stream, peer, instance, &engine).await {
                tracing::warn!(peer = peer.0, reason, "the connection of a dnsd ends");
            }
            // The engine may have ended already.
            drop(engine.send(Input::PeerLeft(peer)).await);
            drop(place);
        }));
    }
}

/// One connection, until either side ends it.
async fn carry(
    stream: UnixStream,
    peer: PeerId,
    instance: Instance,
    engine: &mpsc::Sender<Input>,
) -> Result<(), String> {
    let (read, write) = stream.into_split();
    let (out, waiting) = mpsc::channel(MOST_WAITING);
    let mut write = Writer { write, instance };
    let hello = ToDnsd::Hello(Hello {
        program: concat!("enforcer ", env!("CARGO_PKG_VERSION")).to_owned(),
    });
    write.write(&[hello]).await.map_err(|error| error.to_string())?;
    let joined = Input::PeerJoined {
        peer,
        program: "dnsd".to_owned(),
        out,
    };
    engine
        .send(joined)
        .await
        .map_err(|_ended| "the engine ended".to_owned())?;
    tokio::select! {
        ended = read_all(read, peer, engine) => ended,
        ended = write.write_all(waiting) => ended,
    }
}

struct Writer {
    write: OwnedWriteHalf,
    instance: Instance,
}

impl Writer {
    async fn write_all(mut self, mut waiting: mpsc::Receiver<Vec<ToDnsd>>) -> Result<(), String> {
        while let Some(messages) = waiting.recv().await {
            self.write(&messages).await.map_err(|error| error.to_string())?;
        }
        Err("it did not read what it was told".to_owned())
    }

    async fn write(&mut self, messages: &[ToDnsd]) -> io::Result<()> {
        let mut wire = Vec::new();
        for message in messages {
            encode(self.instance, message, &mut wire);
        }
        self.write.write_all(&wire).await
    }
}

async fn read_all(mut read: OwnedReadHalf, peer: PeerId, engine: &mpsc::Sender<Input>) -> Result<(), String> {
    let mut decoder = Decoder::default();
    let mut buffer = vec![0; 64 * 1024];
    let mut speaker: Option<Instance> = None;
    loop {
        let length = read.read(&mut buffer).await.map_err(|error| error.to_string())?;
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
                    if *speaker.get_or_insert(from) != from {
                        return Err("two instances speak on one connection".to_owned());
                    }
                    message
                }
            };
            engine
                .send(Input::PeerSaid(peer, message))
                .await
                .map_err(|_ended| "the engine ended".to_owned())?;
        }
    }
}
