//! A DNS client that sends queries at a steady rate, each once and from a socket of its own, without waiting for answers.

use std::fs::File;
use std::io::{self, ErrorKind, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::os::fd::{AsFd as _, BorrowedFd};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use egret_integration::node::{DNS, DNS_V6};
use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sched::{CloneFlags, setns};
use nix::sys::time::TimeSpec;
use socket2::{Domain, Protocol, Socket, Type};

/// After so long a question is lost; a resolver would ask again.
const PATIENCE: Duration = Duration::from_secs(5);
/// One in so many goes over TCP.
const OVER_TCP: u32 = 4;

/// The outcomes of queries.
#[derive(Debug, Default)]
pub(crate) struct Outcomes {
    /// From the time at which a query was due to its answer.
    latencies: Vec<Duration>,
    lost: Vec<String>,
}

impl Outcomes {
    pub(crate) fn add(&mut self, more: Self) {
        self.latencies.extend(more.latencies);
        self.lost.extend(more.lost);
    }

    pub(crate) const fn lost(&self) -> usize {
        self.lost.len()
    }

    /// The latency that so many of a thousand answers do not exceed.
    pub(crate) fn percentile(&mut self, per_mille: usize) -> Duration {
        self.latencies.sort_unstable();
        let last = self.latencies.len().saturating_sub(1);
        self.latencies
            .get(last * per_mille / 1000)
            .copied()
            .unwrap_or_default()
    }

    pub(crate) fn print(&mut self, row: &str) {
        let took = [500, 990, 999, 1000].map(|per_mille| self.percentile(per_mille).as_micros().to_string());
        println!(
            "| {row} | {} | {} | {} |",
            self.latencies.len() + self.lost.len(),
            self.lost.len(),
            took.join(" | "),
        );
        for lost in self.lost.iter().take(5) {
            println!("lost: {lost}");
        }
    }
}

/// Sends queries from one pod; its thread is in the pod's network namespace.
#[derive(Debug)]
pub(crate) struct Client {
    pause: Duration,
    names: u32,
    pending: Vec<PendingQuery>,
    outcomes: Outcomes,
}

/// An outstanding query.
#[derive(Debug)]
struct PendingQuery {
    due: Instant,
    socket: QuerySocket,
}

#[derive(Debug)]
enum QuerySocket {
    Datagram(UdpSocket),
    /// Not connected yet, with what is to be written then.
    Connecting(TcpStream, Vec<u8>),
    Connected(TcpStream, Vec<u8>),
}

impl Client {
    /// Enters the pod with this thread.
    pub(crate) fn within(pod: &str, rate: u32, names: u32) -> anyhow::Result<Self> {
        let path = Path::new("/run/netns").join(pod);
        let namespace = File::open(&path).with_context(|| path.display().to_string())?;
        setns(namespace, CloneFlags::CLONE_NEWNET)?;
        Ok(Self {
            pause: Duration::from_secs(1) / rate,
            names,
            pending: Vec::new(),
            outcomes: Outcomes::default(),
        })
    }

    /// Sends queries until `stop` is set, then waits for the last answers.
    pub(crate) fn ask_until(mut self, stop: &AtomicBool) -> anyhow::Result<Outcomes> {
        let mut due = Instant::now();
        for number in 0.. {
            if stop.load(Ordering::Relaxed) {
                break;
            }
            // Answers are received even when a query is late: otherwise they would wait for it.
            self.receive(due)?;
            while Instant::now() < due {
                self.receive(due)?;
            }
            self.ask(number, due);
            due += self.pause;
        }
        while !self.pending.is_empty() {
            self.receive(Instant::now() + Duration::from_millis(100))?;
        }
        Ok(self.outcomes)
    }

    fn ask(&mut self, number: u32, due: Instant) {
        let server = if (number / OVER_TCP).is_multiple_of(2) {
            SocketAddr::new(DNS.into(), 53)
        } else {
            SocketAddr::new(DNS_V6.into(), 53)
        };
        let question = question(number, &format!("n{}.example.test", number % self.names));
        let socket = if number.is_multiple_of(OVER_TCP) {
            connect(server, &question)
        } else {
            send(server, &question)
        };
        match socket {
            Ok(socket) => self.pending.push(PendingQuery { due, socket }),
            Err(error) => self.outcomes.lost.push(format!("{server}: {error}")),
        }
    }

    /// Waits for answers until `end`, and receives those that came.
    fn receive(&mut self, end: Instant) -> io::Result<()> {
        let left = end.saturating_duration_since(Instant::now());
        let mut watched: Vec<PollFd<'_>> = self.pending.iter().map(PendingQuery::watched).collect();

        ppoll(&mut watched, Some(TimeSpec::from_duration(left)), None)?;
        let ready: Vec<bool> = watched.iter().map(|it| it.any().unwrap_or(true)).collect();
        drop(watched);
        let now = Instant::now();
        for (query, is_ready) in std::mem::take(&mut self.pending).into_iter().zip(ready) {
            let due = query.due;
            let went = if is_ready {
                query.advance()
            } else {
                Ok(Some(query))
            };
            match went {
                Ok(None) => self.outcomes.latencies.push(now - due),
                Ok(Some(query)) if now - due < PATIENCE => self.pending.push(query),
                Ok(Some(query)) => self
                    .outcomes
                    .lost
                    .push(format!("nothing came: {:?}", query.socket)),
                Err(error) => self.outcomes.lost.push(error.to_string()),
            }
        }
        Ok(())
    }
}

impl PendingQuery {
    fn watched(&self) -> PollFd<'_> {
        let (socket, wanted): (BorrowedFd<'_>, _) = match &self.socket {
            QuerySocket::Datagram(socket) => (socket.as_fd(), PollFlags::POLLIN),
            QuerySocket::Connecting(stream, _) => (stream.as_fd(), PollFlags::POLLOUT),
            QuerySocket::Connected(stream, _) => (stream.as_fd(), PollFlags::POLLIN),
        };
        PollFd::new(socket, wanted)
    }

    /// Takes the next step of the query; none when it is answered.
    fn advance(self) -> io::Result<Option<Self>> {
        let due = self.due;
        let mut octets = [0; 1500];
        let socket = match self.socket {
            QuerySocket::Datagram(socket) => {
                let length = socket.recv(&mut octets)?;
                return check(&octets[..length]).map(|()| None);
            }
            QuerySocket::Connecting(mut stream, question) => {
                if let Some(error) = stream.take_error()? {
                    return Err(error);
                }
                stream.write_all(&question)?;
                QuerySocket::Connected(stream, Vec::new())
            }
            QuerySocket::Connected(mut stream, mut received) => {
                match stream.read(&mut octets) {
                    Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                    Ok(length) => received.extend_from_slice(&octets[..length]),
                    Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                    Err(error) => return Err(error),
                }
                if let Some((length, message)) = received.split_first_chunk::<2>()
                    && message.len() >= usize::from(u16::from_be_bytes(*length))
                {
                    return check(message).map(|()| None);
                }
                QuerySocket::Connected(stream, received)
            }
        };
        Ok(Some(Self { due, socket }))
    }
}

