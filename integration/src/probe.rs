//! Connections and datagrams that a test sends from a pod, to see whether they pass.

use std::{
    io::{self, Read as _, Write as _},
    net::{IpAddr, SocketAddr, TcpStream, UdpSocket},
    time::{Duration, Instant},
};

use nix::errno::Errno;
use socket2::{SockAddr, Socket, Type};

use crate::{Pod, sockets::uninterrupted};

/// How an attempt to connect ended.
#[derive(Debug)]
pub enum Outcome {
    Connected(Connection),
    /// A reset came back: nobody listens there, or a rule rejects.
    Refused,
    /// Nothing came back: a rule drops silently.
    TimedOut,
    /// The own kernel said no (EPERM, EACCES): the eBPF hooks, or "administratively prohibited".
    NotPermitted,
    /// An ICMP error: no route, or a rule rejects with one.
    Unreachable,
    Error(io::Error),
}

impl Outcome {
    pub fn is_connected(&self) -> bool {
        matches!(self, Self::Connected(_))
    }

    /// Whether policy refused it: netfilter drops, the programs of eBPF refuse the call.
    pub fn is_denied(&self) -> bool {
        matches!(self, Self::TimedOut | Self::NotPermitted)
    }

    /// # Panics
    /// When it did not connect: for tests that need the connection to go on.
    #[track_caller]
    pub fn connection(self) -> Connection {
        match self {
            Self::Connected(connection) => connection,
            other => panic!("no connection: {other:?}"),
        }
    }

    pub(crate) fn of(error: io::Error) -> Self {
        if error.kind() == io::ErrorKind::TimedOut {
            return Self::TimedOut;
        }
        match error.raw_os_error().map(Errno::from_raw) {
            Some(Errno::ECONNREFUSED) => Self::Refused,
            Some(Errno::EPERM | Errno::EACCES) => Self::NotPermitted,
            Some(Errno::EHOSTUNREACH | Errno::ENETUNREACH) => Self::Unreachable,
            Some(Errno::EINPROGRESS | Errno::EAGAIN) => Self::TimedOut,
            Some(_) | None => Self::Error(error),
        }
    }
}

/// How a datagram and the wait for its echo ended.
#[derive(Debug)]
pub enum UdpOutcome {
    Answered {
        bytes: Vec<u8>,
        took: Duration,
    },
    Silent,
    NotPermitted,
    /// An ICMP error came back.
    Refused,
    Error(io::Error),
}

impl UdpOutcome {
    pub fn is_answered(&self) -> bool {
        matches!(self, Self::Answered { .. })
    }

    fn of(error: io::Error) -> Self {
        if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) {
            return Self::Silent;
        }
        match error.raw_os_error().map(Errno::from_raw) {
            Some(Errno::EPERM | Errno::EACCES) => Self::NotPermitted,
            Some(Errno::ECONNREFUSED | Errno::EHOSTUNREACH | Errno::ENETUNREACH) => Self::Refused,
            Some(_) | None => Self::Error(error),
        }
    }
}

/// An open TCP connection of a pod.
#[derive(Debug)]
pub struct Connection {
    stream: TcpStream,
    sent: u64,
}

impl Connection {
    pub(crate) fn new(stream: TcpStream) -> Self {
        Self { stream, sent: 0 }
    }

    pub fn local(&self) -> io::Result<SocketAddr> {
        self.stream.local_addr()
    }

    pub fn peer(&self) -> io::Result<SocketAddr> {
        self.stream.peer_addr()
    }

    /// Asks an echo server whether the connection still carries bytes both ways.
    pub fn is_alive(&mut self) -> bool {
        self.echo_within(Duration::from_secs(1)).is_ok()
    }

    /// Sends bytes that were never sent before and reads until they are back; how long that took.
    pub fn echo_within(&mut self, patience: Duration) -> io::Result<Duration> {
        let asked = Instant::now();
        self.sent += 1;
        let word = self.sent.to_be_bytes();
        self.stream.write_all(&word)?;
        // An echo that came too late for an earlier question is read over.
        loop {
            let left = patience
                .checked_sub(asked.elapsed())
                .filter(|left| !left.is_zero());
            self.stream
                .set_read_timeout(Some(left.ok_or(io::ErrorKind::TimedOut)?))?;
            let mut back = [0; 8];
            self.stream.read_exact(&mut back)?;
            if back == word {
                return Ok(asked.elapsed());
            }
        }
    }

