//! The agents' side: gRPC over TLS, with a certificate of the cluster's authority or with a token.

use std::sync::Arc;
use std::time::Duration;

use h2::RecvStream;
use h2::server::SendResponse;
use http::{HeaderValue, Request};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::pki_types::CertificateDer;

use egret_shared::rt::task;

use super::hub::Hub;
use super::identity::{AgentIdentity, Authentication, IdentifierBinding, Unauthenticated, check_binding};
use crate::core::{AgentInfo, Limits, StreamEvent, StreamId};
use crate::grpc::{self, CONNECTION_WINDOW, PacketReader, PacketWriter, STREAM_WINDOW};
use crate::proto::{Frame, Identifiers, metadata};
use crate::socket;
use crate::tls::Reloaded;

const HANDSHAKE_WITHIN: Duration = Duration::from_secs(10);
/// How long a stream waits for a client that reads nothing, where its agent counts no credits; then the client's connection is closed.
const STUCK_AFTER: Duration = Duration::from_secs(1);
const STUCK_POLL: Duration = Duration::from_millis(5);
/// Of gRPC: Unknown is what upstream answers, Unimplemented what gRPC says of paths.
const UNKNOWN: u16 = 2;
pub(super) const UNIMPLEMENTED: u16 = 12;

/// How long connections of an agent may go on whose token counts no longer.
const EXPIRED_FOR: Duration = Duration::from_secs(60);
const EXPIRED_POLL: Duration = Duration::from_secs(1);
/// Of gRPC: what others refuse an agent with.
const PERMISSION_DENIED: u16 = 7;
const UNAVAILABLE: u16 = 14;
const UNAUTHENTICATED: u16 = 16;

/// What every agent is told, how it shows who it is, and how it is watched.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) server_id: HeaderValue,
    pub(super) server_count: u32,
    pub(super) keep_alive: Duration,
    pub(super) authentication: Authentication,
    pub(super) binding: IdentifierBinding,
}

/// The certificate that agents are shown, and whose theirs are.
pub(super) type AgentTls = Reloaded<ServerConfig>;

pub(super) async fn serve(listener: TcpListener, tls: Arc<AgentTls>, hub: Arc<Hub>, shared: Arc<Shared>) {
    loop {
        match listener.accept().await {
            Ok((stream, peer)) => {
                let (hub, shared) = (Arc::clone(&hub), Arc::clone(&shared));
                let tls = TlsAcceptor::from(tls.current());
                task::spawn("agent", async move {
                    if let Err(error) = serve_connection(stream, tls, hub, shared).await {
                        tracing::info!(%peer, error = %format!("{error:#}"), "an agent's connection ended");
                    }
                });
            }
            Err(error) => super::pause_after(&error).await,
        }
    }
}

async fn serve_connection(
    stream: TcpStream,
    tls: TlsAcceptor,
    hub: Arc<Hub>,
    shared: Arc<Shared>,
) -> anyhow::Result<()> {
    socket::prepare(&stream)?;
    let handshake = async {
        let stream = tls.accept(stream).await?;
        let shown = stream.get_ref().1.peer_certificates().and_then(<[_]>::first);
        let certificate = shown.cloned().map(CertificateDer::into_owned);
        let mut http = h2::server::Builder::new();
        http.initial_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW)
            .max_frame_size(grpc::MAX_FRAME)
            .max_header_list_size(16 << 10);
        anyhow::Ok((http.handshake::<_, Frame>(stream).await?, certificate))
    };
    let (mut connection, certificate) = tokio::time::timeout(HANDSHAKE_WITHIN, handshake).await??;
    let Some(pings) = connection.ping_pong() else {
        anyhow::bail!("the connection has no pings");
    };
    let served = async {
        while let Some(request) = connection.accept().await {
            let (request, respond) = request?;
            let (hub, shared) = (Arc::clone(&hub), Arc::clone(&shared));
            let certificate = certificate.clone();
            task::spawn(
                "agent stream",
                serve_stream(request, respond, certificate, hub, shared),
            );
        }
        anyhow::Ok(())
    };
    tokio::select! {
        served = served => served,
        () = grpc::keep_alive(pings, shared.keep_alive) => anyhow::bail!("the agent answers no ping"),
    }
}

