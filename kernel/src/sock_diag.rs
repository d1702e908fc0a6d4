//! Sockets of programs, by `NETLINK_SOCK_DIAG`: end the one that has a connection, so that its program sees an error
//! at once (`ECONNABORTED`) instead of waiting for a peer that nothing reaches any more.
//!
//! The kernel looks a socket up as it does for a packet: where no connection has the two addresses and ports, it answers with
//! one that listens there, which must not be ended. So it is asked first, and what it shows is ended by its cookie.
//!
//! Requests are those of `linux/sock_diag.h` and `linux/inet_diag.h`.

use crate::fault_points::{self, Step};
use crate::netlink::{DUMP, Error, MalformedMessage, ReplyPart, Request, Socket};
use crate::{Family, Transport};
use nix::sched::{CloneFlags, setns};
use nix::sys::socket::SockProtocol;
use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::BorrowedFd;

/// The sockets of one network namespace.
#[derive(Debug)]
pub struct Sockets {
    socket: Socket,
}

impl Sockets {
    /// Those of the calling thread's namespace.
    pub fn open() -> Result<Self, Error> {
        Socket::open(SockProtocol::NetlinkSockDiag).map(|socket| Self { socket })
    }

    /// Those of another namespace, which lives at least as long as what is returned. Needs `CAP_SYS_ADMIN`; a thread of its
    /// own goes there, so that the caller stays where it is.
    pub fn open_in(namespace: BorrowedFd<'_>) -> Result<Self, Error> {
        let open = || {
            setns(namespace, CloneFlags::CLONE_NEWNET).map_err(Error::Open)?;
            Self::open()
        };
        std::thread::scope(|scope| scope.spawn(open).join().expect("opening a socket does not panic"))
    }

    /// Ends the sockets of these connections, each as [`Self::end`] does; how many there were. Clients send datagrams by the
    /// thousand to servers that have one socket for all: where many are about datagrams, the kernel lists those that are connected
    /// instead of being asked about each.
    pub fn end_all(&mut self, all: &[Connection]) -> Result<u64, Error> {
        let datagrams = all.iter().filter(|one| one.transport == Transport::Udp);
        let connected = match datagrams.count() {
            0..=FEW => None,
            _ => Some(self.connected_datagram_sockets()?),
        };
        let is_absent = |one: &Connection| {
            one.transport == Transport::Udp
                && connected
                    .as_ref()
                    .is_some_and(|all| !all.contains(&(one.local, one.remote)))
        };
        let mut ended = 0;
        for one in all.iter().filter(|one| !is_absent(one)) {
            ended += u64::from(self.end(one)?);
        }
        Ok(ended)
    }

    /// Both ends of all of them, as [`Connection`] has them.
    fn connected_datagram_sockets(&mut self) -> Result<BTreeSet<(SocketAddr, SocketAddr)>, Error> {
        let mut found = BTreeSet::new();
        for family in Family::ALL {
            let mut header = vec![family.number(), Transport::Udp.number(), 0, 0];
            header.extend((1_u32 << CONNECTED).to_ne_bytes());
            header.resize(REQUEST_LENGTH, 0);
            let request = Request::new("list connected sockets", BY_FAMILY, DUMP, &header);
            let sockets = self.socket.ask(&request, read_socket)?.into_iter();
            found.extend(sockets.map(|socket| (socket.local, socket.remote)));
        }
        Ok(found)
    }

    /// Ends the TCP connection or connected UDP socket between these two; false where there is none. Other protocols
    /// have no sockets that can be ended. `EOPNOTSUPP` is a kernel without `CONFIG_INET_DIAG_DESTROY`.
    pub fn end(&mut self, wanted: &Connection) -> Result<bool, Error> {
        let Connection {
            transport,
            local,
            remote,
        } = *wanted;
        let cookie = match transport {
            Transport::Tcp | Transport::Udp => self.cookie_of(wanted)?,
            Transport::Sctp => None,
        };
        let Some(cookie) = cookie else {
            return Ok(false);
        };
        fault_points::before(Step::Socket, || format!("end a socket {local} {remote}"))
            .map_err(|errno| Error::refused("end a socket", errno))?;
        absent_is_false(self.socket.tell(&wanted.request(
            "end a socket",
            DESTROY,
            cookie,
            ConnectionOrder::AsIs,
        )))
    }

    fn cookie_of(&mut self, wanted: &Connection) -> Result<Option<Cookie>, Error> {
        // `udp_dump_one` takes the two ends the other way round "for historical reasons", and only it.
        let order = match wanted.transport {
            Transport::Udp => ConnectionOrder::Swapped,
            Transport::Tcp | Transport::Sctp => ConnectionOrder::AsIs,
        };
        let request = wanted.request("find a socket", BY_FAMILY, ANY_COOKIE, order);
        match self.socket.ask(&request, read_socket) {
            Ok(found) => Ok(found
                .into_iter()
                .find(|found| {
                    found.state != LISTEN && found.local == wanted.local && found.remote == wanted.remote
                })
                .map(|found| found.cookie)),
            Err(error) => absent_is_false(Err(error)).map(|_absent| None),
        }
    }
}

