//! The admin listener of both daemons: `/healthz`, `/readyz`, `/metrics`, and what a daemon adds, which is told on the
//! machine itself alone.

use std::borrow::Cow;
use std::collections::VecDeque;
use std::convert::Infallible;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, ToSocketAddrs, UdpSocket};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::CONTENT_TYPE;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use socket2::{Domain, Protocol, SockRef, Socket, Type};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;

use super::task;
use crate::escape;

/// What a daemon answers to its operators.
pub trait AdminHandler: Send + Sync + 'static {
    /// `Ok`, or the reasons why the daemon does not do its work now.
    ///
    /// # Errors
    /// One line a reason.
    fn health(&self) -> Result<(), String>;

    /// `Ok` with a sentence, or the reasons why the daemon is not ready yet.
    ///
    /// # Errors
    /// One line a reason.
    fn readiness(&self) -> Result<String, String>;

    /// Prometheus' text.
    fn metrics(&self) -> String;

    /// Any other page, as plain text; nothing where there is none. Such pages tell of pods and policies: they are for who is on
    /// the machine itself, and nobody else is told even whether they are there.
    fn page(&self, path: &str) -> Option<String>;
}

/// Connections that are open at once: so many from the machine itself, and so many from elsewhere. Beyond, the oldest ends:
/// who asks has its answer within milliseconds, and who holds connections open does not keep others from asking.
const MOST: usize = 64;
/// How long a connection may last, with its answer. Prometheus waits as long by default (`scrape_timeout`).
const LONGEST: Duration = Duration::from_secs(10);
/// Octets of a request, with its headers.
const LARGEST: usize = 16 << 10;
/// The interface of what comes from the machine itself.
const LOOPBACK: &[u8] = b"lo";

/// Binds a listener. A wildcard of either family has both if the machine has both: probes come by the family of a pod's or node's
/// first address. On a loopback address it takes what comes in by `lo` alone, which is what the machine sends to itself: with
/// `route_localnet`, others reach 127.0.0.0/8 as well.
///
/// # Errors
/// As the kernel says it, without the address.
pub fn bind(address: SocketAddr) -> io::Result<TcpListener> {
    if !address.ip().is_unspecified() {
        return bind_exactly(address);
    }
    let any = |ip: IpAddr| bind_exactly(SocketAddr::new(ip, address.port()));
    any(Ipv6Addr::UNSPECIFIED.into()).or_else(|error| match error.raw_os_error() {
        Some(libc::EAFNOSUPPORT | libc::EADDRNOTAVAIL) => any(Ipv4Addr::UNSPECIFIED.into()),
        Some(_) | None => Err(error),
    })
}

fn bind_exactly(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    if address.is_ipv6() && address.ip().is_unspecified() {
        // Whatever `bindv6only` says.
        socket.set_only_v6(false)?;
    }
    socket.set_reuse_address(true)?;
    keep_to_loopback(&socket, address);
    socket.bind(&address.into())?;
    socket.listen(128)?;
    socket.set_nonblocking(true)?;
    Ok(socket.into())
}

/// A listener that another process bound.
///
/// # Errors
/// When it has no address.
pub fn inherit(socket: OwnedFd) -> io::Result<TcpListener> {
    let listener = TcpListener::from(socket);
    keep_to_loopback(&SockRef::from(&listener), listener.local_addr()?);
    Ok(listener)
}

/// What cannot be kept to `lo` (before Linux 5.7 that needs CAP_NET_RAW) is refused when it was accepted, see [`serve`].
fn keep_to_loopback(socket: &Socket, address: SocketAddr) {
    if !is_loopback(address) || matches!(socket.device(), Ok(Some(device)) if device == LOOPBACK) {
        return;
    }
    if let Err(error) = socket.bind_device(Some(LOOPBACK)) {
        tracing::warn!(
            %address, %error,
            "the admin listener cannot be kept to the interface lo (CAP_NET_RAW): connections from elsewhere are closed unanswered"
        );
    }
}

fn is_loopback(address: SocketAddr) -> bool {
    address.ip().to_canonical().is_loopback()
}

/// Whether a peer's address is the machine's own: then the kernel would send to it from itself. Nobody else can have such an
/// address for a whole handshake, as the answers to it do not leave the machine. A link-local address counts with its interface.
fn is_own(peer: SocketAddr) -> bool {
    let ip = peer.ip().to_canonical();
    // Connecting a datagram socket looks for the way and the source, and sends nothing.
    let source = match ip {
        IpAddr::V4(_) => source_towards((Ipv4Addr::UNSPECIFIED, 0), SocketAddr::new(ip, peer.port())),
        IpAddr::V6(_) => source_towards((Ipv6Addr::UNSPECIFIED, 0), peer),
    };
    ip.is_loopback() || source.is_ok_and(|source| source == ip)
}

