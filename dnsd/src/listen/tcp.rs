//! Connections (RFC 7766): two octets of length before each message, however the segments split them; questions
//! are answered as answers come, not as they were asked, so that a held answer holds up nothing else.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use egret_shared::rt::task;
use nix::sys::socket::{setsockopt, sockopt};
use socket2::{Domain, Protocol, Socket, Type};
use tokio::io::{AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, mpsc};
use tokio::time::timeout;

use super::Service;
use super::arrival;
use crate::config::TcpLimits;
use crate::metrics::Transport;
use crate::resolve::{Arrival, Step};
use crate::tally::Place;

/// Questions of one connection that are under way at once; beyond, it is not read.
const MAX_PIPELINED: usize = 256;
/// Replies of one connection that wait to be written.
const MAX_UNWRITTEN: usize = 64;

/// Binds and listens. The flag for packet information is inherited by connections: it makes the kernel tell by
/// which interface one came in.
pub(super) fn bind(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_reuse_address(true)?;
    if address.is_ipv6() {
        socket.set_only_v6(true)?;
        setsockopt(&socket, sockopt::Ipv6RecvPacketInfo, &true)?;
    } else {
        setsockopt(&socket, sockopt::Ipv4PacketInfo, &true)?;
    }
    socket.bind(&address.into())?;
    socket.listen(1024)?;
    socket.set_nonblocking(true)?;
    TcpListener::from_std(socket.into())
}

pub(super) async fn serve(listener: TcpListener, service: Service) {
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = service.stop.cancelled() => return,
        };
        match accepted {
            Ok((stream, peer)) => admit(stream, peer.ip(), &service),
            Err(error) => {
                tracing::warn!(%error, "a connection cannot be accepted");
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        }
    }
}

fn admit(stream: TcpStream, client: IpAddr, service: &Service) {
    let limits = service.resolver.config().tcp;
    match service.connections.take(client, limits.connections) {
        Some(place) => {
            let serving = converse(stream, client, service.clone(), limits, place);
            drop(task::spawn("connection", service.under_way.track_future(serving)));
        }
        None => service.resolver.metrics().tcp_refused.increment(1),
    }
}

async fn converse(stream: TcpStream, client: IpAddr, service: Service, limits: TcpLimits, _place: Place) {
    let arrival = Arrival {
        source: client,
        interface: arrival::interface(&stream),
        transport: Transport::Tcp,
    };
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(%error, "a connection cannot be set to send at once");
    }
    let (reader, writer) = stream.into_split();
    let (replies, outbox) = mpsc::channel(MAX_UNWRITTEN);
    let mut writing = std::pin::pin!(write(writer, outbox, limits.idle));
    tokio::select! {
        () = read(BufReader::new(reader), arrival, &service, limits.idle, replies) => writing.await,
        () = &mut writing => {}
    }
}

async fn read(
    mut reader: BufReader<OwnedReadHalf>,
    arrival: Arrival,
    service: &Service,
    idle: Duration,
    replies: mpsc::Sender<Vec<u8>>,
) {
    let room = Arc::new(Semaphore::new(MAX_PIPELINED));
    loop {
        let Ok(permit) = Arc::clone(&room).acquire_owned().await else {
            return;
        };
        let message = tokio::select! {
            message = timeout(idle, read_message(&mut reader)) => message,
            () = service.stop.cancelled() => return,
        };
        let Ok(Ok(octets)) = message else {
            return;
        };
        match service.resolver.take(&octets, arrival) {
            Step::Silence => {}
            Step::Reply(reply) => {
                if replies.send(reply).await.is_err() {
                    return;
                }
            }
            Step::Later(pending) => {
                let replies = replies.clone();
                let answering = async move {
                    if let Some(reply) = pending.reply().await {
                        // When the connection is gone, so is who wanted this.
                        drop(replies.send(reply).await);
                    }
                    drop(permit);
                };
                drop(task::spawn_brief(service.under_way.track_future(answering)));
            }
        }
    }
}

async fn read_message(reader: &mut BufReader<OwnedReadHalf>) -> io::Result<Vec<u8>> {
    let length = reader.read_u16().await?;
    let mut octets = vec![0; length.into()];
    reader.read_exact(&mut octets).await?;
    Ok(octets)
}

/// Writes replies until all who may send one are gone, or the client does not read.
async fn write(mut writer: OwnedWriteHalf, mut outbox: mpsc::Receiver<Vec<u8>>, patience: Duration) {
    while let Some(reply) = outbox.recv().await {
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
