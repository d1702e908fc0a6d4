//! DNS questions of a probe: by UDP or TCP, with an id of the test's choice, answered with the message and its time.

use std::{
    io::{self, Read as _, Write as _},
    net::{IpAddr, SocketAddr, TcpStream, UdpSocket},
    time::{Duration, Instant},
};

use hickory_proto::{
    op::{Edns, Message, OpCode, Query, ResponseCode},
    rr::{Name, RecordType},
};
use socket2::Type;

use crate::{Pod, node, sockets::uninterrupted};

/// How a question travels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Transport {
    Udp,
    Tcp,
}

/// One question to one server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lookup {
    name: String,
    record_type: RecordType,
    server: SocketAddr,
    transport: Transport,
    id: u16,
    udp_size: Option<u16>,
    patience: Duration,
}

/// A server's answer, as it came.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reply {
    pub message: Message,
    pub bytes: Vec<u8>,
    pub took: Duration,
}

/// One of several messages that a socket received, and its sender.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReceivedReply {
    pub from: SocketAddr,
    pub reply: Reply,
}

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum LookupFailure {
    #[error("{name}: no answer from {server} within {} ms", waited.as_millis())]
    NoAnswer {
        name: String,
        server: SocketAddr,
        waited: Duration,
    },
    #[error("{name}: {server}: {source}")]
    Io {
        name: String,
        server: SocketAddr,
        source: io::Error,
    },
    #[error("{name}: unreadable answer from {server}: {bytes:02x?}")]
    Unreadable {
        name: String,
        server: SocketAddr,
        bytes: Vec<u8>,
    },
}

impl Lookup {
    /// Asks dnsd by UDP, without EDNS, with a random id, and waits two seconds.
    pub fn of(name: &str, record_type: RecordType) -> Self {
        Self {
            name: name.into(),
            record_type,
            server: SocketAddr::new(node::DNS.into(), 53),
            transport: Transport::Udp,
            id: rand::random(),
            udp_size: None,
            patience: Duration::from_secs(2),
        }
    }

    /// The same question about another name.
    #[must_use]
    pub fn named(self, name: &str) -> Self {
        Self {
            name: name.into(),
            ..self
        }
    }

    #[must_use]
    pub fn at(self, server: impl Into<IpAddr>) -> Self {
        Self {
            server: SocketAddr::new(server.into(), self.server.port()),
            ..self
        }
    }

    #[must_use]
    pub fn over_tcp(self) -> Self {
        Self {
            transport: Transport::Tcp,
            ..self
        }
    }

    #[must_use]
    pub fn with_id(self, id: u16) -> Self {
        Self { id, ..self }
    }

    /// Adds EDNS with this UDP payload size.
    #[must_use]
    pub fn with_udp_size(self, size: u16) -> Self {
        Self {
            udp_size: Some(size),
            ..self
        }
    }

    #[must_use]
    pub fn patience(self, patience: Duration) -> Self {
        Self { patience, ..self }
    }

    /// The query's bytes.
    pub fn to_vec(&self) -> Vec<u8> {
        let mut message = Message::query();
        message.metadata.id = self.id;
        message.metadata.op_code = OpCode::Query;
        message.metadata.recursion_desired = true;
        let mut name = Name::from_ascii(&self.name).expect("tests ask for host names");
        name.set_fqdn(true);
        message.add_query(Query::query(name, self.record_type));
        message.edns = self.udp_size.map(|size| {
            let mut edns = Edns::new();
            edns.set_max_payload(size);
            edns
        });
        message.to_vec().expect("a question can be written")
    }

    fn failed(&self, source: io::Error) -> LookupFailure {
        let (name, server) = (self.name.clone(), self.server);
        match source.kind() {
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => LookupFailure::NoAnswer {
                name,
                server,
                waited: self.patience,
            },
            _ => LookupFailure::Io { name, server, source },
        }
    }
}

impl Reply {
    pub fn id(&self) -> u16 {
        self.message.metadata.id
    }

    pub fn code(&self) -> ResponseCode {
        self.message.metadata.response_code
    }

    pub fn is_truncated(&self) -> bool {
        self.message.metadata.truncation
    }

    /// The addresses of its A and AAAA records, in their order.
    pub fn addresses(&self) -> Vec<IpAddr> {
        self.message
            .answers
            .iter()
            .filter_map(|record| record.data.ip_addr())
            .collect()
    }

