//! Who makes a pod's sockets. A socket keeps the namespace and the cgroup of the task that made it, whoever uses it
//! later; so only the call `socket(2)` has to happen inside the pod, and every probe is ordinary code outside.

use std::{
    io,
    net::{IpAddr, SocketAddr},
    sync::Arc,
};

use socket2::{Domain, Protocol, SockAddr, Socket, Type};

use crate::{cgroup::Cgroup, netns::Netns};

/// Makes sockets that belong to one pod or to the node.
#[derive(Clone, Debug)]
pub(crate) enum SocketMaker {
    /// The namespace's own thread: quick, and in the test's cgroup.
    Thread(Arc<Netns>),
    /// A forked child that has joined the pod's cgroup (cgroup2 moves processes, not threads).
    Child(Arc<Cgroup>),
}

impl SocketMaker {
    pub(crate) fn socket(&self, towards: IpAddr, kind: Type) -> io::Result<Socket> {
        self.make(domain_of(towards), kind)
    }

    /// A socket of a protocol that is neither TCP nor UDP.
    pub(crate) fn of_protocol(&self, towards: IpAddr, kind: Type, protocol: Protocol) -> io::Result<Socket> {
        self.make_of(domain_of(towards), kind, protocol)
    }

    /// A listener on every address of the namespace, IPv4 and IPv6.
    pub(crate) fn listener(&self, kind: Type, port: u16) -> io::Result<Socket> {
        let socket = self.make(Domain::IPV6, kind)?;
        socket.set_only_v6(false)?;
        socket.set_reuse_address(true)?;
        socket.set_nonblocking(true)?;
        socket.bind(&SockAddr::from(SocketAddr::from(([0u16; 8], port))))?;
        if kind == Type::STREAM {
            socket.listen(1024)?;
        }
        Ok(socket)
    }

    fn make(&self, domain: Domain, kind: Type) -> io::Result<Socket> {
        let protocol = if kind == Type::STREAM {
            Protocol::TCP
        } else {
            Protocol::UDP
        };
        self.make_of(domain, kind, protocol)
    }

    fn make_of(&self, domain: Domain, kind: Type, protocol: Protocol) -> io::Result<Socket> {
        match self {
            Self::Thread(netns) => netns.within(move || Socket::new(domain, kind, Some(protocol))),
            Self::Child(cgroup) => cgroup.socket(domain, kind, protocol),
        }
    }
}

fn domain_of(address: IpAddr) -> Domain {
    match address {
        IpAddr::V4(_) => Domain::IPV4,
        IpAddr::V6(_) => Domain::IPV6,
    }
}

/// A socket call with a timeout ends with EINTR when the process was stopped and goes on again, as when the machine
/// was paused (signal(7)): that is no answer of the network.
pub fn uninterrupted<T>(mut call: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    loop {
        match call() {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            ended => return ended,
        }
    }
}
