//! DNS over QUIC (RFC 9250): a stream for each query; a length of two octets precedes query and reply.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use egret_shared::rt::{clock, task};
use metrics::counter;
use quinn::crypto::rustls::QuicServerConfig;
use quinn::{
    Connecting, Connection, Endpoint, EndpointConfig, Incoming, ReadToEndError, RecvStream, SendStream,
    ServerConfig, TokioRuntime, TransportConfig, VarInt,
};
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::Service;
use super::activity::Activity;
use super::connection::{ListenerContext, MAX_PIPELINED, Peer, UNWRITTEN};
use super::quic_socket::QuicSocket;
use super::tcp::CloseTokens;
use super::tls::HANDSHAKES;
use crate::config::model::Timeouts;
use crate::dns::message::{HEADER, has_option};
use crate::enforcement::client::{Identity, Unidentified};
use crate::net::Transport;
use crate::pipeline::{Disposition, ReceivedAt};
use crate::zones::{Listener, PacketInfo, ZoneTable};

/// Octets that a client may send before they are read, on a stream and on a connection.
const STREAM_WINDOW: VarInt = VarInt::from_u32(66 << 10);
const WINDOW: VarInt = VarInt::from_u32(256 << 10);
/// Octets of replies that a client has not acknowledged; further octets wait.
const SEND_WINDOW: u64 = 128 << 10;
/// The number of handshakes above which a client must prove its address (Retry, RFC 9000 §8.1.2).
const RETRY_THRESHOLD: usize = HANDSHAKES.total / 4;
/// How long the acknowledgement of a reply is waited for: closing a connection discards what is not acknowledged.
const ACK_TIMEOUT: Duration = Duration::from_secs(1);
/// How long handshakes and queries may continue before a pause; within a node they take a few milliseconds.
const SETTLE_TIMEOUT: Duration = Duration::from_millis(100);
/// The EDNS keepalive option of TCP, which is an error in QUIC (RFC 9250 §5.5.2).
const KEEPALIVE: u16 = 11;

/// The code with which a stream or a connection ends (RFC 9250 §4.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ErrorCode {
    NoError = 0,
    InternalError = 1,
    ProtocolError = 2,
    ExcessiveLoad = 4,
}

impl ErrorCode {
    const fn value(self) -> VarInt {
        VarInt::from_u32(self as u32)
    }

    /// The label of the metric, as in CoreDNS.
    const fn label(self) -> &'static str {
        match self {
            Self::NoError => "0x0",
            Self::InternalError => "0x1",
            Self::ProtocolError => "0x2",
            Self::ExcessiveLoad => "0x4",
        }
    }
}

/// A QUIC endpoint. It exists as long as its address is served, also over a pause: it owns the connections.
#[derive(Clone, Debug)]
pub(super) struct QuicListener {
    socket: Arc<QuicSocket>,
    endpoint: Endpoint,
}

impl QuicListener {
    /// Listens on a bound socket, perhaps of another process.
    pub(super) fn new(socket: OwnedFd, table: &ZoneTable) -> io::Result<Self> {
        let socket = QuicSocket::inherit(socket)?;
        let config = server_config(table)?;
        let endpoint = Endpoint::new_with_abstract_socket(
            EndpointConfig::default(),
            Some(config),
            Arc::clone(&socket) as Arc<dyn quinn::AsyncUdpSocket>,
            Arc::new(TokioRuntime),
        )?;
        Ok(Self { socket, endpoint })
    }

    /// A descriptor of the socket.
    pub(super) fn descriptor(&self) -> io::Result<OwnedFd> {
        self.socket.descriptor()
    }

    /// Waits a short time until handshakes and queries under way are answered: after a pause another process reads
    /// their packets, which does not know the connections. New clients are ignored meanwhile and retry.
    pub(super) async fn settle(&self) {
        let end = Instant::now() + SETTLE_TIMEOUT;
        while self.endpoint.open_connections() > 0 && Instant::now() < end {
            sleep(SETTLE_TIMEOUT / 20).await;
        }
    }

    /// Accepts connections until it is paused or closed.
    pub(super) async fn serve(self, port: Arc<Listener>, service: Service, close_tokens: CloseTokens) {
        self.socket.resume();
        let listener_context = ListenerContext {
            port,
            service,
            close: close_tokens.connections,
        };
        loop {
            tokio::select! {
                incoming = self.endpoint.accept() => match incoming {
                    Some(incoming) => self.admit(incoming, &listener_context),
                    None => return,
                },
                () = close_tokens.listener.cancelled() => break,
            }
        }
        if listener_context.close.is_cancelled() {
            self.endpoint.set_server_config(None);
        } else {
            self.settle().await;
            self.socket.pause();
        }
    }

