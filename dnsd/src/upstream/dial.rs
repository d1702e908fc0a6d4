//! How a connection to an upstream comes about.

use std::io;
use std::net::{IpAddr, SocketAddr};

use tokio::net::{TcpSocket, TcpStream};
use tokio_rustls::client::TlsStream;

use super::failure::Failure;
use super::io_error;
use super::tls::Proof;
use crate::upstream::counters::Carrier;

/// Whom to connect to, from where, and what it must prove.
#[derive(Debug)]
pub(super) struct Dial {
    pub(super) to: SocketAddr,
    pub(super) source: Option<IpAddr>,
    pub(super) proof: Option<Proof>,
}

/// A connection.
#[derive(Debug)]
pub(super) enum Wire {
    Plain(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
}

impl Dial {
    /// What carries questions on it.
    pub(super) const fn carrier(&self) -> Carrier {
        match self.proof {
            Some(_) => Carrier::Tls,
            None => Carrier::Tcp,
        }
    }

    /// Connects; waits as long as the kernel does.
    pub(super) async fn connect(&self) -> Result<Wire, Failure> {
        let stream = self.tcp().await.map_err(|error| io_error::of(&error))?;
        match &self.proof {
            None => Ok(Wire::Plain(stream)),
            Some(proof) => {
                let stream = proof.shake_hands(stream).await?;
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
