//! Packets by hand: each interface of the node is a TUN device whose other end this test holds. What is written there the
//! kernel takes in, judges and sends on before the write returns; what it sends on is read at another one.

#![allow(unsafe_code, reason = "a TUN device is made by an ioctl")]

use std::fs::{File, OpenOptions};
use std::io::{Read as _, Write as _};
use std::net::IpAddr;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::OpenOptionsExt as _;

/// An interface of the node, seen from the other end.
#[derive(Debug)]
pub(crate) struct Wire {
    file: File,
}

impl Wire {
    /// Makes the interface, in the network namespace of the calling thread. It is gone with this.
    pub(crate) fn new(name: &str) -> Self {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .custom_flags(libc::O_NONBLOCK | libc::O_CLOEXEC)
            .open("/dev/net/tun")
            .unwrap();
        // SAFETY: all zeros is a valid `ifreq`: it is made of numbers.
        let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
        for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
            *to = from.cast_signed();
        }
        request.ifr_ifru.ifru_flags = i16::try_from(libc::IFF_TUN | libc::IFF_NO_PI).unwrap();
        // SAFETY: the file is open, and the kernel reads and writes one `ifreq`.
        let outcome = unsafe { libc::ioctl(file.as_raw_fd(), libc::TUNSETIFF, &raw mut request) };
        assert_eq!(outcome, 0, "{}", std::io::Error::last_os_error());
        Self { file }
    }

    pub(crate) fn send(&self, packet: &Packet) {
        (&self.file).write_all(&packet.bytes()).unwrap();
    }

    /// All that came out and can be read as one of ours.
    pub(crate) fn received(&self) -> Vec<Packet> {
        let mut buffer = [0; 2048];
        let mut all = Vec::new();
        while let Ok(length) = (&self.file).read(&mut buffer) {
            all.extend(Packet::of(&buffer[..length]));
        }
        all
    }
}

/// What a probe asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum What {
    Tcp(u16),
    Udp(u16),
    Ping,
}

/// A packet; `number` is the source port of the opener, or the identifier of an echo.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Packet {
    pub(crate) source: IpAddr,
    pub(crate) destination: IpAddr,
    pub(crate) content: Content,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Content {
    Tcp { from: u16, to: u16, flags: u8 },
    Udp { from: u16, to: u16 },
    Echo { number: u16 },
}

pub(crate) const SYN: u8 = 2;
pub(crate) const SYN_ACK: u8 = 18;
/// What the opener sends from then on.
pub(crate) const ACK: u8 = 16;
/// What the other end does: with PSH, so that the two are told apart.
pub(crate) const ACK_BACK: u8 = 24;

impl Packet {
    pub(crate) fn opening(source: IpAddr, destination: IpAddr, number: u16, what: What) -> Self {
        let content = match what {
            What::Tcp(to) => Content::Tcp {
                from: number,
                to,
                flags: SYN,
            },
            What::Udp(to) => Content::Udp { from: number, to },
            What::Ping => Content::Echo { number },
        };
        Self {
            source,
            destination,
            content,
        }
    }

    /// Whether it belongs to what was opened with this number, in either direction.
    pub(crate) fn is_of(&self, opened: u16) -> bool {
        match self.content {
            Content::Tcp { from, to, .. } | Content::Udp { from, to } => from == opened || to == opened,
            Content::Echo { number } => number == opened,
        }
    }

    fn bytes(&self) -> Vec<u8> {
        let (protocol, mut body) = self.body();
        let checksum_at = match self.content {
            Content::Tcp { .. } => 16,
            Content::Udp { .. } => 6,
            Content::Echo { .. } => 2,
        };
        let length = u16::try_from(body.len()).unwrap();
        let mut covered = match (self.source, self.destination, self.content) {
            (IpAddr::V4(_), _, Content::Echo { .. }) => Vec::new(),
            (source, destination, _) => [octets(source), octets(destination), vec![0, protocol]].concat(),
        };
        if !covered.is_empty() {
            covered.extend(length.to_be_bytes());
        }
        covered.extend(&body);
        body[checksum_at..checksum_at + 2].copy_from_slice(&checksum(&covered).to_be_bytes());
        [self.header(protocol, length), body].concat()
    }

