//! Who asks: at a steady rate whatever the answers do, each question from a socket of its own, and never twice.

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

/// What came of the questions.
#[derive(Debug, Default)]
pub(crate) struct Asked {
    /// From when each was due to its answer.
    took: Vec<Duration>,
    lost: Vec<String>,
}

impl Asked {
    pub(crate) fn add(&mut self, more: Self) {
        self.took.extend(more.took);
        self.lost.extend(more.lost);
    }

    pub(crate) const fn lost(&self) -> usize {
        self.lost.len()
    }

    /// So much of a thousand took no longer.
    pub(crate) fn within(&mut self, per_mille: usize) -> Duration {
        self.took.sort_unstable();
        let last = self.took.len().saturating_sub(1);
        self.took
            .get(last * per_mille / 1000)
            .copied()
            .unwrap_or_default()
    }

    pub(crate) fn print(&mut self, row: &str) {
        let took = [500, 990, 999, 1000].map(|per_mille| self.within(per_mille).as_micros().to_string());
        println!(
            "| {row} | {} | {} | {} |",
            self.took.len() + self.lost.len(),
            self.lost.len(),
            took.join(" | "),
        );
        for lost in self.lost.iter().take(5) {
            println!("lost: {lost}");
        }
    }
}

/// Asks from one pod; its thread is inside the pod's network.
#[derive(Debug)]
pub(crate) struct Asker {
    pause: Duration,
    names: u32,
    waiting: Vec<Waiting>,
    asked: Asked,
}

/// A question under way.
#[derive(Debug)]
struct Waiting {
    due: Instant,
    way: Way,
}

#[derive(Debug)]
enum Way {
    Datagram(UdpSocket),
    /// Not connected yet, with what is to be written then.
    Connecting(TcpStream, Vec<u8>),
    Connected(TcpStream, Vec<u8>),
}

impl Asker {
    /// Enters the pod with this thread.
    pub(crate) fn within(pod: &str, rate: u32, names: u32) -> anyhow::Result<Self> {
        let path = Path::new("/run/netns").join(pod);
        let namespace = File::open(&path).with_context(|| path.display().to_string())?;
        setns(namespace, CloneFlags::CLONE_NEWNET)?;
        Ok(Self {
            pause: Duration::from_secs(1) / rate,
            names,
            waiting: Vec::new(),
            asked: Asked::default(),
        })
    }

    /// Asks until it is told to stop, and then waits for the last answers.
    pub(crate) fn ask_until(mut self, stop: &AtomicBool) -> anyhow::Result<Asked> {
        let mut due = Instant::now();
        for number in 0.. {
            if stop.load(Ordering::Relaxed) {
                break;
            }
            // Who is late hears all the same, or answers would wait for questions.
            self.hear(due)?;
            while Instant::now() < due {
                self.hear(due)?;
            }
            self.ask(number, due);
            due += self.pause;
        }
        while !self.waiting.is_empty() {
            self.hear(Instant::now() + Duration::from_millis(100))?;
        }
        Ok(self.asked)
    }

    fn ask(&mut self, number: u32, due: Instant) {
        let server = if (number / OVER_TCP).is_multiple_of(2) {
            SocketAddr::new(DNS.into(), 53)
        } else {
            SocketAddr::new(DNS_V6.into(), 53)
        };
        let question = question(number, &format!("n{}.example.test", number % self.names));
        let way = if number.is_multiple_of(OVER_TCP) {
            connect(server, &question)
        } else {
            send(server, &question)
        };
        match way {
            Ok(way) => self.waiting.push(Waiting { due, way }),
            Err(error) => self.asked.lost.push(format!("{server}: {error}")),
        }
    }

    /// Waits for answers until `end`, and takes those that there are.
    fn hear(&mut self, end: Instant) -> io::Result<()> {
        let left = end.saturating_duration_since(Instant::now());
        let mut watched: Vec<PollFd<'_>> = self.waiting.iter().map(Waiting::watched).collect();

        ppoll(&mut watched, Some(TimeSpec::from_duration(left)), None)?;
        let ready: Vec<bool> = watched.iter().map(|it| it.any().unwrap_or(true)).collect();
        drop(watched);
        let now = Instant::now();
        for (waiting, is_ready) in std::mem::take(&mut self.waiting).into_iter().zip(ready) {
            let due = waiting.due;
            let went = if is_ready {
                waiting.go_on()
            } else {
                Ok(Some(waiting))
            };
            match went {
                Ok(None) => self.asked.took.push(now - due),
                Ok(Some(waiting)) if now - due < PATIENCE => self.waiting.push(waiting),
                Ok(Some(waiting)) => self.asked.lost.push(format!("nothing came: {:?}", waiting.way)),
                Err(error) => self.asked.lost.push(error.to_string()),
            }
        }
        Ok(())
    }
}

impl Waiting {
    fn watched(&self) -> PollFd<'_> {
        let (socket, wanted): (BorrowedFd<'_>, _) = match &self.way {
            Way::Datagram(socket) => (socket.as_fd(), PollFlags::POLLIN),
            Way::Connecting(stream, _) => (stream.as_fd(), PollFlags::POLLOUT),
            Way::Connected(stream, _) => (stream.as_fd(), PollFlags::POLLIN),
        };
        PollFd::new(socket, wanted)
    }

    /// Goes on; nothing where it is answered.
    fn go_on(self) -> io::Result<Option<Self>> {
        let due = self.due;
        let mut octets = [0; 1500];
        let way = match self.way {
            Way::Datagram(socket) => {
                let length = socket.recv(&mut octets)?;
                return check(&octets[..length]).map(|()| None);
            }
            Way::Connecting(mut stream, question) => {
                if let Some(error) = stream.take_error()? {
                    return Err(error);
                }
                stream.write_all(&question)?;
                Way::Connected(stream, Vec::new())
            }
            Way::Connected(mut stream, mut heard) => {
                match stream.read(&mut octets) {
                    Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                    Ok(length) => heard.extend_from_slice(&octets[..length]),
                    Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                    Err(error) => return Err(error),
                }
                if let Some((length, message)) = heard.split_first_chunk::<2>()
                    && message.len() >= usize::from(u16::from_be_bytes(*length))
                {
                    return check(message).map(|()| None);
                }
                Way::Connected(stream, heard)
            }
        };
        Ok(Some(Self { due, way }))
    }
}

/// NOERROR, with a record.
fn check(message: &[u8]) -> io::Result<()> {
    match message {
        [_, _, _, code, _, _, high, low, ..] if code & 0xf == 0 && (*high, *low) != (0, 0) => Ok(()),
        _other => Err(io::Error::other("no answer to the question")),
    }
}

fn send(server: SocketAddr, question: &[u8]) -> io::Result<Way> {
    let socket = Socket::new(Domain::for_address(server), Type::DGRAM, Some(Protocol::UDP))?;
    socket.set_nonblocking(true)?;
    socket.connect(&server.into())?;
    socket.send(question)?;
    Ok(Way::Datagram(socket.into()))
}

fn connect(server: SocketAddr, question: &[u8]) -> io::Result<Way> {
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
    Ok(Way::Connecting(socket.into(), framed))
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