fn absent_is_false(outcome: Result<(), Error>) -> Result<bool, Error> {
    match outcome {
        Ok(()) => Ok(true),
        Err(error) if error.refusal_code() == Some(nix::libc::ENOENT) => Ok(false),
        Err(error) => Err(error),
    }
}

type Cookie = [u8; 8];

const BY_FAMILY: u16 = 20;
const DESTROY: u16 = 21;
/// `INET_DIAG_NOCOOKIE`, twice.
const ANY_COOKIE: Cookie = [0xff; 8];
/// `TCP_LISTEN`; UDP sockets have 7 (unconnected) or [`CONNECTED`].
const LISTEN: u8 = 10;
/// `TCP_ESTABLISHED`.
const CONNECTED: u8 = 1;
/// Of `struct inet_diag_req_v2`.
const REQUEST_LENGTH: usize = 56;
/// To ask about so many takes about as long as to list those that are connected.
const FEW: usize = 16;

/// The four values that name a connection, seen from one end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Connection {
    pub transport: Transport,
    pub local: SocketAddr,
    pub remote: SocketAddr,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ConnectionOrder {
    AsIs,
    Swapped,
}

impl Connection {
    /// `struct inet_diag_req_v2`: family, protocol, two bytes of nothing, states, and the socket's id.
    fn request(&self, asked: &'static str, kind: u16, cookie: Cookie, order: ConnectionOrder) -> Request {
        const ALL_STATES: [u8; 4] = [0xff; 4];
        const ANY_INTERFACE: [u8; 4] = [0; 4];
        let (source, destination) = match order {
            ConnectionOrder::AsIs => (self.local, self.remote),
            ConnectionOrder::Swapped => (self.remote, self.local),
        };
        let mut header = vec![
            Family::of(self.local.ip()).number(),
            self.transport.number(),
            0,
            0,
        ];
        header.extend(ALL_STATES);
        header.extend(source.port().to_be_bytes());
        header.extend(destination.port().to_be_bytes());
        header.extend(sixteen(source.ip()));
        header.extend(sixteen(destination.ip()));
        header.extend(ANY_INTERFACE);
        header.extend(cookie);
        Request::new(asked, kind, 0, &header)
    }
}

/// An address in the field for the longer one.
fn sixteen(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(address) => {
            let [a, b, c, d] = address.octets();
            [a, b, c, d, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]
        }
        IpAddr::V6(address) => address.octets(),
    }
}

/// What the kernel shows of a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct SocketEntry {
    state: u8,
    local: SocketAddr,
    remote: SocketAddr,
    cookie: Cookie,
}

/// `struct inet_diag_msg`: family, state, two bytes of timers, and the socket's id.
fn read_socket(answer: ReplyPart<'_>) -> Result<Option<SocketEntry>, MalformedMessage> {
    const HEADER: usize = 72;
    if answer.kind != BY_FAMILY {
        return Ok(None);
    }
    let (header, _) = answer.split::<HEADER>()?;
    let bytes = |at: usize| -> [u8; 16] { header[at..at + 16].try_into().expect("16 bytes are 16 bytes") };
    let port = |at: usize| u16::from_be_bytes([header[at], header[at + 1]]);
    let family = Family::from_number(header[0]).ok_or(MalformedMessage("a socket of an unknown family"))?;
    let address = |at: usize| match family {
        Family::V4 => {
            let [a, b, c, d, ..] = bytes(at);
            IpAddr::from([a, b, c, d])
        }
        // A socket for both families shows IPv4 peers as mapped addresses.
        Family::V6 => IpAddr::from(bytes(at)).to_canonical(),
    };
    let mut cookie = [0; 8];
    cookie.copy_from_slice(&header[44..52]);
    Ok(Some(SocketEntry {
        state: header[1],
        local: SocketAddr::new(address(8), port(4)),
        remote: SocketAddr::new(address(24), port(6)),
        cookie,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_is_not_asked_about_each_of_many_datagrams() {
        let mut sockets = Sockets::open().unwrap();
        let clients = |transport, number: u16| -> Vec<Connection> {
            let client = |port| Connection {
                transport,
                local: SocketAddr::from(([192, 0, 2, 1], 53)),
                remote: SocketAddr::from(([192, 0, 2, 2], port)),
            };
            (1..=number).map(client).collect()
        };
        // What is to be ended, and how often the kernel is asked: about the connected sockets of either family, or about each.
        let rows = [
            (clients(Transport::Udp, 500), 2),
            (clients(Transport::Udp, 3), 3),
            (
                [clients(Transport::Udp, 500), clients(Transport::Tcp, 5)].concat(),
                2 + 5,
            ),
        ];
        for (all, requests) in rows {
            let before = sockets.socket.requests();
            assert_eq!(sockets.end_all(&all).unwrap(), 0);
            assert_eq!(sockets.socket.requests() - before, requests, "for {}", all.len());
        }
    }
}
