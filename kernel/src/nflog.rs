//! Packets that rules hand to user space (`-j NFLOG`), read from one group of nfnetlink_log.
//!
//! A group belongs to a network namespace and to one listener in it. The kernel collects some packets before it sends
//! them; when nobody listens, or nobody reads, it drops what it would tell and the packets themselves go on: telling never
//! holds traffic up. What was lost so is known by the gaps in its numbering.

use crate::Family;
use crate::netlink::{Error, MalformedMessage, ReplyPart, Request, Socket};
use nix::errno::Errno;
use nix::sys::socket::SockProtocol;
use std::os::fd::{AsFd, BorrowedFd};

/// What is read of each packet: headers, not what is said in it.
const COPIED: u32 = 128;
/// As many packets in one datagram, or as many hundredths of a second before they are sent.
const COLLECTED: u32 = 32;
const COLLECTED_FOR: u32 = 10;
/// What may wait to be read: some thousand packets.
const BUFFER: usize = 2 * 1024 * 1024;
/// What one call reads at most, so that a flood does not keep its caller.
const DATAGRAMS_AT_ONCE: usize = 64;

/// Why a group cannot be listened to.
#[derive(Debug, thiserror::Error)]
pub enum BindError {
    #[error(
        "another program listens to the NFLOG group {group} of this network namespace: end it, or choose another group"
    )]
    Taken { group: u16 },
    #[error("the NFLOG group {group} cannot be listened to: {source}")]
    Refused {
        group: u16,
        #[source]
        source: Error,
    },
}

/// A packet that a rule logged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoggedPacket {
    pub family: Family,
    /// The text of the rule.
    pub prefix: String,
    /// The index of the interface by which it came in; none for what this host sends.
    pub input: Option<u32>,
    /// … and by which it would go out; none for what is for this host.
    pub output: Option<u32>,
    /// It, from the network header on, or its beginning.
    pub packet: Vec<u8>,
}

/// The packets of one read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReadBatch {
    pub packets: Vec<LoggedPacket>,
    /// Packets that the kernel would have told, and could not.
    pub lost: u64,
}

/// The listener of a group, in the network namespace of the thread that bound it.
#[derive(Debug)]
pub struct Listener {
    socket: Socket,
    /// The number that the next packet has if none is lost; none before the first.
    next: Option<u32>,
}

impl Listener {
    pub fn bind(group: u16) -> Result<Self, BindError> {
        let opened = Socket::listen(SockProtocol::NetlinkNetFilter, 0)
            .and_then(|socket| socket.widen(BUFFER).map(|()| socket));
        let mut socket = opened.map_err(|source| BindError::Refused { group, source })?;
        for request in set_up(group) {
            socket.tell(&request).map_err(|source| refused(group, source))?;
        }
        Ok(Self { socket, next: None })
    }

