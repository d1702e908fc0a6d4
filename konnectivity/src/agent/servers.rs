//! A stream to each server: as many as the servers say that there are, each to another one.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use h2::{RecvStream, SendStream};
use http::{HeaderValue, Method, Request, Response, StatusCode};
use rand::RngExt as _;
use tokio::net::TcpStream;
use tokio::sync::{Notify, watch};
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::ClientConfig;
use tokio_rustls::rustls::pki_types::ServerName;

use egret_shared::rt::{clock, task};

use super::Guard;
use super::session::Session;
use crate::core::Limits;
use crate::grpc::{self, CONNECTION_WINDOW, PacketReader, PacketWriter, STREAM_WINDOW};
use crate::proto::{Frame, Identifiers, metadata};
use crate::socket;
use crate::tls::Reloaded;

const CONNECT_WITHIN: Duration = Duration::from_secs(20);
/// How long an agent that drains goes on at least: servers may ask for connections before they read of it, and later where there is no other agent.
const DRAINS_FOR: Duration = Duration::from_secs(1);
const DRAIN_POLL: Duration = Duration::from_millis(50);
/// How often the token and the certificates are looked at.
const CREDENTIALS_POLL: Duration = Duration::from_secs(5);

/// What the flags mean.
#[derive(Clone, Debug)]
pub(super) struct Settings {
    /// Hosts of servers: each is tried in turn.
    pub(super) hosts: Vec<String>,
    pub(super) port: u16,
    pub(super) tls: Arc<Reloaded<ClientConfig>>,
    pub(super) agent_id: HeaderValue,
    pub(super) identifiers: Identifiers,
    pub(super) token: Option<PathBuf>,
    pub(super) interval: Duration,
    pub(super) interval_cap: Duration,
    pub(super) keep_alive: Duration,
    pub(super) guard: Arc<Guard>,
    pub(super) count_source: CountSource,
    /// Connections are tried where no server is missing, too.
    pub(super) sync_forever: bool,
}

/// How many servers there are, where their Leases are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CountSource {
    /// As many as Leases.
    Leases,
    /// As the Leases or the servers say, whichever is more.
    Largest,
}

#[derive(Debug)]
pub(super) struct Servers {
    settings: Settings,
    state: Mutex<State>,
    /// Of the sessions something changed.
    changed: watch::Sender<()>,
    /// There are more servers than before.
    more: Notify,
}

#[derive(Debug, Default)]
struct State {
    /// By the server's own name.
    sessions: HashMap<String, Connected>,
    /// Those that others are in the place of, while they have connections.
    retired: Vec<Arc<Session>>,
    /// As the last server said.
    count_of_servers: usize,
    /// None while they are not counted.
    count_of_leases: Option<usize>,
    /// How many connections were tried; chooses the host.
    tried: usize,
    is_draining: bool,
    /// A stream ended that was younger than the longest wait.
    has_ended_early: bool,
}

/// A stream to a server.
#[derive(Debug)]
struct Connected {
    session: Arc<Session>,
    /// What was shown to it.
    credentials: Credentials,
}

/// What is shown to servers, as far as it changes.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Credentials {
    certificates: u64,
    token: Option<String>,
}

impl State {
    /// How many servers are to be connected to.
    fn count(&self, source: CountSource) -> usize {
        match (self.count_of_leases, source) {
            (None, _) => self.count_of_servers,
            (Some(leases), CountSource::Leases) => leases,
            (Some(leases), CountSource::Largest) => leases.max(self.count_of_servers),
        }
    }
}

impl Servers {
    pub(super) fn new(settings: Settings) -> Self {
        let state = State {
            count_of_servers: settings.hosts.len(),
            ..State::default()
        };
        Self {
            settings,
            state: Mutex::new(state),
            changed: watch::Sender::new(()),
            more: Notify::new(),
        }
    }

