//! bpf(2) for cgroup and netfilter links, in addition to `egret_kernel::bpf`. aya loads the object; the cgroup of a link is not in
//! its interface.

#![allow(unsafe_code, reason = "the system call takes addresses of buffers")]

use std::ffi::c_long;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};

pub(super) use egret_kernel::bpf::{Map, Update, open_pin, pin};
use egret_kernel::bpf::{bpf, info, number, owned};

// `enum bpf_cmd` of linux/bpf.h.
const PROG_LOAD: c_long = 5;
const BTF_LOAD: c_long = 18;
const LINK_CREATE: c_long = 28;
const LINK_UPDATE: c_long = 29;
const LINK_DETACH: c_long = 34;
/// Of asm-generic/socket.h.
const SO_NETNS_COOKIE: libc::c_int = 71;

/// Attaches a program to a cgroup, as long as the link or a pin of it exists.
pub(super) fn attach(
    program: BorrowedFd<'_>,
    cgroup: BorrowedFd<'_>,
    attach_type: u32,
) -> io::Result<OwnedFd> {
    let mut attributes = LinkCreate {
        program: number(&program),
        target: number(&cgroup),
        attach_type,
        flags: 0,
    };
    // SAFETY: the attributes hold no addresses.
    let fd = unsafe { bpf(LINK_CREATE, &mut attributes) }?;
    owned(fd)
}

/// A place in netfilter.
#[derive(Clone, Copy, Debug)]
pub(super) struct NetfilterHook {
    /// `NFPROTO_...`.
    family: u32,
    /// `enum nf_inet_hooks`.
    number: u32,
}

impl NetfilterHook {
    pub(super) const fn new(family: u32, number: u32) -> Self {
        Self { family, number }
    }
}

/// `enum bpf_attach_type`.
const BPF_NETFILTER: u32 = 45;

/// Behind the rules of the table `filter` (0), in front of IPVS and of source translation (98 and 100). One program alone can
/// have each of these.
const PRIORITIES: std::ops::Range<i32> = 30..90;

/// Attaches a program to a hook of this network namespace, as long as the link or a pin of it exists.
pub(super) fn attach_netfilter(program: BorrowedFd<'_>, hook: NetfilterHook) -> io::Result<OwnedFd> {
    for priority in PRIORITIES {
        let mut attributes = NetfilterLink {
            common: LinkCreate {
                program: number(&program),
                target: 0,
                attach_type: BPF_NETFILTER,
                flags: 0,
            },
            family: hook.family,
            hook: hook.number,
            priority,
            flags: 0,
        };
        // SAFETY: the attributes hold no addresses.
        match unsafe { bpf(LINK_CREATE, &mut attributes) } {
            Err(error) if error.raw_os_error() == Some(libc::EBUSY) => {}
            fd => return owned(fd?),
        }
    }
    Err(io::Error::other("other programs have all priorities"))
}

/// Loads the types of an object (BTF).
pub(super) fn load_types(types: &[u8]) -> io::Result<OwnedFd> {
    let mut attributes = TypesLoad {
        types: types.as_ptr() as u64,
        log: 0,
        size: u32::try_from(types.len()).map_err(io::Error::other)?,
        log_size: 0,
        log_level: 0,
    };
    // SAFETY: the types have the size that is given, and outlive the call.
    owned(unsafe { bpf(BTF_LOAD, &mut attributes) }?)
}

/// Octets of the verifier's log.
const VERIFIER_LOG: usize = 1 << 20;

/// Why the kernel refuses a program, with what the verifier says last.
#[derive(Debug, thiserror::Error)]
#[error("the kernel refuses {program}: {error}{}", said_last(.log))]
pub(super) struct Refused {
    program: &'static str,
    error: io::Error,
    log: String,
}

/// The end of the verifier's log: what it refuses, and the instructions before.
pub(super) fn said_last(log: &str) -> String {
    const LINES: usize = 6;
    // The last lines are statistics.
    let lines: Vec<&str> = log
        .lines()
        .filter(|line| !line.starts_with("processed "))
        .collect();
    let last = &lines[lines.len().saturating_sub(LINES)..];
    last.iter().map(|line| format!("\n  {}", line.trim())).collect()
}

