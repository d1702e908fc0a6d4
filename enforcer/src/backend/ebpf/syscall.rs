//! bpf(2) for cgroup and netfilter links, in addition to `egret_kernel::bpf`. aya has no interface for them.

#![allow(unsafe_code, reason = "the system call takes addresses of buffers")]

use std::ffi::{CStr, c_long};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};

pub(super) use egret_kernel::bpf::program::Refused;
use egret_kernel::bpf::program::{self, Code, Types};
pub(super) use egret_kernel::bpf::{Map, Update, open_pin, pin};
use egret_kernel::bpf::{bpf, info, number, owned};

// `enum bpf_cmd` of linux/bpf.h.
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

/// What a program is for.
#[derive(Clone, Copy, Debug)]
pub(super) struct ProgramKind {
    /// `enum bpf_prog_type`.
    pub(super) number: u32,
    /// `enum bpf_attach_type`.
    pub(super) attach_type: u32,
}

/// For a hook of netfilter.
pub(super) const NETFILTER: ProgramKind = ProgramKind {
    number: 32,
    attach_type: BPF_NETFILTER,
};

/// Loads a program of an object with these types.
pub(super) fn load_program(
    name: &str,
    kind: ProgramKind,
    license: &CStr,
    function: &aya_obj::Function,
    types: &OwnedFd,
) -> Result<OwnedFd, Refused> {
    let functions = function.func_info.func_info_bytes();
    let instructions = function.instructions.as_ptr().cast::<u8>();
    // SAFETY: an instruction is plain octets (`struct bpf_insn`), and the function outlives their use.
    let instructions =
        unsafe { std::slice::from_raw_parts(instructions, size_of_val(&*function.instructions)) };
    program::load(&Code {
        name,
        kind: kind.number,
        attach_type: kind.attach_type,
        license,
        instructions,
        types: Some(Types {
            loaded: types,
            functions: &functions,
            function_size: function.func_info_rec_size,
        }),
    })
}

/// The number that the kernel gave a program.
pub(super) fn program_id(program: &OwnedFd) -> io::Result<u32> {
    // `struct bpf_prog_info`: type, id.
    let [_, id] = info::<2>(program)?;
    Ok(id)
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

/// The id of a link's program, and that of its cgroup; 0 if that is gone.
pub(super) fn ends_of_link(link: &OwnedFd) -> io::Result<(u32, u64)> {
    // `struct bpf_link_info`: type and id, prog_id and padding, cgroup_id (kernel/bpf/cgroup.c).
    let [_, _, program, _, low, high] = info::<6>(link)?;
    Ok((program, u64::from(high) << 32 | u64::from(low)))
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
