//! The bytes of netlink: messages, requests under construction, attributes. All reading is bounds checked.

use super::{ACKNOWLEDGE, DUMP, REQUEST};

/// `struct nlmsghdr`.
const HEADER: usize = 16;
/// Of a request from the start: most rules fit, and what grows is copied each time.
const ROOM: usize = 1024;
/// The same of one that is short: a thousand of them need not push everything else out of a processor's cache.
const LITTLE_ROOM: usize = 256;

/// One part of an answer: its message type and what follows the netlink header.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReplyPart<'a> {
    pub(crate) kind: u16,
    /// The port of the socket whose request this is about.
    pub(crate) port: u32,
    pub(crate) body: &'a [u8],
}

impl<'a> ReplyPart<'a> {
    /// Splits off the family's own header (`nfgenmsg`, `rtmsg`, `ifinfomsg`, …) of `N` bytes.
    pub(crate) fn split<const N: usize>(self) -> Result<(&'a [u8; N], Attributes<'a>), MalformedMessage> {
        let (header, rest) = self
            .body
            .split_first_chunk()
            .ok_or(MalformedMessage("it is shorter than its header"))?;
        Ok((header, Attributes::parse(rest)?))
    }
}

/// What was wrong with bytes that came from the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MalformedMessage(pub(crate) &'static str);

pub(super) struct Message<'a> {
    pub(super) kind: u16,
    pub(super) flags: u16,
    pub(super) sequence: u32,
    pub(super) port: u32,
    pub(super) body: &'a [u8],
}

/// The messages of one datagram.
pub(super) struct Messages<'a>(pub(super) &'a [u8]);

impl<'a> Iterator for Messages<'a> {
    type Item = Result<Message<'a>, MalformedMessage>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.0.is_empty() {
            return None;
        }
        let message = message(self.0);
        self.0 = match &message {
            Ok(message) => self
                .0
                .get(aligned(HEADER + message.body.len())..)
                .unwrap_or_default(),
            Err(_) => &[],
        };
        Some(message)
    }
}

fn message(bytes: &[u8]) -> Result<Message<'_>, MalformedMessage> {
    let number = |at: usize| Some(u32::from_ne_bytes(*bytes.get(at..)?.first_chunk()?));
    let half = |at: usize| Some(u16::from_ne_bytes(*bytes.get(at..)?.first_chunk()?));
    let parsed = || {
        let length = usize::try_from(number(0)?).ok()?;
        let body = bytes.get(HEADER..length)?;
        Some(Message {
            kind: half(4)?,
            flags: half(6)?,
            sequence: number(8)?,
            port: number(12)?,
            body,
        })
    };
    parsed().ok_or(MalformedMessage("a message is longer than what arrived"))
}

fn aligned(length: usize) -> usize {
    length.next_multiple_of(4)
}

/// A request under construction: the netlink header, the family's header, attributes.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    pub(crate) asked: &'static str,
    bytes: Vec<u8>,
}

const NESTED: u16 = 0x8000;
const NETWORK_ORDER: u16 = 0x4000;
const KIND_MASK: u16 = 0x3fff;

impl Request {
    /// `asked` says in words what is asked, for errors. A dump ends by itself; anything else is to be acknowledged.
    pub(crate) fn new(asked: &'static str, kind: u16, flags: u16, header: &[u8]) -> Self {
        Self::with_room(ROOM, asked, kind, flags, header)
    }

    fn with_room(room: usize, asked: &'static str, kind: u16, flags: u16, header: &[u8]) -> Self {
        let end = if flags & DUMP == DUMP { 0 } else { ACKNOWLEDGE };
        let mut bytes = Vec::with_capacity(room);
        bytes.resize(HEADER, 0);
        bytes[4..6].copy_from_slice(&kind.to_ne_bytes());
        bytes[6..8].copy_from_slice(&(flags | REQUEST | end).to_ne_bytes());
        bytes.extend_from_slice(header);
        Self { asked, bytes }
    }

    /// A request to a netfilter subsystem (`nfnetlink.h`): type `subsystem << 8 | command`, then `nfgenmsg`.
    pub(crate) fn netfilter(asked: &'static str, subsystem: u8, command: u8, flags: u16, family: u8) -> Self {
        let kind = u16::from_be_bytes([subsystem, command]);
        Self::new(asked, kind, flags, &[family, 0, 0, 0])
    }

