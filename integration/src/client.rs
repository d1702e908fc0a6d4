//! Clients that are no pods: on the node, and outside the cluster.

use std::{
    io,
    net::{IpAddr, SocketAddr, UdpSocket},
    sync::Arc,
    time::Duration,
};

use socket2::{Socket, Type};

use crate::{Connection, Outcome, netns::Netns, sockets::SocketMaker};

/// Whoever connects from a namespace that is no pod's.
#[derive(Clone, Debug)]
pub struct Client {
    sockets: SocketMaker,
}

impl Client {
    pub(crate) fn within(netns: &Arc<Netns>) -> Self {
        Self {
            sockets: SocketMaker::Thread(Arc::clone(netns)),
        }
    }

    pub fn connect_tcp(&self, to: SocketAddr, patience: Duration) -> Outcome {
        self.connect(None, to, patience)
    }

    /// From an address that is one of the client's, or that it claims to have (IP_TRANSPARENT).
    pub fn connect_tcp_from(&self, source: IpAddr, to: SocketAddr, patience: Duration) -> Outcome {
        self.connect(Some(source), to, patience)
    }

    /// A UDP socket at an address that is one of the client's, or that it claims to have.
    pub fn udp_socket_at(&self, at: SocketAddr) -> io::Result<UdpSocket> {
        let socket = self.sockets.socket(at.ip(), Type::DGRAM)?;
        take_address(&socket, at)?;
        Ok(socket.into())
    }

    fn connect(&self, source: Option<IpAddr>, to: SocketAddr, patience: Duration) -> Outcome {
        let attempt = self.sockets.socket(to.ip(), Type::STREAM).and_then(|socket| {
            if let Some(source) = source {
                take_address(&socket, SocketAddr::new(source, 0))?;
            }
            socket.connect_timeout(&to.into(), patience)?;
            socket.set_tcp_nodelay(true)?;
            Ok(Connection::new(socket.into()))
        });
        attempt.map_or_else(Outcome::of, Outcome::Connected)
    }
}

fn take_address(socket: &Socket, at: SocketAddr) -> io::Result<()> {
    match at.ip() {
        IpAddr::V4(_) => socket.set_ip_transparent_v4(true)?,
        IpAddr::V6(_) => socket.set_ip_transparent_v6(true)?,
    }
    socket.set_reuse_address(true)?;
    socket.bind(&at.into())
}
