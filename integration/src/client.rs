//! Clients that are no pods: on the node, and outside the cluster.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use socket2::Type;

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
        let attempt = self.sockets.socket(to.ip(), Type::STREAM).and_then(|socket| {
            socket.connect_timeout(&to.into(), patience)?;
            socket.set_tcp_nodelay(true)?;
            Ok(Connection::new(socket.into()))
        });
        attempt.map_or_else(Outcome::of, Outcome::Connected)
    }
}