/// Loads a program for netfilter. It may be under the kernel's licence.
pub(super) fn load_netfilter(
    function: &aya_obj::Function,
    types: &OwnedFd,
    program: &'static str,
) -> Result<OwnedFd, Refused> {
    const BPF_PROG_TYPE_NETFILTER: u32 = 32;
    let instructions = &function.instructions;
    let functions = function.func_info.func_info_bytes();
    let mut name = [0; 16];
    name[..program.len()].copy_from_slice(program.as_bytes());
    let load = |level, log: &mut [u8]| {
        let mut attributes = ProgramLoad {
            kind: BPF_PROG_TYPE_NETFILTER,
            count: u32::try_from(instructions.len()).expect("the verifier takes a million"),
            instructions: instructions.as_ptr() as u64,
            license: c"Dual MIT/GPL".as_ptr() as u64,
            log_level: level,
            log_size: u32::try_from(log.len()).expect("a buffer of our size"),
            log: if log.is_empty() {
                0
            } else {
                log.as_mut_ptr() as u64
            },
            kernel_version: 0,
            flags: 0,
            name,
            interface: 0,
            attach_type: BPF_NETFILTER,
            types: number(types),
            function_size: u32::try_from(function.func_info_rec_size).expect("some octets"),
            functions: functions.as_ptr() as u64,
            function_count: u32::try_from(function.func_info.len()).expect("some functions"),
        };
        // SAFETY: instructions, licence, functions and log outlive the call, and have the sizes that are given.
        unsafe { bpf(PROG_LOAD, &mut attributes) }.and_then(owned)
    };
    load(0, &mut []).or_else(|_| {
        // The log costs the verifier most of its time.
        let mut log = vec![0; VERIFIER_LOG];
        load(1, &mut log).map_err(|error| {
            // What it took back stands behind the end.
            let log = log.split(|octet| *octet == 0).next().unwrap_or_default();
            let log = String::from_utf8_lossy(log).into_owned();
            Refused { program, error, log }
        })
    })
}

/// Has a link run another program from its next call on: no call runs neither, and none runs both.
pub(super) fn replace_program(link: &OwnedFd, program: BorrowedFd<'_>) -> io::Result<()> {
    let mut attributes = LinkUpdate {
        link: number(link),
        program: number(&program),
        flags: 0,
        old_program: 0,
    };
    // SAFETY: the attributes hold no addresses.
    unsafe { bpf(LINK_UPDATE, &mut attributes) }.map(drop)
}

/// Detaches a link at once. Without it, the program runs on until the kernel's worker gets to the last pin
/// that was removed (kernel/bpf/syscall.c, bpf_link_put).
pub(super) fn detach(link: &OwnedFd) -> io::Result<()> {
    let mut attributes = Detach { link: number(link) };
    // SAFETY: the attributes hold no addresses.
    unsafe { bpf(LINK_DETACH, &mut attributes) }.map(drop)
}

/// The id of a link's cgroup; 0 if that is gone.
pub(super) fn cgroup_of_link(link: &OwnedFd) -> io::Result<u64> {
    // `struct bpf_link_info`: type and id, prog_id and padding, cgroup_id (kernel/bpf/cgroup.c).
    let [_, _, _, _, low, high] = info::<6>(link)?;
    Ok(u64::from(high) << 32 | u64::from(low))
}

/// The id of a link's program.
pub(super) fn program_of_link(link: &OwnedFd) -> io::Result<u32> {
    // `struct bpf_link_info`: type, id, prog_id.
    let [_, _, program] = info::<3>(link)?;
    Ok(program)
}

/// The cookie of this thread's network namespace.
pub(super) fn network_namespace_cookie() -> io::Result<u64> {
    let socket = std::net::UdpSocket::bind("127.0.0.1:0")?;
    let mut cookie = 0_u64;
    let mut size = libc::socklen_t::try_from(size_of::<u64>()).expect("a few octets");
    // SAFETY: `cookie` has the size that is given, and outlives the call.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            SO_NETNS_COOKIE,
            (&raw mut cookie).cast(),
            &raw mut size,
        )
    };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(cookie)
}

// The members of `union bpf_attr` that are used; the kernel takes missing ones as zero.

#[repr(C)]
struct LinkCreate {
    program: u32,
    target: u32,
    attach_type: u32,
    flags: u32,
}

#[repr(C)]
struct NetfilterLink {
    common: LinkCreate,
    family: u32,
    hook: u32,
    priority: i32,
    flags: u32,
}

#[repr(C)]
struct ProgramLoad {
    kind: u32,
    count: u32,
    instructions: u64,
    license: u64,
    log_level: u32,
    log_size: u32,
    log: u64,
    kernel_version: u32,
    flags: u32,
    name: [u8; 16],
    interface: u32,
    attach_type: u32,
    types: u32,
    function_size: u32,
    functions: u64,
    function_count: u32,
}

#[repr(C)]
struct TypesLoad {
    types: u64,
    log: u64,
    size: u32,
    log_size: u32,
    log_level: u32,
}

#[repr(C)]
struct LinkUpdate {
    link: u32,
    program: u32,
    flags: u32,
    old_program: u32,
}

#[repr(C)]
struct Detach {
    link: u32,
}
