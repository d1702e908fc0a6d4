//! Members of sets, and the node's own addresses: what should be in the maps, and what is.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;

use egret_policies::rules::{Member, SetId};
use egret_shared::time::Timestamp;

use super::layout::{Place, Table, has_expired, later};
use super::syscall::{Map, Update};
use crate::apply::delta::Tracker;

/// The maps of members, with what is wanted in them.
#[derive(Debug)]
pub(super) struct Tables {
    maps: BTreeMap<Table, Map>,
    tracker: Tracker<Place, Vec<u8>>,
    faults: BTreeMap<Place, Fault>,
    faults_changed: bool,
}

/// A member that the kernel did not take or did not give up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    Missing(String),
    Surplus(String),
}

impl Tables {
    /// Opens the pinned maps and lists them.
    pub(super) fn open(pins: &Path) -> io::Result<Self> {
        let mut maps = BTreeMap::new();
        for table in Table::ALL {
            maps.insert(table, Map::open(&pins.join(name(table)), table.sizes(), 1)?);
        }
        let mut tables = Self {
            maps,
            tracker: Tracker::default(),
            faults: BTreeMap::new(),
            faults_changed: false,
        };
        tables.list().map(|()| tables)
    }

    /// Believes what the kernel holds.
    pub(super) fn list(&mut self) -> io::Result<()> {
        let mut listed = BTreeMap::new();
        for (table, map) in &self.maps {
            for key in map.keys()? {
                if let Some(value) = map.lookup(&key)? {
                    listed.insert(Place { table: *table, key }, value);
                }
            }
        }
        self.tracker.resync(listed);
        Ok(())
    }

    /// Puts a member into a set, or gives it a later expiry. An earlier one is not taken: the pod was told
    /// that the address lives longer, by an enforcer that is no more.
    pub(super) fn add(&mut self, set: SetId, member: &Member, expires: Option<Timestamp>) {
        let place = Place::of(set, member);
        let mut value = place.value(expires);
        if let Some(held) = self.tracker.programmed().get(&place) {
            value = later(held, value);
        }
        self.want(place, value);
    }

    /// Takes a member out of a set.
    pub(super) fn remove(&mut self, set: SetId, member: &Member) {
        self.unwant(&Place::of(set, member));
    }

    /// Takes all members out of a set.
    pub(super) fn clear(&mut self, set: SetId) {
        let of_set = |place: &&Place| place.set() == Some(set.digest().as_str().as_bytes());
        let ranges = Place::ranges_of(set).into_iter();
        let candidates = ranges
            .flat_map(|range| self.tracker.desired().range(range))
            .map(|(place, _)| place);
        let places: Vec<_> = candidates.filter(of_set).cloned().collect();
        places.iter().for_each(|place| self.unwant(place));
    }

    /// Says which addresses are the node's own.
    pub(super) fn set_node(&mut self, own: impl IntoIterator<Item = std::net::IpAddr>) {
        let own: Vec<_> = own.into_iter().map(Place::of_node).collect();
        let is_node = |place: &&Place| place.table == Table::Node;
        let wanted: Vec<_> = self.tracker.desired().keys().filter(is_node).cloned().collect();
        wanted
            .iter()
            .filter(|place| !own.contains(place))
            .for_each(|place| self.unwant(place));
        own.into_iter().for_each(|place| {
            let value = place.value(None);
            self.want(place, value);
        });
    }

    /// Whether the kernel holds anything, of this life or an earlier one.
    pub(super) fn hold_anything(&self) -> bool {
        !self.tracker.programmed().is_empty()
    }

    /// Wants the records that the kernel holds of these sets: they end when they expire.
    pub(super) fn adopt_records(&mut self, is_records: impl Fn(&[u8]) -> bool, now: Timestamp) {
        let is_adopted = |(place, value): &(&Place, &Vec<u8>)| {
            place.table == Table::Members
                && !self.tracker.desired().contains_key(place)
                && !has_expired(value, now)
                && place.set().is_some_and(&is_records)
        };
        let adopted: Vec<_> = self
            .tracker
            .programmed()
            .iter()
            .filter(is_adopted)
            .map(|(place, value)| (place.clone(), value.clone()))
            .collect();
        adopted
            .into_iter()
            .for_each(|(place, value)| self.tracker.want(place, value));
    }

    /// Removes what has expired: the programs do not match it any more, but it takes room.
    pub(super) fn sweep(&mut self, now: Timestamp) {
        let expired =
            |(place, value): &(&Place, &Vec<u8>)| place.table == Table::Members && has_expired(value, now);
        let places: Vec<_> = self
            .tracker
            .desired()
            .iter()
            .filter(expired)
            .map(|(place, _)| place.clone())
            .collect();
        places.iter().for_each(|place| self.unwant(place));
    }

    /// Does all that is pending, and counts what it did: `(written, removed)`.
    pub(super) fn settle(&mut self) -> (u64, u64) {
        let write: Vec<_> = self
            .tracker
            .to_program()
            .map(|(place, value)| (place.clone(), value.clone()))
            .collect();
        let remove: Vec<_> = self.tracker.to_remove().cloned().collect();
        let counts = (write.len() as u64, remove.len() as u64);
        write
            .into_iter()
            .for_each(|(place, value)| self.write(place, value));
        remove.iter().for_each(|place| self.erase(place));
        counts
    }

    /// Whether something went wrong, or right again, since this was asked last.
    pub(super) const fn take_faults_changed(&mut self) -> bool {
        std::mem::replace(&mut self.faults_changed, false)
    }

    /// What is wrong with a set.
    pub(super) fn fault(&self, set: SetId) -> Option<&Fault> {
        let digest = set.digest();
        let mut of_set = self
            .faults
            .iter()
            .filter(|(place, _)| place.set() == Some(digest.as_str().as_bytes()));
        of_set.next().map(|(_, fault)| fault)
    }

    /// How many members there are, and how many are pending.
    pub(super) fn counts(&self) -> (usize, usize) {
        (
            self.tracker.programmed().len(),
            self.tracker.to_program().count() + self.tracker.to_remove().count(),
        )
    }

    fn want(&mut self, place: Place, value: Vec<u8>) {
        self.tracker.want(place.clone(), value.clone());
        if !self.tracker.is_settled(&place) {
            self.write(place, value);
        }
    }

    fn unwant(&mut self, place: &Place) {
        self.tracker.unwant(place);
        if !self.tracker.is_settled(place) {
            self.erase(place);
        }
    }

    fn write(&mut self, place: Place, value: Vec<u8>) {
        match self.maps[&place.table].update(&place.key, &value, Update::Any) {
            Ok(()) => {
                self.right(&place);
                self.tracker.was_programmed(place, value);
            }
            Err(error) => self.wrong(place, Fault::Missing(error.to_string())),
        }
    }

    fn erase(&mut self, place: &Place) {
        match self.maps[&place.table].delete(&place.key) {
            Ok(()) => {
                self.right(place);
                self.tracker.was_removed(place);
            }
            Err(error) => self.wrong(place.clone(), Fault::Surplus(error.to_string())),
        }
    }

    fn right(&mut self, place: &Place) {
        self.faults_changed |= self.faults.remove(place).is_some();
    }

    fn wrong(&mut self, place: Place, fault: Fault) {
        let before = self.faults.insert(place, fault.clone());
        self.faults_changed |= before != Some(fault);
    }
}

const fn name(table: Table) -> &'static str {
    match table {
        Table::Members => "egret_members",
        Table::Networks => "egret_networks",
        Table::Ports => "egret_ports",
        Table::Node => "egret_node",
    }
}
