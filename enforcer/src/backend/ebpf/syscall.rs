//! bpf(2) for maps, pins and cgroup links. aya loads the object; storage of an attach point and the cgroup of a link
//! are not in its interface.

#![allow(unsafe_code, reason = "the system call takes addresses of buffers")]

use std::ffi::{CString, c_long};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

// `enum bpf_cmd` of linux/bpf.h.
const MAP_LOOKUP_ELEM: c_long = 1;
const MAP_UPDATE_ELEM: c_long = 2;
const MAP_DELETE_ELEM: c_long = 3;
const MAP_GET_NEXT_KEY: c_long = 4;
const PROG_LOAD: c_long = 5;
const OBJ_PIN: c_long = 6;
const OBJ_GET: c_long = 7;
const OBJ_GET_INFO_BY_FD: c_long = 15;
const BTF_LOAD: c_long = 18;
const MAP_LOOKUP_AND_DELETE_ELEM: c_long = 21;
const LINK_CREATE: c_long = 28;
const LINK_UPDATE: c_long = 29;
const LINK_DETACH: c_long = 34;
/// Of asm-generic/socket.h.
const SO_NETNS_COOKIE: libc::c_int = 71;

/// A map with its sizes: each buffer is checked against them.
#[derive(Debug)]
pub(super) struct Map {
    fd: OwnedFd,
    key_size: usize,
    value_size: usize,
}

/// The flag of an update.
#[derive(Clone, Copy, Debug)]
pub(super) enum Update {
    /// Create or replace.
    Any = 0,
    /// Create; `EEXIST` if it exists.
    New = 1,
}

impl Map {
    /// Opens a pinned map and checks its sizes. `copies` is the number of values for a key: the possible CPUs for a
    /// per-CPU map, else 1.
    pub(super) fn open(path: &Path, sizes: (usize, usize), copies: usize) -> io::Result<Self> {
        let fd = open_pin(path)?;
        // `struct bpf_map_info`: type, id, key_size, value_size.
        let [_, _, key_size, value_size] = info::<[u32; 4]>(&fd)?.map(size);
        if (key_size, value_size) != sizes {
            let found = format!("keys of {key_size} and values of {value_size} octets, not {sizes:?}");
            return Err(io::Error::other(format!("{} has {found}", path.display())));
        }
        // A per-CPU value is padded to 8 octets (kernel/bpf/syscall.c, bpf_map_value_size).
        let value_size = if copies == 1 {
            value_size
        } else {
            value_size.next_multiple_of(8) * copies
        };
        Ok(Self {
            fd,
            key_size,
            value_size,
        })
    }

    /// Octets of a value with all copies.
    pub(super) const fn value_size(&self) -> usize {
        self.value_size
    }

    /// Writes a value.
    pub(super) fn update(&self, key: &[u8], value: &[u8], how: Update) -> io::Result<()> {
        self.check(key)?;
        if value.len() != self.value_size {
            return Err(wrong_size("value", value.len(), self.value_size));
        }
        self.element(MAP_UPDATE_ELEM, key, value.as_ptr() as u64, how as u64)
    }

    /// The value of a key.
    pub(super) fn lookup(&self, key: &[u8]) -> io::Result<Option<Vec<u8>>> {
        self.read(MAP_LOOKUP_ELEM, key)
    }

    /// Removes a key and returns its value, atomically.
    pub(super) fn take(&self, key: &[u8]) -> io::Result<Option<Vec<u8>>> {
        self.read(MAP_LOOKUP_AND_DELETE_ELEM, key)
    }

    /// Removes a key, if it exists.
    pub(super) fn delete(&self, key: &[u8]) -> io::Result<()> {
        self.check(key)?;
        none_if_missing(self.element(MAP_DELETE_ELEM, key, 0, 0)).map(drop)
    }

    /// All keys. While others write, a key may be missed or listed twice.
    pub(super) fn keys(&self) -> io::Result<Vec<Vec<u8>>> {
        let mut keys: Vec<Vec<u8>> = Vec::new();
        let mut next = vec![0; self.key_size];
        loop {
            let after = keys.last().map_or(0, |key| key.as_ptr() as u64);
            let mut attributes = Element {
                map: number(&self.fd),
                unused: 0,
                key: after,
                value: next.as_mut_ptr() as u64,
                flags: 0,
            };
            // SAFETY: `after` is null or points at a key of this map, `next` has room for one.
            if none_if_missing(unsafe { bpf(MAP_GET_NEXT_KEY, &mut attributes) })?.is_none() {
                return Ok(keys);
            }
            keys.push(next.clone());
        }
    }

