//! Where clients ask: a UDP and a TCP socket for each address. A wildcard answers from the address that was asked.

mod arrival;
mod datagram;
mod udp;
mod tcp;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use egret_shared::rt::task;
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::resolve::Resolver;
use crate::tally::Tally;
use datagram::Datagrams;

/// Bound sockets, on which nobody listens yet.
#[derive(Debug)]
pub struct Listeners {
    udp: Vec<Datagrams>,
    tcp: Vec<TcpListener>,
}

/// Why an address cannot be listened on.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen on {address} over {transport}: {source}")]
pub struct ListenError {
    address: SocketAddr,
    transport: &'static str,
    source: io::Error,
}

/// What every listener works with.
#[derive(Clone, Debug)]
pub struct Service {
    /// Who answers.
    pub resolver: Arc<Resolver>,
    /// What is under way; waited for at the end.
    pub under_way: TaskTracker,
    /// Cancelled when nothing new is to be taken.
    pub stop: CancellationToken,
    /// TCP connections.
    pub connections: Arc<Tally>,
}

impl Service {
    /// A service by this resolver.
    #[must_use]
    pub fn new(resolver: Arc<Resolver>) -> Self {
        Self {
            resolver,
            under_way: TaskTracker::new(),
            stop: CancellationToken::new(),
            connections: Arc::default(),
        }
    }
}

impl Listeners {
    /// Binds all of the addresses, or none.
    ///
    /// # Errors
    /// With the address.
    pub fn bind(addresses: &[SocketAddr]) -> Result<Self, ListenError> {
        let error = |address, transport| {
            move |source| ListenError {
                address,
                transport,
                source,
            }
        };
        let mut listeners = Self {
            udp: Vec::new(),
            tcp: Vec::new(),
        };
        for address in addresses {
            let datagrams = Datagrams::bind(*address).map_err(error(*address, "UDP"))?;
            // Port 0 is for tests: TCP gets the port that UDP drew.
            let bound = datagrams.local_address().map_err(error(*address, "UDP"))?;
            listeners.udp.push(datagrams);
            listeners.tcp.push(tcp::bind(bound).map_err(error(bound, "TCP"))?);
        }
        Ok(listeners)
    }

    /// The addresses, with the ports that were drawn where none was given.
    ///
    /// # Errors
    /// When the kernel does not say.
    pub fn addresses(&self) -> io::Result<Vec<SocketAddr>> {
        self.tcp.iter().map(TcpListener::local_addr).collect()
    }

    /// Listens. The tasks end when the service is stopped; one that ends before is a fault.
    #[must_use]
    pub fn serve(self, service: &Service) -> JoinSet<()> {
        let mut tasks = JoinSet::new();
        for datagrams in self.udp {
            watch(
                &mut tasks,
                task::spawn("udp", udp::serve(datagrams, service.clone())),
            );
        }
        for listener in self.tcp {
            watch(
                &mut tasks,
                task::spawn("tcp", tcp::serve(listener, service.clone())),
            );
        }
        tasks
    }
}

fn watch(tasks: &mut JoinSet<()>, listener: tokio::task::JoinHandle<()>) {
    tasks.spawn(async move {
        if let Err(error) = listener.await {
            tracing::error!(%error, "a listener died");
        }
    });
}
