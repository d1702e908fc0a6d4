//! What comes and goes by an interface, before any rule of its namespace.

use std::{
    io::{self, Read as _},
    net::{IpAddr, SocketAddr},
    time::{Duration, Instant},
};

use etherparse::{LaxNetSlice, LaxSlicedPacket, TransportSlice};
use socket2::Socket;

use super::{Packet, Segment};
use crate::sockets::uninterrupted;

const FRAME: usize = 65_536;

/// Reads the frames of one interface, from the moment on when it was made.
#[derive(Debug)]
pub struct Sniffer {
    pub(super) socket: Socket,
}

/// A frame that a sniffer saw.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seen {
    frame: Vec<u8>,
}

impl Sniffer {
    /// The next frame of which this is so, if it comes in time.
    pub fn next(&self, patience: Duration, mut is_it: impl FnMut(&Seen) -> bool) -> io::Result<Option<Seen>> {
        let deadline = Instant::now() + patience;
        while let Some(seen) = self.read(deadline)? {
            if is_it(&seen) {
                return Ok(Some(seen));
            }
        }
        Ok(None)
    }

    /// All frames up to the first that holds `marker`, which must come in time. What was sent before it by the same way came before it.
    pub fn until(&self, marker: &[u8], patience: Duration) -> io::Result<Vec<Seen>> {
        let deadline = Instant::now() + patience;
        let mut all = Vec::new();
        while let Some(seen) = self.read(deadline)? {
            let is_last = seen.holds(marker);
            all.push(seen);
            if is_last {
                return Ok(all);
            }
        }
        let text = String::from_utf8_lossy(marker);
        Err(io::Error::new(
            io::ErrorKind::TimedOut,
            format!("{text:?} does not come; {} other frames do", all.len()),
        ))
    }

    fn read(&self, deadline: Instant) -> io::Result<Option<Seen>> {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(None);
        }
        self.socket.set_read_timeout(Some(left))?;
        let mut frame = vec![0; FRAME];
        match uninterrupted(|| (&self.socket).read(&mut frame)) {
            Ok(length) => {
                frame.truncate(length);
                Ok(Some(Seen { frame }))
            }
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }
}

impl Seen {
    /// Whether these octets are anywhere in it.
    pub fn holds(&self, octets: &[u8]) -> bool {
        self.frame.windows(octets.len()).any(|window| window == octets)
    }

    /// From its IP header on, if it is an IP packet.
    pub fn packet(&self) -> Option<Packet> {
        let is_ip = matches!(self.frame.get(12..14), Some([0x08, 0x00] | [0x86, 0xdd]));
        is_ip.then(|| Packet::of_bytes(&self.frame[14..]))
    }

    /// Source and destination of its IP header.
    pub fn addresses(&self) -> Option<(IpAddr, IpAddr)> {
        match self.parsed()?.net? {
            LaxNetSlice::Ipv4(ip) => {
                let header = ip.header();
                Some((header.source_addr().into(), header.destination_addr().into()))
            }
            LaxNetSlice::Ipv6(ip) => {
                let header = ip.header();
                Some((header.source_addr().into(), header.destination_addr().into()))
            }
            LaxNetSlice::Arp(_) => None,
        }
    }

    /// Source and destination of a UDP datagram or a TCP segment.
    pub fn ends(&self) -> Option<(SocketAddr, SocketAddr)> {
        let (from, to) = self.addresses()?;
        let (source, destination) = match self.parsed()?.transport? {
            TransportSlice::Udp(udp) => (udp.source_port(), udp.destination_port()),
            TransportSlice::Tcp(tcp) => (tcp.source_port(), tcp.destination_port()),
            TransportSlice::Icmpv4(_) | TransportSlice::Icmpv6(_) | TransportSlice::Igmp(_) => return None,
        };
        Some((SocketAddr::new(from, source), SocketAddr::new(to, destination)))
    }

    /// The TCP segment in it, with its payload.
    pub fn segment(&self) -> Option<(Segment, Vec<u8>)> {
        let Some(TransportSlice::Tcp(tcp)) = self.parsed()?.transport else {
            return None;
        };
        let segment = Segment {
            sequence: tcp.sequence_number(),
            acknowledgment: tcp.ack().then(|| tcp.acknowledgment_number()),
            syn: tcp.syn(),
            fin: tcp.fin(),
            rst: tcp.rst(),
        };
        Some((segment, tcp.payload().to_vec()))
    }

    /// Type and code of an ICMP or ICMPv6 message.
    pub fn icmp(&self) -> Option<(u8, u8)> {
        match self.parsed()?.transport? {
            TransportSlice::Icmpv4(icmp) => Some((icmp.type_u8(), icmp.code_u8())),
            TransportSlice::Icmpv6(icmp) => Some((icmp.type_u8(), icmp.code_u8())),
            TransportSlice::Udp(_) | TransportSlice::Tcp(_) | TransportSlice::Igmp(_) => None,
        }
    }

    fn parsed(&self) -> Option<LaxSlicedPacket<'_>> {
        LaxSlicedPacket::from_ethernet(&self.frame).ok()
    }
}