    fn read(&self, command: c_long, key: &[u8]) -> io::Result<Option<Vec<u8>>> {
        self.check(key)?;
        let mut value = vec![0; self.value_size];
        let read = none_if_missing(self.element(command, key, value.as_mut_ptr() as u64, 0))?;
        Ok(read.map(|()| value))
    }

    /// `value` is 0 or the address of `value_size` octets, which the command reads or writes.
    fn element(&self, command: c_long, key: &[u8], value: u64, flags: u64) -> io::Result<()> {
        let mut attributes = Element {
            map: number(&self.fd),
            unused: 0,
            key: key.as_ptr() as u64,
            value,
            flags,
        };
        // SAFETY: the callers have measured the key and the value, and both outlive the call.
        unsafe { bpf(command, &mut attributes) }.map(drop)
    }

    fn check(&self, key: &[u8]) -> io::Result<()> {
        if key.len() == self.key_size {
            Ok(())
        } else {
            Err(wrong_size("key", key.len(), self.key_size))
        }
    }
}

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

/// Pins an object in a BPF file system.
pub(super) fn pin(object: &OwnedFd, path: &Path) -> io::Result<()> {
    let path = CString::new(path.as_os_str().as_bytes())?;
    let mut attributes = Object {
        path: path.as_ptr() as u64,
        fd: number(object),
        flags: 0,
    };
    // SAFETY: the path ends in a zero and outlives the call.
    unsafe { bpf(OBJ_PIN, &mut attributes) }.map(drop)
}

/// The object behind a pin.
pub(super) fn open_pin(path: &Path) -> io::Result<OwnedFd> {
    let path = CString::new(path.as_os_str().as_bytes())?;
    let mut attributes = Object {
        path: path.as_ptr() as u64,
        fd: 0,
        flags: 0,
    };
    // SAFETY: the path ends in a zero and outlives the call.
    let fd = unsafe { bpf(OBJ_GET, &mut attributes) }?;
    owned(fd)
}

/// The id of a link's cgroup; 0 if that is gone.
pub(super) fn cgroup_of_link(link: &OwnedFd) -> io::Result<u64> {
    // `struct bpf_link_info`: type and id, prog_id and padding, cgroup_id (kernel/bpf/cgroup.c).
    let [_, _, cgroup] = info::<[u64; 3]>(link)?;
    Ok(cgroup)
}

/// The id of a link's program.
pub(super) fn program_of_link(link: &OwnedFd) -> io::Result<u32> {
    // `struct bpf_link_info`: type, id, prog_id.
    let [_, _, program] = info::<[u32; 3]>(link)?;
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

/// The first part of an object's info: the kernel fills what fits.
fn info<T: Copy + Default>(object: &OwnedFd) -> io::Result<T> {
    let mut info = T::default();
    let size = u32::try_from(size_of::<T>()).expect("a few octets");
    let mut attributes = Info {
        fd: number(object),
        size,
        info: (&raw mut info) as u64,
    };
    // SAFETY: `info` has the size that is given and outlives the call; T is integers alone.
    unsafe { bpf(OBJ_GET_INFO_BY_FD, &mut attributes) }?;
    Ok(info)
}

// The members of `union bpf_attr` that are used; the kernel takes missing ones as zero.

#[repr(C)]
struct Element {
    map: u32,
    unused: u32,
    key: u64,
    value: u64,
    flags: u64,
}

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

#[repr(C)]
struct Object {
    path: u64,
    fd: u32,
    flags: u32,
}

#[repr(C)]
struct Info {
    fd: u32,
    size: u32,
    info: u64,
}

/// # Safety
/// Addresses in the attributes must be valid for what the command reads and writes there.
unsafe fn bpf<T>(command: c_long, attributes: &mut T) -> io::Result<c_long> {
    // SAFETY: the attributes are of the size that is given; for the rest the caller answers.
    let result = unsafe { libc::syscall(libc::SYS_bpf, command, &raw mut *attributes, size_of::<T>()) };
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(result)
    }
}

fn owned(fd: c_long) -> io::Result<OwnedFd> {
    let fd = i32::try_from(fd).map_err(io::Error::other)?;
    // SAFETY: the kernel has just made this descriptor for us, and nobody else has it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

fn number(fd: &impl AsRawFd) -> u32 {
    u32::try_from(fd.as_raw_fd()).expect("an open descriptor is not negative")
}

fn size(octets: u32) -> usize {
    octets
        .try_into()
        .expect("a usize has at least 32 bits on every host of eBPF")
}

/// `None` where the kernel says that there is no such element.
fn none_if_missing<T>(result: io::Result<T>) -> io::Result<Option<T>> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(None),
        Err(error) => Err(error),
    }
}

fn wrong_size(what: &str, given: usize, wanted: usize) -> io::Error {
    io::Error::other(format!("a {what} of {given} octets for a map of {wanted}"))
}
