//! A remote host behind the upstream network, over a link with a smaller MTU than both ends assume.

use std::sync::Arc;

use crate::{Service, World, WorldError, netns::Netns, sockets::SocketMaker};

/// The addresses of its server.
pub const ADDRESS: &str = "100.64.0.7";
pub const ADDRESS_V6: &str = "3fff::7";

const SYSCTLS: &[(&str, &str)] = &[
    ("ipv6/conf/all/accept_dad", "0"),
    ("ipv6/conf/default/accept_dad", "0"),
    ("ipv6/conf/default/accept_ra", "0"),
];

/// The network of the remote host. It is removed when this is dropped.
#[derive(Debug)]
pub struct RemoteHost {
    _netns: Arc<Netns>,
}

impl World {
    /// Adds a remote host behind the upstream network, over a link of this MTU, with an echo server on this port. The
    /// server announces segments as if its link had an MTU of 1500, as a host behind a tunnel does: the sender learns
    /// the MTU only from an ICMP error.
    pub fn add_remote_host(&self, mtu: u16, port: u16) -> Result<RemoteHost, WorldError> {
        let netns = Arc::new(Netns::create(self.name(), "remote", SYSCTLS)?);
        let upstream_network = self.upstream_network().netns();
        upstream_network.sysctl("ipv4/ip_forward", "1")?;
        upstream_network.sysctl("ipv6/conf/all/forwarding", "1")?;
        upstream_network.ip(&format!(
            "link add remote mtu {mtu} type veth peer name eth0 mtu {mtu} netns {}\n\
             link set remote up\n\
             address add 100.64.0.1/24 dev remote\n\
             address add 3fff::1/64 dev remote nodad\n",
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
        Ok(RemoteHost { _netns: netns })
    }
}
