//! Questions in datagrams.
//!
//! Towards upstreams outside, a question has a socket to itself, connected to the upstream, at a port that the kernel
//! draws, so that nobody can find out the port in time to make use of it. Towards upstreams that are near, questions share
//! sockets, which are drawn at random and kept for a few dozen of them: a socket of one's own costs more than the rest of a
//! question, and so does a system call for each.

use std::cell::RefCell;
use std::io;
use std::net::{self, IpAddr, SocketAddr};
use std::os::fd::AsRawFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use egret_shared::rt::clock;
use egret_shared::switch::{self, Switch};
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
use crate::upstream::counters::{Carrier, Meter};
use crate::upstream::pending_query::{Exchange, Matched, Mismatch};
use crate::upstream::socket_limit::Share;
use crate::upstream::udp_socket::{Asked, Lane, Room};

/// Octets of a datagram that are read: all there can be.
const LARGEST: usize = 65_535;

/// What came back in a datagram.
#[derive(Debug)]
pub(super) enum Datagram {
    /// The answer.
    Answer(Matched<Answer>),
    /// What may be the answer of a server that does not keep the case, or anybody's: it is not taken.
    OtherCase,
    /// A header that says that the question cannot be read.
    Bare,
}

/// The sockets towards one upstream.
#[derive(Debug)]
pub(super) struct Sockets {
    to: SocketAddr,
    source: Option<IpAddr>,
    keeping: Option<Keeping>,
    /// Of questions with a socket of their own.
    share: Share,
    /// Each is kept by its own task, so that one which has ended is closed though nobody asks any more. Held for a few
    /// operations on the list.
    lanes: Mutex<Vec<Weak<Lane>>>,
}

/// How sockets are kept.
#[derive(Clone, Copy, Debug)]
pub(super) struct Keeping {
    /// How long one that nobody uses is kept.
    pub(super) expire: Duration,
    /// How long one is used; zero means any time.
    pub(super) max_age: Duration,
    /// How many are kept; 0 means any number.
    pub(super) most_idle: usize,
}

impl Sockets {
    pub(super) fn new(to: SocketAddr, source: Option<IpAddr>, keeping: Keeping) -> Self {
        let shares = is_near(to.ip()) && !switch::is_off(Switch::MatchAnswer);
        Self {
            to,
            source,
            keeping: shares.then_some(keeping),
            share: Share::new(),
            lanes: Mutex::default(),
        }
    }

    /// Asks, and waits for ever; once the kernel was told by ICMP that nobody answers, for `grace`.
    pub(super) async fn ask(
        &self,
        exchange: Exchange,
        ttl: &TtlLimits,
        grace: Duration,
        meter: &Meter,
        metrics: &Arc<Metrics>,
    ) -> Result<Datagram, Failure> {
        let Some(keeping) = self.keeping else {
            meter.opened(Carrier::Udp);
            // Boxed: the way with a socket of its own must not make every waiting question as large as itself.
            return Box::pin(self.ask_alone(exchange, ttl, grace, metrics)).await;
        };
        let asked = self.ask_with_others(keeping, exchange, ttl, grace, meter, metrics);
        asked.map_err(|error| io_error::of(&error))?.outcome().await
    }

    fn ask_with_others(
        &self,
        keeping: Keeping,
        mut exchange: Exchange,
        ttl: &TtlLimits,
        grace: Duration,
        meter: &Meter,
        metrics: &Arc<Metrics>,
    ) -> io::Result<Asked> {
        let now = clock::now();
        loop {
            let lane = self.lane(keeping, grace, meter, metrics, now)?;
            match lane.ask(exchange, ttl, now) {
                Ok(asked) => return Ok(asked),
                Err(back) => exchange = back,
            }
        }
    }

    async fn ask_alone(
        &self,
        exchange: Exchange,
        ttl: &TtlLimits,
        grace: Duration,
        metrics: &Metrics,
    ) -> Result<Datagram, Failure> {
        let _place = self.share.enter().ok_or(Failure::Local)?;
        let socket = open(self.to, self.source).and_then(UdpSocket::from_std);
        let socket = socket.map_err(|error| io_error::of(&error))?;
        let sent = self.send(&socket, exchange.octets()).await;
        sent.map_err(|error| io_error::of(&error))?;
        receive(&socket, &exchange, ttl, grace, metrics).await
    }

