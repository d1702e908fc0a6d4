//! Closes unknown pods: programs at the cgroup above all pods drop packets of pods that have no programs of their own.
//! They stay when the enforcer ends, so a pod that starts meanwhile is closed, too.

use std::collections::BTreeSet;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::cgroup::PodCgroups;
use super::layout::{GUARD_SIZE, guard_generation, guard_value};
use super::pins::{OtherReleases, Pins};
use super::programs::Programs;
use super::syscall::{self, Map, Update};

/// The key of a map with one value.
const ONLY: [u8; 4] = [0; 4];

/// The guard, with the pods that it lets pass.
#[derive(Debug)]
pub(super) struct Guard {
    state: Map,
    /// The cookie of the node's network namespace, and the generation of what it lets pass.
    node: u64,
    generation: u32,
    known: Map,
    programmed: BTreeSet<u64>,
    /// Where it is attached.
    attached: Vec<PathBuf>,
    /// Why unknown pods are open although they are to be closed.
    fault: Option<String>,
}

impl Guard {
    /// Opens the pinned maps, and says which network namespace is the node's: that of this process.
    pub(super) fn open(maps: &Path) -> io::Result<Self> {
        let state = Map::open(&maps.join("egret_guard"), (4, GUARD_SIZE), 1)?;
        let held = state.lookup(&ONLY)?;
        let known = Map::open(&maps.join("egret_known"), (8, 1), 1)?;
        let id = |key: Vec<u8>| key.try_into().map(u64::from_ne_bytes).ok();
        let mut guard = Self {
            state,
            node: syscall::network_namespace_cookie()?,
            generation: held.as_deref().and_then(guard_generation).unwrap_or(0),
            programmed: known.keys()?.into_iter().filter_map(id).collect(),
            known,
            attached: Vec::new(),
            fault: None,
        };
        // What an earlier process forgot last, sockets may still remember; and the node may be another one.
        guard.void_what_sockets_remember()?;
        Ok(guard)
    }

    /// Has each socket asked again whether it passes.
    fn void_what_sockets_remember(&mut self) -> io::Result<()> {
        self.generation = self.generation.wrapping_add(1).max(1);
        let value = guard_value(self.node, self.generation);
        self.state.update(&ONLY, &value, Update::Any)
    }

    /// Lets the pod of a cgroup pass: its own programs judge it.
    pub(super) fn add(&mut self, id: u64) -> io::Result<()> {
        if !self.programmed.contains(&id) {
            self.known.update(&id.to_ne_bytes(), &[1], Update::Any)?;
            self.programmed.insert(id);
        }
        Ok(())
    }

    /// Makes the pod of a cgroup unknown.
    pub(super) fn remove(&mut self, id: u64) -> io::Result<()> {
        self.known.delete(&id.to_ne_bytes())?;
        self.programmed.remove(&id);
        self.void_what_sockets_remember()
    }

    /// Forgets pods whose cgroups are gone.
    pub(super) fn retain(&mut self, ids: &BTreeSet<u64>) -> io::Result<()> {
        let gone: Vec<u64> = self.programmed.difference(ids).copied().collect();
        gone.into_iter().try_for_each(|id| self.remove(id))
    }

    /// Closes or opens unknown pods. When it closes them, guards of other releases go, which do not know the pods of this
    /// one.
    pub(super) fn set_closed(
        &mut self,
        is_closed: bool,
        programs: &Programs,
        pins: &Pins,
        other_releases: &OtherReleases,
        cgroup_root: &Path,
    ) -> Result<(), String> {
        if !is_closed {
            (self.attached, self.fault) = (Vec::new(), None);
            return pins
                .detach_guards()
                .map_err(|error| format!("unknown pods stay closed: {error}"));
        }
        if let Some(why) = programs.guard_error() {
            self.fault = Some(format!("unknown pods are open until they are known: {why}"));
            return Ok(());
        }
        let failed = |error: io::Error| format!("unknown pods are not closed: {error}");
        let parents = PodCgroups::parents(cgroup_root).map_err(failed)?;
        let mut ids = Vec::new();
        for parent in &parents {
            let id = std::fs::metadata(parent).map_err(failed)?.ino();
            programs
                .attach_guard(parent, id, &pins.guard(id))
                .map_err(failed)?;
            ids.push(id);
        }
        pins.retain_guards(&ids).map_err(failed)?;
        self.fault = parents.is_empty().then(|| {
            let root = cgroup_root.display();
            format!(
                "unknown pods are open: no cgroup of the kubelet (kubepods, kubepods.slice) is below {root}"
            )
        });
        self.attached = parents;
        other_releases.detach_guards().map_err(failed)
    }

    /// Why unknown pods are open although they are to be closed.
    pub(super) fn fault(&self) -> Option<&str> {
        self.fault.as_deref()
    }

    /// Where it is attached.
    pub(super) fn attached(&self) -> &[PathBuf] {
        &self.attached
    }

    /// How many pods it lets pass.
    pub(super) fn known(&self) -> usize {
        self.programmed.len()
    }
}
