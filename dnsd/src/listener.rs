//! Listeners: a UDP and a TCP socket for each address. A wildcard listener answers from the address that was queried.

pub mod threads;
pub mod handover;
mod metrics;
mod burst;
mod udp_socket;
mod reply_queue;
mod workers;
mod udp;
mod connection;
mod tcp;
mod encrypted;
mod tls;
mod https;
mod activity;
mod quic;
mod quic_socket;

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use egret_shared::rt::task;
use nix::sys::socket::{setsockopt, sockopt};
use socket2::SockRef;
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::limits::permits::FairSemaphore;
use crate::listener::connection::ListenerContext;
use crate::listener::handover::Handover;
use crate::listener::threads::Threads;
use crate::pipeline::Resolver;
use crate::takeover::{InheritedSockets, OpenConnection, SocketName, SocketPurpose};
use crate::zones::{EncryptedTables, Listener, ZoneTable};
use burst::Burst;
use udp_socket::ListenSocket;

pub use encrypted::EncryptedListeners;

/// The zone tables of all addresses.
pub type Tables = BTreeMap<SocketAddr, Arc<ZoneTable>>;

/// How long a closing listener is waited for; its turn takes a fraction of a millisecond.
const END_TIMEOUT: Duration = Duration::from_secs(1);

/// Bound sockets without listeners.
#[derive(Debug)]
pub struct BoundListeners(Vec<BoundListener>);

#[derive(Debug)]
struct BoundListener {
    port: Arc<Listener>,
    udp: ListenSocket,
    tcp: TcpListener,
    kept: SocketFds,
}

/// Duplicated descriptors of the sockets, for a new process or a resume.
#[derive(Debug)]
struct SocketFds {
    udp: OwnedFd,
    replies: Option<OwnedFd>,
    tcp: OwnedFd,
}

/// The running listeners.
#[derive(Debug)]
pub struct Listeners {
    service: Service,
    open: BTreeMap<SocketAddr, OpenListener>,
    encrypted: encrypted::Listening,
    tasks: JoinSet<bool>,
    is_paused: bool,
}

#[derive(Debug)]
struct OpenListener {
    port: Arc<Listener>,
    /// Ends the listener, and its connections when they are idle.
    close: CancellationToken,
    /// Ends the listener only.
    pause: CancellationToken,
    kept: SocketFds,
}

/// Why an address cannot be bound.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen on {address} over {transport}: {source}")]
pub struct ListenError {
    address: SocketAddr,
    transport: &'static str,
    source: io::Error,
}

/// What all listeners share.
#[derive(Clone, Debug)]
pub struct Service {
    /// Answers queries.
    pub resolver: Arc<Resolver>,
    /// Tasks that shutdown waits for.
    pub under_way: TaskTracker,
    /// Cancelled when no new queries are accepted.
    pub stop: CancellationToken,
    /// Open connections after a takeover.
    pub handover: Arc<Handover>,
    /// Permits of TCP connections.
    pub connections: Arc<FairSemaphore<CancellationToken>>,
    /// Permits of TLS and QUIC handshakes.
    pub handshakes: Arc<FairSemaphore<CancellationToken>>,
    /// Permits of octets of replies that wait for TCP clients.
    pub unwritten: Arc<FairSemaphore<CancellationToken>>,
    /// Further threads that read the sockets.
    pub threads: Arc<Threads>,
    metrics: metrics::Metrics,
}

impl Service {
    /// A service with this resolver.
    #[must_use]
    pub fn new(resolver: Arc<Resolver>, threads: Arc<Threads>) -> Self {
        Self {
            resolver,
            threads,
            under_way: TaskTracker::new(),
            stop: CancellationToken::new(),
            handover: Arc::default(),
            connections: Arc::default(),
            handshakes: Arc::default(),
            unwritten: Arc::default(),
            metrics: metrics::Metrics::register(),
        }
    }
}

