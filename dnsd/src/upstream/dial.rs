//! Opens connections to upstreams.

use std::io;
use std::net::{IpAddr, SocketAddr};

use tokio::net::{TcpSocket, TcpStream};
use tokio_rustls::client::TlsStream;

use super::failure::Failure;
use super::io_error;
use super::tls::Proof;
use crate::upstream::counters::ConnectionKind;

/// The destination, source and TLS identity of connections.
#[derive(Debug)]
pub(super) struct Dial {
    pub(super) to: SocketAddr,
    pub(super) source: Option<IpAddr>,
    pub(super) proof: Option<Proof>,
}

/// An open connection.
#[derive(Debug)]
pub(super) enum Wire {
    Plain(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
}

impl Dial {
    /// The kind of connection, for metrics.
    pub(super) const fn connection_kind(&self) -> ConnectionKind {
        match self.proof {
            Some(_) => ConnectionKind::Tls,
            None => ConnectionKind::Tcp,
        }
    }

    /// Connects, without a timeout of its own.
    pub(super) async fn connect(&self) -> Result<Wire, Failure> {
        let stream = self.tcp().await.map_err(|error| io_error::of(&error))?;
        match &self.proof {
            None => Ok(Wire::Plain(stream)),
            Some(proof) => {
                let stream = proof.handshake(stream).await?;
                Ok(Wire::Tls(Box::new(stream)))
            }
        }
    }

    async fn tcp(&self) -> io::Result<TcpStream> {
        let socket = match self.to {
            SocketAddr::V4(_) => TcpSocket::new_v4()?,
            SocketAddr::V6(_) => TcpSocket::new_v6()?,
        };
        if let Some(source) = self.source {
            socket.bind(SocketAddr::new(source, 0))?;
        }
        socket.set_nodelay(true)?;
        socket.connect(self.to).await
    }
}
