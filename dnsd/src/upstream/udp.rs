//! Queries in datagrams.
//!
//! Towards an upstream outside, each query has its own connected socket, with a source port that the kernel chooses at random:
//! an attacker cannot find the port in time (RFC 5452 §9.2). Towards a near upstream, queries share sockets, which are chosen at
//! random and closed after a few dozen queries: a socket per query costs more than the rest of it, and so does a system call
//! per query.

use std::cell::RefCell;
use std::io;
use std::net::{self, IpAddr, SocketAddr};
use std::os::fd::AsRawFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use egret_shared::rt::clock;
use egret_shared::time::Timestamp;
use nix::sys::socket::{MsgFlags, recv};
use socket2::{Domain, Protocol, Socket, Type};
use tokio::io::Interest;
use tokio::net::UdpSocket;
use tokio::time::{Instant, timeout_at};

use super::failure::Failure;
use super::io_error;
use crate::dns::answer::{Answer, TtlLimits};
use crate::upstream::Metrics;
use crate::upstream::counters::{ConnectionKind, UpstreamMetrics};
use crate::upstream::pending_query::{Mismatch, PendingQuery, ValidatedResponse};
use crate::upstream::pool_limits::PoolLimits;
use crate::upstream::socket_limit::UpstreamSockets;
use crate::upstream::udp_socket::{Availability, Datagram, InflightHandle, SharedSocket};

/// The largest datagram.
const LARGEST: usize = 65_535;

/// The sockets towards one upstream.
#[derive(Debug)]
pub(super) struct UdpSockets {
    to: SocketAddr,
    source: Option<IpAddr>,
    pool: Option<PoolLimits>,
    /// The limit of sockets for one query each.
    share: UpstreamSockets,
    /// Each socket is owned by its task and closes when that ends. Locked for a few operations on the list.
    shared: Mutex<Vec<Weak<SharedSocket>>>,
}

impl UdpSockets {
    pub(super) fn new(to: SocketAddr, source: Option<IpAddr>, pool: PoolLimits) -> Self {
        let shares = is_near(to.ip());
        Self {
            to,
            source,
            pool: shares.then_some(pool),
            share: UpstreamSockets::new(),
            shared: Mutex::default(),
        }
    }

    /// Sends a query and waits for the response without a deadline; after an ICMP error, for `grace`.
    pub(super) async fn ask(
        &self,
        pending_query: PendingQuery,
        ttl: &TtlLimits,
        grace: Duration,
        upstream_metrics: &UpstreamMetrics,
        metrics: &Arc<Metrics>,
    ) -> Result<Datagram, Failure> {
        let Some(pool) = self.pool else {
            upstream_metrics.opened(ConnectionKind::Udp);
            // Boxed: this path must not enlarge every query's future.
            return Box::pin(self.ask_alone(pending_query, ttl, grace, metrics)).await;
        };
        let asked = self.ask_shared(pool, pending_query, ttl, grace, upstream_metrics, metrics);
        asked.map_err(|error| io_error::of(&error))?.outcome().await
    }

    fn ask_shared(
        &self,
        pool: PoolLimits,
        mut pending_query: PendingQuery,
        ttl: &TtlLimits,
        grace: Duration,
        upstream_metrics: &UpstreamMetrics,
        metrics: &Arc<Metrics>,
    ) -> io::Result<InflightHandle> {
        let now = clock::now();
        loop {
            let socket = self.socket(pool, grace, upstream_metrics, metrics, now)?;
            match socket.ask(pending_query, ttl, now) {
                Ok(asked) => return Ok(asked),
                Err(back) => pending_query = back,
            }
        }
    }

    async fn ask_alone(
        &self,
        pending_query: PendingQuery,
        ttl: &TtlLimits,
        grace: Duration,
        metrics: &Metrics,
    ) -> Result<Datagram, Failure> {
        let _place = self.share.acquire().ok_or(Failure::Local)?;
        let socket = open(self.to, self.source).and_then(UdpSocket::from_std);
        let socket = socket.map_err(|error| io_error::of(&error))?;
        let sent = self.send(&socket, pending_query.octets()).await;
        sent.map_err(|error| io_error::of(&error))?;
        receive(&socket, &pending_query, ttl, grace, metrics).await
    }

    /// Closes idle sockets; returns whether any is left.
    pub(super) fn sweep(&self, now: Timestamp) -> bool {
        let Some(pool) = self.pool else {
            return false;
        };
        let mut shared = self.shared();
        shared.retain(|socket| is_kept(socket, &pool, now));
        !shared.is_empty()
    }

    /// The number of shared sockets.
    pub(super) fn count(&self) -> usize {
        self.shared().len()
    }

