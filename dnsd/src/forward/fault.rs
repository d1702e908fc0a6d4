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
