//! bpf(2): maps, pins, and programs at the interfaces of pods.

#![allow(unsafe_code, reason = "the system call takes addresses of buffers")]

use std::ffi::{CString, c_long};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

mod object;
pub mod program;

pub use object::{Object, ObjectError};
use program::{Code, Refused};

// `enum bpf_cmd` of linux/bpf.h.
const MAP_CREATE: c_long = 0;
const MAP_LOOKUP_ELEM: c_long = 1;
const MAP_UPDATE_ELEM: c_long = 2;
const MAP_DELETE_ELEM: c_long = 3;
const MAP_GET_NEXT_KEY: c_long = 4;
const OBJ_PIN: c_long = 6;
const OBJ_GET: c_long = 7;
const PROG_GET_FD_BY_ID: c_long = 13;
const OBJ_GET_INFO_BY_FD: c_long = 15;
const MAP_LOOKUP_AND_DELETE_ELEM: c_long = 21;
const LINK_CREATE: c_long = 28;

/// A map with its sizes: each buffer is checked against them.
#[derive(Debug)]
pub struct Map {
    fd: OwnedFd,
    key_size: usize,
    value_size: usize,
}

/// The flag of an update.
#[derive(Clone, Copy, Debug)]
pub enum Update {
    /// Create or replace.
    Any = 0,
    /// Create; `EEXIST` if it exists.
    New = 1,
}

/// What a map is made of (`enum bpf_map_type`, and flags of linux/bpf.h).
#[derive(Clone, Copy, Debug)]
pub struct MapSpec {
    /// `BPF_MAP_TYPE_...`.
    pub kind: MapKind,
    /// Octets of a key.
    pub key_size: usize,
    /// Octets of a value.
    pub value_size: usize,
    /// The most entries.
    pub entries: usize,
}

/// A kind of map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MapKind {
    /// By key; entries take memory when they are there (`BPF_F_NO_PREALLOC`).
    Hash,
    /// By number.
    Array,
    /// By number, one value for each CPU.
    PerCpuArray,
}

