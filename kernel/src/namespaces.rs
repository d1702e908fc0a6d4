//! Other network namespaces, by the numbers that this one has for them: a link that leads into a namespace shows its number.
//!
//! What is in a namespace is told without going there, which `CAP_NET_ADMIN` over it is enough for (`rtnl_get_net_ns_capable`
//! of net/core/rtnetlink.c). Only to act there somebody has to enter it, and that needs `CAP_SYS_ADMIN` and a file that
//! stands for it.

#![allow(
    unsafe_code,
    reason = "nix does not know the one option of the socket that is needed"
)]

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::libc::{RTM_GETADDR, RTM_GETLINK};
use nix::sched::{CloneFlags, setns};
use nix::sys::socket::SockProtocol;

use crate::links::{self, Address, Interface, Links};
use crate::netlink::{DUMP, Error, Request, Socket};

/// Looks into other namespaces.
#[derive(Debug)]
pub struct Namespaces {
    socket: Socket,
}

impl Namespaces {
    /// Those that the calling thread's namespace has numbers for.
    pub fn open() -> Result<Self, Error> {
        let socket = Socket::open(SockProtocol::NetlinkRoute)?;
        check_strictly(&socket).map_err(Error::Open)?;
        Ok(Self { socket })
    }

    /// The interfaces of a namespace, the first of which is its loopback ([`LOOPBACK`]).
    pub fn interfaces(&mut self, number: u32) -> Result<Vec<Interface>, Error> {
        let request = Request::new(
            "interfaces of a namespace",
            RTM_GETLINK,
            DUMP,
            &[0; links::LINK_HEADER],
        )
        .bytes(IFLA_TARGET_NETNSID, &number.to_ne_bytes());
        self.socket.ask(&request, links::read_interface)
    }

    /// The addresses of a namespace, each with the index that its interface has there.
    pub fn addresses(&mut self, number: u32) -> Result<Vec<Address>, Error> {
        let request = Request::new(
            "addresses of a namespace",
            RTM_GETADDR,
            DUMP,
            &[0; links::ADDRESS_HEADER],
        )
        .bytes(IFA_TARGET_NETNSID, &number.to_ne_bytes());
        self.socket.ask(&request, links::read_address)
    }
}

/// `LOOPBACK_IFINDEX` of linux/netdevice.h: the first interface of every namespace, whatever it is called.
pub const LOOPBACK: u32 = 1;

const IFLA_TARGET_NETNSID: u16 = 46;
const IFA_TARGET_NETNSID: u16 = 10;

/// Without this, a dump of addresses ignores of which namespace they are asked (`inet_valid_dump_ifaddr_req` of
/// net/ipv4/devinet.c) and tells those of this one.
fn check_strictly(socket: &Socket) -> Result<(), Errno> {
    const NETLINK_GET_STRICT_CHK: libc::c_int = 12;
    let yes: libc::c_int = 1;
    let length = libc::socklen_t::try_from(size_of_val(&yes)).expect("an int is small");
    // SAFETY: the kernel reads `length` bytes of `yes`, which lives until the call returns.
    let result = unsafe {
        libc::setsockopt(
            socket.as_fd().as_raw_fd(),
            libc::SOL_NETLINK,
            NETLINK_GET_STRICT_CHK,
            (&raw const yes).cast(),
            length,
        )
    };
    Errno::result(result).map(drop)
}

/// Opens the namespaces of these numbers, as far as they are pinned (containerd and CRI-O do so) or some process is in
/// them. Who keeps one open keeps it alive.
pub fn find(links: &mut Links, mut missing: BTreeSet<u32>) -> BTreeMap<u32, File> {
    let mut found = BTreeMap::new();
    let mut seen = BTreeSet::new();
    for path in pinned().chain(in_use()) {
        if missing.is_empty() {
            break;
        }
        // Processes end, and pins go, while they are listed.
        let Ok(file) = File::open(path) else { continue };
        let Ok(identity) = file.metadata().map(|data| (data.dev(), data.ino())) else {
            continue;
        };
        if !seen.insert(identity) {
            continue;
        }
        // What is no namespace of a network is refused.
        if let Ok(Some(number)) = links.namespace_id(file.as_fd())
            && missing.remove(&number)
        {
            found.insert(number, file);
        }
    }
    found
}

/// Where [`find`] looks, for messages.
pub const SOUGHT_IN: &str = "/run/netns and /proc/*/ns/net";

fn pinned() -> impl Iterator<Item = PathBuf> {
    ["/run/netns", "/var/run/netns"].into_iter().flat_map(entries)
}

fn in_use() -> impl Iterator<Item = PathBuf> {
    let is_process = |path: &PathBuf| {
        let name = path.file_name().and_then(|name| name.to_str());
        name.is_some_and(|name| name.bytes().all(|byte| byte.is_ascii_digit()))
    };
    entries("/proc")
        .filter(is_process)
        .map(|path| path.join(Path::new("ns/net")))
}

/// A folder that is not there has no entries.
fn entries(folder: &str) -> impl Iterator<Item = PathBuf> + use<> {
    let entries = std::fs::read_dir(folder).into_iter().flatten();
    entries.filter_map(|entry| Some(entry.ok()?.path()))
}

/// Does something in a namespace, on a thread of its own, so that the caller stays where it is. `EPERM` is the want of
/// `CAP_SYS_ADMIN`.
pub fn within<T: Send>(namespace: BorrowedFd<'_>, work: impl FnOnce() -> T + Send) -> Result<T, Errno> {
    let enter = || {
        setns(namespace, CloneFlags::CLONE_NEWNET)?;
        Ok(work())
    };
    std::thread::scope(|scope| {
        let outcome = scope.spawn(enter).join();
        outcome.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}
