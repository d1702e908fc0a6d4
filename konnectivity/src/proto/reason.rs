//! Texts of dial errors, as Go's package `net` has them: they reach the users of the API server, and upstream's server chooses the status of
//! a CONNECT by them.

use std::io;

/// Why an address could not be dialled.
#[must_use]
pub fn dial_error(address: &str, error: &io::Error) -> String {
    let reason = match error.kind() {
        io::ErrorKind::ConnectionRefused => "connect: connection refused".to_owned(),
        io::ErrorKind::ConnectionReset => "connect: connection reset by peer".to_owned(),
        io::ErrorKind::TimedOut => "i/o timeout".to_owned(),
        io::ErrorKind::HostUnreachable => "connect: no route to host".to_owned(),
        io::ErrorKind::NetworkUnreachable => "connect: network is unreachable".to_owned(),
        io::ErrorKind::AddrNotAvailable => "connect: cannot assign requested address".to_owned(),
        io::ErrorKind::PermissionDenied => "connect: permission denied".to_owned(),
        _ => match error.raw_os_error() {
            Some(EMFILE) => "socket: too many open files".to_owned(),
            Some(ENFILE) => "socket: too many open files in system".to_owned(),
            _ => error.to_string(),
        },
    };
    format!("dial tcp {address}: {reason}")
}

const ENFILE: i32 = 23;
const EMFILE: i32 = 24;