    /// The lowest TTL of its answers.
    pub fn ttl(&self) -> Option<u32> {
        self.message.answers.iter().map(|record| record.ttl).min()
    }

    /// The question, in the letter case of the answer.
    pub fn question(&self) -> Option<String> {
        self.message
            .queries
            .first()
            .map(|question| question.name.to_ascii())
    }
}

impl Pod {
    /// Asks dnsd by UDP.
    pub fn resolve(&self, name: &str, record_type: RecordType) -> Result<Reply, LookupFailure> {
        self.look_up(&Lookup::of(name, record_type))
    }

    /// Asks as told; the first message that comes back on the socket is the answer, whatever it is.
    pub fn look_up(&self, lookup: &Lookup) -> Result<Reply, LookupFailure> {
        let asked = Instant::now();
        let exchanged = match lookup.transport {
            Transport::Udp => self.exchange_datagrams(lookup),
            Transport::Tcp => self.exchange_framed(lookup),
        };
        let bytes = exchanged.map_err(|source| lookup.failed(source))?;
        let took = asked.elapsed();
        match Message::from_vec(&bytes) {
            Ok(message) => Ok(Reply { message, bytes, took }),
            Err(_unreadable) => Err(LookupFailure::Unreadable {
                name: lookup.name.clone(),
                server: lookup.server,
                bytes,
            }),
        }
    }

    /// Sends a query from a socket that is not connected and listens to all that comes, until `count` messages did or
    /// `patience` is over.
    pub fn converse(
        &self,
        server: SocketAddr,
        query: &[u8],
        count: usize,
        patience: Duration,
    ) -> io::Result<Vec<ReceivedReply>> {
        let socket = UdpSocket::from(self.socket(server.ip(), Type::DGRAM)?);
        let asked = Instant::now();
        socket.send_to(query, server)?;
        let (mut heard, mut bytes) = (Vec::new(), vec![0; 65_536]);
        while heard.len() < count {
            let left = patience
                .checked_sub(asked.elapsed())
                .filter(|left| !left.is_zero());
            let Some(left) = left else { break };
            socket.set_read_timeout(Some(left))?;
            let Ok((length, from)) = uninterrupted(|| socket.recv_from(&mut bytes)) else {
                break;
            };
            let message = Message::from_vec(&bytes[..length]).map_err(io::Error::other)?;
            let reply = Reply {
                message,
                bytes: bytes[..length].to_vec(),
                took: asked.elapsed(),
            };
            heard.push(ReceivedReply { from, reply });
        }
        Ok(heard)
    }

    fn exchange_datagrams(&self, lookup: &Lookup) -> io::Result<Vec<u8>> {
        let socket = self.socket(lookup.server.ip(), Type::DGRAM)?;
        socket.connect(&lookup.server.into())?;
        let socket = UdpSocket::from(socket);
        socket.set_read_timeout(Some(lookup.patience))?;
        socket.send(&lookup.to_vec())?;
        let mut bytes = vec![0; 65_536];
        let length = uninterrupted(|| socket.recv(&mut bytes))?;
        bytes.truncate(length);
        Ok(bytes)
    }

    fn exchange_framed(&self, lookup: &Lookup) -> io::Result<Vec<u8>> {
        let socket = self.socket(lookup.server.ip(), Type::STREAM)?;
        socket.connect_timeout(&lookup.server.into(), lookup.patience)?;
        let mut stream = TcpStream::from(socket);
        stream.set_read_timeout(Some(lookup.patience))?;
        write_framed(&mut stream, &lookup.to_vec())?;
        read_framed(&mut stream)
    }
}

/// Writes a message with its length before it (RFC 1035 section 4.2.2), in one segment.
pub fn write_framed(stream: &mut TcpStream, message: &[u8]) -> io::Result<()> {
    let length = u16::try_from(message.len()).map_err(io::Error::other)?;
    stream.write_all(&[&length.to_be_bytes()[..], message].concat())
}

pub fn read_framed(stream: &mut TcpStream) -> io::Result<Vec<u8>> {
    let mut length = [0; 2];
    stream.read_exact(&mut length)?;
    let mut bytes = vec![0; usize::from(u16::from_be_bytes(length))];
    stream.read_exact(&mut bytes)?;
    Ok(bytes)
}
