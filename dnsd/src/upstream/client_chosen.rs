//! Queries to a resolver that a client chose itself: its responses are relayed to that client only.

use std::net::SocketAddr;

use egret_shared::rt::clock;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UdpSocket};
use tokio::time::timeout;

use super::failure::Failure;
use super::{Limits, io_error};
use crate::dns::message::Query;
use crate::net;
use crate::upstream::pending_query::{Case, PendingQuery, Relayed, Transport};

/// Queries over the client's transport: a truncated response is the client's to retry.
///
/// # Errors
/// Why there is no response.
pub async fn ask(
    server: SocketAddr,
    query: &Query<'_>,
    client: net::Transport,
    limits: &Limits,
) -> Result<Relayed, Failure> {
    let asking = async {
        match client {
            net::Transport::Udp => by_datagram(server, query, limits).await,
            net::Transport::Tcp => by_connection(server, query, limits).await,
        }
    };
    let answer = timeout(limits.patience, asking).await;
    answer.unwrap_or(Err(Failure::Timeout))
}

async fn by_datagram(server: SocketAddr, query: &Query<'_>, limits: &Limits) -> Result<Relayed, Failure> {
    let pending_query = PendingQuery::new(query, Transport::Udp, Case::Plain, limits.udp_size);
    let any = match server {
        SocketAddr::V4(_) => SocketAddr::from(([0; 4], 0)),
        SocketAddr::V6(_) => SocketAddr::from(([0; 16], 0)),
    };
    let socket = UdpSocket::bind(any).await.map_err(|error| io_error::of(&error))?;
    socket
        .connect(server)
        .await
        .map_err(|error| io_error::of(&error))?;
    let sent = socket.send(pending_query.octets()).await;
    sent.map_err(|error| io_error::of(&error))?;
    let mut octets = vec![0; usize::from(limits.udp_size)];
    loop {
        let length = socket
            .recv(&mut octets)
            .await
            .map_err(|error| io_error::of(&error))?;
        if let Ok(relayed) = pending_query.relay(&octets[..length], clock::now(), &limits.ttl) {
            return Ok(relayed);
        }
    }
}

async fn by_connection(server: SocketAddr, query: &Query<'_>, limits: &Limits) -> Result<Relayed, Failure> {
    let pending_query = PendingQuery::new(query, Transport::Tcp, Case::Plain, limits.udp_size);
    let length = u16::try_from(pending_query.octets().len()).map_err(|_too_long| Failure::Nonsense)?;
    let talking = async {
        let mut stream = TcpStream::connect(server).await?;
        stream
            .write_all(&[&length.to_be_bytes()[..], pending_query.octets()].concat())
            .await?;
        let mut octets = vec![0; stream.read_u16().await?.into()];
        stream.read_exact(&mut octets).await?;
        Ok(octets)
    };
    let octets = talking
        .await
        .map_err(|error: std::io::Error| io_error::of(&error))?;
    pending_query
        .relay(&octets, clock::now(), &limits.ttl)
        .map_err(|_mismatch| Failure::Nonsense)
}