    /// The same, of which most are about one member of a set.
    pub(crate) fn of_set(asked: &'static str, subsystem: u8, command: u8, flags: u16, family: u8) -> Self {
        let kind = u16::from_be_bytes([subsystem, command]);
        Self::with_room(LITTLE_ROOM, asked, kind, flags, &[family, 0, 0, 0])
    }

    pub(crate) fn bytes(mut self, kind: u16, payload: &[u8]) -> Self {
        self.put(kind, payload);
        self
    }

    pub(crate) fn byte(self, kind: u16, value: u8) -> Self {
        self.bytes(kind, &[value])
    }

    /// A NUL-terminated string.
    pub(crate) fn text(mut self, kind: u16, value: &str) -> Self {
        self.begin(kind, value.len() + 1);
        self.bytes.extend_from_slice(value.as_bytes());
        self.bytes.push(0);
        self.align();
        self
    }

    /// Big-endian, and flagged so (ipset insists on the flag).
    pub(crate) fn be16(self, kind: u16, value: u16) -> Self {
        self.bytes(kind | NETWORK_ORDER, &value.to_be_bytes())
    }

    pub(crate) fn be32(self, kind: u16, value: u32) -> Self {
        self.bytes(kind | NETWORK_ORDER, &value.to_be_bytes())
    }

    /// Big-endian without the flag, as ctnetlink has it.
    pub(crate) fn plain_be32(self, kind: u16, value: u32) -> Self {
        self.bytes(kind, &value.to_be_bytes())
    }

    pub(crate) fn nest(mut self, kind: u16, fill: impl FnOnce(Self) -> Self) -> Self {
        let start = self.bytes.len();
        self.put(kind | NESTED, &[]);
        let mut filled = fill(self);
        let length = filled.bytes.len() - start;
        filled.bytes[start..start + 2].copy_from_slice(&attribute_length(length));
        filled
    }

    fn put(&mut self, kind: u16, payload: &[u8]) {
        self.begin(kind, payload.len());
        self.bytes.extend_from_slice(payload);
        self.align();
    }

    fn begin(&mut self, kind: u16, payload: usize) {
        self.bytes.extend_from_slice(&attribute_length(payload + 4));
        self.bytes.extend_from_slice(&kind.to_ne_bytes());
    }

    fn align(&mut self) {
        self.bytes.resize(aligned(self.bytes.len()), 0);
    }

    pub(crate) fn octets(&self) -> usize {
        self.bytes.len()
    }

    /// Appends it to others; one that is not acknowledged is answered only where it is refused.
    pub(super) fn put_into(&self, datagram: &mut Vec<u8>, sequence: u32, is_acknowledged: bool) {
        let start = datagram.len();
        datagram.extend_from_slice(&self.bytes);
        self.number(&mut datagram[start..], sequence);
        if !is_acknowledged {
            let flags = u16::from_ne_bytes([self.bytes[6], self.bytes[7]]) & !ACKNOWLEDGE;
            datagram[start + 6..start + 8].copy_from_slice(&flags.to_ne_bytes());
        }
        datagram.resize(start + aligned(self.bytes.len()), 0);
    }

    pub(super) fn numbered(&self, sequence: u32) -> Vec<u8> {
        let mut bytes = self.bytes.clone();
        self.number(&mut bytes, sequence);
        bytes
    }

    /// Writes into a copy of it how long it is and what number it has.
    fn number(&self, copy: &mut [u8], sequence: u32) {
        let length = u32::try_from(self.bytes.len()).expect("a request is far below 4 GiB");
        copy[0..4].copy_from_slice(&length.to_ne_bytes());
        copy[8..12].copy_from_slice(&sequence.to_ne_bytes());
    }

    #[cfg(test)]
    pub(crate) fn flags(&self) -> u16 {
        u16::from_ne_bytes([self.bytes[6], self.bytes[7]])
    }

    /// The attributes behind the family's header of `N` bytes.
    #[cfg(test)]
    pub(crate) fn attributes<const N: usize>(&self) -> Attributes<'_> {
        Attributes::parse(self.attribute_bytes::<N>()).expect("what was just built can be read")
    }

    /// … as they are sent.
    #[cfg(test)]
    pub(crate) fn attribute_bytes<const N: usize>(&self) -> &[u8] {
        &self.bytes[HEADER + N..]
    }
}

fn attribute_length(length: usize) -> [u8; 2] {
    u16::try_from(length)
        .expect("callers keep each attribute below 64 KiB")
        .to_ne_bytes()
}

/// The attributes of one message or of one nest, bounds checked.
#[derive(Clone, Debug, Default)]
pub(crate) struct Attributes<'a>(Vec<(u16, &'a [u8])>);

