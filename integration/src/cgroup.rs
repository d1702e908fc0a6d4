//! A cgroup2 directory for a pod, and a child process in it that makes sockets on demand.
//!
//! The eBPF backend judges a socket by the cgroup of the task that made it. A thread cannot be moved alone (outside of
//! threaded mode), so a forked child joins the cgroup and hands sockets out over a Unix socket (SCM_RIGHTS). It never
//! execs: it needs no binary to be found, and makes nothing but system calls between fork and exit.

#![allow(
    unsafe_code,
    reason = "fork, and what a forked child of a threaded process may do: bare system calls"
)]

use std::{
    fs,
    io::{self, IoSlice, IoSliceMut},
    os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd, RawFd},
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
};

use nix::{
    cmsg_space,
    sys::{
        signal::{Signal, kill},
        socket::{
            AddressFamily, ControlMessageOwned, MsgFlags, SockFlag, SockType, recvmsg, sendmsg, socketpair,
        },
        wait::waitpid,
    },
    unistd::{ForkResult, Pid, fork},
};
use socket2::{Domain, Protocol, Socket, Type};

use crate::{WorldError, netns::Netns};

/// A pod's cgroup; removed when dropped, after its processes are gone.
#[derive(Debug)]
pub(crate) struct Cgroup {
    path: PathBuf,
    child: Pid,
    /// Guards one question and its answer on the child's socket.
    line: Mutex<OwnedFd>,
}

