//! Pins in a BPF file system, which keep programs, maps and attachments when the enforcer ends: `<pin
//! path>/<layouts>/<map>` and `<pin path>/<layouts>/pods/<uid>/<hook>`, where `<layouts>` is the digest of the layouts of
//! maps (`bpf/maps.h`).
//!
//! A release with the same layouts takes over the maps, and has each link run its own program. One with other layouts has
//! maps of its own: until it has programmed a pod, the other release's programs judge it; in between both judge, and both
//! must allow.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sys::statfs::{BPF_FS_MAGIC, statfs};

use super::syscall;

/// Where systemd mounts the BPF file system.
const BPF_FS: &str = "/sys/fs/bpf";
/// The directory of a release's guard of unknown pods.
const GUARD: &str = "guard";

/// The directory of a release's program behind the translation of Services.
const SERVICES: &str = "services";

/// The pins of one release.
#[derive(Clone, Debug)]
pub(super) struct Pins {
    base: PathBuf,
    object: String,
}

impl Pins {
    /// The pins of an object.
    pub(super) fn new(base: &Path, object: String) -> Self {
        Self {
            base: base.to_owned(),
            object,
        }
    }

    /// Creates the directories, and mounts a BPF file system if there is none: at its usual place if the pins are below
    /// it (sysfs has no mkdir), else on the pin path.
    pub(super) fn prepare(&self) -> io::Result<()> {
        if self.base.starts_with(BPF_FS) {
            mount_bpf(Path::new(BPF_FS))?;
        }
        fs::create_dir_all(&self.base)?;
        mount_bpf(&self.base)?;
        fs::create_dir_all(self.pods())
    }

    /// The directory of the maps.
    pub(super) fn maps(&self) -> PathBuf {
        self.base.join(&self.object)
    }

    /// The directory of a pod's attachments.
    pub(super) fn pod(&self, uid: &str) -> PathBuf {
        self.pods().join(uid)
    }

    /// Pods with attachments.
    pub(super) fn pinned_pods(&self) -> io::Result<Vec<String>> {
        names(&self.pods())
    }

    /// Detaches a pod from the programs of this release.
    pub(super) fn release(&self, uid: &str) -> io::Result<()> {
        detach(&self.pod(uid))
    }

    /// The directory of the guard's attachment to a cgroup.
    pub(super) fn guard(&self, cgroup: u64) -> PathBuf {
        self.maps().join(GUARD).join(cgroup.to_string())
    }

    /// Detaches this release's guards but those of these cgroups: a cgroup that was made again has another id.
    pub(super) fn retain_guards(&self, cgroups: &[u64]) -> io::Result<()> {
        let guards = self.maps().join(GUARD);
        let is_kept = |name: &String| cgroups.iter().any(|cgroup| *name == cgroup.to_string());
        let gone = names(&guards)?.into_iter().filter(|name| !is_kept(name));
        gone.into_iter().try_for_each(|name| detach(&guards.join(name)))
    }

    /// Detaches the guards of all releases.
    pub(super) fn detach_guards(&self) -> io::Result<()> {
        self.releases()?
            .into_iter()
            .try_for_each(|release| detach_guard(&self.base.join(release)))
    }

    /// The directory of the attachments of what judges Services, of one build.
    pub(super) fn services(&self, build: &str) -> PathBuf {
        self.maps().join(SERVICES).join(build)
    }

    /// Detaches what judges Services, of all builds but this one.
    pub(super) fn retain_services(&self, build: Option<&str>) -> io::Result<()> {
        detach_services(&self.maps(), build)
    }

    /// Whether programs of any release judge a pod.
    pub(super) fn have_pods(&self) -> io::Result<bool> {
        for release in self.releases()? {
            if !names(&self.base.join(release).join("pods"))?.is_empty() {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// The releases with other layouts that have pins now.
    pub(super) fn other_releases(&self) -> io::Result<OtherReleases> {
        let releases = self.releases()?.into_iter();
        let others = releases.filter(|name| *name != self.object);
        Ok(OtherReleases(others.map(|name| self.base.join(name)).collect()))
    }

    /// Removes the pins of every release, and the file system if `prepare` mounted it.
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
            detach_guard(&release)?;
            detach_services(&release, None)?;
            remove(&release)?;
        }
        Ok(())
    }

    /// Other programs may have pins there, too: only a directory with our map is ours.
    fn releases(&self) -> io::Result<Vec<String>> {
        let mut names = names(&self.base)?;
        names.retain(|name| self.base.join(name).join("egret_pods").exists());
        Ok(names)
    }

    fn pods(&self) -> PathBuf {
        self.maps().join("pods")
    }
}

/// The pins of other releases, by their directories. None comes while this one runs.
#[derive(Debug)]
pub(super) struct OtherReleases(Vec<PathBuf>);

impl OtherReleases {
    /// Detaches a pod from their programs, once this release judges it.
    pub(super) fn detach_pod(&self, uid: &str) -> io::Result<()> {
        for other in &self.0 {
            detach(&other.join("pods").join(uid))?;
            if names(&other.join("pods"))?.is_empty() && names(&other.join(GUARD))?.is_empty() {
                detach_services(other, None)?;
                remove(other)?;
            }
        }
        Ok(())
    }

    /// Detaches their guards, once that of this release is attached.
    pub(super) fn detach_guards(&self) -> io::Result<()> {
        self.0.iter().try_for_each(|other| detach_guard(other))
    }

    /// Detaches what judges Services for those that have no pod any more.
    pub(super) fn detach_services_without_pods(&self) -> io::Result<()> {
        for other in &self.0 {
            if names(&other.join("pods"))?.is_empty() {
                detach_services(other, None)?;
            }
        }
        Ok(())
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

/// The names in a directory; none where there is no directory.
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

fn detach_guard(release: &Path) -> io::Result<()> {
    let guard = release.join(GUARD);
    names(&guard)?
        .into_iter()
        .try_for_each(|cgroup| detach(&guard.join(cgroup)))?;
    remove(&guard)
}

fn detach_services(release: &Path, but: Option<&str>) -> io::Result<()> {
    let services = release.join(SERVICES);
    let builds = names(&services)?.into_iter();
    let mut gone = builds.filter(|build| Some(build.as_str()) != but);
    gone.try_for_each(|build| detach(&services.join(build)))
}

fn remove(directory: &Path) -> io::Result<()> {
    match fs::remove_dir_all(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        result => result,
    }
}