    fn with<T>(&self, call: impl FnOnce(&mut State) -> T) -> T {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        call(&mut state)
    }

    pub(super) fn connected(&self) -> usize {
        self.with(|state| state.sessions.len())
    }

    pub(super) fn known(&self) -> usize {
        self.with(|state| state.count(self.settings.count_source))
    }

    pub(super) fn set_count_of_leases(&self, count: usize) {
        let before = self.with(|state| state.count_of_leases.replace(count));
        if before.is_none_or(|before| before < count) {
            self.more.notify_one();
        }
        self.changed.send_replace(());
    }

    /// Connects where a server is missing. Each attempt that brings no new server, and each stream that ends early, makes the next one come
    /// later.
    pub(super) async fn keep_connected(self: Arc<Self>) {
        let mut interval = self.settings.interval;
        let mut changed = self.changed.subscribe();
        loop {
            let credentials = self.credentials();
            let (is_missing, has_ended_early, is_draining) = self.with(|state| {
                let is_old = |connected: &Connected| connected.credentials != credentials;
                let count = state.count(self.settings.count_source);
                let is_missing = state.sessions.len() < count || state.sessions.values().any(is_old);
                (
                    is_missing,
                    std::mem::take(&mut state.has_ended_early),
                    state.is_draining,
                )
            });
            if is_draining {
                return;
            }
            if has_ended_early {
                interval = self.back_off(interval).await;
                continue;
            }
            if !is_missing {
                let patience = if self.settings.sync_forever {
                    self.settings.interval_cap.min(CREDENTIALS_POLL)
                } else {
                    CREDENTIALS_POLL
                };
                // Also at the end of a session; the sender lives as long as this.
                tokio::select! {
                    changed = changed.changed() => match changed {
                        Ok(()) => continue,
                        Err(_closed) => return,
                    },
                    () = tokio::time::sleep(patience) => interval = self.settings.interval,
                }
                if !self.settings.sync_forever {
                    continue;
                }
            }
            match Arc::clone(&self).connect().await {
                Ok(()) => {}
                Err(NotConnected::Known(server)) => {
                    tracing::debug!(server, "there is a connection to the proxy server already");
                    if is_missing {
                        interval = self.back_off(interval).await;
                    }
                }
                Err(NotConnected::Failed(error)) => {
                    tracing::warn!(error = %format!("{error:#}"), "no connection to a proxy server");
                    interval = self.back_off(interval).await;
                }
            }
        }
    }

    /// Waits, and returns how long the next wait is to be. A server that was not known of ends the wait.
    async fn back_off(&self, interval: Duration) -> Duration {
        let jitter = rand::rng().random_range(1.0..1.1);
        tokio::select! {
            () = tokio::time::sleep(interval.mul_f64(jitter)) => {
                interval.mul_f64(1.5).min(self.settings.interval_cap)
            }
            () = self.more.notified() => self.settings.interval,
        }
    }

    /// What would be shown to a server now. A token that cannot be read is the connection's to complain of.
    fn credentials(&self) -> Credentials {
        let token = self.settings.token.as_ref().map(std::fs::read_to_string);
        Credentials {
            certificates: self.settings.tls.with_version().1,
            token: token.and_then(Result::ok),
        }
    }

