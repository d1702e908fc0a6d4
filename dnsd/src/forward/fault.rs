//! What the kernel says, as a failure.

use std::io;

use super::failure::Failure;

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
