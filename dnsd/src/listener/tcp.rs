//! TCP sockets that listen, and their connections as far as they are admitted.

use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use egret_shared::rt::{clock, task};
use nix::sys::socket::{setsockopt, sockopt};
use socket2::{Domain, Protocol, Socket, Type};
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::CancellationToken;

use super::connection::{self, ListenerContext, Peer, Received};
use super::{Service, tls};
use crate::config::model::Timeouts;
use crate::enforcement::client::{Identity, Unidentified};
use crate::listener::udp_socket::beside_others;
use crate::net::Transport;
use crate::net::packet_info;
use crate::takeover::OpenConnection;
use crate::zones::{Listener, PacketInfo};

/// The send buffer of a connection, in octets; the kernel doubles it (socket(7)), and would let it grow to megabytes.
/// Connections inherit it from the listening socket.
const SEND_BUFFER: usize = 128 << 10;

/// Binds and listens. Connections inherit the option for packet information, so that the kernel reports their
/// interface.
pub(super) fn bind(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_reuse_address(true)?;
    socket.set_send_buffer_size(SEND_BUFFER)?;
    if address.is_ipv6() {
        socket.set_only_v6(true)?;
        setsockopt(&socket, sockopt::Ipv6RecvPacketInfo, &true)?;
    } else {
        setsockopt(&socket, sockopt::Ipv4PacketInfo, &true)?;
    }
    // `listen` checks the port again (`inet_csk_listen_start`).
    beside_others(&socket, || {
        socket.bind(&address.into())?;
        socket.listen(1024)
    })?;
    socket.set_nonblocking(true)?;
    TcpListener::from_std(socket.into())
}

/// A listening socket, perhaps of another process.
pub(super) fn inherit(socket: OwnedFd) -> io::Result<TcpListener> {
    TcpListener::from_std(socket.into())
}

/// The ends of a listener and of its connections.
#[derive(Debug)]
pub(super) struct CloseTokens {
    /// Ends accepting.
    pub(super) listener: CancellationToken,
    /// Ends reading of connections.
    pub(super) connections: CancellationToken,
}

pub(super) async fn serve(
    listener: TcpListener,
    port: Arc<Listener>,
    service: Service,
    close_tokens: CloseTokens,
) {
    let listener_context = ListenerContext {
        port,
        service,
        close: close_tokens.connections,
    };
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = close_tokens.listener.cancelled() => return,
        };
        match accepted {
            Ok((stream, peer)) => admit(&listener_context, stream, peer, Received::default()),
            Err(error) => {
                tracing::warn!(%error, "a connection cannot be accepted");
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        }
    }
}

/// Serves a connection that another process has served. Its client is identified again.
pub(super) fn adopt(listener: &ListenerContext, connection: OpenConnection) -> io::Result<()> {
    let stream = TcpStream::from_std(connection.stream)?;
    let peer = stream.peer_addr()?;
    let received = Received {
        unread: connection.unread.as_slice().into(),
        queries: connection.queries,
    };
    admit(listener, stream, peer, received);
    Ok(())
}

/// Serves a connection, unless its client has too many.
fn admit(listener: &ListenerContext, stream: TcpStream, client: SocketAddr, received: Received) {
    let table = listener.port.table();
    let arrival = PacketInfo {
        source: client,
        asked: stream.local_addr().ok().map(|address| address.ip()),
        interface: packet_info::interface(&stream),
        transport: Transport::Tcp,
    };
    let resolver = &listener.service.resolver;
    let Identity {
        quota_key, is_forged, ..
    } = resolver.identify(&arrival, clock::now());
    if is_forged {
        resolver.metrics().unattributed(Unidentified::Interface);
        return;
    }
    let cut = CancellationToken::new();
    let (connections, limits) = (&listener.service.connections, table.config.tcp.connections);
    match connections.take(quota_key, 1, limits, cut.clone()) {
        Some(permit) => {
            let peer = Peer {
                arrival,
                quota_key,
                cut,
                _permit: permit,
            };
            if let Err(error) = stream.set_nodelay(true) {
                tracing::debug!(%error, "a connection cannot be set to send at once");
            }
            let under_way = &listener.service.under_way;
            if table.scheme.is_encrypted() {
                let serving = under_way.track_future(tls::serve(stream, peer, listener.clone(), table));
                drop(task::spawn("connection", serving));
            } else {
                let serving = serve_cleartext(stream, received, peer, listener.clone(), table.timeouts);
                drop(task::spawn("connection", under_way.track_future(serving)));
            }
        }
        None => listener.service.metrics.tcp_refused.increment(1),
    }
}

/// Serves a connection, and hands it over to a new process.
async fn serve_cleartext(
    stream: TcpStream,
    received: Received,
    peer: Peer,
    listener: ListenerContext,
    timeouts: Timeouts,
) {
    let (address, handover) = (listener.port.address, Arc::clone(&listener.service.handover));
    let serving = connection::serve(
        stream.into_split(),
        received,
        peer,
        listener,
        timeouts,
        Some(&handover),
    );
    let Some((reader, writer, received)) = serving.await else {
        return;
    };
    let stream = reader.reunite(writer).map_err(io::Error::other);
    match stream.and_then(TcpStream::into_std) {
        Ok(stream) => {
            let open = OpenConnection {
                listener: address,
                stream,
                unread: received.unread.into(),
                queries: received.queries,
            };
            handover.depart(open).await;
        }
        Err(error) => tracing::warn!(%error, "a connection cannot be handed over"),
    }
}
