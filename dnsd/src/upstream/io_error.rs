//! Errors of sockets as failures.

use std::io;

use super::failure::Failure;

/// Whether an error only says that there is nothing to read now.
pub(super) fn is_nothing(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted
    )
}

/// Whether an error may come from an ICMP message, which can be forged by guessing the port: the response may come all the same
/// (RFC 5452 §3; RFC 1122 §4.1.3.3).
pub(super) fn is_soft(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(
            libc::ECONNREFUSED
                | libc::EHOSTUNREACH
                | libc::ENETUNREACH
                | libc::EHOSTDOWN
                | libc::ENONET
                | libc::ENOPROTOOPT
                | libc::EPROTO
                | libc::EMSGSIZE
                | libc::EOPNOTSUPP
                | libc::EACCES
        )
    )
}

/// The failure of a socket error.
pub(super) fn of(error: &io::Error) -> Failure {
    tracing::debug!(%error, "an upstream cannot be asked");
    match error.raw_os_error() {
        Some(libc::EMFILE | libc::ENFILE | libc::ENOBUFS | libc::ENOMEM | libc::EADDRNOTAVAIL) => {
            Failure::Local
        }
        Some(_) | None => Failure::Unreachable,
    }
}
