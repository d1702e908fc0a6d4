//! Finds the cgroups of pods.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use nix::sys::statfs::{CGROUP2_SUPER_MAGIC, statfs};

/// How deep below the root the kubelet puts a pod: `kubelet/kubepods/burstable/pod…` is the deepest known.
const MAX_DEPTH: usize = 4;

/// The directory to search: the given one if it is in a cgroup2 tree. On a host that mounts version 1 there, the tree
/// is found in the mount table.
pub(super) fn cgroup2_root(given: &Path) -> io::Result<PathBuf> {
    if statfs(given).is_ok_and(|found| found.filesystem_type() == CGROUP2_SUPER_MAGIC) {
        return Ok(given.to_owned());
    }
    let mounts = fs::read_to_string("/proc/self/mounts")?;
    let mounted = mounts
        .lines()
        .find_map(|line| match line.split(' ').collect::<Vec<_>>()[..] {
            [_, path, "cgroup2", ..] => Some(PathBuf::from(path)),
            _ => None,
        });
    let none = || {
        io::Error::other(format!(
            "{} is in no cgroup2 tree, and none is mounted",
            given.display()
        ))
    };
    mounted.ok_or_else(none)
}

/// The cgroups of pods, by UID, and those above all pods.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct PodCgroups {
    pods: BTreeMap<String, PathBuf>,
    parents: Vec<PathBuf>,
}

impl PodCgroups {
    /// Searches the tree below `root`. A directory that is removed meanwhile is skipped.
    pub(super) fn find(root: &Path) -> io::Result<Self> {
        let mut found = Self::default();
        found.search(root, MAX_DEPTH).map(|()| found)
    }

    /// The cgroups that hold all pods: the kubelet's `kubepods`. There may be none yet.
    pub(super) fn parents(root: &Path) -> io::Result<Vec<PathBuf>> {
        Self::find(root).map(|found| found.parents)
    }

    /// The ids of all cgroups of pods.
    pub(super) fn ids(&self) -> BTreeSet<u64> {
        let id = |path: &PathBuf| fs::metadata(path).ok().map(|found| found.ino());
        self.pods.values().filter_map(id).collect()
    }

    /// The cgroup of a pod and its id.
    pub(super) fn of(&self, uid: &str) -> Option<(&Path, u64)> {
        let path = self.pods.get(&canonical(uid))?;
        // A cgroup's id is its inode (fs/kernfs, kernfs_id on 64-bit hosts).
        fs::metadata(path)
            .ok()
            .map(|metadata| (path.as_path(), metadata.ino()))
    }

    /// A process of the pod whose cgroup has this id. None where there is none, or where this program sees processes of its
    /// own container alone.
    pub(super) fn process_of(&self, id: u64) -> Option<u32> {
        let is_asked = |path: &&PathBuf| fs::metadata(path).is_ok_and(|found| found.ino() == id);
        self.pods
            .values()
            .find(is_asked)
            .and_then(|path| first_process(path, MAX_DEPTH))
    }

    fn search(&mut self, directory: &Path, levels: usize) -> io::Result<()> {
        for entry in fs::read_dir(directory)? {
            let entry = entry?;
            if !entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                continue;
            }
            if entry.file_name().to_str().is_some_and(holds_all_pods) {
                self.parents.push(entry.path());
            }
            match entry.file_name().to_str().and_then(uid_in) {
                Some(uid) => drop(self.pods.insert(uid, entry.path())),
                None if levels > 1 => ignore_if_gone(self.search(&entry.path(), levels - 1))?,
                None => {}
            }
        }
        Ok(())
    }
}

/// 0 stands for a process of another PID namespace.
fn first_process(cgroup: &Path, levels: usize) -> Option<u32> {
    let processes = fs::read_to_string(cgroup.join("cgroup.procs")).unwrap_or_default();
    let own = processes
        .lines()
        .filter_map(|pid| pid.parse().ok())
        .find(|pid| *pid != 0);
    if own.is_some() || levels == 0 {
        return own;
    }
    let below = fs::read_dir(cgroup).ok()?.flatten();
    let mut below = below.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
    below.find_map(|entry| first_process(&entry.path(), levels - 1))
}

fn ignore_if_gone(result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound) => Ok(()),
        result => result,
    }
}

/// The UID in the name of a pod's cgroup: `pod<uid>` with the kubelet's cgroupfs driver,
/// `kubepods[-burstable|-besteffort]-pod<uid>.slice` with `_` for `-` with its systemd driver
/// (pkg/kubelet/cm/cgroup_manager_linux.go).
fn uid_in(name: &str) -> Option<String> {
    let uid = match name.strip_suffix(".slice") {
        Some(slice) => slice.rsplit_once("kubepods")?.1.rsplit_once("-pod")?.1,
        None => name.strip_prefix("pod")?,
    };
    is_uid(uid).then(|| canonical(uid))
}

/// Whether the kubelet gives its root cgroup this name: `kubepods` with its cgroupfs driver, `kubepods.slice` with its
/// systemd driver, and `kubelet-kubepods.slice` below a cgroup `kubelet`.
fn holds_all_pods(name: &str) -> bool {
    name == "kubepods" || name == "kubepods.slice" || name.ends_with("-kubepods.slice")
}

/// Whether a text can be a UID, and so the name of a directory.
pub(super) fn is_uid(uid: &str) -> bool {
    !uid.is_empty()
        && uid
            .bytes()
            .all(|octet| octet.is_ascii_alphanumeric() || octet == b'-' || octet == b'_')
}

fn canonical(uid: &str) -> String {
    uid.replace('_', "-")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pods_are_known_by_either_driver_s_names() {
        let uid = "8dbb7eb1-7f6a-4c43-b9e7-1d1a4e8a3a10";
        let slice = uid.replace('-', "_");
        for (name, found) in [
            (format!("pod{uid}"), true),
            (format!("kubepods-pod{slice}.slice"), true),
            (format!("kubepods-burstable-pod{slice}.slice"), true),
            (format!("kubelet-kubepods-besteffort-pod{slice}.slice"), true),
            ("kubepods-burstable.slice".to_owned(), false),
            ("system-getty.slice".to_owned(), false),
            ("pod".to_owned(), false),
            (format!("cri-containerd-{uid}.scope"), false),
        ] {
            assert_eq!(uid_in(&name), found.then(|| uid.to_owned()), "{name}");
        }
    }
}
