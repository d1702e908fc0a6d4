//! Options of a raw socket, by which `x_tables` and ipset let themselves be asked without a program.

#![allow(unsafe_code, reason = "the options of the socket have no other way in")]

use crate::Family;
use nix::errno::Errno;
use nix::sys::socket::{AddressFamily, SockFlag, SockProtocol, SockType, socket};
use std::os::fd::{AsRawFd, OwnedFd};

/// A socket to ask by, in the network namespace of the calling thread, and the level of its options.
pub(super) fn open(family: Family) -> Result<(OwnedFd, i32), Errno> {
    let (domain, level) = match family {
        Family::V4 => (AddressFamily::Inet, nix::libc::IPPROTO_IP),
        Family::V6 => (AddressFamily::Inet6, nix::libc::IPPROTO_IPV6),
    };
    let socket = socket(domain, SockType::Raw, SockFlag::SOCK_CLOEXEC, SockProtocol::Raw)?;
    Ok((socket, level))
}

/// Asks; the question is where the answer comes.
pub(super) fn get(socket: &OwnedFd, level: i32, option: i32, value: &mut [u8]) -> Result<(), Errno> {
    let mut length = nix::libc::socklen_t::try_from(value.len()).map_err(|_too_long| Errno::EINVAL)?;
    // SAFETY: the kernel reads and writes at most `length` bytes at `value`, which is that long and borrowed for the call.
    let result = unsafe {
        nix::libc::getsockopt(
            socket.as_raw_fd(),
            level,
            option,
            value.as_mut_ptr().cast(),
            &raw mut length,
        )
    };
    Errno::result(result).map(drop)
}
