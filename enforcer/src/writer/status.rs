//! What the writer of a network namespace says of itself, at an abstract socket (unix(7)). Such a socket belongs to the
//! namespace, and goes with its process.

use std::ffi::OsStr;
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::sync::Arc;
use std::time::Duration;

use egret_shared::rt::admin::AdminHandler;
use nix::sys::socket::getsockopt;
use nix::sys::socket::sockopt::PeerCredentials;
use socket2::{Domain, SockAddr, Socket, Type};

use super::Holder;

/// The abstract name, after its zero.
const NAME: &[u8] = b"\0egret-enforcer";
/// What an answer begins with.
const ENFORCER: &str = "enforcer\n";
/// How long the writer may take: longer than its engine takes to answer, shorter than a kubelet's probe.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(4);
const WRITE_TIMEOUT: Duration = Duration::from_secs(1);
/// Octets of an answer that are read.
const MAX_ANSWER: u64 = 4096;

/// Says from now on that this process is the writer, and how it is. To be called by the writer alone.
///
/// # Errors
/// When another process has the name, or no thread can be started.
pub fn serve(handler: Arc<dyn AdminHandler>) -> io::Result<()> {
    let listener = UnixListener::bind_addr(&SocketAddr::from_abstract_name(&NAME[1..])?)?;
    let answer = move || {
        for asked in listener.incoming() {
            let answered = asked.and_then(|mut stream| {
                stream.set_write_timeout(Some(WRITE_TIMEOUT))?;
                let (Ok(state) | Err(state)) = handler.readiness();
                stream.write_all(format!("{ENFORCER}{state}").as_bytes())
            });
            if let Err(error) = answered {
                tracing::debug!(%error, "an enforcer that waits was not answered");
                std::thread::sleep(Duration::from_millis(10));
            }
        }
    };
    std::thread::Builder::new()
        .name("status".to_owned())
        .spawn(answer)
        .map(drop)
}

/// The writer, and what it says of itself; an error if nobody proves to be one.
pub(super) fn ask() -> io::Result<(Holder, String)> {
    let mut stream = connect()?;
    let writer = check(&stream)?;
    stream.set_read_timeout(Some(ANSWER_TIMEOUT))?;
    let mut answer = Vec::new();
    Read::by_ref(&mut stream)
        .take(MAX_ANSWER)
        .read_to_end(&mut answer)?;
    let answer = String::from_utf8_lossy(&answer);
    match answer.strip_prefix(ENFORCER) {
        Some(state) => Ok((writer, state.to_owned())),
        None => Err(io::Error::new(
            io::ErrorKind::InvalidData,
            "its answer is not that of an enforcer",
        )),
    }
}

fn connect() -> io::Result<UnixStream> {
    let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
    // A full backlog would otherwise block for ever.
    socket.set_write_timeout(Some(ANSWER_TIMEOUT))?;
    socket.connect(&SockAddr::unix(OsStr::from_bytes(NAME))?)?;
    Ok(UnixStream::from(OwnedFd::from(socket)))
}

/// Who answers must run as this user: nobody else may write rules, or say that they are written.
fn check(stream: &UnixStream) -> io::Result<Holder> {
    let peer = getsockopt(stream, PeerCredentials).map_err(io::Error::from)?;
    let own = nix::unistd::geteuid().as_raw();
    if peer.uid() != own {
        let refused = format!("user {} answers for it, and this one is user {own}", peer.uid());
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, refused));
    }
    Ok(Holder(Some(peer.pid()).filter(|pid| *pid > 0)))
}
