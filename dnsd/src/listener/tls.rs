//! Connections that are encrypted: over TLS (RFC 7858) what is in them is as over TCP, over HTTPS it is requests.

use std::sync::Arc;

use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use super::https;
use super::tcp::{self, Caller, Door};
use crate::config::model::Scheme;
use crate::limits::permits::PermitLimits;
use crate::zones::ZoneTable;

/// Handshakes under way. Each may take as long as a message may; who begins many has the oldest of his ended for another.
pub(super) const HANDSHAKES: PermitLimits = PermitLimits {
    per_client: 32,
    total: 256,
};

/// Has a client prove what it has to, and answers what comes then.
pub(super) async fn serve(stream: TcpStream, caller: Caller, door: Door, table: Arc<ZoneTable>) {
    let handshaking = shake_hands(stream, &caller, &door, &table);
    let stream = tokio::select! {
        stream = handshaking => stream,
        () = caller.cut.cancelled() => None,
        () = door.closed() => None,
    };
    match stream {
        Some(stream) if table.scheme == Scheme::Https => {
            https::converse(stream, caller, door, table.timeouts).await;
        }
        Some(stream) => tcp::converse(tokio::io::split(stream), caller, door, table.timeouts).await,
        None => {}
    }
}

async fn shake_hands(
    stream: TcpStream,
    caller: &Caller,
    door: &Door,
    table: &ZoneTable,
) -> Option<TlsStream<TcpStream>> {
    let service = &door.service;
    let place = service
        .handshakes
        .take(caller.quota_key, 1, HANDSHAKES, caller.cut.clone());
    let Some(_place) = place else {
        service.metrics.tcp_refused.increment(1);
        return None;
    };
    let acceptor = TlsAcceptor::from(table.certificates.as_ref()?.current());
    match timeout(table.timeouts.read, acceptor.accept(stream)).await {
        Ok(Ok(stream)) => Some(stream),
        Ok(Err(error)) => {
            tracing::debug!(%error, client = %caller.arrival.source, "a handshake failed");
            None
        }
        Err(_elapsed) => None,
    }
}
