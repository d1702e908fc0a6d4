//! The interface and local address that a connection or datagram came in by: of a connection the kernel noted them at the
//! handshake, of a datagram it reports them in a control message.
#![allow(
    unsafe_code,
    reason = "no crate of ours knows IP_PKTOPTIONS and IPV6_2292PKTOPTIONS"
)]

use std::net::IpAddr;
use std::os::fd::AsRawFd;

use tokio::net::TcpStream;

/// The index of a connection's interface; `None` where the kernel does not report it.
///
/// `ip(7)` has no word on `IP_PKTOPTIONS` for connections: `do_ip_getsockopt` answers with `inet->mc_index`, and
/// `do_ipv6_getsockopt` with `np->mcast_oif`; both were set to the arrival interface in `tcp_v[46]_syn_recv_sock`.
pub(crate) fn interface(stream: &TcpStream) -> Option<u32> {
    let is_ipv4 = stream.local_addr().ok()?.is_ipv4();
    let (level, option) = if is_ipv4 {
        (libc::IPPROTO_IP, libc::IP_PKTOPTIONS)
    } else {
        (libc::IPPROTO_IPV6, libc::IPV6_2292PKTOPTIONS)
    };
    let mut buffer = ControlBuffer([0; 256]);
    let mut length = libc::socklen_t::try_from(buffer.0.len()).ok()?;
    // SAFETY: the pointer and the length describe `buffer`, which outlives the call.
    let result = unsafe {
        libc::getsockopt(
            stream.as_raw_fd(),
            level,
            option,
            buffer.0.as_mut_ptr().cast(),
            &raw mut length,
        )
    };
    let filled = usize::try_from(length).ok()?;
    (result == 0).then(|| find_index(buffer.0.get(..filled)?, is_ipv4))?
}

/// A buffer for control messages, aligned as they are.
#[repr(align(8))]
struct ControlBuffer([u8; 256]);

/// Interface index and local address from the control messages of a datagram.
pub(crate) fn packet_info(messages: &[u8], is_ipv4: bool) -> Option<(u32, IpAddr)> {
    let data = find_info(messages, is_ipv4)?;
    let index = index_of(data, is_ipv4)?;
    // `ipi_spec_dst`: the local address, also where the packet's destination is a broadcast address.
    let address = if is_ipv4 {
        IpAddr::from(*data.get(4..)?.first_chunk::<4>()?)
    } else {
        IpAddr::from(*data.first_chunk::<16>()?)
    };
    Some((index, address))
}

fn find_index(messages: &[u8], is_ipv4: bool) -> Option<u32> {
    let index = index_of(find_info(messages, is_ipv4)?, is_ipv4)?;
    (index > 0).then_some(index)
}

/// `struct in_pktinfo` begins with the index; `struct in6_pktinfo` has it behind 16 octets of address.
fn index_of(data: &[u8], is_ipv4: bool) -> Option<u32> {
    let at = if is_ipv4 { 0 } else { 16 };
    Some(u32::from_ne_bytes(*data.get(at..)?.first_chunk()?))
}

/// Finds the packet info among control messages (`struct cmsghdr`: length, level, type; then the data, aligned to words).
fn find_info(mut messages: &[u8], is_ipv4: bool) -> Option<&[u8]> {
    const HEADER: usize = size_of::<libc::cmsghdr>();
    let (level, kinds) = if is_ipv4 {
        (libc::IPPROTO_IP, [libc::IP_PKTINFO, libc::IP_PKTINFO])
    } else {
        (libc::IPPROTO_IPV6, [libc::IPV6_PKTINFO, libc::IPV6_2292PKTINFO])
    };
    while messages.len() >= HEADER {
        let length = usize::from_ne_bytes(*messages.first_chunk()?);
        let this_level = i32::from_ne_bytes(*messages.get(8..)?.first_chunk()?);
        let this_kind = i32::from_ne_bytes(*messages.get(12..)?.first_chunk()?);
        if this_level == level && kinds.contains(&this_kind) {
            return messages.get(HEADER..);
        }
        messages = messages.get(length.max(HEADER).next_multiple_of(8)..)?;
    }
    None
}
