//! The lock that all programs of the legacy flavour take to change a table.
//!
//! A program waits for it in whole seconds, and whoever started it waits with it. So it is tried here first, for a moment:
//! what cannot be changed now is changed later, and nothing else is kept waiting.

use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};
use std::fs::File;
use std::path::PathBuf;
use std::time::Duration;

/// How often, and how far apart, somebody else may be found to hold it: a change of 50,000 rules takes about 0.3 s.
const ATTEMPTS: u32 = 100;
const PAUSE: Duration = Duration::from_millis(5);

/// Waits until nobody holds the lock, but no longer than half a second; says whether it is free.
pub(super) fn is_free_soon() -> bool {
    (0..ATTEMPTS).any(|attempt| {
        if attempt > 0 {
            std::thread::sleep(PAUSE);
        }
        !is_held()
    })
}

/// Where it cannot be asked, the program that needs it will say why.
fn is_held() -> bool {
    let Ok(file) = File::options().read(true).open(path()) else {
        return false;
    };
    matches!(
        Flock::lock(file, FlockArg::LockExclusiveNonblock),
        Err((_, Errno::EWOULDBLOCK))
    )
}

/// As the programs find it (`xtables_lock` of iptables/xshared.c).
fn path() -> PathBuf {
    std::env::var_os("XTABLES_LOCKFILE").map_or_else(|| "/run/xtables.lock".into(), PathBuf::from)
}
