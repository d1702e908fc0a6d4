//! Lists of rules in the kernel, by the digest of their content: pods with equal rules share one.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::Path;

use super::layout::{CHUNK_KEY_SIZE, CHUNK_SIZE, ListName, RuleList};
use super::syscall::{Map, Update};

/// The map of lists.
#[derive(Debug)]
pub(super) struct Lists {
    map: Map,
    /// Lists that this process wrote, with their keys.
    written: BTreeMap<ListName, Vec<Vec<u8>>>,
    /// Chunks of the previous process, until the first removal.
    inherited: BTreeSet<Vec<u8>>,
    /// Whether somebody may have let go of a list since the last removal.
    may_be_unused: bool,
}

impl Lists {
    /// Opens the pinned map.
    pub(super) fn open(pins: &Path) -> io::Result<Self> {
        let map = Map::open(&pins.join("egret_rules"), (CHUNK_KEY_SIZE, CHUNK_SIZE), 1)?;
        let inherited = map.keys()?.into_iter().collect();
        Ok(Self {
            map,
            written: BTreeMap::new(),
            inherited,
            may_be_unused: true,
        })
    }

    /// Writes a list, if it is not there.
    ///
    /// # Errors
    /// E2BIG when the map is full: then nothing of the list stays.
    pub(super) fn write(&mut self, list: &RuleList) -> io::Result<()> {
        if self.written.contains_key(&list.name) {
            return Ok(());
        }
        for (index, (key, value)) in list.chunks.iter().enumerate() {
            if let Err(error) = self.map.update(key, value, Update::Any) {
                for (key, _) in &list.chunks[..index] {
                    self.map.delete(key)?;
                }
                return Err(error);
            }
        }
        let keys = list.chunks.iter().map(|(key, _)| key.clone()).collect();
        self.written.insert(list.name, keys);
        Ok(())
    }

    /// Somebody lets go of a list.
    pub(super) const fn let_go(&mut self) {
        self.may_be_unused = true;
    }

    /// Whether a list may be there that nobody names. What comes to a node names lists alone, and lets go of none.
    pub(super) const fn may_be_unused(&self) -> bool {
        self.may_be_unused
    }

    /// Removes all lists but these.
    pub(super) fn retain(&mut self, used: &BTreeSet<ListName>) -> io::Result<()> {
        self.may_be_unused = false;
        let unused: Vec<ListName> = self
            .written
            .keys()
            .filter(|name| !used.contains(name))
            .copied()
            .collect();
        let removed: Vec<Vec<u8>> = unused
            .iter()
            .flat_map(|name| self.written.remove(name).unwrap_or_default())
            .collect();
        let kept: BTreeSet<&Vec<u8>> = self.written.values().flatten().collect();
        let inherited = std::mem::take(&mut self.inherited);
        inherited
            .iter()
            .filter(|key| !kept.contains(key))
            .chain(&removed)
            .try_for_each(|key| self.map.delete(key))
    }

    /// The number of chunks.
    pub(super) fn count(&self) -> usize {
        self.written.values().map(Vec::len).sum()
    }
}