    fn body(&self) -> (u8, Vec<u8>) {
        match self.content {
            Content::Tcp { from, to, flags } => {
                let (sequence, acknowledged): (u32, u32) = match flags {
                    SYN => (1000, 0),
                    SYN_ACK => (5000, 1001),
                    ACK_BACK => (5001, 1001),
                    _ => (1001, 5001),
                };
                let mut body = [from.to_be_bytes(), to.to_be_bytes()].concat();
                body.extend(sequence.to_be_bytes());
                body.extend(acknowledged.to_be_bytes());
                body.extend([0x50, flags, 0xff, 0xff, 0, 0, 0, 0]);
                (6, body)
            }
            Content::Udp { from, to } => {
                let mut body = [from.to_be_bytes(), to.to_be_bytes()].concat();
                body.extend([0, 9, 0, 0, b'x']);
                (17, body)
            }
            Content::Echo { number } => {
                let (protocol, kind) = if self.source.is_ipv4() { (1, 8) } else { (58, 128) };
                let mut body = vec![kind, 0, 0, 0];
                body.extend(number.to_be_bytes());
                body.extend([0, 1]);
                (protocol, body)
            }
        }
    }

    fn header(&self, protocol: u8, length: u16) -> Vec<u8> {
        let addresses = [octets(self.source), octets(self.destination)].concat();
        if self.source.is_ipv6() {
            let [high, low] = length.to_be_bytes();
            return [vec![0x60, 0, 0, 0, high, low, protocol, 64], addresses].concat();
        }
        let [high, low] = (length + 20).to_be_bytes();
        let mut header = vec![0x45, 0, high, low, 0, 0, 0x40, 0, 64, protocol, 0, 0];
        header.extend(addresses);
        let sum = checksum(&header);
        header[10..12].copy_from_slice(&sum.to_be_bytes());
        header
    }

    fn of(bytes: &[u8]) -> Option<Self> {
        let version = bytes.first()? >> 4;
        let (source, destination, protocol, body): (IpAddr, IpAddr, u8, &[u8]) = if version == 4 {
            let at = |from: usize| Some(<[u8; 4]>::try_from(bytes.get(from..from + 4)?).ok()?.into());
            (at(12)?, at(16)?, *bytes.get(9)?, bytes.get(20..)?)
        } else {
            let at = |from: usize| Some(<[u8; 16]>::try_from(bytes.get(from..from + 16)?).ok()?.into());
            (at(8)?, at(24)?, *bytes.get(6)?, bytes.get(40..)?)
        };
        let word = |at: usize| Some(u16::from_be_bytes(body.get(at..at + 2)?.try_into().ok()?));
        let content = match (protocol, body.first()?) {
            (6, _) => Content::Tcp {
                from: word(0)?,
                to: word(2)?,
                flags: *body.get(13)?,
            },
            (17, _) => Content::Udp {
                from: word(0)?,
                to: word(2)?,
            },
            (1, 0 | 8) | (58, 128 | 129) => Content::Echo { number: word(4)? },
            // A port that is closed: the datagram came so far.
            (1, 3) | (58, 1) => return Self::of(body.get(8..)?),
            _ => return None,
        };
        Some(Self {
            source,
            destination,
            content,
        })
    }
}

fn octets(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    }
}

/// RFC 1071.
fn checksum(bytes: &[u8]) -> u16 {
    let words = bytes.chunks(2);
    let mut sum: u32 = words
        .map(|pair| u32::from(pair[0]) << 8 | pair.get(1).copied().map_or(0, u32::from))
        .sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !u16::try_from(sum).unwrap()
}