impl BoundListeners {
    /// Binds all of the addresses, or none; inherited sockets are not bound again.
    ///
    /// # Errors
    /// With the address.
    pub fn bind<'a>(
        tables: impl IntoIterator<Item = (&'a SocketAddr, &'a Arc<ZoneTable>)>,
        inheritance: &mut InheritedSockets,
    ) -> Result<Self, ListenError> {
        let mut bound = Vec::new();
        for (address, table) in tables {
            match BoundListener::new(*address, table, inheritance) {
                Ok(sockets) => bound.push(sockets),
                Err(error) if address.ip().is_unspecified() && error.is_without_ipv6() => {
                    tracing::info!(%address, "this host has no IPv6");
                }
                Err(error) => return Err(error),
            }
        }
        Ok(Self(bound))
    }

    /// Binds the addresses of encrypted blocks.
    ///
    /// # Errors
    /// With the address.
    pub fn bind_encrypted(
        tables: &EncryptedTables,
        inheritance: &mut InheritedSockets,
    ) -> Result<EncryptedListeners, ListenError> {
        EncryptedListeners::bind(tables, inheritance)
    }

    /// The addresses, with the ports that the kernel chose for port 0.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn addresses(&self) -> io::Result<Vec<SocketAddr>> {
        self.0.iter().map(|bound| bound.tcp.local_addr()).collect()
    }

    /// Starts the listeners. Their tasks end when the service stops or the address is closed; a task that ends earlier
    /// is a fault.
    #[must_use]
    pub fn serve(self, service: &Service) -> Listeners {
        let mut listening = Listeners {
            service: service.clone(),
            open: BTreeMap::new(),
            encrypted: encrypted::Listening::default(),
            tasks: JoinSet::new(),
            is_paused: false,
        };
        listening.open(self);
        listening
    }
}

impl BoundListener {
    fn new(
        address: SocketAddr,
        table: &Arc<ZoneTable>,
        inheritance: &mut InheritedSockets,
    ) -> Result<Self, ListenError> {
        let error = |address, transport| {
            move |source| ListenError {
                address,
                transport,
                source,
            }
        };
        let mut inherited = |purpose| inheritance.socket(SocketName { purpose, address });
        let udp = match inherited(SocketPurpose::Udp) {
            Some(socket) => ListenSocket::inherit(socket, inherited(SocketPurpose::Replies)),
            None => ListenSocket::bind(address),
        };
        let mut udp = udp.map_err(error(address, "UDP"))?;
        // Port 0 is for tests: TCP gets the port of UDP.
        let drawn = udp.local_address().map_err(error(address, "UDP"))?;
        let tcp = match inherited(SocketPurpose::Tcp) {
            Some(socket) => tcp::inherit(socket),
            None => tcp::bind(drawn),
        };
        // The port may be in use over TCP: another one is chosen.
        let is_taken = |error: &io::Error| error.kind() == io::ErrorKind::AddrInUse;
        if address.port() == 0 && tcp.as_ref().is_err_and(is_taken) {
            return Self::new(address, table, inheritance);
        }
        let tcp = tcp.map_err(error(drawn, "TCP"))?;
        if table.config.intercepts_at(address) {
            let transparent = be_transparent(&udp, address).and_then(|()| be_transparent(&tcp, address));
            transparent.map_err(error(
                address,
                "UDP and TCP for others (this needs CAP_NET_ADMIN)",
            ))?;
            udp = udp.without_outlet();
        }
        Ok(Self {
            kept: SocketFds::of(&udp, &tcp).map_err(error(address, "UDP and TCP"))?,
            tcp,
            port: Arc::new(Listener::new(address, Arc::clone(table))),
            udp,
        })
    }
}

/// Accepts intercepted packets, and answers from their destination.
fn be_transparent(socket: &impl AsFd, address: SocketAddr) -> io::Result<()> {
    let socket = SockRef::from(socket);
    if address.is_ipv4() {
        socket.set_ip_transparent_v4(true)
    } else {
        socket.set_ip_transparent_v6(true)
    }
}

impl ListenError {
    fn is_without_ipv6(&self) -> bool {
        let absent = [libc::EAFNOSUPPORT, libc::EADDRNOTAVAIL];
        self.address.is_ipv6()
            && self
                .source
                .raw_os_error()
                .is_some_and(|code| absent.contains(&code))
    }
}

impl Listeners {
    /// Binds the addresses that have no listener yet, before anything else changes. A wildcard is bound beside the
    /// single addresses of its port.
    ///
    /// # Errors
    /// With the address that cannot be bound.
    pub fn bind(&self, tables: &Tables) -> Result<BoundListeners, ListenError> {
        let new = tables
            .iter()
            .filter(|(address, _)| !self.open.contains_key(address));
        let _shared = self.share_ports();
        BoundListeners::bind(new, &mut InheritedSockets::none())
    }