    /// The socket of a query: the one with unsent queries, so that they are sent together; or a random one, so that the next
    /// port cannot be predicted; or a new one.
    fn socket(
        &self,
        pool: PoolLimits,
        grace: Duration,
        upstream_metrics: &UpstreamMetrics,
        metrics: &Arc<Metrics>,
        now: Timestamp,
    ) -> io::Result<Arc<SharedSocket>> {
        let mut shared = self.shared();
        if let Some(socket) = choose(&pool, &mut shared, now) {
            upstream_metrics.reused(ConnectionKind::Udp);
            return Ok(socket);
        }
        upstream_metrics.opened(ConnectionKind::Udp);
        let socket = SharedSocket::open(open(self.to, self.source)?, grace, now, metrics)?;
        shared.push(Arc::downgrade(&socket));
        Ok(socket)
    }

    async fn send(&self, socket: &UdpSocket, octets: &[u8]) -> io::Result<usize> {
        socket.send(octets).await
    }

    fn shared(&self) -> MutexGuard<'_, Vec<Weak<SharedSocket>>> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for UdpSockets {
    fn drop(&mut self) {
        for socket in self.shared().iter().filter_map(Weak::upgrade) {
            socket.close();
        }
    }
}

/// A socket that takes another query; closed ones are removed from the list.
///
/// The socket chosen last is moved to the end: most queries of a batch look at that one alone.
fn choose(
    pool: &PoolLimits,
    shared: &mut Vec<Weak<SharedSocket>>,
    now: Timestamp,
) -> Option<Arc<SharedSocket>> {
    if let Some(last) = shared.last().and_then(Weak::upgrade)
        && last.availability(pool, now) == Availability::Batching
    {
        return Some(last);
    }
    let (mut batching, mut chosen) = (None, None);
    let (mut free, mut idle) = (0_usize, 0);
    shared.retain(|socket| {
        let Some(socket) = socket.upgrade() else {
            return false;
        };
        match socket.availability(pool, now) {
            Availability::Closed => return false,
            Availability::Stalled => {}
            Availability::Batching => batching = Some(socket),
            Availability::Free { is_idle } => {
                idle += usize::from(is_idle);
                if pool.most_idle != 0 && idle > pool.most_idle {
                    socket.close();
                    return false;
                }
                free += 1;
                if free == 1 || rand::random_range(0..free) == 0 {
                    chosen = Some(socket);
                }
            }
        }
        true
    });
    let found = batching.or(chosen)?;
    if let Some(place) = shared
        .iter()
        .position(|socket| socket.as_ptr() == Arc::as_ptr(&found))
    {
        let last = shared.len() - 1;
        shared.swap(place, last);
    }
    Some(found)
}

fn is_kept(socket: &Weak<SharedSocket>, pool: &PoolLimits, now: Timestamp) -> bool {
    socket
        .upgrade()
        .is_some_and(|socket| socket.availability(pool, now) != Availability::Closed)
}

/// A connected socket: the kernel drops messages from other addresses and ports.
fn open(to: SocketAddr, source: Option<IpAddr>) -> io::Result<net::UdpSocket> {
    let kind = Type::DGRAM.nonblocking();
    let socket = Socket::new(Domain::for_address(to), kind, Some(Protocol::UDP))?;
    // Without a source address, the kernel chooses address and port at `connect`.
    if let Some(source) = source {
        socket.bind(&SocketAddr::new(source, 0).into())?;
    }
    socket.connect(&to.into())?;
    Ok(socket.into())
}

async fn receive(
    socket: &UdpSocket,
    pending_query: &PendingQuery,
    ttl: &TtlLimits,
    grace: Duration,
    metrics: &Metrics,
) -> Result<Datagram, Failure> {
    // After an ICMP error: until when the response may still come, and the failure if it does not.
    let mut icmp_error: Option<(Instant, Failure)> = None;
    loop {
        let ready = socket.ready(Interest::READABLE | Interest::ERROR);
        let ready = match icmp_error {
            None => ready.await,
            Some((end, failure)) => timeout_at(end, ready).await.map_err(|_elapsed| failure)?,
        };
        // An ICMP error is an error event without data.
        if ready.map_err(|error| io_error::of(&error))?.is_error() {
            let failure = failure_of(socket)?;
            icmp_error.get_or_insert_with(|| (Instant::now() + grace, failure));
        }
        let taken = BUFFER.with_borrow_mut(|buffer| read(socket, buffer, pending_query, ttl));
        match taken {
            Ok(Ok(answer)) => return Ok(Datagram::Answer(answer)),
            Ok(Err(mismatch)) => {
                metrics.mismatch(mismatch);
                match mismatch {
                    Mismatch::Case => return Ok(Datagram::OtherCase),
                    Mismatch::Bare => return Ok(Datagram::Bare),
                    Mismatch::Unreadable | Mismatch::Id | Mismatch::Question => {}
                }
            }
            Err(error) if io_error::is_nothing(&error) => {}
            Err(error) if io_error::is_soft(&error) => {
                icmp_error.get_or_insert_with(|| (Instant::now() + grace, io_error::of(&error)));
            }
            Err(error) => return Err(io_error::of(&error)),
        }
    }
}

