//! Pods whose DNS queries the kernel may answer, in a map that dnsd makes and its program reads. The enforcer alone writes it: it knows
//! whose rules let them ask, and which rule's count such a query belongs to.
//!
//! The maps are pinned, because they have to outlive both: a permit holds while the rules do.

use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use nix::sys::statfs::{BPF_FS_MAGIC, statfs};

use crate::bpf::{Map, MapKind, MapSpec, Update};

/// The name of dnsd's program.
pub const PROGRAM: &str = "egret_answers";

/// How many counts there are: the enforcer says what each one stands for.
pub const COUNTS: usize = 8;

const PERMITS: MapSpec = MapSpec {
    kind: MapKind::Hash,
    key_size: KEY,
    value_size: 4,
    entries: 16_384,
};
const VERDICTS: MapSpec = MapSpec {
    kind: MapKind::Array,
    key_size: 4,
    value_size: 8,
    entries: COUNTS,
};
/// `struct permit_key` of dnsd's `bpf/answers.bpf.c`.
const KEY: usize = 20;

/// The maps.
#[derive(Debug)]
pub struct Permits {
    of_pods: Map,
    verdicts: Map,
}

impl Permits {
    /// Opens the maps in a directory of a BPF file system, and makes what is not there.
    ///
    /// # Errors
    /// When the kernel refuses, or it is no BPF file system.
    pub fn create(directory: &Path) -> io::Result<Self> {
        std::fs::create_dir_all(directory)?;
        if statfs(directory)?.filesystem_type() != BPF_FS_MAGIC {
            let why = format!("{} is in no BPF file system", directory.display());
            return Err(io::Error::other(why));
        }
        let [of_pods, verdicts] = paths(directory);
        // A permit without its count would not be counted.
        Ok(Self {
            verdicts: open_or_create(&verdicts, "dns_verdicts", VERDICTS)?,
            of_pods: open_or_create(&of_pods, "dns_permits", PERMITS)?,
        })
    }

    /// Opens the maps; none where there are none.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn open(directory: &Path) -> io::Result<Option<Self>> {
        let [of_pods, verdicts] = paths(directory);
        if !of_pods.try_exists()? {
            return Ok(None);
        }
        Ok(Some(Self {
            of_pods: open(&of_pods, PERMITS)?,
            verdicts: open(&verdicts, VERDICTS)?,
        }))
    }

    /// Takes all permits away, and the pins. Returns whether there were any pins.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn remove(directory: &Path) -> io::Result<bool> {
        let Some(permits) = Self::open(directory)? else {
            return Ok(false);
        };
        permits.revoke_all()?;
        for path in paths(directory) {
            std::fs::remove_file(path)?;
        }
        std::fs::remove_dir(directory)?;
        Ok(true)
    }

    /// The kernel may answer the pod with this address, and counts it there.
    ///
    /// # Errors
    /// When there is no room.
    pub fn permit(&self, pod: IpAddr, count: u32) -> io::Result<()> {
        self.of_pods.update(&key(pod), &count.to_ne_bytes(), Update::Any)
    }

    /// It may not any more.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn revoke(&self, pod: IpAddr) -> io::Result<()> {
        self.of_pods.delete(&key(pod))
    }

    /// Takes all permits away.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn revoke_all(&self) -> io::Result<()> {
        self.of_pods
            .keys()?
            .iter()
            .try_for_each(|key| self.of_pods.delete(key))
    }

    /// What is counted there.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn answered(&self, count: u32) -> io::Result<u64> {
        let count = self.verdicts.lookup(&count.to_ne_bytes())?;
        let count = count.and_then(|count| count.first_chunk().copied());
        Ok(count.map_or(0, u64::from_ne_bytes))
    }

    /// The map of permits, for the program.
    #[must_use]
    pub const fn of_pods(&self) -> &Map {
        &self.of_pods
    }

    /// The map of counts, for the program.
    #[must_use]
    pub const fn verdicts(&self) -> &Map {
        &self.verdicts
    }
}

/// The directory beside the pins of the enforcer's own programs.
#[must_use]
pub fn beside(pins: &Path) -> PathBuf {
    let mut name = pins.file_name().unwrap_or_default().to_owned();
    name.push("-dns");
    pins.with_file_name(name)
}

fn paths(directory: &Path) -> [PathBuf; 2] {
    ["permits", "verdicts"].map(|name| directory.join(name))
}

fn open(path: &Path, spec: MapSpec) -> io::Result<Map> {
    Map::open(path, (spec.key_size, spec.value_size), 1)
}

fn open_or_create(path: &Path, name: &str, spec: MapSpec) -> io::Result<Map> {
    if path.try_exists()? {
        return open(path, spec);
    }
    let map = Map::create(name, spec)?;
    match map.pin(path) {
        Ok(()) => Ok(map),
        // Another dnsd was first.
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => open(path, spec),
        Err(error) => Err(error),
    }
}

fn key(pod: IpAddr) -> [u8; KEY] {
    let mut key = [0; KEY];
    match pod {
        IpAddr::V4(address) => {
            key[..4].copy_from_slice(&4_u32.to_ne_bytes());
            key[4..8].copy_from_slice(&address.octets());
        }
        IpAddr::V6(address) => {
            key[..4].copy_from_slice(&6_u32.to_ne_bytes());
            key[4..].copy_from_slice(&address.octets());
        }
    }
    key
}
