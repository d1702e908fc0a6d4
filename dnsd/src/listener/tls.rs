//! TLS connections (RFC 7858): the stream is served as over TCP, or as HTTPS.

use std::sync::Arc;

use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use super::connection::{self, ListenerContext, Peer, Received};
use super::https;
use crate::config::model::Scheme;
use crate::limits::permits::PermitLimits;
use crate::zones::ZoneTable;

/// Limits of handshakes under way. Each may take the read timeout; above the limit the oldest handshake of the largest
/// client ends.
pub(super) const HANDSHAKES: PermitLimits = PermitLimits {
    per_client: 32,
    total: 256,
};

/// Does the handshake, then serves the connection.
pub(super) async fn serve(
    stream: TcpStream,
    peer: Peer,
    listener_context: ListenerContext,
    table: Arc<ZoneTable>,
) {
    let handshaking = shake_hands(stream, &peer, &listener_context, &table);
    let stream = tokio::select! {
        stream = handshaking => stream,
        () = peer.cut.cancelled() => None,
        () = listener_context.closed() => None,
    };
    match stream {
        Some(stream) if table.scheme == Scheme::Https => {
            https::serve_connection(stream, peer, listener_context, table.timeouts).await;
        }
        Some(stream) => {
            let (halves, received) = (tokio::io::split(stream), Received::default());
            connection::serve(halves, received, peer, listener_context, table.timeouts, None).await;
        }
        None => {}
    }
}

async fn shake_hands(
    stream: TcpStream,
    peer: &Peer,
    listener_context: &ListenerContext,
    table: &ZoneTable,
) -> Option<TlsStream<TcpStream>> {
    let service = &listener_context.service;
    let permit = service
        .handshakes
        .take(peer.quota_key, 1, HANDSHAKES, peer.cut.clone());
    let Some(_permit) = permit else {
        service.metrics.tcp_refused.increment(1);
        return None;
    };
    let acceptor = TlsAcceptor::from(table.certificates.as_ref()?.current());
    match timeout(table.timeouts.read, acceptor.accept(stream)).await {
        Ok(Ok(stream)) => Some(stream),
        Ok(Err(error)) => {
            tracing::debug!(%error, client = %peer.arrival.source, "a handshake failed");
            None
        }
        Err(_elapsed) => None,
    }
}
