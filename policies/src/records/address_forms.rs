//! The forms of an address under which a pod reaches the same host: IPv4-mapped IPv6, and NAT64.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// The well-known prefix of NAT64 (RFC 6052): the IPv4 address is in the last 32 bits.
const NAT64: [u16; 6] = [0x64, 0xff9b, 0, 0, 0, 0];

/// The address as it is compared, and the IPv4 address to which a NAT64 translates it.
pub(super) fn forms(address: IpAddr) -> impl Iterator<Item = IpAddr> {
    let address = address.to_canonical();
    let translated = match address {
        IpAddr::V6(address) => translated(address).map(IpAddr::V4),
        IpAddr::V4(_) => None,
    };
    [Some(address), translated].into_iter().flatten()
}

fn translated(address: Ipv6Addr) -> Option<Ipv4Addr> {
    let [prefix @ .., high, low] = address.segments();
    let bits = u32::from(high) << 16 | u32::from(low);
    (prefix == NAT64).then(|| Ipv4Addr::from(bits))
}

/// The IPv6 address that a NAT64 translates to this one.
pub(super) fn behind_nat64(address: IpAddr) -> Option<IpAddr> {
    let IpAddr::V4(address) = address else {
        return None;
    };
    let [a, b, c, d] = address.octets().map(u16::from);
    let [p0, p1, p2, p3, p4, p5] = NAT64;
    Some(Ipv6Addr::new(p0, p1, p2, p3, p4, p5, a << 8 | b, c << 8 | d).into())
}