    /// How many bytes a server pushes within this time.
    pub fn received_within(&mut self, time: Duration) -> io::Result<usize> {
        let deadline = Instant::now() + time;
        let (mut received, mut bytes) = (0, [0; 4096]);
        while let Some(left) = deadline
            .checked_duration_since(Instant::now())
            .filter(|left| !left.is_zero())
        {
            self.stream.set_read_timeout(Some(left))?;
            match uninterrupted(|| self.stream.read(&mut bytes)) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(length) => received += length,
                Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {
                    break;
                }
                Err(error) => return Err(error),
            }
        }
        Ok(received)
    }

    pub fn stream(&mut self) -> &mut TcpStream {
        &mut self.stream
    }
}

impl Pod {
    pub fn connect_tcp(&self, to: SocketAddr, patience: Duration) -> Outcome {
        match self.open_tcp(to, patience) {
            Ok(connection) => Outcome::Connected(connection),
            Err(error) => Outcome::of(error),
        }
    }

    /// Sends one datagram and waits for one back.
    pub fn exchange_udp(&self, to: SocketAddr, bytes: &[u8], patience: Duration) -> UdpOutcome {
        let asked = Instant::now();
        match self.send_and_receive(to, bytes, patience) {
            Ok(bytes) => UdpOutcome::Answered {
                bytes,
                took: asked.elapsed(),
            },
            Err(error) => UdpOutcome::of(error),
        }
    }

    /// Sends a datagram that claims to come from `source`. (IP_TRANSPARENT lets a socket have an address that is not
    /// ours, so the kernel writes the same packet that a raw socket would, with its checksums.)
    pub fn send_udp_as(&self, source: SocketAddr, to: SocketAddr, bytes: &[u8]) -> io::Result<()> {
        let socket = self.foreign_socket(source, Type::DGRAM)?;
        socket.send_to(bytes, &SockAddr::from(to))?;
        Ok(())
    }

    /// Tries a TCP connection that claims to come from `source`; answers go to the one whose address it is.
    pub fn connect_tcp_as(&self, source: SocketAddr, to: SocketAddr, patience: Duration) -> Outcome {
        let attempt = self.foreign_socket(source, Type::STREAM).and_then(|socket| {
            socket.connect_timeout(&to.into(), patience)?;
            Ok(Connection::new(socket.into()))
        });
        attempt.map_or_else(Outcome::of, Outcome::Connected)
    }

    /// A connected UDP socket of this pod, for a test's own conversation.
    pub fn udp_socket(&self, to: SocketAddr) -> io::Result<UdpSocket> {
        let socket = self.socket(to.ip(), Type::DGRAM)?;
        socket.connect(&to.into())?;
        Ok(socket.into())
    }

    /// A UDP socket of this pod that takes datagrams from everybody.
    pub fn open_udp_socket(&self, family_of: SocketAddr) -> io::Result<UdpSocket> {
        self.socket(family_of.ip(), Type::DGRAM).map(UdpSocket::from)
    }

    fn open_tcp(&self, to: SocketAddr, patience: Duration) -> io::Result<Connection> {
        let socket = self.socket(to.ip(), Type::STREAM)?;
        socket.connect_timeout(&to.into(), patience)?;
        socket.set_tcp_nodelay(true)?;
        Ok(Connection::new(socket.into()))
    }

    fn send_and_receive(&self, to: SocketAddr, bytes: &[u8], patience: Duration) -> io::Result<Vec<u8>> {
        let socket = self.udp_socket(to)?;
        socket.set_read_timeout(Some(patience))?;
        socket.send(bytes)?;
        let mut back = vec![0; 65_536];
        let length = uninterrupted(|| socket.recv(&mut back))?;
        back.truncate(length);
        Ok(back)
    }

    fn foreign_socket(&self, source: SocketAddr, kind: Type) -> io::Result<Socket> {
        let socket = self.socket(source.ip(), kind)?;
        match source.ip() {
            IpAddr::V4(_) => socket.set_ip_transparent_v4(true)?,
            IpAddr::V6(_) => socket.set_ip_transparent_v6(true)?,
        }
        socket.set_reuse_address(true)?;
        socket.bind(&source.into())?;
        Ok(socket)
    }
}