    fn admit(&self, incoming: Incoming, listener_context: &ListenerContext) {
        let (table, service) = (listener_context.port.table(), &listener_context.service);
        let client = incoming.remote_address();
        let arrival = PacketInfo {
            source: client,
            asked: incoming.local_ip(),
            interface: self.socket.interface(client),
            transport: Transport::Quic,
        };
        let resolver = &service.resolver;
        let Identity {
            quota_key, is_forged, ..
        } = resolver.identify(&arrival, clock::now());
        if is_forged {
            resolver.metrics().unattributed(Unidentified::Interface);
            return incoming.ignore();
        }
        if service.handshakes.taken() >= RETRY_THRESHOLD && !incoming.remote_address_validated() {
            if let Err(error) = incoming.retry() {
                tracing::debug!(%error, %client, "an address is not to be shown again");
            }
            return;
        }
        let cut = CancellationToken::new();
        let connections = table.config.tcp.connections;
        let permit = service.connections.take(quota_key, 1, connections, cut.clone());
        let handshake = service.handshakes.take(quota_key, 1, HANDSHAKES, cut.clone());
        let (Some(permit), Some(handshake)) = (permit, handshake) else {
            service.metrics.tcp_refused.increment(1);
            return incoming.refuse();
        };
        let accepted = server_config(&table)
            .map_err(|error| error.to_string())
            .and_then(|config| {
                incoming
                    .accept_with(Arc::new(config))
                    .map_err(|error| error.to_string())
            });
        let connecting = match accepted {
            Ok(connecting) => connecting,
            Err(error) => return tracing::debug!(error, %client, "a connection cannot begin"),
        };
        let peer = Peer {
            arrival,
            quota_key,
            cut,
            _permit: permit,
        };
        let (listener_context, timeouts) = (listener_context.clone(), table.timeouts);
        let under_way = service.under_way.clone();
        let serving = async move {
            let connection = shake_hands(connecting, &peer, &listener_context, timeouts).await;
            drop(handshake);
            if let Some(connection) = connection {
                serve_connection(connection, peer, listener_context, timeouts).await;
            }
        };
        drop(task::spawn("connection", under_way.track_future(serving)));
    }
}

/// The certificate and limits of connections.
fn server_config(table: &ZoneTable) -> io::Result<ServerConfig> {
    let certificates = table.certificates.as_ref();
    let tls = certificates.ok_or(io::ErrorKind::NotFound)?.current();
    let crypto = QuicServerConfig::try_from(tls).map_err(io::Error::other)?;
    // Neither a client that is gone nor one that waits for an answer sends packets.
    let longest = table.timeouts.idle + table.config.total_timeout;
    let mut transport = TransportConfig::default();
    let streams = u32::try_from(MAX_PIPELINED).expect("it is a small number");
    transport
        .max_concurrent_bidi_streams(streams.into())
        .max_concurrent_uni_streams(0_u32.into())
        .stream_receive_window(STREAM_WINDOW)
        .receive_window(WINDOW)
        .send_window(SEND_WINDOW)
        .datagram_receive_buffer_size(None)
        .max_idle_timeout(Some(longest.try_into().map_err(io::Error::other)?));
    let mut config = ServerConfig::with_crypto(Arc::new(crypto));
    config
        .transport_config(Arc::new(transport))
        .max_incoming(HANDSHAKES.total)
        .incoming_buffer_size(64 << 10)
        .incoming_buffer_size_total(4 << 20)
        // A client is identified by interface and address: at another address it is another client.
        .migration(false);
    Ok(config)
}

async fn shake_hands(
    connecting: Connecting,
    peer: &Peer,
    listener_context: &ListenerContext,
    timeouts: Timeouts,
) -> Option<Connection> {
    tokio::select! {
        shaken = timeout(timeouts.read, connecting) => match shaken {
            Ok(Ok(connection)) => Some(connection),
            Ok(Err(error)) => {
                tracing::debug!(%error, client = %peer.arrival.source, "a handshake failed");
                None
            }
            Err(_elapsed) => None,
        },
        () = peer.cut.cancelled() => None,
        () = listener_context.close.cancelled() => None,
    }
}

/// What the streams of a connection share.
struct ConnectionContext {
    connection: Connection,
    peer: Peer,
    listener_context: ListenerContext,
    timeouts: Timeouts,
    activity: Activity,
}

/// Serves a connection until the client, its timeout or the listener ends it.
async fn serve_connection(
    connection: Connection,
    peer: Peer,
    listener_context: ListenerContext,
    timeouts: Timeouts,
) {
    let context = Arc::new(ConnectionContext {
        connection,
        peer,
        listener_context,
        timeouts,
        activity: Activity::default(),
    });
    let streams = TaskTracker::new();
    let code = loop {
        tokio::select! {
            accepted = context.connection.accept_bi() => match accepted {
                Ok((writer, reader)) => {
                    let answering = Arc::clone(&context).answer(writer, reader);
                    drop(task::spawn_brief(streams.track_future(answering)));
                }
                Err(error) => {
                    tracing::debug!(%error, client = %context.peer.arrival.source, "a connection over QUIC ended");
                    return;
                }
            },
            () = context.peer.cut.cancelled() => {
                context.listener_context.service.metrics.tcp_cut.increment(1);
                break ErrorCode::ExcessiveLoad;
            }
            () = context.activity.idle(timeouts.idle) => break ErrorCode::NoError,
            () = context.listener_context.close.cancelled() => break ErrorCode::NoError,
        }
    };
    if code == ErrorCode::NoError {
        streams.close();
        tokio::select! {
            () = streams.wait() => {}
            () = context.peer.cut.cancelled() => {}
        }
    }
    context.connection.close(code.value(), b"");
    // A task of the endpoint sends the close; it runs now.
    tokio::task::yield_now().await;
}

