//! What the clients do all the time while parts of the cluster end or are replaced, by each family: they query, and connect to an address that is allowed
//! and to one that is not.

use std::{
    collections::{BTreeMap, VecDeque},
    fmt, fs, io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket},
    os::fd::AsFd as _,
    path::PathBuf,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

use hickory_proto::op::{Message, ResponseCode};
use nix::{
    poll::{PollFd, PollFlags, PollTimeout, poll},
    sched::{CloneFlags, setns},
};
use socket2::{Domain, Protocol, Socket, Type};

use crate::Lookup;

use super::{
    Failure,
    network::{Network, record_type},
};

const BETWEEN_QUERIES: Duration = Duration::from_millis(10);
const BETWEEN_CONNECTIONS: Duration = Duration::from_millis(50);
/// As long as the C library waits. Each query is one datagram, sent once.
const ANSWERED_WITHIN: Duration = Duration::from_secs(5);
/// Longer than the kernel's first two repetitions of a SYN.
const CONNECTED_WITHIN: Duration = Duration::from_secs(4);
/// Shorter than the time after which the kernel repeats a SYN.
const REFUSED_AFTER: Duration = Duration::from_millis(800);

/// Runs until it is stopped or dropped.
pub(super) struct Traffic {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

struct Shared {
    network: Network,
    stop: AtomicBool,
    begun: Instant,
    seen: Mutex<Seen>,
}

/// What happened to it.
#[derive(Clone, Debug, Default)]
pub(super) struct Seen {
    pub(super) answered: usize,
    /// Queries that nobody answered, or that were answered with an error: when they were sent, and what came.
    pub(super) lost: Vec<(Duration, String)>,
    pub(super) reached: usize,
    pub(super) refused: usize,
    /// Connections that ended otherwise than the policy says, and what else went wrong.
    pub(super) wrong: Vec<String>,
}

impl Traffic {
    /// Of pods, each with the file of its network namespace. `judges` is whether a policy refuses one of the addresses; without it nobody connects.
    pub(super) fn start(pods: &[PathBuf], network: Network, judges: bool) -> Result<Self, Failure> {
        let shared = Arc::new(Shared {
            network,
            stop: AtomicBool::new(false),
            begun: Instant::now(),
            seen: Mutex::default(),
        });
        let mut traffic = Self {
            shared,
            threads: Vec::new(),
        };
        for netns in pods {
            traffic.spawn(netns, query)?;
            if judges {
                traffic.spawn(netns, connect)?;
            }
        }
        Ok(traffic)
    }

    fn spawn(&mut self, netns: &PathBuf, job: fn(&Shared) -> io::Result<()>) -> Result<(), Failure> {
        let netns = fs::File::open(netns).map_err(|error| format!("{}: {error}", netns.display()))?;
        let shared = Arc::clone(&self.shared);
        let thread = std::thread::Builder::new()
            .name("traffic".into())
            .spawn(move || {
                let ended = setns(netns, CloneFlags::CLONE_NEWNET)
                    .map_err(io::Error::from)
                    .and_then(|()| job(&shared));
                if let Err(error) = ended {
                    shared
                        .seen()
                        .wrong
                        .push(format!("the traffic has ended: {error}"));
                }
            })?;
        self.threads.push(thread);
        Ok(())
    }

    /// What was seen so far.
    pub(super) fn seen(&self) -> Seen {
        self.shared.seen().clone()
    }

    /// The time since it began, which queries are counted by.
    pub(super) fn now(&self) -> Duration {
        self.shared.begun.elapsed()
    }

    /// Ends it once everything under way has its end.
    pub(super) fn stop(mut self) -> Seen {
        self.end();
        self.seen()
    }

    fn end(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            if thread.join().is_err() {
                self.shared.seen().wrong.push("the traffic panicked".into());
            }
        }
    }
}

impl Drop for Traffic {
    fn drop(&mut self) {
        self.end();
    }
}

impl Shared {
    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }
}