async fn serve_stream(
    request: Request<RecvStream>,
    mut respond: SendResponse<Frame>,
    certificate: Option<CertificateDer<'static>>,
    hub: Arc<Hub>,
    shared: Arc<Shared>,
) {
    let agent = match agent_of(&request) {
        Ok(agent) => shared.identify(&request, agent, certificate.as_ref()).await,
        Err(refusal) => Err(refusal),
    };
    let (agent, identity) = match agent {
        Ok(known) => known,
        Err((code, text)) => {
            tracing::warn!(error = text, "an agent is refused");
            if let Err(error) = respond.send_response(grpc::refusal(code, &text), true) {
                tracing::debug!(%error, "an agent does not wait for its refusal");
            }
            return;
        }
    };
    let mut head = grpc::head();
    let headers = head.headers_mut();
    headers.insert(metadata::SERVER_ID, shared.server_id.clone());
    headers.insert(metadata::SERVER_COUNT, HeaderValue::from(shared.server_count));
    headers.insert(metadata::WINDOW, HeaderValue::from(Limits::default().window));
    let writer = match respond.send_response(head, false) {
        Ok(stream) => PacketWriter::new(stream),
        Err(error) => {
            tracing::debug!(%error, "an agent is gone before it was answered");
            return;
        }
    };
    let name = agent.id.clone();
    tracing::info!(
        agent = name,
        counts_credits = agent.window.is_some(),
        "an agent is connected"
    );
    let (id, notify) = hub.open_stream(agent);
    let ended = tokio::select! {
        ended = receive(PacketReader::new(request.into_body()), &hub, id) => ended,
        ended = send(writer, &hub, id, &notify) => ended,
        ended = expire(&shared.authentication, &identity, &hub, id) => Err(ended),
    };
    hub.close_stream(id);
    match ended {
        Ok(()) => tracing::info!(agent = name, "an agent is gone"),
        Err(error) => tracing::warn!(agent = name, %error, "an agent is gone"),
    }
}

impl Shared {
    /// Who the agent is, if it may be what it says.
    async fn identify(
        &self,
        request: &Request<RecvStream>,
        agent: AgentInfo,
        certificate: Option<&CertificateDer<'static>>,
    ) -> Result<(AgentInfo, AgentIdentity), (u16, String)> {
        let identity = self.authentication.identify(request.headers(), certificate).await;
        let identity = identity.map_err(|error| match &error {
            Unauthenticated::Refused(text) => (UNAUTHENTICATED, text.clone()),
            Unauthenticated::Unknown(_) => (UNAVAILABLE, error.to_string()),
        })?;
        let unbound = self.authentication.unbound(&identity, &agent.identifiers).await;
        let bound = check_binding(self.binding, &agent.id, &unbound);
        bound.map_err(|text| (PERMISSION_DENIED, text))?;
        Ok((agent, identity))
    }
}

/// Returns when the stream is to end because what the agent showed counts no longer.
async fn expire(
    authentication: &Authentication,
    identity: &AgentIdentity,
    hub: &Hub,
    id: StreamId,
) -> anyhow::Error {
    let reason = authentication.expired(identity).await;
    tracing::info!(%reason, "an agent's stream takes no further connections");
    hub.with(|server| server.expire_stream(id));
    let idle = async {
        while hub.with(|server| server.has_connections(id)) {
            tokio::time::sleep(EXPIRED_POLL).await;
        }
    };
    match tokio::time::timeout(EXPIRED_FOR, idle).await {
        Ok(()) => anyhow::anyhow!("{reason}"),
        Err(_elapsed) => anyhow::anyhow!("{reason}, and its connections go on"),
    }
}

fn agent_of(request: &Request<RecvStream>) -> Result<AgentInfo, (u16, String)> {
    if request.uri().path() != metadata::CONNECT {
        let text = format!("unknown method {}", request.uri().path());
        return Err((UNIMPLEMENTED, text));
    }
    let headers = request.headers();
    let unknown = |text| (UNKNOWN, text);
    let id = grpc::single(headers, metadata::AGENT_ID).map_err(unknown)?;
    let Some(id) = id.filter(|id| !id.is_empty()) else {
        return Err((UNKNOWN, format!("{} is missing", metadata::AGENT_ID)));
    };
    let query = grpc::single(headers, metadata::AGENT_IDENTIFIERS).map_err(unknown)?;
    let (identifiers, refused) = Identifiers::of_agent(query.unwrap_or_default());
    for error in refused {
        tracing::warn!(agent = id, %error, "an identifier of an agent is passed over");
    }
    Ok(AgentInfo {
        id: id.to_owned(),
        identifiers,
        window: grpc::window(headers).map_err(unknown)?,
    })
}

async fn receive(mut reader: PacketReader, hub: &Hub, id: StreamId) -> Result<(), anyhow::Error> {
    while let Some(packet) = reader.next().await? {
        let event = hub.with(|server| server.receive(id, packet))?;
        let StreamEvent::Full(tunnel) = event else {
            continue;
        };
        let reads = async {
            while hub.with(|server| server.is_half_full(tunnel)) {
                tokio::time::sleep(STUCK_POLL).await;
            }
        };
        if tokio::time::timeout(STUCK_AFTER, reads).await.is_err() {
            tracing::warn!(
                "a connection is closed: its client reads nothing, and its agent counts no credits"
            );
            hub.with(|server| server.evict(tunnel));
        }
    }
    Ok(())
}

async fn send(
    mut writer: PacketWriter,
    hub: &Hub,
    id: StreamId,
    notify: &Notify,
) -> Result<(), anyhow::Error> {
    loop {
        while let Some(packet) = hub.with(|server| server.next_packet(id)) {
            writer.send(&packet).await?;
        }
        notify.notified().await;
    }
}
