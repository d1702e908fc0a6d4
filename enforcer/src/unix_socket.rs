//! Sockets of a path, which outlive the process that bound them.

use std::fs::Permissions;
use std::io;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::path::Path;

use socket2::{Domain, SockAddr, Socket, Type};
use tokio::net::UnixListener;

/// Binds a socket, creates its folder, and replaces a socket on which nobody listens. It has its mode whatever the umask:
/// the mode is set before it listens.
///
/// # Errors
/// If another process listens there, or another file is there.
pub(crate) fn bind(path: &Path, mode: u32) -> io::Result<UnixListener> {
    remove_stale(path)?;
    let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
    socket.bind(&SockAddr::unix(path)?)?;
    std::fs::set_permissions(path, Permissions::from_mode(mode))?;
    socket.listen(1024)?;
    socket.set_nonblocking(true)?;
    UnixListener::from_std(socket.into())
}

/// Whether a socket is there on which nobody listens.
#[must_use]
pub fn is_unused(path: &Path) -> bool {
    let is_socket = std::fs::symlink_metadata(path).is_ok_and(|there| there.file_type().is_socket());
    is_socket
        && UnixStream::connect(path).is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused)
}

fn remove_stale(path: &Path) -> io::Result<()> {
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder)?;
    }
    match std::fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
        Ok(there) if !there.file_type().is_socket() => {
            return Err(io::Error::new(
                io::ErrorKind::AlreadyExists,
                "something that is no socket is there",
            ));
        }
        Ok(_) => {}
    }
    match UnixStream::connect(path) {
        Ok(_) => Err(io::Error::new(
            io::ErrorKind::AddrInUse,
            "another enforcer listens there",
        )),
        Err(_nobody) => std::fs::remove_file(path),
    }
}
