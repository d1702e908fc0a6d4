//! Clients by HTTP CONNECT, one tunnel a connection: on a Unix socket, or by TLS with a certificate.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use metrics::gauge;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpListener, UnixListener};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;

use egret_shared::rt::task;

use super::dialer::{AuditedTunnel, Dialer};
use super::proxy::{client_of, linger};
use crate::core::Refusal;
use crate::proto::MAX_DATA;
use crate::relay::{read_some, relay, write};
use crate::socket;
use crate::tls::Reloaded;

const HANDSHAKE_WITHIN: Duration = Duration::from_secs(10);
/// As upstream's.
const HEAD_WITHIN: Duration = Duration::from_secs(60);
const MAX_HEAD: usize = 16 << 10;
/// Octets of a reason phrase: it is all of a refusal that a user of the API server sees.
const MAX_REASON: usize = 200;
const ESTABLISHED: &[u8] = b"HTTP/1.1 200 Connection Established\r\n\r\n";

pub(super) async fn serve_uds(listener: UnixListener, dialer: Arc<Dialer>) {
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                let client = client_of(&stream);
                let (reader, writer) = stream.into_split();
                let dialer = Arc::clone(&dialer);
                task::spawn_brief(async move { serve(reader, writer, &dialer, &client).await });
            }
            Err(error) => super::pause_after(&error).await,
        }
    }
}

pub(super) async fn serve_tcp(listener: TcpListener, tls: Arc<Reloaded<ServerConfig>>, dialer: Arc<Dialer>) {
    loop {
        match listener.accept().await {
            Ok((stream, peer)) => {
                let (tls, dialer) = (TlsAcceptor::from(tls.current()), Arc::clone(&dialer));
                task::spawn_brief(async move {
                    let accepted = async {
                        socket::prepare(&stream)?;
                        tls.accept(stream).await
                    };
                    match tokio::time::timeout(HANDSHAKE_WITHIN, accepted).await {
                        Ok(Ok(stream)) => {
                            let (reader, writer) = tokio::io::split(stream);
                            serve(reader, writer, &dialer, &peer.to_string()).await;
                        }
                        Ok(Err(error)) => tracing::info!(%peer, %error, "a client is refused"),
                        Err(_elapsed) => tracing::info!(%peer, "a client takes too long to shake hands"),
                    }
                });
            }
            Err(error) => super::pause_after(&error).await,
        }
    }
}

async fn serve<R, W>(mut reader: R, mut writer: W, dialer: &Dialer, client: &str)
where
    R: AsyncRead + Unpin,
    W: AsyncWrite + Unpin,
{
    let connections = gauge!("konnectivity_network_proxy_server_http_connections");
    connections.increment(1);
    if let Err(error) = serve_one(&mut reader, &mut writer, dialer, client).await {
        tracing::debug!(%error, "a client's connection ended early");
    }
    connections.decrement(1);
}

async fn serve_one<R, W>(reader: &mut R, writer: &mut W, dialer: &Dialer, client: &str) -> io::Result<()>
where
    R: AsyncRead + Unpin,
    W: AsyncWrite + Unpin,
{
    let head = match tokio::time::timeout(HEAD_WITHIN, read_head(reader)).await {
        Ok(head) => head?,
        Err(_elapsed) => return Ok(()),
    };
    let Some((head, behind)) = head else {
        return refuse(writer, 400, "a request head ends within 16384 octets").await;
    };
    let address = match destination(&head) {
        Ok(address) => address.to_owned(),
        Err((status, reason)) => return refuse(writer, status, &reason).await,
    };
    drop(head);
    let mut first = behind;
    let mut dial = dialer.dial(address, client);
    // A client that leaves meanwhile is noticed: it sends nothing before it is answered.
    let dialled = tokio::select! {
        dialled = &mut dial => dialled,
        early = read_some(reader, MAX_DATA) => {
            let early = early?;
            if early.is_empty() {
                return Ok(());
            }
            first.extend_from_slice(&early);
            dial.as_mut().await
        }
    };
    drop(dial);
    match dialled {
        Ok((tunnel, _)) => {
            writer.write_all(ESTABLISHED).await?;
            writer.flush().await?;
            go_on(reader, writer, tunnel, first).await;
            Ok(())
        }
        Err(refusal) => refuse(writer, status_of(&refusal), &refusal.to_string()).await,
    }
}