impl Seen {
    pub(super) fn is_clean(&self) -> bool {
        self.lost.is_empty() && self.wrong.is_empty()
    }

    /// How many queries of a time were lost.
    pub(super) fn lost_between(&self, from: Duration, to: Duration) -> usize {
        let sent = self.lost.iter().map(|(sent, _)| *sent);
        sent.filter(|sent| (from..to).contains(sent)).count()
    }

    /// From the first query that was lost to the last.
    fn gap(&self) -> Duration {
        let sent = self.lost.iter().map(|(sent, _)| *sent);
        let (first, last) = (sent.clone().min(), sent.max());
        last.unwrap_or_default().saturating_sub(first.unwrap_or_default())
    }

    /// What came instead of answers, each with its number.
    fn reasons(&self) -> String {
        let mut reasons = BTreeMap::<&str, usize>::new();
        for (_, reason) in &self.lost {
            *reasons.entry(reason).or_default() += 1;
        }
        let reasons = reasons
            .iter()
            .map(|(reason, number)| format!("{number} {reason}"));
        reasons.collect::<Vec<_>>().join(", ")
    }
}

impl fmt::Display for Seen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let queries = self.answered + self.lost.len();
        write!(f, "{queries} queries, {} lost", self.lost.len())?;
        if !self.lost.is_empty() {
            let gap = self.gap().as_secs_f64();
            write!(f, " (sent within {gap:.1} s: {})", self.reasons())?;
        }
        if self.reached + self.refused > 0 {
            let connections = self.reached + self.refused + self.wrong.len();
            write!(
                f,
                "; {connections} connections, {} wrong verdicts",
                self.wrong.len()
            )?;
        }
        for wrong in self.wrong.iter().take(5) {
            write!(f, "; {wrong}")?;
        }
        Ok(())
    }
}

// === Queries ===

struct Query {
    socket: UdpSocket,
    server: IpAddr,
    id: u16,
    /// What its answer has.
    address: IpAddr,
    sent: Instant,
}

/// Addresses of each family, by each family; in turn of a name that every cache has, and of one that none has. Each query has a socket of its own, as
/// those of a C library.
fn query(shared: &Shared) -> io::Result<()> {
    let (servers, addresses) = (shared.network.dns(), shared.network.allowed());
    let run = rand::random::<u32>();
    let mut pending = VecDeque::new();
    for number in 0_u32.. {
        if shared.is_stopped() {
            break;
        }
        let name = if number % 2 == 0 {
            "allowed.example.test".to_owned()
        } else {
            format!("{run:x}-{number}.many.example.test")
        };
        let turn = number as usize / 2;
        let server = servers[turn % servers.len()];
        let address = addresses[turn / servers.len() % addresses.len()];
        let lookup = Lookup::of(&name, record_type(address));
        let any: IpAddr = if server.is_ipv4() {
            Ipv4Addr::UNSPECIFIED.into()
        } else {
            Ipv6Addr::UNSPECIFIED.into()
        };
        let socket = UdpSocket::bind((any, 0))?;
        socket.connect((server, 53))?;
        socket.set_nonblocking(true)?;
        let query = Query {
            socket,
            server,
            id: u16::from_be_bytes([lookup.to_vec()[0], lookup.to_vec()[1]]),
            address,
            sent: Instant::now(),
        };
        match query.socket.send(&lookup.to_vec()) {
            Ok(_) => pending.push_back(query),
            Err(error) => shared.lose(&query, &error.to_string()),
        }
        pending.retain(|query| is_pending(shared, query));
        std::thread::sleep(BETWEEN_QUERIES);
    }
    while !pending.is_empty() {
        pending.retain(|query| is_pending(shared, query));
        std::thread::sleep(BETWEEN_QUERIES);
    }
    Ok(())
}

