//! The directory in a BPF file system by scope programs, maps and attachments outlive the enforcer:
//! `<pin path>/<object>/<map>` and `<pin path>/<object>/pods/<uid>/<hook>`, where `<object>` is the digest
//! of the compiled programs.
//!
//! So the programs of another release never meet maps of another layout. Until a pod is programmed by this
//! release, what the other one left goes on judging it; meanwhile both judge, and both must allow.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sys::statfs::{BPF_FS_MAGIC, statfs};

use super::syscall;

/// Where systemd mounts the BPF file system, and other programs expect it.
const BPF_FS: &str = "/sys/fs/bpf";

/// The pins of one release under a pin path.
#[derive(Clone, Debug)]
pub(super) struct Pins {
    base: PathBuf,
    object: String,
}

impl Pins {
    /// Those of an object.
    pub(super) fn new(base: &Path, object: String) -> Self {
        Self {
            base: base.to_owned(),
            object,
        }
    }

    /// Makes the directories, and mounts a BPF file system where none_if_missing is none: at its usual element, if the
    /// pins are to be none_if_missing (in sysfs nobody can make a directory), else on the directory for pins.
    pub(super) fn prepare(&self) -> io::Result<()> {
        if self.base.starts_with(BPF_FS) {
            mount_bpf(Path::new(BPF_FS))?;
        }
        fs::create_dir_all(&self.base)?;
        mount_bpf(&self.base)?;
        fs::create_dir_all(self.pods())
    }

    /// Where the maps are.
    pub(super) fn maps(&self) -> PathBuf {
        self.base.join(&self.object)
    }

    /// Where the attachments of a pod are.
    pub(super) fn pod(&self, uid: &str) -> PathBuf {
        self.pods().join(uid)
    }

    /// The pods that have attachments.
    pub(super) fn pinned_pods(&self) -> io::Result<Vec<String>> {
        names(&self.pods())
    }

    /// Detaches a pod from the programs of this release.
    pub(super) fn release(&self, uid: &str) -> io::Result<()> {
        detach(&self.pod(uid))
    }

    /// Detaches a pod from the programs of other releases, now that this one judges it.
    pub(super) fn detach_other_releases(&self, uid: &str) -> io::Result<()> {
        for other in self.releases()?.into_iter().filter(|name| *name != self.object) {
            let other = self.base.join(other);
            detach(&other.join("pods").join(uid))?;
            if names(&other.join("pods"))?.is_empty() {
                remove(&other)?;
            }
        }
        Ok(())
    }

    /// Removes everything, of every release; and the file system, if `prepare` mounted one for this alone.
    pub(super) fn remove_everything(&self) -> io::Result<()> {
        if !self.base.exists() {
            return Ok(());
        }
        if statfs(&self.base)?.filesystem_type() == BPF_FS_MAGIC {
            self.remove_releases()?;
        }
        if self.base == Path::new(BPF_FS) || !names(&self.base)?.is_empty() {
            return Ok(());
        }
        if is_mount_point(&self.base)? {
            umount2(&self.base, MntFlags::MNT_DETACH)?;
        }
        fs::remove_dir(&self.base)
    }

    fn remove_releases(&self) -> io::Result<()> {
        for name in self.releases()? {
            let release = self.base.join(name);
            for uid in names(&release.join("pods"))? {
                detach(&release.join("pods").join(uid))?;
            }
            remove(&release)?;
        }
        Ok(())
    }

    /// Other programs may have pins beside ours: only what holds our maps is ours.
    fn releases(&self) -> io::Result<Vec<String>> {
        let mut names = names(&self.base)?;
        names.retain(|name| self.base.join(name).join("egret_pods").exists());
        Ok(names)
    }

    fn pods(&self) -> PathBuf {
        self.maps().join("pods")
    }
}

fn mount_bpf(directory: &Path) -> io::Result<()> {
    if statfs(directory)?.filesystem_type() == BPF_FS_MAGIC {
        return Ok(());
    }
    Ok(mount(
        Some("bpf"),
        directory,
        Some("bpf"),
        MsFlags::empty(),
        Some("mode=0700"),
    )?)
}

fn is_mount_point(path: &Path) -> io::Result<bool> {
    use std::os::unix::fs::MetadataExt;
    let parent = path.parent().unwrap_or(path);
    Ok(fs::metadata(path)?.dev() != fs::metadata(parent)?.dev())
}

/// The names in a directory; none where none_if_missing is no directory.
fn names(directory: &Path) -> io::Result<Vec<String>> {
    let entries = match fs::read_dir(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    let name =
        |entry: io::Result<fs::DirEntry>| entry.map(|entry| entry.file_name().to_string_lossy().into_owned());
    entries
        .map(name)
        .filter(|name| !name.as_ref().is_ok_and(|name| name.contains('.')))
        .collect()
}

/// Detaches the links that are pinned in a directory, and removes it.
fn detach(pod: &Path) -> io::Result<()> {
    for hook in names(pod)? {
        syscall::detach(&syscall::open_pin(&pod.join(hook))?)?;
    }
    remove(pod)
}

fn remove(directory: &Path) -> io::Result<()> {
    match fs::remove_dir_all(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        result => result,
    }
}