/// NOERROR, with a record.
fn check(message: &[u8]) -> io::Result<()> {
    match message {
        [_, _, _, code, _, _, high, low, ..] if code & 0xf == 0 && (*high, *low) != (0, 0) => Ok(()),
        _other => Err(io::Error::other("no answer to the question")),
    }
}

fn send(server: SocketAddr, question: &[u8]) -> io::Result<QuerySocket> {
    let socket = Socket::new(Domain::for_address(server), Type::DGRAM, Some(Protocol::UDP))?;
    socket.set_nonblocking(true)?;
    socket.connect(&server.into())?;
    socket.send(question)?;
    Ok(QuerySocket::Datagram(socket.into()))
}

fn connect(server: SocketAddr, question: &[u8]) -> io::Result<QuerySocket> {
    let socket = Socket::new(Domain::for_address(server), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_nonblocking(true)?;
    // Tens of thousands of closed ones would wait for a minute each.
    socket.set_linger(Some(Duration::ZERO))?;
    match socket.connect(&server.into()) {
        Err(error) if error.raw_os_error() != Some(nix::libc::EINPROGRESS) => return Err(error),
        Ok(()) | Err(_) => {}
    }
    let length = u16::try_from(question.len()).map_err(io::Error::other)?;
    let framed = [&length.to_be_bytes()[..], question].concat();
    Ok(QuerySocket::Connecting(socket.into(), framed))
}

/// RFC 1035 §4.1.1: an id, RD, one question for an address.
fn question(id: u32, name: &str) -> Vec<u8> {
    let [_, _, high, low] = id.to_be_bytes();
    let mut octets = vec![high, low, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0];
    for label in name.split('.') {
        octets.push(u8::try_from(label.len()).expect("labels of a bench are short"));
        octets.extend_from_slice(label.as_bytes());
    }
    octets.extend_from_slice(&[0, 0, 1, 0, 1]);
    octets
}