impl<'a> Attributes<'a> {
    pub(crate) fn parse(mut bytes: &'a [u8]) -> Result<Self, MalformedMessage> {
        let mut attributes = Vec::new();
        while let Some(length) = bytes
            .first_chunk()
            .map(|length| usize::from(u16::from_ne_bytes(*length)))
        {
            let (Some(&[_, _, low, high]), Some(payload)) = (bytes.first_chunk(), bytes.get(4..length))
            else {
                return Err(MalformedMessage("an attribute is longer than what holds it"));
            };
            attributes.push((u16::from_ne_bytes([low, high]) & KIND_MASK, payload));
            bytes = bytes.get(aligned(length)..).unwrap_or_default();
        }
        Ok(Self(attributes))
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (u16, &'a [u8])> {
        self.0.iter().copied()
    }

    pub(crate) fn get(&self, kind: u16) -> Option<&'a [u8]> {
        self.iter()
            .find(|(found, _)| *found == kind)
            .map(|(_, payload)| payload)
    }

    /// An absent nest reads as an empty one: whoever needs something inside will miss it there.
    pub(crate) fn nest(&self, kind: u16) -> Result<Self, MalformedMessage> {
        Self::parse(self.get(kind).unwrap_or_default())
    }

    pub(crate) fn byte(&self, kind: u16) -> Option<u8> {
        self.get(kind)?.first().copied()
    }

    pub(crate) fn be16(&self, kind: u16) -> Option<u16> {
        Some(u16::from_be_bytes(*self.get(kind)?.first_chunk()?))
    }

    pub(crate) fn be32(&self, kind: u16) -> Option<u32> {
        Some(u32::from_be_bytes(*self.get(kind)?.first_chunk()?))
    }

    /// In the byte order of this machine, as rtnetlink has it.
    pub(crate) fn native32(&self, kind: u16) -> Option<u32> {
        Some(u32::from_ne_bytes(*self.get(kind)?.first_chunk()?))
    }

    /// A string, without the NUL that most senders append.
    pub(crate) fn text(&self, kind: u16) -> Option<String> {
        let bytes = self.get(kind)?;
        let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
        Some(String::from_utf8_lossy(&bytes[..end]).into_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nests_and_byte_orders_are_laid_out_as_the_kernel_reads_them() {
        let request = Request::netfilter("test", 6, 9, 0, 2)
            .nest(7, |data| data.be16(4, 80).byte(7, 6))
            .text(2, "ab");
        let bytes = request.numbered(5);
        assert_eq!(&bytes[..4], &(16 + 4 + 20 + 8u32).to_ne_bytes());
        assert_eq!(&bytes[4..8], &[9, 6, 5, 0]); // type 6 << 8 | 9, REQUEST | ACK (little-endian machines)
        assert_eq!(&bytes[16..20], &[2, 0, 0, 0]);
        assert_eq!(
            &bytes[20..],
            b"\x14\0\x07\x80\x06\0\x04\x40\0\x50\0\0\x05\0\x07\0\x06\0\0\0\x07\0\x02\0ab\0\0"
        );
        let attributes = request.attributes::<4>();
        let data = attributes.nest(7).unwrap();
        assert_eq!(
            (data.be16(4), data.byte(7), attributes.text(2).as_deref()),
            (Some(80), Some(6), Some("ab"))
        );
    }

    #[test]
    fn attributes_that_lie_about_their_length_are_malformed() {
        for bytes in [
            &[8, 0, 1, 0, 9][..],
            &[3, 0, 1, 0],
            &[0, 0, 1, 0],
            &[4, 0],
            &[255, 255, 1, 0],
        ] {
            assert!(Attributes::parse(bytes).is_err(), "{bytes:?}");
        }
        assert_eq!(Attributes::parse(&[5, 0, 1, 0, 9]).unwrap().byte(1), Some(9));
    }

    #[test]
    fn a_datagram_that_ends_early_is_malformed_and_ends_the_reading() {
        let whole = Request::new("test", 20, 0, &[1, 2, 3, 4]).numbered(1);
        for cut in 1..whole.len() {
            let outcomes: Vec<_> = Messages(&whole[..cut]).map(|message| message.is_ok()).collect();
            assert_eq!(outcomes, [false], "cut at {cut}");
        }
        let twice = [&whole[..], &whole[..]].concat();
        assert_eq!(
            Messages(&twice)
                .filter_map(Result::ok)
                .map(|message| message.body.len())
                .collect::<Vec<_>>(),
            [4, 4]
        );
    }
}
