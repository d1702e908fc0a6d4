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
        self.pods.values().filter_map(|path| id_of(path)).collect()
    }

    /// The cgroup of a pod and its id.
    fn of(&self, uid: &str) -> Option<(PathBuf, u64)> {
        let path = self.pods.get(&canonical(uid))?;
        Some((path.clone(), id_of(path)?))
    }

    /// A process of the pod whose cgroup has this id. None where there is none, or where this program sees processes of its
    /// own container alone.
    pub(super) fn process_of(&self, id: u64) -> Option<u32> {
        let is_asked = |path: &&PathBuf| id_of(path) == Some(id);
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

/// Where pods' cgroups were found. A further pod's is mostly beside them, so the tree is not searched for each.
#[derive(Debug, Default)]
pub(super) struct PodDirectories(BTreeSet<PathBuf>);

/// Finds the cgroups of pods, with one search of the tree at most.
#[derive(Debug)]
pub(super) struct PodSearch<'a> {
    root: &'a Path,
    directories: &'a mut PodDirectories,
    found: Option<Result<PodCgroups, String>>,
}

impl PodDirectories {
    /// The cgroup of a pod beside other pods, and its id.
    fn of(&self, uid: &str) -> Option<(PathBuf, u64)> {
        self.0.iter().find_map(|directory| {
            let path = directory.join(name_in(directory, uid)?);
            let id = id_of(&path)?;
            Some((path, id))
        })
    }
}

impl<'a> PodSearch<'a> {
    pub(super) const fn below(root: &'a Path, directories: &'a mut PodDirectories) -> Self {
        Self {
            root,
            directories,
            found: None,
        }
    }

    /// The cgroup of a pod and its id; none where there is none yet.
    pub(super) fn of(&mut self, uid: &str) -> Result<Option<(PathBuf, u64)>, String> {
        if self.found.is_none()
            && let Some(found) = self.directories.of(uid)
        {
            return Ok(Some(found));
        }
        let (root, directories) = (self.root, &mut *self.directories);
        let found = self.found.get_or_insert_with(|| {
            let why = |error| format!("cannot look for cgroups in {}: {error}", root.display());
            let found = PodCgroups::find(root).map_err(why)?;
            let parents = found.pods.values().filter_map(|path| path.parent());
            directories.0 = parents.map(Path::to_owned).collect();
            Ok(found)
        });
        Ok(found.as_ref().map_err(Clone::clone)?.of(uid))
    }
}

/// What the kubelet calls a pod's cgroup in this directory.
fn name_in(directory: &Path, uid: &str) -> Option<String> {
    let name = directory.file_name()?.to_str()?;
    Some(match name.strip_suffix(".slice") {
        Some(slice) => format!("{slice}-pod{}.slice", uid.replace('-', "_")),
        None => format!("pod{uid}"),
    })
}

/// A cgroup's id is its inode (fs/kernfs, kernfs_id on 64-bit hosts).
fn id_of(path: &Path) -> Option<u64> {
    fs::metadata(path).ok().map(|found| found.ino())
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
    fn a_pod_beside_others_is_found_without_a_search() {
        let uid = |number: u8| format!("8dbb7eb1-7f6a-4c43-b9e7-1d1a4e8a3a{number:02}");
        for parent in [
            "kubepods/burstable",
            "kubepods",
            "kubepods.slice/kubepods-besteffort.slice",
            "kubelet.slice/kubelet-kubepods.slice",
        ] {
            let root = tempfile::tempdir().unwrap();
            let parent = root.path().join(parent);
            let stem = parent.file_name().unwrap().to_str().unwrap();
            let at = |number: u8| match stem.strip_suffix(".slice") {
                Some(stem) => parent.join(format!("{stem}-pod{}.slice", uid(number).replace('-', "_"))),
                None => parent.join(format!("pod{}", uid(number))),
            };
            fs::create_dir_all(at(1)).unwrap();
            let mut directories = PodDirectories::default();
            let mut search = PodSearch::below(root.path(), &mut directories);
            assert!(search.of(&uid(2)).unwrap().is_none(), "it is not there yet");
            fs::create_dir(at(2)).unwrap();
            assert_eq!(directories.of(&uid(2)), Some((at(2), id_of(&at(2)).unwrap())));
            let mut search = PodSearch::below(root.path(), &mut directories);
            assert_eq!(search.of(&uid(2)).unwrap().unwrap().0, at(2));
            assert!(search.found.is_none(), "the tree is not searched");
            // Elsewhere a pod is found by a search.
            let elsewhere = root.path().join(format!("kubepods/pod{}", uid(3)));
            fs::create_dir_all(&elsewhere).unwrap();
            assert_eq!(search.of(&uid(3)).unwrap().unwrap().0, elsewhere);
        }
    }

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