impl ConnectionContext {
    async fn answer(self: Arc<Self>, mut writer: SendStream, mut reader: RecvStream) {
        let _busy = self.activity.begin();
        let code = match self.query(&mut reader).await {
            Ok(query) => self.reply(&query, &mut writer).await,
            Err(code) => code,
        };
        match code {
            Some(ErrorCode::NoError) => self.count(ErrorCode::NoError),
            // There is no reply, and the client waits for none.
            Some(ErrorCode::InternalError) => {
                self.count(ErrorCode::InternalError);
                drop(writer.reset(ErrorCode::InternalError.value()));
            }
            Some(code) => {
                self.count(code);
                self.connection.close(code.value(), b"");
            }
            None => {}
        }
    }

    fn count(&self, code: ErrorCode) {
        let server = self.listener_context.port.table().server();
        counter!("coredns_dns_quic_responses_total", "server" => server, "status" => code.label())
            .increment(1);
    }

    /// The only query of a stream; or the code for the client, if it waits for a reply.
    async fn query(&self, reader: &mut RecvStream) -> Result<Vec<u8>, Option<ErrorCode>> {
        let longest = 2 + usize::from(u16::MAX);
        let framed = match timeout(self.timeouts.read, reader.read_to_end(longest)).await {
            Ok(Ok(framed)) => framed,
            Ok(Err(ReadToEndError::Read(_))) => return Err(None),
            Ok(Err(ReadToEndError::TooLong)) | Err(_) => return Err(Some(ErrorCode::ProtocolError)),
        };
        read_query(framed).ok_or(Some(ErrorCode::ProtocolError))
    }

    async fn reply(&self, query: &[u8], writer: &mut SendStream) -> Option<ErrorCode> {
        let (service, arrival) = (&self.listener_context.service, self.peer.arrival);
        let table = self.listener_context.port.table();
        let reply = match service.resolver.answer(query, arrival, &table, ReceivedAt::now()) {
            Disposition::NoReply => None,
            Disposition::Reply(reply) => Some(reply),
            Disposition::Pending(pending) => pending.reply().await,
        };
        let Some(reply) = reply else {
            return Some(ErrorCode::InternalError);
        };
        let (unwritten, peer) = (&service.unwritten, &self.peer);
        let permit = unwritten.take(peer.quota_key, reply.len(), UNWRITTEN, peer.cut.clone());
        let Some(_permit) = permit else {
            peer.cut.cancel();
            return None;
        };
        let writing = async {
            let length = u16::try_from(reply.len()).ok()?.to_be_bytes();
            writer
                .write_all(&[&length, reply.as_slice()].concat())
                .await
                .ok()?;
            writer.finish().ok()
        };
        timeout(self.timeouts.write, writing).await.ok()??;
        drop(timeout(ACK_TIMEOUT, writer.stopped()).await);
        Some(ErrorCode::NoError)
    }
}

/// The query in the octets of a stream: of the length that it states, with id 0 and without options of TCP (RFC 9250
/// §4.2.1, §4.3.3).
fn read_query(mut framed: Vec<u8>) -> Option<Vec<u8>> {
    let length = u16::from_be_bytes(*framed.first_chunk()?);
    let query = framed.split_off(2);
    let is_query = query.len() == usize::from(length)
        && query.len() >= HEADER
        && query[..2] == [0, 0]
        && !has_option(&query, KEEPALIVE);
    is_query.then_some(query)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn framed(length: u16, query: &[u8]) -> Vec<u8> {
        [&length.to_be_bytes(), query].concat()
    }

    /// A query for the root with this EDNS option.
    fn with_option(code: u8) -> Vec<u8> {
        let head = [0, 0, 1, 0, 0, 1, 0, 0, 0, 0, 0, 1];
        let opt = [0, 0, 41, 4, 208, 0, 0, 0, 0, 0, 4, 0, code, 0, 0];
        [&head[..], &[0, 0, 1, 0, 1], &opt].concat()
    }

    #[test]
    fn a_stream_has_one_query_of_its_stated_length_with_id_zero() {
        let query = with_option(10);
        let length = u16::try_from(query.len()).unwrap();
        assert_eq!(read_query(framed(length, &query)), Some(query.clone()));
        assert_eq!(read_query(framed(length - 1, &query)), None, "there is more");
        assert_eq!(read_query(framed(length + 1, &query)), None, "there is less");
        assert_eq!(read_query(framed(length, &with_option(11))), None);
        let mut numbered = query;
        numbered[1] = 1;
        assert_eq!(read_query(framed(length, &numbered)), None);
        for short in [&[][..], &[0], &[0, 0], &[0, 1, 0]] {
            assert_eq!(read_query(short.to_vec()), None);
        }
    }
}
