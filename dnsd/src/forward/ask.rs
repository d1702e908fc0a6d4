//! One question over one socket.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};

use egret_shared::rt::clock;
use egret_shared::switch::{self, Switch};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UdpSocket};

use crate::answer::Answer;
use crate::config::Config;
use crate::exchange::{Case, Exchange, Matched, Mismatch, Transport};
use crate::message::Query;
use crate::metrics::{Metrics, UpstreamError};

/// Octets of a datagram that are read: twice what any upstream is told to send.
const LARGEST: usize = 8192;

/// What came back in a datagram.
#[derive(Debug)]
pub(super) enum Datagram {
    /// The answer.
    Answer(Matched<Answer>),
    /// What may be the answer of a server that does not keep the case, or anybody's: it is not taken.
    OtherCase,
}

/// Asks over a socket of its own, whose port the kernel draws at random; waits for ever.
pub(super) async fn over_udp(
    query: &Query,
    case: Case,
    upstream: SocketAddr,
    config: &Config,
    metrics: &Metrics,
) -> Result<Datagram, UpstreamError> {
    let exchange = Exchange::new(query, Transport::Udp, case, config.max_udp_size);
    let socket = socket_to(upstream).await.map_err(|error| kind_of(&error))?;
    socket
        .send_to(exchange.octets(), upstream)
        .await
        .map_err(|error| kind_of(&error))?;
    let mut buffer = vec![0; LARGEST];
    loop {
        let length = socket.recv(&mut buffer).await.map_err(|error| kind_of(&error))?;
        match exchange.take(&buffer[..length], clock::now(), &config.ttl) {
            Ok(answer) => return Ok(Datagram::Answer(answer)),
            Err(mismatch) => {
                metrics.mismatch(mismatch);
                if mismatch == Mismatch::Case {
                    return Ok(Datagram::OtherCase);
                }
            }
        }
    }
}

/// A socket that takes messages from this server and port only: the kernel drops all others.
async fn socket_to(upstream: SocketAddr) -> io::Result<UdpSocket> {
    let any: SocketAddr = match upstream {
        SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
        SocketAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, 0).into(),
    };
    let socket = UdpSocket::bind(any).await?;
    if !switch::is_off(Switch::MatchAnswer) {
        socket.connect(upstream).await?;
    }
    Ok(socket)
}

/// Asks over a connection of its own; waits for ever.
pub(super) async fn over_tcp(
    query: &Query,
    upstream: SocketAddr,
    config: &Config,
    metrics: &Metrics,
) -> Result<Matched<Answer>, UpstreamError> {
    let exchange = Exchange::new(query, Transport::Tcp, Case::Mixed, config.max_udp_size);
    let octets = converse(exchange.octets(), upstream)
        .await
        .map_err(|error| kind_of(&error))?;
    exchange
        .take(&octets, clock::now(), &config.ttl)
        .map_err(|mismatch| {
            metrics.mismatch(mismatch);
            UpstreamError::Unreachable
        })
}

async fn converse(question: &[u8], upstream: SocketAddr) -> io::Result<Vec<u8>> {
    let mut stream = TcpStream::connect(upstream).await?;
    stream.set_nodelay(true)?;
    let length = u16::try_from(question.len()).map_err(io::Error::other)?;
    let mut framed = length.to_be_bytes().to_vec();
    framed.extend_from_slice(question);
    stream.write_all(&framed).await?;
    let length = stream.read_u16().await?;
    let mut answer = vec![0; length.into()];
    stream.read_exact(&mut answer).await?;
    Ok(answer)
}

fn kind_of(error: &io::Error) -> UpstreamError {
    tracing::debug!(%error, "an upstream cannot be asked");
    match error.raw_os_error() {
        Some(libc::EMFILE | libc::ENFILE | libc::ENOBUFS | libc::ENOMEM | libc::EADDRNOTAVAIL) => {
            UpstreamError::Local
        }
        Some(_) | None => UpstreamError::Unreachable,
    }
}