    /// Closes what nobody used for long; whether any is left.
    pub(super) fn sweep(&self, now: Timestamp) -> bool {
        let Some(keeping) = self.keeping else {
            return false;
        };
        let mut lanes = self.lanes();
        lanes.retain(|lane| is_kept(lane, &keeping, now));
        !lanes.is_empty()
    }

    /// How many are kept now.
    pub(super) fn count(&self) -> usize {
        self.lanes().len()
    }

    /// The lane of a question: the one that others were given just now, so that they go together; or any that is there, so
    /// that the next port cannot be told from the last ones; or a new one.
    fn lane(
        &self,
        keeping: Keeping,
        grace: Duration,
        meter: &Meter,
        metrics: &Arc<Metrics>,
        now: Timestamp,
    ) -> io::Result<Arc<Lane>> {
        let mut lanes = self.lanes();
        if let Some(lane) = keeping.draw(&mut lanes, now) {
            meter.reused(Carrier::Udp);
            return Ok(lane);
        }
        meter.opened(Carrier::Udp);
        let lane = Lane::open(open(self.to, self.source)?, grace, now, metrics)?;
        lanes.push(Arc::downgrade(&lane));
        Ok(lane)
    }

    async fn send(&self, socket: &UdpSocket, octets: &[u8]) -> io::Result<usize> {
        if switch::is_off(Switch::MatchAnswer) {
            return socket.send_to(octets, self.to).await;
        }
        socket.send(octets).await
    }

    fn lanes(&self) -> MutexGuard<'_, Vec<Weak<Lane>>> {
        self.lanes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Sockets {
    fn drop(&mut self) {
        for lane in self.lanes().iter().filter_map(Weak::upgrade) {
            lane.close();
        }
    }
}

impl Keeping {
    /// One that takes another question; those that take none any more are let go.
    ///
    /// The one that was drawn last is the last of them: most questions of a batch look at that one alone.
    fn draw(&self, lanes: &mut Vec<Weak<Lane>>, now: Timestamp) -> Option<Arc<Lane>> {
        if let Some(last) = lanes.last().and_then(Weak::upgrade)
            && last.room(self, now) == Room::Boarding
        {
            return Some(last);
        }
        let (mut boarding, mut drawn) = (None, None);
        let (mut free, mut idle) = (0_usize, 0);
        lanes.retain(|lane| {
            let Some(lane) = lane.upgrade() else {
                return false;
            };
            match lane.room(self, now) {
                Room::Never => return false,
                Room::NotNow => {}
                Room::Boarding => boarding = Some(lane),
                Room::Free { is_idle } => {
                    idle += usize::from(is_idle);
                    if self.most_idle != 0 && idle > self.most_idle {
                        lane.close();
                        return false;
                    }
                    free += 1;
                    if free == 1 || rand::random_range(0..free) == 0 {
                        drawn = Some(lane);
                    }
                }
            }
            true
        });
        let found = boarding.or(drawn)?;
        if let Some(place) = lanes.iter().position(|lane| lane.as_ptr() == Arc::as_ptr(&found)) {
            let last = lanes.len() - 1;
            lanes.swap(place, last);
        }
        Some(found)
    }
}

fn is_kept(lane: &Weak<Lane>, keeping: &Keeping, now: Timestamp) -> bool {
    lane.upgrade()
        .is_some_and(|lane| lane.room(keeping, now) != Room::Never)
}

/// A socket that takes messages from this server and port only: the kernel drops all others.
fn open(to: SocketAddr, source: Option<IpAddr>) -> io::Result<net::UdpSocket> {
    let kind = Type::DGRAM.nonblocking();
    let socket = Socket::new(Domain::for_address(to), kind, Some(Protocol::UDP))?;
    // Without an address to ask from, the kernel draws address and port when it connects.
    if let Some(source) = source {
        socket.bind(&SocketAddr::new(source, 0).into())?;
    }
    if !switch::is_off(Switch::MatchAnswer) {
        socket.connect(&to.into())?;
    }
    Ok(socket.into())
}

async fn receive(
    socket: &UdpSocket,
    exchange: &Exchange,
    ttl: &TtlLimits,
    grace: Duration,
    metrics: &Metrics,
) -> Result<Datagram, Failure> {
    // Until when an answer may still come, and what is said if none does.
    let mut doubt: Option<(Instant, Failure)> = None;
    loop {
        let ready = socket.ready(Interest::READABLE | Interest::ERROR);
        let ready = match doubt {
            None => ready.await,
            Some((end, failure)) => timeout_at(end, ready).await.map_err(|_elapsed| failure)?,
        };
        // That nobody listens there is an error of the socket, and nothing to read.
        if ready.map_err(|error| io_error::of(&error))?.is_error() {
            let failure = failure_of(socket)?;
            doubt.get_or_insert_with(|| (Instant::now() + grace, failure));
        }
        let taken = BUFFER.with_borrow_mut(|buffer| take(socket, buffer, exchange, ttl));
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
            Err(error) if io_error::is_hint(&error) => {
                doubt.get_or_insert_with(|| (Instant::now() + grace, io_error::of(&error)));
            }
            Err(error) => return Err(io_error::of(&error)),
        }
    }
}

