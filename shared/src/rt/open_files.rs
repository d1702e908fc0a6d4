//! The limit of open files. A query to an upstream or a connection of a proxy may need a socket of its own; the usual soft limit of 1024 is
//! for programs that use `select`.
#![allow(
    unsafe_code,
    reason = "getrlimit and setrlimit have no safe form in the crates we use"
)]

use std::io;

/// Raises the soft limit to the hard limit; returns it.
///
/// # Errors
/// When the kernel refuses.
pub fn raise_limit() -> io::Result<u64> {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: the pointer is to an `rlimit` that outlives the call.
    check(unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) })?;
    limit.rlim_cur = limit.rlim_max;
    // SAFETY: as above; the kernel only reads it.
    check(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) })?;
    Ok(limit.rlim_cur)
}

fn check(result: libc::c_int) -> io::Result<()> {
    if result == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_soft_limit_becomes_the_hard_one() {
        let raised = raise_limit().unwrap();
        assert_eq!(raise_limit().unwrap(), raised);
        assert!(raised >= 1024);
    }
}
