//! Waits for packets in flight in the packet filter: one RCU grace period.
//!
//! A packet is asked about by rules first, and only behind the last hook its flow is put where a listing of flows finds it
//! (`__nf_conntrack_confirm`). From where it comes in to there it stays within one read-side section of RCU (`process_backlog` and
//! `netif_receive_skb_internal` of net/core/dev.c), unless a rule hands it to user space. So whoever changed a set and then waits
//! for all such sections to end knows that no packet is on its way that met the set as it was.
#![allow(unsafe_code, reason = "membarrier(2) has no wrapper in nix")]

use std::fs;
use std::io;
use std::path::Path;

/// Why it is not known whether packets are through.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("the kernel does not wait for packets that are on their way (membarrier): {0}")]
    Wait(#[source] io::Error),
    #[error("cannot read which programs hold packets ({QUEUES}): {0}")]
    Queues(#[source] io::Error),
    #[error("a program holds packets (NFQUEUE) for as long as it likes")]
    Queued,
}

/// Waits until every packet is through or dropped that met a rule before this was called: some ten milliseconds.
///
/// # Errors
/// When the kernel cannot say so, or some program of this network namespace may hold packets back.
pub fn wait() -> Result<(), Error> {
    // `MEMBARRIER_CMD_GLOBAL` is `synchronize_rcu` (kernel/sched/membarrier.c). With one processor it is nothing, as there
    // whoever runs has interrupted no packet.
    const GLOBAL: libc::c_int = 1;
    // SAFETY: it takes three numbers and touches no memory of ours.
    let result = unsafe { libc::syscall(libc::SYS_membarrier, GLOBAL, 0, 0) };
    if result != 0 {
        return Err(Error::Wait(io::Error::last_os_error()));
    }
    match has_queues(Path::new(QUEUES)).map_err(Error::Queues)? {
        true => Err(Error::Queued),
        false => Ok(()),
    }
}

/// One line for each queue that a program of this network namespace reads.
const QUEUES: &str = "/proc/thread-self/net/netfilter/nfnetlink_queue";

fn has_queues(list: &Path) -> io::Result<bool> {
    match fs::read_to_string(list) {
        Ok(lines) => Ok(!lines.trim().is_empty()),
        // The module is not there.
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_reads_a_queue_may_hold_packets() {
        let folder = std::env::temp_dir().join(format!("egret-queues-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let list = folder.join("nfnetlink_queue");
        assert!(!has_queues(&list).unwrap(), "there is no such module");
        for (lines, has_any) in [
            ("", false),
            ("    7  12345     0 2 65531     0     0        0  1\n", true),
        ] {
            fs::write(&list, lines).unwrap();
            assert_eq!(has_queues(&list).unwrap(), has_any, "{lines:?}");
        }
        assert!(has_queues(&folder).is_err(), "what cannot be read is no answer");
        fs::remove_dir_all(&folder).unwrap();
    }
}