/// Reads a message. After the answer nothing else is expected: the runtime is told that there is nothing to read, so that
/// the next question on this socket does not ask the kernel for what is not there yet. If there is something else, it is
/// found when the next answer comes.
fn take(
    socket: &UdpSocket,
    buffer: &mut [u8],
    exchange: &Exchange,
    ttl: &TtlLimits,
) -> io::Result<Result<Matched<Answer>, Mismatch>> {
    let mut answer = None;
    let read = socket.try_io(Interest::READABLE, || {
        let length = recv(socket.as_raw_fd(), buffer, MsgFlags::empty())?;
        match exchange.take(&buffer[..length], clock::now(), ttl) {
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

/// What the kernel was told of the upstream.
///
/// # Errors
/// When it is no hint.
fn failure_of(socket: &UdpSocket) -> Result<Failure, Failure> {
    // The runtime is told that the error was read.
    let read = socket.try_io(Interest::ERROR, || Err::<(), _>(io::ErrorKind::WouldBlock.into()));
    debug_assert!(read.is_err(), "nothing is done there");
    match socket.take_error() {
        Ok(None) => Ok(Failure::Unreachable),
        Ok(Some(error)) if io_error::is_hint(&error) => Ok(io_error::of(&error)),
        Ok(Some(error)) | Err(error) => Err(io_error::of(&error)),
    }
}

thread_local! {
    /// What arrives is read here and copied at its length: questions under way need no buffers of their own.
    static BUFFER: RefCell<Box<[u8]>> = RefCell::new(vec![0; LARGEST].into_boxed_slice());
}

/// Whether an address is on this node, or in networks that are not routed through the internet, where a cluster's
/// Services are (RFC 1918, 3927, 4193, 4291, 6598): nobody outside can send in its name.
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

    pub(in crate::upstream) fn question() -> Exchange {
        let query = b"\0\x01\x01\0\0\x01\0\0\0\0\0\0\x01a\x04test\0\0\x01\0\x01";
        Exchange::new(&Query::read(query).unwrap(), Transport::Udp, Case::Plain, 1232)
    }

    /// Nobody listens at first, which the kernel says by ICMP; the answer comes all the same, from the same port.
    #[tokio::test]
    async fn an_answer_that_comes_after_an_error_is_taken_and_without_one_the_error_counts_when_the_grace_is_over()
     {
        let place = net::UdpSocket::bind("127.0.0.1:0").unwrap();
        let to = place.local_addr().unwrap();
        drop(place);
        let exchange = question();
        let metrics = Metrics::register();
        let socket = UdpSocket::from_std(open(to, None).unwrap()).unwrap();
        socket.send(exchange.octets()).await.unwrap();
        let grace = Duration::from_millis(100);
        let without = receive(&socket, &exchange, &TTL, grace, &metrics).await;
        assert!(matches!(without, Err(Failure::Unreachable)), "{without:?}");
        socket.send(exchange.octets()).await.unwrap();
        let answering = async {
            // When the error is there.
            tokio::time::sleep(Duration::from_millis(10)).await;
            let server = UdpSocket::bind(to).await.unwrap();
            let mut answer = exchange.octets().to_vec();
            answer[2] |= 0x80;
            server
                .send_to(&answer, socket.local_addr().unwrap())
                .await
                .unwrap();
        };
        let long = Duration::from_secs(5);
        let (with, ()) = tokio::join!(receive(&socket, &exchange, &TTL, long, &metrics), answering);
        assert!(with.is_ok(), "{with:?}");
    }

    #[test]
    fn near_is_what_is_not_routed_through_the_internet() {
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
