//! Sockets of a path, which outlive the process that bound them.

use std::io;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;

/// Makes the folder of a socket, and removes a socket there on which nobody listens.
///
/// # Errors
/// If another process listens there, or another file is there.
pub(crate) fn remove_stale(path: &Path) -> io::Result<()> {
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
    match std::os::unix::net::UnixStream::connect(path) {
        Ok(_) => Err(io::Error::new(
            io::ErrorKind::AddrInUse,
            "another enforcer listens there",
        )),
        Err(_nobody) => std::fs::remove_file(path),
    }
}