    /// As [`bind`](Self::bind), for encrypted blocks.
    ///
    /// # Errors
    /// With the address that cannot be bound.
    pub fn bind_encrypted(&self, tables: &EncryptedTables) -> Result<EncryptedListeners, ListenError> {
        let _shared = self.share_ports();
        self.encrypted.bind(tables)
    }

    /// As [`adopt`](Self::adopt), for encrypted blocks.
    pub fn adopt_encrypted(&mut self, tables: &EncryptedTables, new: EncryptedListeners) {
        self.encrypted.adopt(tables);
        self.encrypted.open(new, &self.service, &mut self.tasks);
    }

    /// Listens on these addresses, `new` ones among them. Sockets that stay are not touched; sockets that go are read
    /// until they are empty.
    pub fn adopt(&mut self, tables: &Tables, new: BoundListeners) {
        for (address, open) in &self.open {
            match tables.get(address) {
                Some(table) => open.port.set(Arc::clone(table)),
                None => open.close.cancel(),
            }
        }
        self.open.retain(|address, _| tables.contains_key(address));
        self.open(new);
    }

    /// Serves a connection that the old process has served; an error if nothing listens at its address.
    ///
    /// # Errors
    /// When its address has no listener any more, or the kernel refuses.
    pub fn adopt_connection(&self, connection: OpenConnection) -> io::Result<()> {
        let open = self.open.get(&connection.listener);
        let open = open.ok_or_else(|| io::Error::other("nothing listens at its address any more"))?;
        let listener = ListenerContext {
            port: Arc::clone(&open.port),
            service: self.service.clone(),
            close: open.close.clone(),
        };
        tcp::adopt(&listener, connection)
    }

    /// Closes the duplicated descriptors: a new process has its own, and a later one can bind.
    pub fn release(&mut self) {
        self.open.clear();
        self.encrypted.release();
    }

    /// Waits until a listener ends that was not closed.
    pub async fn ended(&mut self) {
        while let Some(ended) = self.tasks.join_next().await {
            if !matches!(ended, Ok(true)) {
                return;
            }
        }
        std::future::pending().await
    }

    /// Waits until all closed listeners have ended. A thread that hangs is not waited for: if it continues, it may
    /// answer what it has read, and reads no more.
    pub async fn all_ended(&mut self) {
        let ended = async { while self.tasks.join_next().await.is_some() {} };
        if timeout(END_TIMEOUT, ended).await.is_err() {
            tracing::error!("a listener hangs; it is not waited for");
        }
    }

    /// Descriptors of all sockets, for a new process.
    ///
    /// # Errors
    /// When no more files may be open.
    pub fn sockets(&self) -> io::Result<Vec<(SocketName, OwnedFd)>> {
        let mut sockets = Vec::new();
        for (address, open) in &self.open {
            for (purpose, socket) in open.kept.all() {
                let address = *address;
                sockets.push((SocketName { purpose, address }, socket.try_clone_to_owned()?));
            }
        }
        for (name, socket) in self.encrypted.sockets() {
            sockets.push((name, socket.try_clone_to_owned()?));
        }
        Ok(sockets)
    }

    /// Stops reading and accepting; queries under way continue. Packets wait in the sockets, for a new process or for
    /// `resume`.
    pub async fn pause(&mut self) {
        if std::mem::replace(&mut self.is_paused, true) {
            return;
        }
        // First: cleartext clients are answered until then.
        self.encrypted.pause().await;
        for open in self.open.values() {
            open.pause.cancel();
        }
        self.all_ended().await;
    }

    /// Listens again after a pause.
    ///
    /// # Errors
    /// When the sockets can no longer be used.
    pub fn resume(&mut self) -> io::Result<()> {
        if !std::mem::take(&mut self.is_paused) {
            return Ok(());
        }
        let mut again = Vec::new();
        for open in self.open.values() {
            again.push(open.kept.listen_again()?);
        }
        for (open, (udp, tcp)) in std::mem::take(&mut self.open).into_values().zip(again) {
            let OpenListener {
                port,
                close,
                kept,
                pause: _ended,
            } = open;
            self.listen(BoundListener { port, udp, tcp, kept }, close);
        }
        self.encrypted.resume(&self.service, &mut self.tasks)
    }