fn source_towards(any: impl ToSocketAddrs, peer: SocketAddr) -> io::Result<IpAddr> {
    let socket = UdpSocket::bind(any)?;
    socket.connect(peer)?;
    socket.local_addr().map(|source| source.ip())
}

/// Answers until the runtime ends.
pub async fn serve(listener: tokio::net::TcpListener, admin: Arc<dyn AdminHandler>) {
    let is_for_here = listener.local_addr().is_ok_and(is_loopback);
    let (mut of_here, mut of_others) = (OpenConnections::default(), OpenConnections::default());
    loop {
        match listener.accept().await {
            Ok((stream, peer)) => {
                let is_from_here = is_own(peer);
                let connections = if is_from_here {
                    &mut of_here
                } else if is_for_here {
                    tracing::debug!(%peer, "the admin listener on loopback is reached from elsewhere");
                    continue;
                } else {
                    &mut of_others
                };
                let connection = answer(stream, is_from_here, Arc::clone(&admin));
                connections.add(task::spawn("admin", connection)).await;
            }
            Err(error) => {
                tracing::warn!(%error, "the admin listener cannot accept a connection");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

/// Open connections, the oldest first.
#[derive(Debug, Default)]
struct OpenConnections(VecDeque<JoinHandle<()>>);

impl OpenConnections {
    async fn add(&mut self, connection: JoinHandle<()>) {
        self.0.retain(|it| !it.is_finished());
        if self.0.len() >= MOST
            && let Some(oldest) = self.0.pop_front()
        {
            oldest.abort();
            // Its file is closed when it has had its turn: before the next connection is taken, however many wait.
            _ = oldest.await;
        }
        self.0.push_back(connection);
    }
}

/// One request a connection: what is idle keeps no place.
async fn answer(stream: TcpStream, is_from_here: bool, admin: Arc<dyn AdminHandler>) {
    let service = service_fn(move |request| {
        let response = respond(&request, is_from_here, admin.as_ref());
        async move { Ok::<_, Infallible>(response) }
    });
    let served = hyper::server::conn::http1::Builder::new()
        .keep_alive(false)
        .max_buf_size(LARGEST)
        .serve_connection(TokioIo::new(stream), service);
    match tokio::time::timeout(LONGEST, served).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::debug!(%error, "an admin connection ended early"),
        Err(_elapsed) => tracing::debug!("an admin connection took too long"),
    }
}

fn respond(
    request: &Request<Incoming>,
    is_from_here: bool,
    admin: &dyn AdminHandler,
) -> Response<Full<Bytes>> {
    if request.method() != Method::GET && request.method() != Method::HEAD {
        return text(
            StatusCode::METHOD_NOT_ALLOWED,
            "only GET is answered\n".to_owned(),
        );
    }
    match request.uri().path() {
        // CoreDNS' words, octet for octet.
        "/health" => match admin.health() {
            Ok(()) => text(StatusCode::OK, "OK".to_owned()),
            Err(reasons) => state(Err(reasons)),
        },
        "/healthz" => state(admin.health().map(|()| "ok".to_owned())),
        "/readyz" => state(admin.readiness()),
        "/metrics" => text(StatusCode::OK, admin.metrics()),
        _detail if !is_from_here => text(
            StatusCode::FORBIDDEN,
            "this page is for connections from the node itself; others are answered /healthz, /readyz and /metrics\n"
                .to_owned(),
        ),
        other => match admin.page(other) {
            Some(page) => text(StatusCode::OK, page),
            None => text(
                StatusCode::NOT_FOUND,
                "there are /healthz, /readyz and /metrics\n".to_owned(),
            ),
        },
    }
}

fn state(state: Result<String, String>) -> Response<Full<Bytes>> {
    match state {
        Ok(sentence) => text(StatusCode::OK, sentence + "\n"),
        Err(reasons) => text(StatusCode::SERVICE_UNAVAILABLE, reasons + "\n"),
    }
}

fn text(status: StatusCode, body: String) -> Response<Full<Bytes>> {
    // Labels of metrics are escaped already, in the way of their format.
    let body = match escape::lines(&body) {
        Cow::Borrowed(_) => body,
        Cow::Owned(escaped) => escaped,
    };
    let mut response = Response::new(Full::new(Bytes::from(body)));
    *response.status_mut() = status;
    response.headers_mut().insert(
        CONTENT_TYPE,
        hyper::header::HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8"),
    );
    response
}
