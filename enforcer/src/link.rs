//! Where dnsd connects: a Unix socket, several dnsds at once. This side only carries frames; what they mean is the
//! engine's. A dnsd that floods waits for the engine; one that does not read is dropped by it.
//!
//! What is to be said is written where it is said, as long as there is room: an answer waits for it.

use std::io;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use egret_shared::link::{Frame, FrameDecoder, Hello, ToDnsd, ToEnforcer, encode};
use egret_shared::revision::DnsdInstance;
use egret_shared::rt::frame_stream::FrameStream;
use egret_shared::rt::task;
use socket2::{Domain, SockAddr, Socket, Type};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{Semaphore, mpsc};

use crate::engine::{Deaf, Ear, Input, PeerId};

/// The most dnsds at once: two while one is rolled, and some that died and were not noticed.
pub const MOST_PEERS: usize = 16;
/// Messages (of a pass each) that wait for a dnsd before it is dropped.
const MOST_WAITING: usize = 256;

/// Makes the socket: its folder where that is missing, in place of one that nobody listens on. Its owner and group may
/// connect, whatever the umask says: nobody can before it listens.
///
/// # Errors
/// With the path: when somebody listens there, or something else is in the way.
pub fn bind(path: &Path) -> io::Result<UnixListener> {
    make_way(path)
        .and_then(|()| {
            let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
            socket.bind(&SockAddr::unix(path)?)?;
            std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o660))?;
            socket.listen(1024)?;
            socket.set_nonblocking(true)?;
            UnixListener::from_std(socket.into())
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
pub async fn serve(
    listener: UnixListener,
    path: PathBuf,
    instance: DnsdInstance,
    engine: mpsc::Sender<Input>,
) {
    let places = Arc::new(Semaphore::new(MOST_PEERS));
    let numbers = AtomicU64::new(1);
    loop {
        let accepted = listener.accept().await;
        let (Ok((stream, _)), Ok(place)) = (accepted, Arc::clone(&places).try_acquire_owned()) else {
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
    instance: DnsdInstance,
    engine: &mpsc::Sender<Input>,
) -> Result<(), String> {
    let (mut mouth, rest) = Mouth::of(stream, instance).map_err(|error| error.to_string())?;
    let (wire, unwritten) = (Arc::clone(&mouth.wire), Arc::clone(&mouth.unwritten));
    let hello = ToDnsd::Hello(Hello {
        program: concat!("enforcer ", env!("CARGO_PKG_VERSION")).to_owned(),
    });
    mouth.tell(vec![hello]).map_err(|deaf| deaf.to_string())?;
    let joined = Input::PeerJoined {
        peer,
        program: "dnsd".to_owned(),
        out: Box::new(mouth),
    };
    engine
        .send(joined)
        .await
        .map_err(|_ended| "the engine ended".to_owned())?;
    tokio::select! {
        ended = read_all(&wire, peer, engine) => ended,
        ended = write_all(&wire, rest, &unwritten) => ended,
    }
}

/// Says things to a dnsd, in order.
#[derive(Debug)]
struct Mouth {
    wire: Arc<FrameStream>,
    instance: DnsdInstance,
    /// Takes what there is no room for.
    rest: mpsc::Sender<Vec<u8>>,
    /// How many of these are not written yet: nothing overtakes them.
    unwritten: Arc<AtomicUsize>,
}

impl Mouth {
    fn of(stream: UnixStream, instance: DnsdInstance) -> io::Result<(Self, mpsc::Receiver<Vec<u8>>)> {
        let (rest, waiting) = mpsc::channel(MOST_WAITING);
        let mouth = Self {
            wire: Arc::new(FrameStream::new(stream)?),
            instance,
            rest,
            unwritten: Arc::default(),
        };
        Ok((mouth, waiting))
    }
}

impl Ear for Mouth {
    fn tell(&mut self, messages: Vec<ToDnsd>) -> Result<(), Deaf> {
        let mut octets = frames(self.instance, &messages);
        if self.unwritten.load(Ordering::Acquire) == 0 {
            // A connection that is broken is found so by who writes the rest.
            let written = self.wire.write_some(&octets).unwrap_or(0);
            octets.drain(..written);
        }
        if octets.is_empty() {
            return Ok(());
        }
        self.unwritten.fetch_add(1, Ordering::AcqRel);
        match self.rest.try_send(octets) {
            // What it said before may still wait for the engine, which hears of its end behind that.
            Ok(()) | Err(TrySendError::Closed(_)) => Ok(()),
            Err(TrySendError::Full(_)) => Err(Deaf),
        }
    }
}

/// Writes what there was no room for. To who is gone nothing can be said any more, and what it said before is read to the end
/// all the same.
async fn write_all(
    wire: &FrameStream,
    mut rest: mpsc::Receiver<Vec<u8>>,
    unwritten: &AtomicUsize,
) -> Result<(), String> {
    while let Some(octets) = rest.recv().await {
        match wire.write_all(&octets).await {
            Ok(()) => drop(unwritten.fetch_sub(1, Ordering::AcqRel)),
            Err(error) if is_gone(&error) => while rest.recv().await.is_some() {},
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
    let mut speaker: Option<DnsdInstance> = None;
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
