//! Clients by gRPC on a Unix socket: `ProxyService`, one tunnel a stream.

use std::sync::Arc;
use std::time::Duration;

use h2::RecvStream;
use h2::server::SendResponse;
use http::Request;
use metrics::gauge;
use tokio::net::{UnixListener, UnixStream};

use egret_shared::rt::task;

use super::agents::UNIMPLEMENTED;
use super::authority::Rewritten;
use super::dialer::{AuditedTunnel, Dialer};
use crate::grpc::{self, PacketReader, PacketWriter, StreamError};
use crate::proto::{Frame, Packet, metadata};
use crate::relay::{Channel as _, next, write};

/// Octets of a client's stream that are on their way at most: a client that is not read sends no more.
const WINDOW: u32 = 256 << 10;
/// Of a client that uses one connection for many tunnels, and gives many of them up before they are accepted.
const STREAMS: u32 = 100_000;
const RESETS: usize = 100_000;
/// How long what a client sent before it closed may take to reach its destination.
const LINGER: Duration = Duration::from_secs(10);
/// How long a client may take to read the last packet.
const FAREWELL: Duration = Duration::from_secs(10);

pub(super) async fn serve(listener: UnixListener, dialer: Arc<Dialer>) {
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                let dialer = Arc::clone(&dialer);
                task::spawn_brief(async move {
                    if let Err(error) = serve_connection(stream, dialer).await {
                        tracing::debug!(%error, "a client's connection ended early");
                    }
                });
            }
            Err(error) => super::pause_after(&error).await,
        }
    }
}

async fn serve_connection(stream: UnixStream, dialer: Arc<Dialer>) -> Result<(), h2::Error> {
    let client = client_of(&stream);
    let mut http = h2::server::Builder::new();
    http.initial_window_size(WINDOW)
        .initial_connection_window_size(grpc::CONNECTION_WINDOW)
        .max_concurrent_streams(STREAMS)
        .max_pending_accept_reset_streams(RESETS)
        .max_local_error_reset_streams(Some(RESETS))
        .max_header_list_size(16 << 10);
    let mut connection = http.handshake::<_, Frame>(Rewritten::new(stream)).await?;
    while let Some(request) = connection.accept().await {
        let (request, respond) = request?;
        let (dialer, client) = (Arc::clone(&dialer), client.clone());
        task::spawn_brief(async move {
            let streams = gauge!(
                "konnectivity_network_proxy_server_grpc_connections",
                "service_method" => "Proxy"
            );
            streams.increment(1);
            if let Err(error) = serve_stream(request, respond, &dialer, &client).await {
                tracing::debug!(%error, "a client's stream ended early");
            }
            streams.decrement(1);
        });
    }
    Ok(())
}

async fn serve_stream(
    request: Request<RecvStream>,
    mut respond: SendResponse<Frame>,
    dialer: &Dialer,
    client: &str,
) -> Result<(), StreamError> {
    if request.uri().path() != metadata::PROXY {
        let text = format!("unknown method {}", request.uri().path());
        respond.send_response(grpc::refusal(UNIMPLEMENTED, &text), true)?;
        return Ok(());
    }
    let mut writer = PacketWriter::new(respond.send_response(grpc::head(), false)?);
    let mut reader = PacketReader::new(request.into_body());
    let Some((address, random)) = first_dial(&mut reader, &mut writer).await? else {
        return writer.end();
    };
    let answer = |error, connection| Packet::DialResponse {
        error,
        connection,
        random,
    };
    let address = match address {
        Ok(address) => address,
        Err(error) => {
            writer.send(&answer(error, 0)).await?;
            return writer.end();
        }
    };
    let dialled = tokio::select! {
        dialled = dialer.dial(address, client) => dialled,
        // The dial is given up where this is left.
        left = given_up(&mut reader, random) => return left,
    };
    match dialled {
        Ok((tunnel, connection)) => {
            writer.send(&answer(String::new(), connection)).await?;
            go_on(reader, writer, tunnel, connection).await
        }
        Err(refusal) => {
            writer.send(&answer(refusal.to_string(), 0)).await?;
            writer.end()
        }
    }
}