fn is_pending(shared: &Shared, query: &Query) -> bool {
    let mut octets = [0; 1500];
    match query.socket.recv(&mut octets) {
        Ok(length) => match address_in(&octets[..length], query) {
            Ok(()) => shared.seen().answered += 1,
            Err(what) => shared.lose(query, &what),
        },
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
            if query.sent.elapsed() < ANSWERED_WITHIN {
                return true;
            }
            shared.lose(query, "no answer");
        }
        Err(error) => shared.lose(query, &error.to_string()),
    }
    false
}

/// Whether it is the answer that both names have.
fn address_in(octets: &[u8], query: &Query) -> Result<(), String> {
    let message = Message::from_vec(octets).map_err(|error| error.to_string())?;
    if message.metadata.id != query.id || message.metadata.response_code != ResponseCode::NoError {
        return Err(format!("{:?}", message.metadata.response_code));
    }
    let has_address = message
        .answers
        .iter()
        .any(|record| record.data.ip_addr() == Some(query.address));
    if has_address {
        Ok(())
    } else {
        Err("an answer without the address".into())
    }
}

impl Shared {
    fn lose(&self, query: &Query, what: &str) {
        let sent = query.sent.duration_since(self.begun);
        let what = format!("{what} from {}", query.server);
        self.seen().lost.push((sent, what));
    }
}

// === Connections ===

struct Attempt {
    socket: Socket,
    to: IpAddr,
    begun: Instant,
    is_allowed: bool,
}

fn connect(shared: &Shared) -> io::Result<()> {
    let targets = [
        (shared.network.allowed(), true),
        (shared.network.refused(), false),
    ];
    let mut pending = Vec::new();
    while !shared.is_stopped() {
        let next = targets
            .iter()
            .flat_map(|(addresses, is_allowed)| addresses.iter().map(|address| (*address, *is_allowed)));
        for (to, is_allowed) in next {
            let address = SocketAddr::new(to, 80);
            let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
            socket.set_nonblocking(true)?;
            // What goes wrong at once is read from the socket, as what goes wrong later.
            drop(socket.connect(&address.into()));
            pending.push(Attempt {
                socket,
                to,
                begun: Instant::now(),
                is_allowed,
            });
        }
        pending.retain(|attempt| is_under_way(shared, attempt));
        std::thread::sleep(BETWEEN_CONNECTIONS);
    }
    while !pending.is_empty() {
        pending.retain(|attempt| is_under_way(shared, attempt));
        std::thread::sleep(BETWEEN_CONNECTIONS);
    }
    Ok(())
}

fn is_under_way(shared: &Shared, attempt: &Attempt) -> bool {
    let took = attempt.begun.elapsed();
    let patience = if attempt.is_allowed {
        CONNECTED_WITHIN
    } else {
        REFUSED_AFTER
    };
    let connected = match is_connected(&attempt.socket) {
        Ok(None) if took < patience => return true,
        Ok(None) => Ok(false),
        Ok(Some(())) => Ok(true),
        Err(error) => Err(error),
    };
    let (to, at) = (
        attempt.to,
        attempt.begun.duration_since(shared.begun).as_secs_f64(),
    );
    let mut seen = shared.seen();
    match (attempt.is_allowed, connected) {
        (true, Ok(true)) => seen.reached += 1,
        (false, Ok(false) | Err(_)) => seen.refused += 1,
        (true, Ok(false)) => seen
            .wrong
            .push(format!("at {at:.1} s the allowed {to} was not reached")),
        (true, Err(error)) => seen
            .wrong
            .push(format!("at {at:.1} s the allowed {to} was not reached: {error}")),
        (false, Ok(true)) => seen
            .wrong
            .push(format!("at {at:.1} s the refused {to} was reached")),
    }
    false
}

/// `None` while nothing has come back.
fn is_connected(socket: &Socket) -> io::Result<Option<()>> {
    let mut fds = [PollFd::new(socket.as_fd(), PollFlags::POLLOUT)];
    if poll(&mut fds, PollTimeout::ZERO)? == 0 {
        return Ok(None);
    }
    match socket.take_error()? {
        Some(error) => Err(error),
        None => Ok(Some(())),
    }
}
