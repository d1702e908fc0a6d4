//! Networks as they are written, also as they were written long ago.

use std::net::{IpAddr, Ipv6Addr};

/// A network: as many leading bits of an address of its family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Net {
    is_v4: bool,
    bits: u128,
    length: u32,
    /// Whether it is written as today's servers ask.
    pub(crate) is_strict: bool,
}

/// An address as 128 bits that begin with the address.
fn bits(address: IpAddr) -> (bool, u128) {
    match address {
        IpAddr::V4(address) => (true, u128::from(u32::from(address)) << 96),
        IpAddr::V6(address) => (false, u128::from(address)),
    }
}

const fn mask(length: u32) -> u128 {
    if length == 0 {
        0
    } else {
        u128::MAX << (128 - length)
    }
}

impl Net {
    pub(crate) fn read(text: &str) -> Option<Self> {
        let (address, length_text) = text.split_once('/')?;
        let digits = !length_text.is_empty() && length_text.bytes().all(|octet| octet.is_ascii_digit());
        let mut length: u32 = if digits {
            length_text.parse().ok()?
        } else {
            return None;
        };
        let mut is_strict = length_text == length.to_string();
        let (is_v4, bits) = if address.contains(':') {
            let address: Ipv6Addr = address.parse().ok()?;
            if let Some(mapped) = address.to_ipv4_mapped() {
                is_strict = false;
                length = length.checked_sub(96)?;
                bits(mapped.into())
            } else {
                bits(address.into())
            }
        } else {
            let parts: Vec<u128> = address
                .split('.')
                .map(|part| part.parse().ok().filter(|&octet| octet <= 255))
                .collect::<Option<_>>()?;
            let [a, b, c, d] = parts.try_into().ok()?;
            let plain = format!("{a}.{b}.{c}.{d}");
            is_strict &= plain == address;
            (true, (a << 24 | b << 16 | c << 8 | d) << 96)
        };
        let most = if is_v4 { 32 } else { 128 };
        (length <= most).then(|| Self {
            is_v4,
            bits: bits & mask(length),
            length,
            is_strict: is_strict && bits & !mask(length) == 0,
        })
    }

    pub(crate) fn has(&self, address: IpAddr) -> bool {
        let (is_v4, bits) = bits(address);
        is_v4 == self.is_v4 && bits & mask(self.length) == self.bits
    }

    pub(crate) const fn is_all_v4(&self) -> bool {
        self.is_v4 && self.length == 0
    }

    pub(crate) const fn is_same_family(&self, other: &Self) -> bool {
        self.is_v4 == other.is_v4
    }

    /// Whether it is a smaller part of another.
    pub(crate) const fn is_strictly_inside(&self, other: &Self) -> bool {
        self.is_v4 == other.is_v4
            && self.length > other.length
            && self.bits & mask(other.length) == other.bits
    }
}
