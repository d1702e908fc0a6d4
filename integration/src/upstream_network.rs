//! The upstream network: a namespace with every address reserved for tests and documentation (RFC 5737, RFC 2544,
//! RFC 3849), with a few servers that answer on all of them.
//!
//! The prefixes are local routes (AnyIP), so no address has to be added before it can serve. All servers run on one
//! thread; their sockets are made inside the namespaces, the thread itself needs none.

use std::{collections::BTreeSet, sync::Arc, thread::JoinHandle, time::Duration};

use socket2::{Socket, Type};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    runtime::{Builder, Handle},
    sync::oneshot,
};

use crate::{
    WorldError, attachment,
    datagram::{WildcardUdp, unmapped},
    netns::Netns,
    node::{self, Node},
    sockets::SocketMaker,
};

/// TCP and UDP ports that are served from the start, on every address of the upstream network.
pub const SERVICES: &[(u16, Service)] = &[
    (7, Service::TcpEcho),
    (19, Service::Push),
    (80, Service::Http),
    (443, Service::TcpEcho),
    (8080, Service::Http),
    (7, Service::UdpEcho),
    (443, Service::UdpEcho),
    (5000, Service::UdpEcho),
];

const PREFIXES: &[&str] = &[
    "192.0.2.0/24",
    "198.18.0.0/15",
    "198.51.100.0/24",
    "203.0.113.0/24",
    "2001:db8::/32",
];
/// ICMP errors are not rationed: a closed port shall look closed each time. An address of a local IPv6 route counts as
/// "not ours" when it is named as a source (`ip6_datagram_send_ctl` in net/ipv6/datagram.c); an IPv4 one does not.
const SYSCTLS: &[(&str, &str)] = &[
    ("ipv4/icmp_ratelimit", "0"),
    ("ipv6/icmp/ratelimit", "0"),
    ("ipv6/ip_nonlocal_bind", "1"),
    ("ipv4/conf/all/rp_filter", "0"),
    ("ipv4/conf/default/rp_filter", "0"),
    ("ipv6/conf/all/accept_dad", "0"),
    ("ipv6/conf/default/accept_dad", "0"),
    ("ipv6/conf/default/accept_ra", "0"),
];
const PUSH_PACE: Duration = Duration::from_millis(50);

/// What a port does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Service {
    /// Sends back what it gets.
    TcpEcho,
    /// Sends back each datagram, from the address that was asked.
    UdpEcho,
    /// Answers any request with the address that was asked, and a line end.
    Http,
    /// Streams a line every 50 ms, unasked.
    Push,
    /// Streams a datagram every 50 ms to everybody who ever sent one.
    UdpPush,
}

impl Service {
    pub(crate) fn socket_type(self) -> Type {
        match self {
            Self::UdpEcho | Self::UdpPush => Type::DGRAM,
            Self::TcpEcho | Self::Http | Self::Push => Type::STREAM,
        }
    }
}

/// The namespace of the upstream network, joined to the node.
#[derive(Debug)]
pub(crate) struct UpstreamNetwork {
    netns: Arc<Netns>,
    servers: Servers,
}

impl UpstreamNetwork {
    pub(crate) fn create(world: &str, node: &Node, servers: Servers) -> Result<Self, WorldError> {
        let netns = Arc::new(Netns::create(world, "upstream", SYSCTLS)?);
        lay_uplink(node.netns(), &netns)?;
        let upstream_network = Self { netns, servers };
        SERVICES
            .iter()
            .try_for_each(|&(port, service)| upstream_network.serve(port, service))?;
        Ok(upstream_network)
    }

    pub(crate) fn serve(&self, port: u16, service: Service) -> Result<(), WorldError> {
        let socket = self.sockets().listener(service.socket_type(), port);
        self.servers.serve(
            socket.map_err(|source| WorldError::Serve { port, source })?,
            service,
        );
        Ok(())
    }

    pub(crate) fn sockets(&self) -> SocketMaker {
        SocketMaker::Thread(Arc::clone(&self.netns))
    }

    pub(crate) fn netns(&self) -> &Arc<Netns> {
        &self.netns
    }
}

/// The thread on which all servers of a world run.
#[derive(Clone, Debug)]
pub(crate) struct Servers {
    runtime: Handle,
    /// The last handle that is dropped ends the thread.
    _thread: Arc<ServerThread>,
}

#[derive(Debug)]
struct ServerThread {
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Servers {
    pub(crate) fn start() -> Result<Self, WorldError> {
        let failed = |source| WorldError::Serve { port: 0, source };
        let runtime = Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(failed)?;
        let handle = runtime.handle().clone();
        let (stop, stopped) = oneshot::channel();
        let thread = std::thread::Builder::new()
            .name("servers".into())
            // A dropped sender stops it as well as a word.
            .spawn(move || drop(runtime.block_on(stopped)))
            .map_err(failed)?;
        let thread = ServerThread {
            stop: Some(stop),
            thread: Some(thread),
        };
        Ok(Self {
            runtime: handle,
            _thread: Arc::new(thread),
        })
    }

    pub(crate) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        drop(self.runtime.spawn(task));
    }