    /// While the guard exists, this user's sockets can be bound beside the open ones (`SO_REUSEPORT`, socket(7)).
    /// Queued packets stay in their socket.
    fn share_ports(&self) -> SharedPorts<'_> {
        let sockets = self.open.values().flat_map(|open| open.kept.all());
        let sockets = sockets.map(|(_, socket)| socket);
        let encrypted = self.encrypted.sockets().map(|(_, socket)| socket);
        SharedPorts::new(sockets.chain(encrypted).collect())
    }

    fn open(&mut self, listeners: BoundListeners) {
        for bound in listeners.0 {
            let close = self.service.stop.child_token();
            self.listen(bound, close);
        }
    }

    fn listen(&mut self, bound: BoundListener, close: CancellationToken) {
        let BoundListener { port, udp, tcp, kept } = bound;
        let pause = close.child_token();
        let close_tokens = tcp::CloseTokens {
            listener: pause.clone(),
            connections: close.clone(),
        };
        let service = &self.service;
        let further = service.threads.further();
        let burst = (!further.is_empty()).then(Arc::<Burst>::default);
        let over_udp = udp::UdpReader::new(Arc::new(udp), Arc::clone(&port), service.clone(), burst.clone());
        if let Some(burst) = burst {
            for thread in further {
                let listener = over_udp.for_further_thread();
                let helping = listener.help(Arc::clone(&burst), pause.clone());
                watch(&mut self.tasks, task::spawn_on(thread, helping), pause.clone());
            }
        }
        let over_tcp = tcp::serve(tcp, Arc::clone(&port), service.clone(), close_tokens);
        // Without a name: its span would be entered and left at each wake.
        let over_udp = over_udp.serve(pause.clone());
        watch(&mut self.tasks, task::spawn_brief(over_udp), pause.clone());
        watch(&mut self.tasks, task::spawn("tcp", over_tcp), pause.clone());
        self.open.insert(
            port.address,
            OpenListener {
                port,
                close,
                pause,
                kept,
            },
        );
    }
}

/// Sockets that share their ports while the guard exists.
#[derive(Debug)]
struct SharedPorts<'a>(Vec<BorrowedFd<'a>>);

impl<'a> SharedPorts<'a> {
    fn new(sockets: Vec<BorrowedFd<'a>>) -> Self {
        let shared = Self(sockets);
        shared.set(true);
        shared
    }

    fn set(&self, shares: bool) {
        for socket in &self.0 {
            if let Err(error) = setsockopt(socket, sockopt::ReusePort, &shares) {
                tracing::debug!(%error, "a port is not shared");
            }
        }
    }
}

impl Drop for SharedPorts<'_> {
    fn drop(&mut self) {
        self.set(false);
    }
}

impl SocketFds {
    fn of(udp: &ListenSocket, tcp: &TcpListener) -> io::Result<Self> {
        Ok(Self {
            udp: udp.as_fd().try_clone_to_owned()?,
            replies: udp
                .outlet()
                .map(|outlet| outlet.try_clone_to_owned())
                .transpose()?,
            tcp: tcp.as_fd().try_clone_to_owned()?,
        })
    }

    fn all(&self) -> impl Iterator<Item = (SocketPurpose, BorrowedFd<'_>)> {
        let replies = self.replies.as_ref();
        [
            (SocketPurpose::Udp, self.udp.as_fd()),
            (SocketPurpose::Tcp, self.tcp.as_fd()),
        ]
        .into_iter()
        .chain(replies.map(|replies| (SocketPurpose::Replies, replies.as_fd())))
    }

    fn listen_again(&self) -> io::Result<(ListenSocket, TcpListener)> {
        let replies = self.replies.as_ref().map(OwnedFd::try_clone).transpose()?;
        Ok((
            ListenSocket::inherit(self.udp.try_clone()?, replies)?,
            tcp::inherit(self.tcp.try_clone()?)?,
        ))
    }
}

/// Waits for a listener; returns whether it was closed.
fn watch(tasks: &mut JoinSet<bool>, listener: tokio::task::JoinHandle<()>, close: CancellationToken) {
    tasks.spawn(async move {
        if let Err(error) = listener.await {
            tracing::error!(%error, "a listener died");
            return false;
        }
        close.is_cancelled()
    });
}