/// Reads a message. After the response nothing else is expected: reporting `WouldBlock` clears the runtime's readiness and
/// saves a system call.
fn read(
    socket: &UdpSocket,
    buffer: &mut [u8],
    pending_query: &PendingQuery,
    ttl: &TtlLimits,
) -> io::Result<Result<ValidatedResponse<Answer>, Mismatch>> {
    let mut answer = None;
    let read = socket.try_io(Interest::READABLE, || {
        let length = recv(socket.as_raw_fd(), buffer, MsgFlags::empty())?;
        match pending_query.validate(&buffer[..length], clock::now(), ttl) {
            Ok(taken) => {
                answer = Some(taken);
                Err(io::ErrorKind::WouldBlock.into())
            }
            Err(mismatch) => Ok(mismatch),
        }
    });
    match (answer, read) {
        (Some(answer), _) => Ok(Ok(answer)),
        (None, read) => read.map(Err),
    }
}

/// The pending error of a socket, as a failure.
///
/// # Errors
/// When it did not come by ICMP.
fn failure_of(socket: &UdpSocket) -> Result<Failure, Failure> {
    // Clears the runtime's error readiness.
    let read = socket.try_io(Interest::ERROR, || Err::<(), _>(io::ErrorKind::WouldBlock.into()));
    debug_assert!(read.is_err(), "nothing is done there");
    match socket.take_error() {
        Ok(None) => Ok(Failure::Unreachable),
        Ok(Some(error)) if io_error::is_soft(&error) => Ok(io_error::of(&error)),
        Ok(Some(error)) | Err(error) => Err(io_error::of(&error)),
    }
}

thread_local! {
/// Messages are read here and copied at their length: outstanding queries need no buffers.
static BUFFER : RefCell < Box < [u8] >> = RefCell::new(vec![0; LARGEST].into_boxed_slice()); }

/// Whether an address is local or in a network that is not routed through the internet, where a cluster's Services are
/// (RFC 1918, 3927, 4193, 4291, 6598): nobody outside can spoof it.
pub(crate) fn is_near(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => {
            let is_shared = v4.octets()[0] == 100 && v4.octets()[1] & 0xc0 == 64;
            v4.is_loopback() || v4.is_private() || v4.is_link_local() || is_shared
        }
        IpAddr::V6(v6) => v6.is_loopback() || v6.is_unique_local() || v6.is_unicast_link_local(),
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::dns::message::Query;
    use crate::upstream::pending_query::{Case, Transport};

    pub(in crate::upstream) const TTL: TtlLimits = TtlLimits {
        at_least: 0,
        at_most: 60,
    };

    pub(in crate::upstream) fn question() -> PendingQuery {
        let query = b"\0\x01\x01\0\0\x01\0\0\0\0\0\0\x01a\x04test\0\0\x01\0\x01";
        PendingQuery::new(&Query::read(query).unwrap(), Transport::Udp, Case::Plain, 1232)
    }

    /// Nobody listens at first, which the kernel says by ICMP; the answer comes all the same, from the same port.
    #[tokio::test]
    async fn an_answer_after_an_icmp_error_counts_and_the_error_after_the_grace() {
        let place = net::UdpSocket::bind("127.0.0.1:0").unwrap();
        let to = place.local_addr().unwrap();
        drop(place);
        let pending_query = question();
        let metrics = Metrics::register();
        let socket = UdpSocket::from_std(open(to, None).unwrap()).unwrap();
        socket.send(pending_query.octets()).await.unwrap();
        let grace = Duration::from_millis(100);
        let without = receive(&socket, &pending_query, &TTL, grace, &metrics).await;
        assert!(matches!(without, Err(Failure::Unreachable)), "{without:?}");
        socket.send(pending_query.octets()).await.unwrap();
        let answering = async {
            // When the error is there.
            tokio::time::sleep(Duration::from_millis(10)).await;
            let server = UdpSocket::bind(to).await.unwrap();
            let mut answer = pending_query.octets().to_vec();
            answer[2] |= 0x80;
            server
                .send_to(&answer, socket.local_addr().unwrap())
                .await
                .unwrap();
        };
        let long = Duration::from_secs(5);
        let (with, ()) = tokio::join!(receive(&socket, &pending_query, &TTL, long, &metrics), answering);
        assert!(with.is_ok(), "{with:?}");
    }

    #[test]
    fn private_networks_are_near() {
        for near in [
            "127.0.0.1",
            "10.96.0.10",
            "172.20.0.10",
            "192.168.1.1",
            "100.64.0.10",
            "169.254.169.254",
            "::1",
            "fd00::a",
            "fe80::1",
        ] {
            assert!(is_near(near.parse().unwrap()), "{near}");
        }
        for far in ["8.8.8.8", "100.128.0.1", "172.32.0.1", "2001:4860:4860::8888"] {
            assert!(!is_near(far.parse().unwrap()), "{far}");
        }
    }
}