    /// Runs `make` where tokio sockets can be made.
    pub(crate) fn enter<T>(&self, make: impl FnOnce() -> T) -> T {
        let _entered = self.runtime.enter();
        make()
    }

    /// Serves until the world ends. `socket` listens already, and does not block.
    pub(crate) fn serve(&self, socket: Socket, service: Service) {
        self.spawn(async move {
            let served = match service {
                Service::UdpEcho => echo_datagrams(socket).await,
                Service::UdpPush => push_datagrams(socket).await,
                Service::TcpEcho | Service::Http | Service::Push => accept(socket, service).await,
            };
            if let Err(error) = served {
                eprintln!("{service:?} server: {error}");
            }
        });
    }
}

impl Drop for ServerThread {
    fn drop(&mut self) {
        self.stop = None;
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            eprintln!("the thread of the servers panicked");
        }
    }
}

async fn echo_datagrams(socket: Socket) -> std::io::Result<()> {
    let socket = WildcardUdp::new(socket)?;
    loop {
        let datagram = socket.receive().await?;
        // The asker may be gone by now, or unreachable: the next one is not.
        drop(socket.send(&datagram.bytes, datagram.asked, datagram.from).await);
    }
}

async fn push_datagrams(socket: Socket) -> std::io::Result<()> {
    let socket = WildcardUdp::new(socket)?;
    let mut pace = tokio::time::interval(PUSH_PACE);
    let mut readers = BTreeSet::new();
    loop {
        tokio::select! {
            datagram = socket.receive() => {
                let datagram = datagram?;
                readers.insert((datagram.asked, datagram.from));
            }
            _ = pace.tick() => {
                for (asked, from) in &readers {
                    // One that is unreachable by now does not keep the others waiting.
                    drop(socket.send(b"push", *asked, *from).await);
                }
            }
        }
    }
}

async fn accept(socket: Socket, service: Service) -> std::io::Result<()> {
    let listener = TcpListener::from_std(socket.into())?;
    loop {
        let (stream, _) = listener.accept().await?;
        tokio::spawn(async move {
            let ended = match service {
                Service::TcpEcho => echo(stream).await,
                Service::Http => answer_http(stream).await,
                Service::Push => push(stream).await,
                Service::UdpEcho | Service::UdpPush => unreachable!("datagrams are not accepted"),
            };
            // A client that goes away is the usual end of each of them.
            drop(ended);
        });
    }
}

async fn echo(mut stream: TcpStream) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    let mut bytes = [0; 4096];
    loop {
        match stream.read(&mut bytes).await? {
            0 => return Ok(()),
            length => stream.write_all(&bytes[..length]).await?,
        }
    }
}

async fn push(mut stream: TcpStream) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    let mut pace = tokio::time::interval(PUSH_PACE);
    for number in 0u64.. {
        pace.tick().await;
        stream.write_all(format!("{number}\n").as_bytes()).await?;
    }
    Ok(())
}

/// Enough HTTP/1.1 (RFC 9112) for `curl`: the head is read to its empty line, the connection ends after the answer.
async fn answer_http(mut stream: TcpStream) -> std::io::Result<()> {
    let mut head = Vec::new();
    while !head.windows(4).any(|bytes| bytes == b"\r\n\r\n") && head.len() < 16_384 {
        if stream.read_buf(&mut head).await? == 0 {
            return Ok(());
        }
    }
    let body = format!("{}\n", unmapped(stream.local_addr()?).ip());
    let answer = format!(
        "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(answer.as_bytes()).await?;
    stream.shutdown().await
}

/// The veth pair between node and upstream network, and the routes of both.
fn lay_uplink(node: &Netns, upstream_network: &Netns) -> Result<(), WorldError> {
    node.ip(&format!(
        "link add uplink type veth peer name eth0 netns {}\n\
         link set uplink up\n\
         address add {}/30 dev uplink\n\
         address add {}/64 dev uplink nodad\n",
        upstream_network.name(),
        node::ADDRESS,
        node::ADDRESS_V6,
    ))?;
    let reserved: String = PREFIXES
        .iter()
        .map(|prefix| format!("route add local {prefix} dev lo\n"))
        .collect();
    let to_pods: String = [77, 78, 79]
        .map(|network| {
            let (v4, v6) = (node::ADDRESS, node::ADDRESS_V6);
            format!("route add 10.{network}.0.0/16 via {v4}\nroute add fd{network}::/64 via {v6}\n")
        })
        .concat();
    upstream_network.ip(&format!(
        "link set lo up\n\
         link set eth0 up\n\
         address add 10.76.0.1/30 dev eth0\n\
         address add fd76::1/64 dev eth0 nodad\n\
         address add {}/16 dev eth0\n\
         address add {}/64 dev eth0 nodad\n\
         {to_pods}{reserved}",
        attachment::MACVLAN_GATEWAY,
        attachment::MACVLAN_GATEWAY_V6,
    ))?;
    node.ip("route add default via 10.76.0.1\nroute add default via fd76::1\n")
}
