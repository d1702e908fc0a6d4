//! What the kernel says, as a failure.

use std::io;

use super::failure::Failure;

/// Whether an error says only that there is nothing to read now.
pub(super) fn is_nothing(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted
    )
}

/// Whether an error may be what an ICMP message said, which anybody can send who guesses the ports. It is a hint: the answer may
/// come all the same (RFC 5452, section 3; RFC 1122, section 4.1.3.3).
pub(super) fn is_hint(error: &io::Error) -> bool {
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

/// The failure that an error of a socket is.
pub(super) fn of(error: &io::Error) -> Failure {
    tracing::debug!(%error, "an upstream cannot be asked");
    match error.raw_os_error() {
        Some(libc::EMFILE | libc::ENFILE | libc::ENOBUFS | libc::ENOMEM | libc::EADDRNOTAVAIL) => {
            Failure::Local
        }
        Some(_) | None => Failure::Unreachable,
    }
}