impl Map {
    /// Makes a map, which lives as long as someone has it. Of a per-CPU map the values are not for user space.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn create(name: &str, spec: MapSpec) -> io::Result<Self> {
        const NO_PREALLOC: u32 = 1;
        let (kind, flags) = match spec.kind {
            MapKind::Hash => (1, NO_PREALLOC),
            MapKind::Array => (2, 0),
            MapKind::PerCpuArray => (6, 0),
        };
        let number = |size| u32::try_from(size).map_err(io::Error::other);
        let mut attributes = MapCreate {
            kind,
            key_size: number(spec.key_size)?,
            value_size: number(spec.value_size)?,
            entries: number(spec.entries)?,
            flags,
            inner: 0,
            numa: 0,
            name: object_name(name),
        };
        // SAFETY: the attributes hold no addresses.
        let fd = owned(unsafe { bpf(MAP_CREATE, &mut attributes) }?)?;
        Ok(Self {
            fd,
            key_size: spec.key_size,
            value_size: spec.value_size,
        })
    }

    /// Pins it in a BPF file system.
    ///
    /// # Errors
    /// When the kernel refuses; `EEXIST` where something is pinned there.
    pub fn pin(&self, path: &Path) -> io::Result<()> {
        pin(&self.fd, path)
    }

    /// Opens a pinned map and checks its sizes. `copies` is the number of values for a key: the possible CPUs for a
    /// per-CPU map, else 1.
    pub fn open(path: &Path, sizes: (usize, usize), copies: usize) -> io::Result<Self> {
        let fd = open_pin(path)?;
        // `struct bpf_map_info`: type, id, key_size, value_size.
        let [_, _, key_size, value_size] = info::<4>(&fd)?.map(size);
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
    pub const fn value_size(&self) -> usize {
        self.value_size
    }

    /// Writes a value.
    pub fn update(&self, key: &[u8], value: &[u8], how: Update) -> io::Result<()> {
        self.check(key)?;
        if value.len() != self.value_size {
            return Err(wrong_size("value", value.len(), self.value_size));
        }
        self.element(MAP_UPDATE_ELEM, key, value.as_ptr() as u64, how as u64)
    }

    /// The value of a key.
    pub fn lookup(&self, key: &[u8]) -> io::Result<Option<Vec<u8>>> {
        self.read(MAP_LOOKUP_ELEM, key)
    }

    /// Removes a key and returns its value, atomically.
    pub fn take(&self, key: &[u8]) -> io::Result<Option<Vec<u8>>> {
        self.read(MAP_LOOKUP_AND_DELETE_ELEM, key)
    }

    /// Removes a key, if it exists.
    pub fn delete(&self, key: &[u8]) -> io::Result<()> {
        self.check(key)?;
        none_if_missing(self.element(MAP_DELETE_ELEM, key, 0, 0)).map(drop)
    }

    /// All keys. While others write, a key may be missed or listed twice.
    pub fn keys(&self) -> io::Result<Vec<Vec<u8>>> {
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

/// Pins an object in a BPF file system.
pub fn pin(object: &OwnedFd, path: &Path) -> io::Result<()> {
    let path = CString::new(path.as_os_str().as_bytes())?;
    let mut attributes = PinnedObject {
        path: path.as_ptr() as u64,
        fd: number(object),
        flags: 0,
    };
    // SAFETY: the path ends in a zero and outlives the call.
    unsafe { bpf(OBJ_PIN, &mut attributes) }.map(drop)
}

/// The object behind a pin.
pub fn open_pin(path: &Path) -> io::Result<OwnedFd> {
    let path = CString::new(path.as_os_str().as_bytes())?;
    let mut attributes = PinnedObject {
        path: path.as_ptr() as u64,
        fd: 0,
        flags: 0,
    };
    // SAFETY: the path ends in a zero and outlives the call.
    let fd = unsafe { bpf(OBJ_GET, &mut attributes) }?;
    owned(fd)
}

/// The first words of an object's info (`struct bpf_..._info`): the kernel fills what fits.
///
/// # Errors
/// When the kernel refuses.
pub fn info<const WORDS: usize>(object: &OwnedFd) -> io::Result<[u32; WORDS]> {
    let mut info = [0_u32; WORDS];
    let mut attributes = Info {
        fd: number(object),
        size: u32::try_from(size_of_val(&info)).expect("a few octets"),
        info: info.as_mut_ptr() as u64,
    };
    // SAFETY: `info` has the size that is given and outlives the call.
    unsafe { bpf(OBJ_GET_INFO_BY_FD, &mut attributes) }?;
    Ok(info)
}

/// A program that runs at interfaces.
#[derive(Debug)]
pub struct Program(OwnedFd);

/// A program at an interface, as long as this lives or the interface is there.
#[derive(Debug)]
pub struct InterfaceLink(#[expect(dead_code, reason = "closing it detaches the program")] OwnedFd);

/// `enum bpf_attach_type`: packets that arrive, before everything but XDP (Linux 6.6).
const TCX_INGRESS: u32 = 46;

impl Program {
    /// Loads a classifier (`BPF_PROG_TYPE_SCHED_CLS`) for packets that arrive.
    ///
    /// # Errors
    /// With the end of the verifier's log.
    fn load(name: &str, instructions: &[u8]) -> Result<Self, Refused> {
        const SCHED_CLS: u32 = 3;
        let code = Code {
            name,
            kind: SCHED_CLS,
            attach_type: TCX_INGRESS,
            license: c"Apache-2.0",
            instructions,
            types: None,
        };
        program::load(&code).map(Self)
    }

    /// Runs it at what arrives by the interface with this index, behind the programs that are there already.
    ///
    /// # Errors
    /// When there is no such interface, or the kernel refuses.
    pub fn attach(&self, interface: u32) -> io::Result<InterfaceLink> {
        let mut attributes = InterfaceLinkCreate {
            program: number(&self.0),
            interface,
            attach_type: TCX_INGRESS,
            flags: 0,
        };
        // SAFETY: the attributes hold no addresses.
        owned(unsafe { bpf(LINK_CREATE, &mut attributes) }?).map(InterfaceLink)
    }
}

/// The name of the program with this number.
///
/// # Errors
/// When there is none, or the kernel does not say.
pub fn program_name(id: u32) -> io::Result<String> {
    let mut attributes = ById {
        id,
        next: 0,
        flags: 0,
    };
    // SAFETY: the attributes hold no addresses.
    let program = owned(unsafe { bpf(PROG_GET_FD_BY_ID, &mut attributes) }?)?;
    // `struct bpf_prog_info`: the name is behind 64 octets.
    let info = info::<20>(&program)?;
    let name: Vec<u8> = info[16..].iter().flat_map(|word| word.to_ne_bytes()).collect();
    let name = name.split(|octet| *octet == 0).next().unwrap_or_default();
    Ok(String::from_utf8_lossy(name).into_owned())
}

/// A name of at most 15 octets and a zero (`BPF_OBJ_NAME_LEN`).
fn object_name(name: &str) -> [u8; 16] {
    let mut octets = [0; 16];
    for (to, from) in octets[..15].iter_mut().zip(name.bytes()) {
        *to = from;
    }
    octets
}

// The members of `union bpf_attr` that are used; the kernel takes missing ones as zero.

#[repr(C)]
struct ById {
    id: u32,
    next: u32,
    flags: u32,
}

#[repr(C)]
struct MapCreate {
    kind: u32,
    key_size: u32,
    value_size: u32,
    entries: u32,
    flags: u32,
    inner: u32,
    numa: u32,
    name: [u8; 16],
}

#[repr(C)]
struct InterfaceLinkCreate {
    program: u32,
    interface: u32,
    attach_type: u32,
    flags: u32,
}

#[repr(C)]
struct Element {
    map: u32,
    unused: u32,
    key: u64,
    value: u64,
    flags: u64,
}

#[repr(C)]
struct PinnedObject {
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
pub unsafe fn bpf<T>(command: c_long, attributes: &mut T) -> io::Result<c_long> {
    // SAFETY: the attributes are of the size that is given; for the rest the caller answers.
    let result = unsafe { libc::syscall(libc::SYS_bpf, command, &raw mut *attributes, size_of::<T>()) };
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(result)
    }
}

pub fn owned(fd: c_long) -> io::Result<OwnedFd> {
    let fd = i32::try_from(fd).map_err(io::Error::other)?;
    // SAFETY: the kernel has just made this descriptor for us, and nobody else has it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

pub fn number(fd: &impl AsRawFd) -> u32 {
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