async fn go_on<R, W>(reader: &mut R, writer: &mut W, tunnel: Box<AuditedTunnel>, first: Vec<u8>)
where
    R: AsyncRead + Unpin,
    W: AsyncWrite + Unpin,
{
    write(&*tunnel, Bytes::from(first)).await;
    relay(&*tunnel, reader, writer).await;
    linger(tunnel).await;
}

/// The head, and what came behind it; none where it is too long.
async fn read_head<R: AsyncRead + Unpin>(reader: &mut R) -> io::Result<Option<(Vec<u8>, Vec<u8>)>> {
    let mut head = Vec::with_capacity(512);
    loop {
        if reader.read_buf(&mut head).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        if let Some(at) = head.windows(4).position(|octets| octets == b"\r\n\r\n") {
            let behind = head.split_off(at + 4);
            return Ok(Some((head, behind)));
        }
        if head.len() > MAX_HEAD {
            return Ok(None);
        }
    }
}

/// The target of the request line (RFC 9112, section 3.2.3). The field Host says nothing: it is always 127.0.0.1 of an API server.
fn destination(head: &[u8]) -> Result<&str, (u16, String)> {
    let line = head.split(|octet| *octet == b'\r').next().unwrap_or_default();
    let line = std::str::from_utf8(line).map_err(|_octets| (400, "a request line is text".to_owned()))?;
    let mut words = line.split(' ');
    let (method, target, version) = (words.next(), words.next(), words.next());
    match (method, target, version, words.next()) {
        (Some("CONNECT"), Some(target), Some("HTTP/1.1" | "HTTP/1.0"), None) => {
            let is_port = |port: &str| port.parse::<u16>().is_ok();
            match target.rsplit_once(':') {
                Some((host, port)) if !host.is_empty() && is_port(port) => Ok(target),
                _ => Err((400, "the target of CONNECT is host:port".to_owned())),
            }
        }
        (Some(_), Some(_), Some(version), None) if version.starts_with("HTTP/1.") => {
            Err((405, "this proxy only supports CONNECT passthrough".to_owned()))
        }
        _ => Err((400, "a request is CONNECT host:port HTTP/1.1".to_owned())),
    }
}

/// As upstream's, which goes by the words of Go.
fn status_of(refusal: &Refusal) -> u16 {
    match refusal {
        Refusal::NoAgent => 500,
        Refusal::AgentGone => 502,
        Refusal::Denied(_) => 403,
        Refusal::Target(text) if has_one_of(text, &["i/o timeout", "deadline exceeded"]) => 504,
        Refusal::Target(text) if has_one_of(text, &["too many open files", "too many dials"]) => 503,
        Refusal::Target(_) => 502,
    }
}

fn has_one_of(text: &str, words: &[&str]) -> bool {
    words.iter().any(|word| text.contains(word))
}

async fn refuse<W: AsyncWrite + Unpin>(writer: &mut W, status: u16, reason: &str) -> io::Result<()> {
    let printable = reason
        .chars()
        .map(|letter| if letter.is_ascii_graphic() { letter } else { ' ' });
    let reason: String = printable.take(MAX_REASON).collect();
    let length = reason.len() + 1;
    let answer = format!(
        "HTTP/1.1 {status} {reason}\r\nContent-Type: text/plain\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{reason}\n"
    );
    writer.write_all(answer.as_bytes()).await?;
    writer.shutdown().await
}
