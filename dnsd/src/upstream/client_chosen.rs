//! Asking a resolver that a pod chose itself: whatever it says is given to that pod, and means nothing to anybody else.

use std::net::SocketAddr;

use egret_shared::rt::clock;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UdpSocket};
use tokio::time::timeout;

use super::failure::Failure;
use super::{Limits, io_error};
use crate::dns::message::Query;
use crate::telemetry::metrics;
use crate::upstream::pending_query::{Case, Exchange, Relayed, Transport};

/// Asks over what the pod asked over: a truncated answer is the pod's to ask again.
///
/// # Errors
/// Why there is no answer.
pub async fn ask(
    server: SocketAddr,
    query: &Query<'_>,
    client: metrics::Transport,
    limits: &Limits,
) -> Result<Relayed, Failure> {
    let asking = async {
        match client {
            metrics::Transport::Udp => by_datagram(server, query, limits).await,
            metrics::Transport::Tcp | metrics::Transport::Quic => by_connection(server, query, limits).await,
        }
    };
    let answer = timeout(limits.patience, asking).await;
    answer.unwrap_or(Err(Failure::Timeout))
}

async fn by_datagram(server: SocketAddr, query: &Query<'_>, limits: &Limits) -> Result<Relayed, Failure> {
    let exchange = Exchange::new(query, Transport::Udp, Case::Plain, limits.udp_size);
    let any = match server {
        SocketAddr::V4(_) => SocketAddr::from(([0; 4], 0)),
        SocketAddr::V6(_) => SocketAddr::from(([0; 16], 0)),
    };
    let socket = UdpSocket::bind(any).await.map_err(|error| io_error::of(&error))?;
    socket
        .connect(server)
        .await
        .map_err(|error| io_error::of(&error))?;
    let sent = socket.send(exchange.octets()).await;
    sent.map_err(|error| io_error::of(&error))?;
    let mut octets = vec![0; usize::from(limits.udp_size)];
    loop {
        let length = socket
            .recv(&mut octets)
            .await
            .map_err(|error| io_error::of(&error))?;
        if let Ok(relayed) = exchange.relay(&octets[..length], clock::now(), &limits.ttl) {
            return Ok(relayed);
        }
    }
}

async fn by_connection(server: SocketAddr, query: &Query<'_>, limits: &Limits) -> Result<Relayed, Failure> {
    let exchange = Exchange::new(query, Transport::Tcp, Case::Plain, limits.udp_size);
    let length = u16::try_from(exchange.octets().len()).map_err(|_too_long| Failure::Nonsense)?;
    let talking = async {
        let mut stream = TcpStream::connect(server).await?;
        stream
            .write_all(&[&length.to_be_bytes()[..], exchange.octets()].concat())
            .await?;
        let mut octets = vec![0; stream.read_u16().await?.into()];
        stream.read_exact(&mut octets).await?;
        Ok(octets)
    };
    let octets = talking
        .await
        .map_err(|error: std::io::Error| io_error::of(&error))?;
    exchange
        .relay(&octets, clock::now(), &limits.ttl)
        .map_err(|_mismatch| Failure::Nonsense)
}
