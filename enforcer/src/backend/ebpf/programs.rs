//! Loads the programs, and attaches them to the cgroups of pods.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::thread::{self, ScopedJoinHandle};

use super::object::{Object, ObjectError, with_causes};
use super::syscall::{self, ProgramKind, Refused};

/// The compiled `bpf/egress.bpf.c`.
pub(super) const OBJECT: &[u8] = aya::include_bytes_aligned!("../../../bpf/egress.bpf.o");

/// A hook for the sockets of a cgroup.
#[derive(Clone, Copy, Debug)]
struct Hook {
    program: &'static str,
    kind: Kind,
    /// `enum bpf_attach_type` of linux/bpf.h.
    attach_type: u32,
}

#[derive(Clone, Copy, Debug)]
enum Kind {
    SockAddr,
    Skb,
    SockOps,
}

impl Kind {
    /// `enum bpf_prog_type` of linux/bpf.h.
    const fn number(self) -> u32 {
        match self {
            Self::Skb => 8,
            Self::SockOps => 13,
            Self::SockAddr => 18,
        }
    }
}

/// In the order of attachment: what denies comes first.
const HOOKS: [Hook; 7] = [
    Hook {
        program: "egret_connect4",
        kind: Kind::SockAddr,
        attach_type: 10,
    },
    Hook {
        program: "egret_connect6",
        kind: Kind::SockAddr,
        attach_type: 11,
    },
    Hook {
        program: "egret_sendmsg4",
        kind: Kind::SockAddr,
        attach_type: 14,
    },
    Hook {
        program: "egret_sendmsg6",
        kind: Kind::SockAddr,
        attach_type: 15,
    },
    // What is accepted from here on is known to be accepted before its packets are judged.
    Hook {
        program: "egret_established_count",
        kind: Kind::SockOps,
        attach_type: 3,
    },
    Hook {
        program: "egret_arrivals",
        kind: Kind::Skb,
        attach_type: 0,
    },
    Hook {
        program: "egret_departures",
        kind: Kind::Skb,
        attach_type: 1,
    },
];

/// What closes unknown pods, at the cgroup above all pods.
const GUARD: [Hook; 2] = [
    Hook {
        program: "egret_unknown_in",
        kind: Kind::Skb,
        attach_type: 0,
    },
    Hook {
        program: "egret_unknown_out",
        kind: Kind::Skb,
        attach_type: 1,
    },
];

/// The layouts of the maps: programs and enforcers with the same text share maps.
pub(super) const LAYOUTS: &[u8] = include_bytes!("../../../bpf/maps.h");

/// Loaded programs.
#[derive(Debug)]
pub(super) struct Programs {
    /// By name, with their ids in the kernel.
    loaded: BTreeMap<&'static str, (OwnedFd, u32)>,
    /// Why this kernel does not take the guard of unknown pods.
    guard_error: Option<String>,
}

