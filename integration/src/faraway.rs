//! A network behind the internet, over a link that carries smaller packets than both ends believe.

use std::sync::Arc;

use crate::{Service, World, WorldError, netns::Netns, sockets::SocketMaker};

/// Where its server is.
pub const ADDRESS: &str = "100.64.0.7";
pub const ADDRESS_V6: &str = "3fff::7";

const SYSCTLS: &[(&str, &str)] = &[
    ("ipv6/conf/all/accept_dad", "0"),
    ("ipv6/conf/default/accept_dad", "0"),
    ("ipv6/conf/default/accept_ra", "0"),
];

/// The network; it ends when this is dropped.
#[derive(Debug)]
pub struct Faraway {
    _netns: Arc<Netns>,
}

impl World {
    /// Lays a network behind the internet, over a link of this MTU, with an echo server on this port. The server
    /// announces segments as if its link had 1500, as a host behind a tunnel does: only an error on the way tells
    /// the sender.
    pub fn lay_faraway(&self, mtu: u16, port: u16) -> Result<Faraway, WorldError> {
        let netns = Arc::new(Netns::create(self.name(), "faraway", SYSCTLS)?);
        let internet = self.internet().netns();
        internet.sysctl("ipv4/ip_forward", "1")?;
        internet.sysctl("ipv6/conf/all/forwarding", "1")?;
        internet.ip(&format!(
            "link add faraway mtu {mtu} type veth peer name eth0 mtu {mtu} netns {}\n\
             link set faraway up\n\
             address add 100.64.0.1/24 dev faraway\n\
             address add 3fff::1/64 dev faraway nodad\n",
            netns.name()
        ))?;
        netns.ip(&format!(
            "link set lo up\n\
             link set eth0 up\n\
             address add {ADDRESS}/24 dev eth0\n\
             address add {ADDRESS_V6}/64 dev eth0 nodad\n\
             route add default via 100.64.0.1 advmss 1460\n\
             route add default via 3fff::1 advmss 1440\n"
        ))?;
        let sockets = SocketMaker::Thread(Arc::clone(&netns));
        let socket = sockets.listener(Service::TcpEcho.socket_type(), port);
        self.servers().serve(
            socket.map_err(|source| WorldError::Serve { port, source })?,
            Service::TcpEcho,
        );
        Ok(Faraway { _netns: netns })
    }
}