    /// Takes what waits, without waiting for any.
    pub fn read(&mut self) -> Result<ReadBatch, Error> {
        let mut told = ReadBatch::default();
        let next = &mut self.next;
        self.socket.hear(DATAGRAMS_AT_ONCE, |answer| {
            if let Ok((number, packet)) = read_packet(answer) {
                told.lost += missing(next, number);
                told.packets.push(packet);
            }
        })?;
        Ok(told)
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// The number of packets between the expected one and this.
fn missing(next: &mut Option<u32>, number: Option<u32>) -> u64 {
    let Some(number) = number else { return 0 };
    let expected = next.replace(number.wrapping_add(1)).unwrap_or(number);
    u64::from(number.wrapping_sub(expected))
}

/// `linux/netfilter/nfnetlink_log.h`.
const SUBSYSTEM: u8 = 4;
const MESSAGE_PACKET: u8 = 0;
const MESSAGE_CONFIG: u8 = 1;

const CONFIG_COMMAND: u16 = 1;
const CONFIG_MODE: u16 = 2;
const CONFIG_TIMEOUT: u16 = 4;
const CONFIG_THRESHOLD: u16 = 5;
const CONFIG_FLAGS: u16 = 6;
const COMMAND_BIND: u8 = 1;
const MODE_PACKET: u8 = 2;
const FLAG_NUMBERED: u16 = 1;

const PACKET_INPUT: u16 = 4;
const PACKET_OUTPUT: u16 = 5;
const PACKET_PAYLOAD: u16 = 9;
const PACKET_PREFIX: u16 = 10;
const PACKET_NUMBER: u16 = 12;

fn set_up(group: u16) -> [Request; 3] {
    let [high, low] = group.to_be_bytes();
    let request = |asked| {
        Request::new(
            asked,
            u16::from_be_bytes([SUBSYSTEM, MESSAGE_CONFIG]),
            0,
            &[0, 0, high, low],
        )
    };
    let [a, b, c, d] = COPIED.to_be_bytes();
    [
        request("bind an NFLOG group").byte(CONFIG_COMMAND, COMMAND_BIND),
        request("number what is told of an NFLOG group")
            .bytes(CONFIG_FLAGS, &FLAG_NUMBERED.to_be_bytes())
            .plain_be32(CONFIG_TIMEOUT, COLLECTED_FOR)
            .plain_be32(CONFIG_THRESHOLD, COLLECTED),
        request("copy packets of an NFLOG group").bytes(CONFIG_MODE, &[a, b, c, d, MODE_PACKET, 0]),
    ]
}

/// A group of somebody else is EPERM (`nfulnl_recv_config` looks who has it first), or EBUSY where it is one's own.
fn refused(group: u16, source: Error) -> BindError {
    let taken = [Errno::EPERM as i32, Errno::EBUSY as i32];
    match source.refusal_code() {
        Some(code) if taken.contains(&code) => BindError::Taken { group },
        Some(_) | None => BindError::Refused { group, source },
    }
}

fn read_packet(answer: ReplyPart<'_>) -> Result<(Option<u32>, LoggedPacket), MalformedMessage> {
    if answer.kind != u16::from_be_bytes([SUBSYSTEM, MESSAGE_PACKET]) {
        return Err(MalformedMessage("it is no packet of NFLOG"));
    }
    let (header, attributes) = answer.split::<4>()?;
    let payload = attributes.get(PACKET_PAYLOAD).unwrap_or_default();
    let family = family(header[0], payload).ok_or(MalformedMessage("it is neither IPv4 nor IPv6"))?;
    let packet = LoggedPacket {
        family,
        prefix: attributes.text(PACKET_PREFIX).unwrap_or_default(),
        input: attributes.be32(PACKET_INPUT),
        output: attributes.be32(PACKET_OUTPUT),
        packet: payload.to_vec(),
    };
    Ok((attributes.be32(PACKET_NUMBER), packet))
}

/// A table of bridges logs in a family of its own, and what it logs begins with the network header as well.
fn family(number: u8, packet: &[u8]) -> Option<Family> {
    const BRIDGE: u8 = 7;
    match (number, packet.first().map(|octet| octet >> 4)) {
        (BRIDGE, Some(4)) => Some(Family::V4),
        (BRIDGE, Some(6)) => Some(Family::V6),
        (BRIDGE, _) => None,
        (number, _) => Family::from_number(number),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gap_in_sequence_numbers_counts_lost_packets() {
        let mut next = None;
        let lost: Vec<u64> = [7, 8, 11, 11_u32.wrapping_add(1)]
            .map(|number| missing(&mut next, Some(number)))
            .into();
        assert_eq!(lost, [0, 0, 2, 0]);
        next = Some(u32::MAX);
        assert_eq!(
            missing(&mut next, Some(1)),
            2,
            "numbers begin again behind the last"
        );
        assert_eq!(missing(&mut next, None), 0);
    }

    #[test]
    fn a_message_is_read_with_what_it_has() {
        let message = Request::new("test", 0x0400, 0, &[2, 0, 0, 5])
            .text(PACKET_PREFIX, "abc")
            .plain_be32(PACKET_INPUT, 3)
            .plain_be32(PACKET_NUMBER, 9)
            .bytes(PACKET_PAYLOAD, &[0x45, 0]);
        let body = [&[2, 0, 0, 5][..], message.attribute_bytes::<4>()].concat();
        let read = |kind, body: &[u8]| read_packet(ReplyPart { kind, port: 0, body });
        let (number, packet) = read(0x0400, &body).unwrap();
        assert_eq!(number, Some(9));
        assert_eq!(
            packet,
            LoggedPacket {
                family: Family::V4,
                prefix: "abc".into(),
                input: Some(3),
                output: None,
                packet: vec![0x45, 0],
            }
        );
        assert!(read(0x0401, &body).is_err(), "a message of another kind");
        assert!(read(0x0400, &body[..6]).is_err(), "an attribute without its end");
        assert!(read(0x0400, &[7, 0, 0, 5]).is_err(), "a family without addresses");
        let bridged = [&[7, 0, 0, 5][..], &body[4..]].concat();
        assert_eq!(read(0x0400, &bridged).unwrap().1.family, Family::V4);
    }
}