    /// Connects to the next host. The session goes on by itself.
    async fn connect(self: Arc<Self>) -> Result<(), NotConnected> {
        let tried = self.with(|state| {
            state.tried += 1;
            state.tried - 1
        });
        let host = &self.settings.hosts[tried % self.settings.hosts.len()];
        let connected = tokio::time::timeout(CONNECT_WITHIN, self.open(host));
        let connected = connected
            .await
            .unwrap_or_else(|_elapsed| Err(anyhow::anyhow!("timed out").into()));
        let Opened {
            server,
            session,
            reader,
            writer,
            driver,
        } = connected.map_err(|error| error.at(format!("{host}:{}", self.settings.port)))?;
        let begun = clock::now();
        tracing::info!(server, host, "connected to a proxy server");
        let servers = Arc::clone(&self);
        task::spawn("session", async move {
            let ended = tokio::select! {
                ended = Arc::clone(&session).serve(reader, writer) => ended,
                ended = driver => ended,
                () = session.retired() => Ok(()),
            };
            session.close();
            match ended {
                Ok(()) => tracing::info!(server, "the connection to a proxy server ended"),
                Err(error) => {
                    tracing::warn!(server, error = %format!("{error:#}"), "the connection to a proxy server ended")
                }
            }
            servers.with(|state| {
                // Another one may be in its place.
                let is_it = |it: &Connected| Arc::ptr_eq(&it.session, &session);
                if state.sessions.get(&server).is_some_and(is_it) {
                    state.sessions.remove(&server);
                    state.has_ended_early |= clock::now().since(begun) < servers.settings.interval_cap;
                }
            });
            servers.changed.send_replace(());
        });
        Ok(())
    }

    async fn open(
        &self,
        host: &str,
    ) -> Result<Opened<impl Future<Output = anyhow::Result<()>> + use<>>, NotConnected> {
        let credentials = self.credentials();
        let tls = TlsConnector::from(self.settings.tls.current());
        let handshake = async {
            let stream = TcpStream::connect((host, self.settings.port)).await?;
            socket::prepare(&stream)?;
            let name = ServerName::try_from(host.to_owned())?;
            let stream = tls.connect(name, stream).await?;
            let mut http = h2::client::Builder::new();
            http.initial_window_size(STREAM_WINDOW)
                .initial_connection_window_size(CONNECTION_WINDOW)
                .max_frame_size(grpc::MAX_FRAME);
            let (client, mut connection) = http.handshake::<_, Frame>(stream).await?;
            let pings = connection.ping_pong().context("the connection has no pings")?;
            anyhow::Ok((client, connection, pings))
        };
        let (client, connection, pings) = handshake.await?;
        let keep_alive = self.settings.keep_alive;
        let driver = async move {
            tokio::select! {
                ended = connection => ended.map_err(anyhow::Error::from),
                () = grpc::keep_alive(pings, keep_alive) => bail!("the server answers no ping"),
            }
        };
        let mut driver = Box::pin(driver);
        let opened = tokio::select! {
            opened = self.call(client, host, credentials) => opened?,
            ended = &mut driver => {
                ended?;
                return Err(anyhow::anyhow!("the server closed the connection").into());
            }
        };
        let (server, session, reader, writer) = opened;
        Ok(Opened {
            server,
            session,
            reader,
            writer,
            driver,
        })
    }

    async fn call(
        &self,
        client: h2::client::SendRequest<Frame>,
        host: &str,
        credentials: Credentials,
    ) -> Result<(String, Arc<Session>, PacketReader, PacketWriter), NotConnected> {
        let request = self.request(host)?;
        let (response, body, server, count, window) = ask(client, request).await?;
        let session = Session::new(window, Arc::clone(&self.settings.guard));
        let is_new = self.with(|state| {
            state.count_of_servers = count.max(1);
            let is_known = |connected: &Connected| connected.credentials == credentials;
            if state.is_draining || state.sessions.get(&server).is_some_and(is_known) {
                return false;
            }
            let session = Arc::clone(&session);
            let connected = Connected { session, credentials };
            // What was shown to the server before counts for a while: connections by the stream before go on.
            if let Some(before) = state.sessions.insert(server.clone(), connected) {
                tracing::info!(server, "connected anew: what is shown to the server is new");
                before.session.retire();
                state.retired.retain(|session| session.is_busy());
                state.retired.push(before.session);
            }
            true
        });
        if !is_new {
            return Err(NotConnected::Known(server));
        }
        let reader = PacketReader::new(response.into_body());
        Ok((server, session, reader, PacketWriter::new(body)))
    }