impl Cgroup {
    /// Makes a pod's cgroup and its socket maker, which lives in `netns`.
    pub(crate) fn create(root: &CgroupRoot, name: &str, netns: &Arc<Netns>) -> Result<Self, WorldError> {
        let path = root.pods().join(name);
        fs::create_dir_all(&path).map_err(WorldError::file(&path))?;
        let procs = path.join("cgroup.procs");
        let joined = fs::OpenOptions::new()
            .write(true)
            .open(&procs)
            .map_err(WorldError::file(&procs))?;
        let (child, line) = netns
            .within(move || fork_maker(&joined))
            .map_err(WorldError::file(&procs))?;
        Ok(Self {
            path,
            child,
            line: Mutex::new(line),
        })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn socket(&self, domain: Domain, kind: Type, protocol: Protocol) -> io::Result<Socket> {
        let line = self.line.lock().unwrap_or_else(PoisonError::into_inner);
        let question: [i32; 3] = [domain.into(), kind.into(), protocol.into()];
        let bytes = question.map(i32::to_ne_bytes).concat();
        sendmsg::<()>(
            line.as_raw_fd(),
            &[IoSlice::new(&bytes)],
            &[],
            MsgFlags::MSG_NOSIGNAL,
            None,
        )?;
        receive_socket(line.as_raw_fd())
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        if let Err(errno) = kill(self.child, Signal::SIGKILL).and_then(|()| waitpid(self.child, None)) {
            eprintln!("socket maker {}: {errno}", self.child);
        }
        end_processes(&self.path);
        if let Err(error) = fs::remove_dir(&self.path) {
            eprintln!("{}: {error}", self.path.display());
        }
    }
}

/// The cgroup of a world, as the kubelet would make it; removed when dropped, after its pods.
#[derive(Debug)]
pub(crate) struct CgroupRoot(PathBuf);

impl CgroupRoot {
    /// Makes it: `eg-12-0` has `egret-test-12-0`.
    pub(crate) fn create(world: &str) -> Result<Self, WorldError> {
        let root = Self(cgroup2_root()?.join(world.replacen("eg-", "egret-test-", 1)));
        let pods = root.pods();
        fs::create_dir_all(&pods).map_err(WorldError::file(&pods))?;
        Ok(root)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    fn pods(&self) -> PathBuf {
        self.0.join("kubepods")
    }
}

impl Drop for CgroupRoot {
    fn drop(&mut self) {
        for path in [&self.pods(), &self.0] {
            if let Err(error) = fs::remove_dir(path) {
                eprintln!("{}: {error}", path.display());
            }
        }
    }
}

/// Where cgroup2 is mounted on this machine.
///
/// # Errors
///
/// When it is mounted nowhere.
pub fn cgroup2_root() -> Result<PathBuf, WorldError> {
    let mounts = fs::read_to_string("/proc/mounts").map_err(WorldError::file("/proc/mounts"))?;
    let mount = mounts.lines().map(|line| line.split(' ').collect::<Vec<_>>());
    let mut found =
        mount.filter_map(|fields| (fields.get(2) == Some(&"cgroup2")).then(|| PathBuf::from(fields[1])));
    found.next().ok_or(WorldError::NoCgroup2)
}

/// Kills what still lives in the cgroup and waits until it is empty: only then can it be removed.
fn end_processes(path: &Path) {
    if fs::write(path.join("cgroup.kill"), "1").is_err() {
        return;
    }
    let populated =
        || fs::read_to_string(path.join("cgroup.events")).is_ok_and(|events| events.contains("populated 1"));
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(2);
    while populated() && std::time::Instant::now() < deadline {
        std::thread::yield_now();
    }
}

fn fork_maker(procs: &fs::File) -> io::Result<(Pid, OwnedFd)> {
    let (ours, theirs) = socketpair(
        AddressFamily::Unix,
        SockType::SeqPacket,
        None,
        SockFlag::SOCK_CLOEXEC,
    )
    .map_err(io::Error::from)?;
    // SAFETY: the child runs only `serve_sockets`, which makes bare system calls and never returns.
    match unsafe { fork() }.map_err(io::Error::from)? {
        ForkResult::Child => serve_sockets(procs.as_raw_fd(), theirs.as_raw_fd()),
        ForkResult::Parent { child } => {
            drop(theirs);
            let mut joined = [0u8; 1];
            nix::unistd::read(&ours, &mut joined).map_err(io::Error::from)?;
            if joined == [1] {
                Ok((child, ours))
            } else {
                Err(io::Error::other("the child could not join"))
            }
        }
    }
}

/// The child: joins the cgroup, closes all but its line, answers each (domain, type, protocol) with a socket.
fn serve_sockets(procs: RawFd, line: RawFd) -> ! {
    // SAFETY: async-signal-safe system calls on descriptors and buffers of this frame; `_exit` runs no destructor of
    // the parent's memory.
    unsafe {
        libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
        let joined = u8::from(libc::write(procs, c"0".as_ptr().cast(), 1) == 1);
        libc::dup2(line, 0);
        libc::syscall(libc::SYS_close_range, 1u32, u32::MAX, 0u32);
        libc::write(0, (&raw const joined).cast(), 1);
        let mut question = [0i32; 3];
        while libc::read(0, question.as_mut_ptr().cast(), size_of_val(&question)) > 0 {
            send_socket(question);
        }
        libc::_exit(0)
    }
}

/// Sends the socket, or the errno of its failure, over descriptor 0.
///
/// # Safety
/// Only in the forked child, whose descriptor 0 is its line.
unsafe fn send_socket([domain, kind, protocol]: [i32; 3]) {
    // SAFETY: bare system calls; the message lives on this stack until `sendmsg` returns.
    unsafe {
        let made = libc::socket(domain, kind | libc::SOCK_CLOEXEC, protocol);
        let mut errno: i32 = if made < 0 { *libc::__errno_location() } else { 0 };
        let mut part = libc::iovec {
            iov_base: (&raw mut errno).cast(),
            iov_len: size_of::<i32>(),
        };
        let mut control = [0u64; 4];
        let mut message: libc::msghdr = std::mem::zeroed();
        message.msg_iov = &raw mut part;
        message.msg_iovlen = 1;
        if made >= 0 {
            message.msg_control = control.as_mut_ptr().cast();
            message.msg_controllen = libc::CMSG_SPACE(4) as usize;
            let header = libc::CMSG_FIRSTHDR(&raw const message);
            (*header).cmsg_level = libc::SOL_SOCKET;
            (*header).cmsg_type = libc::SCM_RIGHTS;
            (*header).cmsg_len = libc::CMSG_LEN(4) as usize;
            libc::CMSG_DATA(header).cast::<RawFd>().write_unaligned(made);
        }
        libc::sendmsg(0, &raw const message, libc::MSG_NOSIGNAL);
        libc::close(made);
    }
}

fn receive_socket(line: RawFd) -> io::Result<Socket> {
    let mut errno = [0u8; 4];
    let mut parts = [IoSliceMut::new(&mut errno)];
    let mut space = cmsg_space!([RawFd; 1]);
    let answer = recvmsg::<()>(line, &mut parts, Some(&mut space), MsgFlags::MSG_CMSG_CLOEXEC)?;
    let sent = answer.cmsgs()?.find_map(|message| match message {
        ControlMessageOwned::ScmRights(descriptors) => descriptors.first().copied(),
        _ => None,
    });
    match sent {
        // SAFETY: the kernel has just put this descriptor into our table; nobody else knows it.
        Some(descriptor) => Ok(Socket::from(unsafe { OwnedFd::from_raw_fd(descriptor) })),
        None => Err(io::Error::from_raw_os_error(i32::from_ne_bytes(errno))),
    }
}
