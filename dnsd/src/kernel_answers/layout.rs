//! The layouts of `bpf/answers.bpf.c`.

use std::net::IpAddr;

use egret_kernel::bpf::{MapKind, MapSpec};
use egret_shared::time::Timestamp;

/// Answers in the map: 900 octets each.
pub(super) const MAX_ANSWERS: usize = 8192;
/// Series that queries are counted in.
pub const MAX_SERIES: usize = 4096;

const KEY: usize = 320;
const VALUE: usize = 64 + MAX_REPLY;
const HEADER: usize = 12;
const MAX_NAME: usize = 255;
const TYPE_AND_CLASS: usize = 4;
/// An OPT without options (RFC 6891 §6.1.2).
const OPT: usize = 11;
const MAX_REPLY: usize = 512;
const MAX_TTLS: usize = 16;

/// `struct question`.
pub(super) type Key = [u8; KEY];

pub(super) const ANSWERS: MapSpec = MapSpec {
    kind: MapKind::Hash,
    key_size: KEY,
    value_size: VALUE,
    entries: MAX_ANSWERS,
};
pub(super) const GENERATION: MapSpec = MapSpec {
    kind: MapKind::Array,
    key_size: 4,
    value_size: 8,
    entries: 1,
};
pub(super) const SERIES: MapSpec = MapSpec {
    kind: MapKind::Array,
    key_size: 4,
    value_size: 8,
    entries: MAX_SERIES,
};
/// `struct scratch`.
pub(super) const SCRATCH: MapSpec = MapSpec {
    kind: MapKind::PerCpuArray,
    key_size: 4,
    value_size: KEY + 320 + MAX_REPLY + 16,
    entries: 1,
};

/// A query and its answer. The kernel answers a query with the same octets, but for id and case, in the same way.
#[derive(Clone, Copy, Debug)]
pub struct Answer<'a> {
    /// The index of the interface by which the query came.
    pub interface: u32,
    /// The source.
    pub client: IpAddr,
    /// The destination.
    pub server: IpAddr,
    /// The query.
    pub query: &'a [u8],
    /// Whether it has an OPT, which is the last of its octets.
    pub has_opt: bool,
    /// The reply, with the TTLs that the answer arrived with.
    pub reply: &'a [u8],
    /// The offsets of its TTLs.
    pub ttls: &'a [[u8; 2]],
    /// When the answer arrived.
    pub arrived: Timestamp,
    /// When it ends.
    pub expires: Timestamp,
    /// The generation in which it was looked up.
    pub generation: u64,
    /// The series that counts it.
    pub series: u32,
}

impl Answer<'_> {
    /// The key; none for a query that dnsd alone answers.
    pub(super) fn key(&self) -> Option<Box<Key>> {
        let tail = TYPE_AND_CLASS + if self.has_opt { OPT } else { 0 };
        let name = self.query.len().checked_sub(HEADER + tail)?;
        let counts = [0, 1, 0, 0, 0, 0, 0, u8::from(self.has_opt)];
        if !(1..=MAX_NAME).contains(&name) || self.query[4..HEADER] != counts {
            return None;
        }
        let mut key = Box::new([0; KEY]);
        key[..4].copy_from_slice(&self.interface.to_ne_bytes());
        key[4..6].copy_from_slice(&u16::try_from(self.query.len()).ok()?.to_ne_bytes());
        key[6] = if self.client.is_ipv4() { 4 } else { 6 };
        key[7] = u8::try_from(name).ok()?;
        put_address(&mut key[8..24], self.client);
        put_address(&mut key[24..40], self.server);
        key[40..42].copy_from_slice(&self.query[2..4]);
        key[42..44].copy_from_slice(&self.query[10..HEADER]);
        let (name, tail) = self.query[HEADER..].split_at(name);
        key[44..44 + tail.len()].copy_from_slice(tail);
        let place = &mut key[64..64 + name.len()];
        place.copy_from_slice(name);
        // A label's length is no letter.
        place.make_ascii_lowercase();
        Some(key)
    }

    /// Key and value; none for what dnsd alone answers.
    pub(super) fn encode(&self) -> Option<(Box<Key>, Box<[u8; VALUE]>)> {
        if self.ttls.len() > MAX_TTLS || self.reply.len() > MAX_REPLY {
            return None;
        }
        let is_inside = |at: &[u8; 2]| usize::from(u16::from_be_bytes(*at)) + 4 <= self.reply.len();
        if !self.ttls.iter().all(is_inside) {
            return None;
        }
        let mut value = Box::new([0; VALUE]);
        value[..8].copy_from_slice(&nanoseconds(self.expires).to_ne_bytes());
        value[8..16].copy_from_slice(&self.arrived.as_millis().to_ne_bytes());
        value[16..24].copy_from_slice(&self.generation.to_ne_bytes());
        value[24..28].copy_from_slice(&self.series.to_ne_bytes());
        value[28..30].copy_from_slice(&u16::try_from(self.reply.len()).ok()?.to_ne_bytes());
        value[30..32].copy_from_slice(&u16::try_from(self.ttls.len()).ok()?.to_ne_bytes());
        for (place, at) in value[32..64].as_chunks_mut::<2>().0.iter_mut().zip(self.ttls) {
            *place = u16::from_be_bytes(*at).to_ne_bytes();
        }
        value[64..64 + self.reply.len()].copy_from_slice(self.reply);
        Some((self.key()?, value))
    }
}

/// The end of an encoded answer.
pub(super) fn end_of(value: &[u8]) -> Timestamp {
    let end = value.first_chunk().map_or(0, |end| u64::from_ne_bytes(*end));
    Timestamp::from_millis(end / 1_000_000)
}

fn nanoseconds(at: Timestamp) -> u64 {
    at.as_millis().saturating_mul(1_000_000)
}

fn put_address(place: &mut [u8], address: IpAddr) {
    match address {
        IpAddr::V4(address) => place[..4].copy_from_slice(&address.octets()),
        IpAddr::V6(address) => place.copy_from_slice(&address.octets()),
    }
}
