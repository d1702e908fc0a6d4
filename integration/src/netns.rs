//! A network namespace with a name and one thread that lives in it.
//!
//! The thread unshares, sets the sysctls that must stand before the first link, and pins its namespace under
//! /run/netns, as `ip netns add` does (so that `ip -n`, `ip netns exec` and `nsenter` find it), but without a process.
//! The same thread later makes the sockets of the probes and starts the processes of the namespace: a child inherits
//! the namespace of the thread that starts it, and ends with it (`PR_SET_PDEATHSIG`), even if the test is killed.

#![allow(
    unsafe_code,
    reason = "PR_SET_PDEATHSIG has to be set in the child, between fork and exec"
)]

use std::{
    fs,
    io::{self, Write as _},
    os::unix::process::CommandExt as _,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::mpsc,
    thread::JoinHandle,
};

use nix::{
    mount::{MntFlags, MsFlags, mount, umount2},
    sched::{CloneFlags, unshare},
};

use crate::WorldError;

pub(crate) const PINS: &str = "/run/netns";
/// In the environment of every process of a world: traces are looked for by it.
pub(crate) const WORLD_VARIABLE: &str = "EGRET_WORLD";

type Job = Box<dyn FnOnce() + Send>;

/// A pinned namespace; it ends when this is dropped.
#[derive(Debug)]
pub(crate) struct Netns {
    name: String,
    world: String,
    jobs: Option<mpsc::Sender<Job>>,
    thread: Option<JoinHandle<()>>,
}

impl Netns {
    /// Makes `<world>-<role>`, with `sysctls` (paths below /proc/sys/net) written before any link exists.
    pub(crate) fn create(
        world: &str,
        role: &str,
        sysctls: &'static [(&str, &str)],
    ) -> Result<Self, WorldError> {
        let name = format!("{world}-{role}");
        let (jobs, work) = mpsc::channel::<Job>();
        let (tell, told) = mpsc::sync_channel(1);
        let pin = pin_of(&name);
        let thread = std::thread::Builder::new()
            .name(role.chars().take(15).collect())
            .spawn(move || {
                let made = unshare_and_pin(&pin, sysctls);
                let failed = made.is_err();
                if tell.send(made).is_err() || failed {
                    return;
                }
                work.iter().for_each(|job| job());
            })
            .map_err(|source| WorldError::Namespace {
                name: name.clone(),
                doing: "start its thread",
                source,
            })?;
        let netns = Self {
            name,
            world: world.into(),
            jobs: Some(jobs),
            thread: Some(thread),
        };
        told.recv()
            .expect("the thread tells before it ends")
            .map_err(|(doing, source)| WorldError::Namespace {
                name: netns.name.clone(),
                doing,
                source,
            })?;
        Ok(netns)
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn path(&self) -> PathBuf {
        pin_of(&self.name)
    }

    /// Runs `work` on the thread that lives in the namespace. Keep it short: the thread is shared.
    pub(crate) fn within<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> T {
        let (tell, told) = mpsc::sync_channel(1);
        let job: Job = Box::new(move || {
            // The asker waits below; it can only be gone if its thread was torn down with the test.
            drop(tell.send(work()));
        });
        let jobs = self.jobs.as_ref().expect("the sender lives until drop");
        jobs.send(job)
            .expect("the thread of a namespace lives until drop");
        told.recv().expect("work in a namespace does not panic")
    }

    /// Writes a sysctl below /proc/sys/net of this namespace.
    pub(crate) fn sysctl(&self, key: &str, value: &str) -> Result<(), WorldError> {
        let path = Path::new("/proc/sys/net").join(key);
        let (file, value) = (path.clone(), value.to_owned());
        self.within(move || fs::write(file, value))
            .map_err(WorldError::file(path))
    }

    /// One `ip` process for many lines of links, addresses and routes.
    pub(crate) fn ip(&self, lines: &str) -> Result<(), WorldError> {
        let argv = ["ip", "-n", &self.name, "-batch", "-"];
        run_in_place(&argv, lines).map(drop)
    }

    /// Starts a process inside; it dies with the namespace's thread.
    pub(crate) fn spawn(&self, mut command: Command) -> io::Result<Child> {
        command
            .env(WORLD_VARIABLE, &self.world)
            .stdin(Stdio::null())
            .process_group(0);
        // SAFETY: prctl is one system call and touches no memory of the parent.
        unsafe {
            command.pre_exec(|| {
                nix::sys::prctl::set_pdeathsig(nix::sys::signal::Signal::SIGKILL).map_err(io::Error::from)
            });
        }
        self.within(move || command.spawn())
    }
}

impl Drop for Netns {
    fn drop(&mut self) {
        self.jobs = None;
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            eprintln!("the thread of {} panicked", self.name);
        }
        if let Err(error) = unpin(&self.path()) {
            eprintln!("{}: {error}", self.path().display());
        }
    }
}

fn pin_of(name: &str) -> PathBuf {
    Path::new(PINS).join(name)
}

fn unshare_and_pin(pin: &Path, sysctls: &[(&str, &str)]) -> Result<(), (&'static str, io::Error)> {
    unshare(CloneFlags::CLONE_NEWNET).map_err(|errno| ("unshare", errno.into()))?;
    for (key, value) in sysctls {
        fs::write(Path::new("/proc/sys/net").join(key), value).map_err(|error| ("set a sysctl", error))?;
    }
    fs::create_dir_all(PINS).map_err(|error| ("create /run/netns", error))?;
    fs::File::create(pin).map_err(|error| ("create its pin", error))?;
    mount(
        Some("/proc/thread-self/ns/net"),
        pin,
        None::<&str>,
        MsFlags::MS_BIND,
        None::<&str>,
    )
    .map_err(|errno| ("mount its pin", errno.into()))
}

pub(crate) fn unpin(pin: &Path) -> io::Result<()> {
    match umount2(pin, MntFlags::MNT_DETACH) {
        // EINVAL: it was never mounted; the file still has to go.
        Ok(()) | Err(nix::errno::Errno::EINVAL) => fs::remove_file(pin),
        Err(nix::errno::Errno::ENOENT) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}

/// Runs a program of the host with `input` on stdin; anything but success is an error.
fn run_in_place(argv: &[&str], input: &str) -> Result<String, WorldError> {
    let spoken = argv.join(" ");
    let spawn = |source| WorldError::Spawn {
        argv: spoken.clone(),
        source,
    };
    let (program, arguments) = argv.split_first().expect("a command has a program");
    let mut child = Command::new(program)
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(spawn)?;
    // A broken pipe means that it ended early: its own words on stderr say more.
    let written = child
        .stdin
        .take()
        .expect("stdin was piped")
        .write_all(input.as_bytes());
    let output = child.wait_with_output().map_err(spawn)?;
    if output.status.success() && written.is_ok() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let stderr = format!(
        "{}\ninput was:\n{input}",
        String::from_utf8_lossy(&output.stderr).trim_end()
    );
    Err(WorldError::Failed {
        argv: spoken,
        status: output.status.to_string(),
        stderr,
    })
}