    fn request(&self, host: &str) -> anyhow::Result<Request<()>> {
        let authority = if host.contains(':') {
            format!("[{host}]:{}", self.settings.port)
        } else {
            format!("{host}:{}", self.settings.port)
        };
        let mut request = Request::builder()
            .method(Method::POST)
            .uri(format!("https://{authority}{}", metadata::CONNECT))
            .header(http::header::CONTENT_TYPE, "application/grpc")
            .header(http::header::TE, "trailers")
            .header(
                http::header::USER_AGENT,
                concat!("egret/", env!("CARGO_PKG_VERSION")),
            )
            .header(metadata::AGENT_ID, self.settings.agent_id.clone())
            .header(metadata::AGENT_IDENTIFIERS, self.settings.identifiers.to_string())
            .header(metadata::WINDOW, Limits::default().window);
        if let Some(path) = &self.settings.token {
            // Read at each connection: it is renewed.
            let token = std::fs::read_to_string(path).with_context(|| path.display().to_string())?;
            let mut value = HeaderValue::from_str(&format!("Bearer {}", token.trim()))?;
            value.set_sensitive(true);
            request = request.header(http::header::AUTHORIZATION, value);
        }
        Ok(request.body(())?)
    }

    /// Asks for no further dials and waits until no connection is left.
    pub(super) async fn drain(&self) {
        let sessions: Vec<_> = self.with(|state| {
            state.is_draining = true;
            let current = state.sessions.values().map(|it| &it.session);
            current.chain(&state.retired).cloned().collect()
        });
        for session in &sessions {
            session.drain();
        }
        self.changed.send_replace(());
        tracing::info!("draining: no further servers are connected to");
        tokio::time::sleep(DRAINS_FOR).await;
        while sessions.iter().any(|session| session.is_busy()) {
            tokio::time::sleep(DRAIN_POLL).await;
        }
    }
}

/// Sends the call; the answer, with what the server says of itself.
async fn ask(
    client: h2::client::SendRequest<Frame>,
    request: Request<()>,
) -> anyhow::Result<(
    Response<RecvStream>,
    SendStream<Frame>,
    String,
    usize,
    Option<u32>,
)> {
    let mut client = client.ready().await?;
    let (response, body) = client.send_request(request, false)?;
    let response = response.await?;
    let headers = response.headers();
    if let Some(status) = headers.get("grpc-status") {
        let text = headers
            .get("grpc-message")
            .map_or("", |it| it.to_str().unwrap_or(""));
        bail!("the server refuses: status {status:?} {text}");
    }
    ensure!(
        response.status() == StatusCode::OK,
        "status {}",
        response.status()
    );
    let single = |name| grpc::single(headers, name).map_err(anyhow::Error::msg);
    let server = single(metadata::SERVER_ID)?.context("the server does not tell its serverid")?;
    let count = single(metadata::SERVER_COUNT)?.context("the server does not tell its servercount")?;
    let count: usize = count.parse().context("servercount")?;
    let window = grpc::window(headers).map_err(anyhow::Error::msg)?;
    let server = server.to_owned();
    Ok((response, body, server, count, window))
}

/// Why there is no new stream.
#[derive(Debug)]
enum NotConnected {
    /// The server has one.
    Known(String),
    Failed(anyhow::Error),
}

impl NotConnected {
    fn at(self, address: String) -> Self {
        match self {
            Self::Failed(error) => Self::Failed(error.context(address)),
            known @ Self::Known(_) => known,
        }
    }
}

impl From<anyhow::Error> for NotConnected {
    fn from(error: anyhow::Error) -> Self {
        Self::Failed(error)
    }
}

/// A stream that a server accepted.
struct Opened<D> {
    server: String,
    session: Arc<Session>,
    reader: PacketReader,
    writer: PacketWriter,
    /// Runs the connection.
    driver: std::pin::Pin<Box<D>>,
}
