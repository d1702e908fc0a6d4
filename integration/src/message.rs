//! Messages of protocols that are neither TCP nor UDP: echo requests of ICMP, and the first step of SCTP's handshake.

use std::{
    io,
    net::{IpAddr, SocketAddr},
    sync::atomic::{AtomicU16, Ordering},
    time::{Duration, Instant},
};

use socket2::{Protocol, SockAddr, Socket, Type};

use crate::{Pod, World, sockets::uninterrupted};

/// What became of the first message of a handshake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Greeting {
    /// It did not arrive.
    Lost,
    /// It arrived, and its answer did not.
    Unanswered,
    /// Its answer came back.
    Answered,
}

/// Echo request and reply of ICMP (RFC 792) and of ICMPv6 (RFC 4443).
const ECHO_REQUEST: u8 = 8;
const ECHO_REQUEST_V6: u8 = 128;
/// RFC 9260, section 3.3.2 and 3.3.3.
const SCTP: i32 = 132;
const INIT: u8 = 1;
const INIT_ACK: u8 = 2;
const SCTP_HEADER: usize = 12;

impl Pod {
    /// Whether an echo request is answered. The socket is a "ping socket": the kernel adds identifier and checksum, and
    /// hands over only the reply that belongs to it (net/ipv4/ping.c).
    pub fn is_echoed(&self, by: IpAddr, patience: Duration) -> io::Result<bool> {
        let (protocol, kind) = match by {
            IpAddr::V4(_) => (Protocol::ICMPV4, ECHO_REQUEST),
            IpAddr::V6(_) => (Protocol::ICMPV6, ECHO_REQUEST_V6),
        };
        let socket = self.sockets().of_protocol(by, Type::DGRAM, protocol)?;
        let connected = socket.connect(&SocketAddr::new(by, 0).into());
        match connected.and_then(|()| socket.send(&[kind, 0, 0, 0, 0, 0, 0, 1])) {
            // The programs of eBPF refuse the call.
            Err(error) if error.raw_os_error() == Some(nix::libc::EPERM) => return Ok(false),
            sent => sent?,
        };
        Ok(receive(&socket, patience, |_| true)?.is_some())
    }
}

impl World {
    /// Sends an SCTP INIT from the pod to an address of the upstream network, where it is answered. It takes no SCTP in the
    /// kernel: both ends are raw sockets.
    ///
    /// # Panics
    /// When no pod has this name.
    #[track_caller]
    pub fn greet_by_sctp(&self, pod: &str, to: SocketAddr, patience: Duration) -> io::Result<Greeting> {
        static SOURCE: AtomicU16 = AtomicU16::new(50_000);
        let source = SOURCE.fetch_add(1, Ordering::Relaxed);
        let protocol = Protocol::from(SCTP);
        let client = self
            .pod(pod)
            .sockets()
            .of_protocol(to.ip(), Type::RAW, protocol)?;
        let server = self
            .upstream_network()
            .sockets()
            .of_protocol(to.ip(), Type::RAW, protocol)?;
        let bare = |address| SockAddr::from(SocketAddr::new(address, 0));
        server.bind(&bare(to.ip()))?;
        client.connect(&bare(to.ip()))?;
        match client.send(&initiation(INIT, [source, to.port()], 0)) {
            // The programs of eBPF refuse the call.
            Err(error) if error.raw_os_error() == Some(nix::libc::EPERM) => return Ok(Greeting::Lost),
            sent => sent?,
        };
        let is_ours = |kind: u8, ports: [u16; 2]| {
            move |packet: &[u8]| packet.starts_with(&words(ports)) && packet.get(SCTP_HEADER) == Some(&kind)
        };
        if receive(&server, patience, is_ours(INIT, [source, to.port()]))?.is_none() {
            return Ok(Greeting::Lost);
        }
        let [v4, v6] = self.pod(pod).addresses();
        let back = bare(if to.is_ipv4() { v4 } else { v6 });
        server.send_to(&initiation(INIT_ACK, [to.port(), source], INITIATE_TAG), &back)?;
        let answer = receive(&client, patience, is_ours(INIT_ACK, [to.port(), source]))?;
        Ok(answer.map_or(Greeting::Unanswered, |_| Greeting::Answered))
    }
}

/// The first message for which `is_it`, without its IPv4 header, which raw sockets of IPv4 hand over as well.
fn receive(
    socket: &Socket,
    patience: Duration,
    is_it: impl Fn(&[u8]) -> bool,
) -> io::Result<Option<Vec<u8>>> {
    let is_raw_v4 = socket.r#type()? == Type::RAW && socket.local_addr()?.is_ipv4();
    let asked = Instant::now();
    let socket = std::net::UdpSocket::from(socket.try_clone()?);
    while let Some(left) = patience
        .checked_sub(asked.elapsed())
        .filter(|left| !left.is_zero())
    {
        socket.set_read_timeout(Some(left))?;
        let mut bytes = vec![0; 2048];
        let length = match uninterrupted(|| socket.recv(&mut bytes)) {
            Ok(length) => length,
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {
                break;
            }
            Err(error) => return Err(error),
        };
        bytes.truncate(length);
        let header = if is_raw_v4 {
            usize::from(bytes[0] & 0xf) * 4
        } else {
            0
        };
        let message = bytes.split_off(header.min(length));
        if is_it(&message) {
            return Ok(Some(message));
        }
    }
    Ok(None)
}

const INITIATE_TAG: u32 = 0x0e97_e7e9;

/// A packet with one INIT or INIT ACK: common header, chunk, and in the answer the cookie that it must carry.
fn initiation(kind: u8, ports: [u16; 2], verification: u32) -> Vec<u8> {
    let cookie: &[u8] = if kind == INIT_ACK {
        &[0, 7, 0, 8, 1, 2, 3, 4]
    } else {
        &[]
    };
    let length = u16::try_from(20 + cookie.len()).expect("a cookie is short");
    let mut packet = words(ports).to_vec();
    packet.extend(verification.to_be_bytes());
    packet.extend([0; 4]);
    packet.extend([kind, 0]);
    packet.extend(length.to_be_bytes());
    packet.extend(INITIATE_TAG.to_be_bytes());
    // Receiver window, streams out and in, first sequence number.
    packet.extend(65_536u32.to_be_bytes());
    packet.extend(words([1, 1]));
    packet.extend(1u32.to_be_bytes());
    packet.extend(cookie);
    // RFC 9260, appendix A: least significant octet first.
    let sum = crc32c(&packet).to_le_bytes();
    packet[8..SCTP_HEADER].copy_from_slice(&sum);
    packet
}

fn words([first, second]: [u16; 2]) -> [u8; 4] {
    (u32::from(first) << 16 | u32::from(second)).to_be_bytes()
}

/// The kernel tracks no packet with a wrong one (net/netfilter/nf_conntrack_proto_sctp.c).
fn crc32c(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(u32::MAX, |sum, byte| {
        (0..8).fold(sum ^ u32::from(*byte), |sum, _| {
            sum >> 1 ^ if sum & 1 == 1 { 0x82f6_3b78 } else { 0 }
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// RFC 3720, appendix B.4.
    #[test]
    fn the_checksum_is_castagnolis() {
        for (bytes, sum) in [
            ([0u8; 32], 0x8a91_36aa),
            ([0xff; 32], 0x62a8_ab43),
            (
                std::array::from_fn(|place| u8::try_from(place).unwrap()),
                0x46dd_794e,
            ),
        ] {
            assert_eq!(crc32c(&bytes), sum, "{bytes:?}");
        }
    }
}