/// Why the programs could not be loaded.
#[derive(Debug, thiserror::Error)]
pub(super) enum LoadError {
    #[error("the object: {}", with_causes(.0))]
    Object(#[from] ObjectError),
    #[error(transparent)]
    Refused(#[from] Refused),
    #[error("program {0} is not in the object")]
    Missing(&'static str),
    #[error("program {0} has no id")]
    Id(&'static str, #[source] io::Error),
}

impl Programs {
    /// Loads the programs of an object with the maps pinned in a directory, and pins missing maps. With maps of their own they would
    /// judge by nothing.
    pub(super) fn load(maps: &Path, object: &[u8]) -> Result<Self, LoadError> {
        let mut object = Object::read(object)?;
        object.link(maps)?;
        let all: Vec<Hook> = HOOKS.into_iter().chain(GUARD).collect();
        let (mut loaded, mut guard_error) = (BTreeMap::new(), None);
        for (index, program) in load_all(&object, &all).into_iter().enumerate() {
            match program {
                Ok(program) => drop(loaded.insert(all[index].program, program)),
                // It needs a newer kernel (bpf_get_netns_cookie in programs of this kind: 6.15).
                Err(error) if index >= HOOKS.len() => {
                    guard_error = guard_error.or_else(|| Some(error.to_string()))
                }
                Err(error) => return Err(error),
            }
        }
        Ok(Self { loaded, guard_error })
    }

    /// Why unknown pods cannot be closed on this kernel.
    pub(super) fn guard_error(&self) -> Option<&str> {
        self.guard_error.as_deref()
    }

    /// Attaches the guard of unknown pods to a cgroup, with pins in a directory.
    pub(super) fn attach_guard(&self, cgroup: &Path, id: u64, pins: &Path) -> io::Result<()> {
        let cgroup = File::open(cgroup)?;
        fs::create_dir_all(pins)?;
        GUARD.into_iter().try_for_each(|hook| {
            let pinned = PinnedLink::open(&pins.join(hook.program))?;
            self.attach_hook(hook, pinned, &cgroup, id, pins)
        })
    }

    /// Attaches missing programs to a cgroup, with pins in a directory. `when_storage_exists` is called once the attach
    /// point has its storage: until it has written that, the pod is denied everything.
    pub(super) fn attach(
        &self,
        cgroup: &Path,
        id: u64,
        pins: &Path,
        pinned: PinnedLinks,
        when_storage_exists: impl FnOnce() -> io::Result<()>,
    ) -> io::Result<()> {
        let cgroup = File::open(cgroup)?;
        fs::create_dir_all(pins)?;
        let mut hooks = HOOKS.into_iter().zip(pinned.0);
        let mut attach = |(hook, pinned)| self.attach_hook(hook, pinned, &cgroup, id, pins);
        hooks.next().map_or(Ok(()), &mut attach)?;
        when_storage_exists()?;
        hooks.try_for_each(attach)
    }

    fn attach_hook(
        &self,
        hook: Hook,
        pinned: Option<PinnedLink>,
        cgroup: &File,
        id: u64,
        pins: &Path,
    ) -> io::Result<()> {
        let pin = pins.join(hook.program);
        match pinned {
            Some(pinned) if pinned.cgroup == id => {
                return match self.runs(hook, &pinned) {
                    true => Ok(()),
                    // Of an earlier enforcer, over the same maps.
                    false => syscall::replace_program(&pinned.link, self.program(hook)?),
                };
            }
            // The pod of this UID had another cgroup before: a static pod that was recreated.
            Some(_) => fs::remove_file(&pin)?,
            None => {}
        }
        let link = syscall::attach(self.program(hook)?, cgroup.as_fd(), hook.attach_type)?;
        syscall::pin(&link, &pin)
    }

    fn program(&self, hook: Hook) -> io::Result<BorrowedFd<'_>> {
        let loaded = self.loaded.get(hook.program);
        let (program, _) = loaded.ok_or_else(|| io::Error::other("no such program"))?;
        Ok(program.as_fd())
    }

    /// Whether a link runs the program of this process.
    fn runs(&self, hook: Hook, pinned: &PinnedLink) -> bool {
        let loaded = self.loaded.get(hook.program);
        loaded.is_some_and(|(_, id)| *id == pinned.program)
    }

    /// Whether all hooks of a pod are attached to its cgroup, and run the programs of this process.
    pub(super) fn are_in_place(&self, pinned: &PinnedLinks, id: u64) -> bool {
        HOOKS.into_iter().zip(&pinned.0).all(|(hook, pinned)| {
            pinned
                .as_ref()
                .is_some_and(|pinned| pinned.cgroup == id && self.runs(hook, pinned))
        })
    }
}

/// The links of a pod that are pinned, in the order of [`HOOKS`].
#[derive(Debug)]
pub(super) struct PinnedLinks([Option<PinnedLink>; HOOKS.len()]);

#[derive(Debug)]
struct PinnedLink {
    link: OwnedFd,
    program: u32,
    /// 0 if it is gone.
    cgroup: u64,
}

impl PinnedLinks {
    /// Opens the links that are pinned in a directory.
    pub(super) fn open(pins: &Path) -> io::Result<Self> {
        let mut links = [const { None }; HOOKS.len()];
        // A new pod has no directory.
        if pins.try_exists()? {
            for (link, hook) in links.iter_mut().zip(HOOKS) {
                *link = PinnedLink::open(&pins.join(hook.program))?;
            }
        }
        Ok(Self(links))
    }
}

impl PinnedLink {
    fn open(pin: &Path) -> io::Result<Option<Self>> {
        let link = match syscall::open_pin(pin) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            link => link?,
        };
        let (program, cgroup) = syscall::ends_of_link(&link)?;
        Ok(Some(Self {
            link,
            program,
            cgroup,
        }))
    }
}

/// Loads programs, on all processors: the verifier looks at each by itself.
fn load_all(object: &Object, hooks: &[Hook]) -> Vec<Result<(OwnedFd, u32), LoadError>> {
    thread::scope(|scope| {
        let loading = hooks.iter().map(|hook| scope.spawn(|| load(object, *hook)));
        let loading: Vec<_> = loading.collect();
        let loaded = loading.into_iter().map(ScopedJoinHandle::join);
        loaded
            .map(|loaded| loaded.expect("loading does not panic"))
            .collect()
    })
}

fn load(object: &Object, hook: Hook) -> Result<(OwnedFd, u32), LoadError> {
    let kind = ProgramKind {
        number: hook.kind.number(),
        attach_type: hook.attach_type,
    };
    let program = object
        .load(hook.program, kind)
        .ok_or(LoadError::Missing(hook.program))??;
    let id = syscall::program_id(&program).map_err(|error| LoadError::Id(hook.program, error))?;
    Ok((program, id))
}

/// Whether the cgroup of a pod's pins is gone.
pub(super) fn is_severed(pins: &Path) -> io::Result<bool> {
    let link = PinnedLink::open(&pins.join(HOOKS[0].program))?;
    Ok(link.is_none_or(|link| link.cgroup == 0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::ebpf::cgroup;
    use crate::backend::ebpf::pins::Pins;
    use std::io::Write;
    use std::os::unix::fs::MetadataExt;
    use std::process::Command;

    #[test]
    fn an_attached_pod_without_rules_is_denied_everything() {
        if !nix::unistd::geteuid().is_root() {
            assert_ne!(std::env::var("CI").as_deref(), Ok("true"), "not root");
            // Past the harness, which would swallow it.
            let said = b"SKIPPED: not root, the eBPF programs were not attached\n";
            return std::io::stderr().write_all(said).unwrap();
        }
        let name = format!("eg-ebpf-unprogrammed-{}", std::process::id());
        let cgroup = cgroup::cgroup2_root(Path::new("/sys/fs/cgroup"))
            .unwrap()
            .join(&name);
        let pins = Pins::new(&std::env::temp_dir().join(&name), "object".to_owned());
        fs::create_dir(&cgroup).unwrap();
        pins.prepare().unwrap();

        let programs = Programs::load(&pins.maps(), OBJECT).unwrap();
        let id = fs::metadata(&cgroup).unwrap().ino();
        let killed = || Err(io::Error::other("killed here"));
        let links = PinnedLinks::open(&pins.pod("a")).unwrap();
        let attached = programs.attach(&cgroup, id, &pins.pod("a"), links, killed);
        let script = format!(
            "echo $$ >{}/cgroup.procs; exec 3<>/dev/tcp/127.0.0.1/9",
            cgroup.display()
        );
        let connect = Command::new("bash").args(["-c", &script]).output().unwrap();
        pins.remove_everything().unwrap();
        fs::remove_dir(&cgroup).unwrap();

        assert!(attached.is_err());
        let said = String::from_utf8_lossy(&connect.stderr);
        assert!(said.contains("Operation not permitted"), "{said}");
    }
}