type Address = Result<String, String>;

/// Waits for the dial; what belongs to no connection is answered in upstream's words.
async fn first_dial(
    reader: &mut PacketReader,
    writer: &mut PacketWriter,
) -> Result<Option<(Address, i64)>, StreamError> {
    while let Some(packet) = reader.next().await? {
        match packet {
            Packet::DialRequest {
                protocol,
                address,
                random,
            } => {
                let address = if protocol == "tcp" {
                    Ok(address)
                } else {
                    Err(format!("dial {protocol} {address}: tcp alone is dialled"))
                };
                return Ok(Some((address, random)));
            }
            Packet::CloseRequest { connection } | Packet::Data { connection, .. } => {
                let error = "unrecognized connectID".to_owned();
                writer.send(&Packet::CloseResponse { error, connection }).await?;
            }
            Packet::DialClose { .. } => return Ok(None),
            _ignored => {}
        }
    }
    Ok(None)
}

/// Returns when the client does not wait for its dial any more.
async fn given_up(reader: &mut PacketReader, dial: i64) -> Result<(), StreamError> {
    while let Some(packet) = reader.next().await? {
        if matches!(packet, Packet::DialClose { random } if random == dial) {
            return Ok(());
        }
    }
    Ok(())
}

async fn go_on(
    mut reader: PacketReader,
    mut writer: PacketWriter,
    tunnel: Box<AuditedTunnel>,
    connection: i64,
) -> Result<(), StreamError> {
    // Whoever closes is answered at once; the rest of what the client sent follows to its destination.
    let closed = tokio::select! {
        asked = from_client(&mut reader, &tunnel, connection) => {
            tunnel.finish();
            asked?
        }
        ended = to_client(&mut writer, &tunnel, connection) => Some(ended?),
    };
    let farewell = async {
        let Some(error) = closed else {
            return Ok(());
        };
        writer.send(&Packet::CloseResponse { error, connection }).await?;
        writer.end()
    };
    let farewell = tokio::time::timeout(FAREWELL, farewell);
    let (said, ()) = tokio::join!(farewell, linger(tunnel));
    said.unwrap_or(Err(StreamError::Closed))
}

/// Until the client closes: with the text of the answer, or none where it is gone.
async fn from_client(
    reader: &mut PacketReader,
    tunnel: &AuditedTunnel,
    connection: i64,
) -> Result<Option<String>, StreamError> {
    while let Some(packet) = reader.next().await? {
        match packet {
            Packet::Data {
                connection: other, ..
            }
            | Packet::CloseRequest { connection: other }
                if other != connection =>
            {
                return Ok(Some(format!(
                    "mismatched connection IDs: {connection} and {other}"
                )));
            }
            Packet::Data { data, .. } => write(tunnel, data).await,
            Packet::CloseRequest { .. } => return Ok(Some(String::new())),
            _ignored => {}
        }
    }
    Ok(None)
}

/// Until the destination closes: with its text.
async fn to_client(
    writer: &mut PacketWriter,
    tunnel: &AuditedTunnel,
    connection: i64,
) -> Result<String, StreamError> {
    loop {
        match next(tunnel).await {
            Ok(data) => writer.send(&Packet::Data { connection, data }).await?,
            Err(error) => return Ok(error),
        }
    }
}

// === Of both kinds of clients ===

/// Who is at the other end of a Unix socket (unix(7), `SO_PEERCRED`), for the audit log.
pub(super) fn client_of(stream: &UnixStream) -> String {
    match stream.peer_cred() {
        Ok(peer) => format!("uid {}", peer.uid()),
        Err(error) => format!("unknown: {error}"),
    }
}

/// Lets what the client sent reach its destination, but not for ever.
pub(super) async fn linger(tunnel: Box<AuditedTunnel>) {
    if tokio::time::timeout(LINGER, tunnel.finished()).await.is_err() {
        tracing::debug!("a connection is cut: its destination takes nothing");
    }
}
