//! Members of sets and the node's own addresses in maps: desired and programmed.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::IpAddr;
use std::path::Path;
use std::time::Duration;

use egret_policies::rules::{Member, SetId};
use egret_shared::time::Timestamp;

use super::layout::{ElementKey, MAX_MEMBERS, Table, expiry, has_expired, has_expired_for, later};
use super::syscall::{Map, Update};
use crate::apply::tracker::Tracker;

/// As long as a TCP connection without traffic lives without keepalive probes (`tcp_keepalive_time`).
const EXPIRED_KEPT: Duration = Duration::from_secs(7200);

/// The maps of members, with their desired content.
#[derive(Debug)]
pub(super) struct Tables {
    maps: BTreeMap<Table, Map>,
    tracker: Tracker<ElementKey, Vec<u8>>,
    faults: BTreeMap<ElementKey, Fault>,
    faults_changed: bool,
}

/// A member that could not be written or removed.
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

    /// Reads the maps.
    pub(super) fn list(&mut self) -> io::Result<()> {
        let mut listed = BTreeMap::new();
        for (table, map) in &self.maps {
            for key in map.keys()? {
                if let Some(value) = map.lookup(&key)? {
                    listed.insert(ElementKey { table: *table, key }, value);
                }
            }
        }
        self.tracker.resync(listed);
        Ok(())
    }

    /// Adds a member or extends its expiry. An earlier expiry is ignored: the previous process gave the pod a longer
    /// one.
    pub(super) fn add(&mut self, set: SetId, member: &Member, expires: Option<Timestamp>) {
        let element = ElementKey::of(set, member);
        let mut value = element.value(expires);
        if let Some(held) = self.tracker.programmed().get(&element) {
            value = later(held, value);
        }
        self.want(element, value);
    }

    /// Removes a member.
    pub(super) fn remove(&mut self, set: SetId, member: &Member) {
        self.unwant(&ElementKey::of(set, member));
    }

    /// Removes all members of a set.
    pub(super) fn clear(&mut self, set: SetId) {
        let of_set = |element: &&ElementKey| element.set() == Some(set.digest().as_str().as_bytes());
        let ranges = ElementKey::ranges_of(set).into_iter();
        let candidates = ranges
            .flat_map(|range| self.tracker.desired().range(range))
            .map(|(element, _)| element);
        let elements: Vec<_> = candidates.filter(of_set).cloned().collect();
        elements.iter().for_each(|element| self.unwant(element));
    }

    /// Sets the addresses of a table without sets: those of the node, or of Services.
    pub(super) fn set_addresses(&mut self, table: Table, own: impl IntoIterator<Item = IpAddr>) {
        let own = own.into_iter().map(|own| ElementKey::of_address(table, own));
        let own: BTreeSet<_> = own.collect();
        let is_of_table = |element: &&ElementKey| element.table == table;
        let wanted: Vec<_> = self
            .tracker
            .desired()
            .keys()
            .filter(is_of_table)
            .cloned()
            .collect();
        wanted
            .iter()
            .filter(|element| !own.contains(*element))
            .for_each(|element| self.unwant(element));
        own.into_iter().for_each(|element| {
            let value = element.value(None);
            self.want(element, value);
        });
    }

    /// Adopts records of these sets from the kernel, until they expire.
    pub(super) fn adopt_records(&mut self, is_records: impl Fn(&[u8]) -> bool, now: Timestamp) {
        let is_adopted = |(element, value): &(&ElementKey, &Vec<u8>)| {
            element.table == Table::Members
                && !self.tracker.desired().contains_key(element)
                && !has_expired(value, now)
                && element.set().is_some_and(&is_records)
        };
        let adopted: Vec<_> = self
            .tracker
            .programmed()
            .iter()
            .filter(is_adopted)
            .map(|(element, value)| (element.clone(), value.clone()))
            .collect();
        adopted
            .into_iter()
            .for_each(|(element, value)| self.tracker.set_desired(element, value));
    }

    /// Removes expired members. They open nothing, but what they opened is judged by them again after a change of policy: so
    /// they stay for a while, as long as there is room.
    pub(super) fn sweep(&mut self, now: Timestamp) {
        let is_roomy = self.tracker.programmed().len() < MAX_MEMBERS / 2;
        let ended = if is_roomy { EXPIRED_KEPT } else { Duration::ZERO };
        let expired = |(element, value): &(&ElementKey, &Vec<u8>)| {
            element.table == Table::Members && has_expired_for(value, now, ended)
        };
        let elements: Vec<_> = self
            .tracker
            .desired()
            .iter()
            .filter(expired)
            .map(|(element, _)| element.clone())
            .collect();
        elements.iter().for_each(|element| self.unwant(element));
    }

    /// Writes and removes all that is pending. Returns how many: `(written, removed)`.
    pub(super) fn settle(&mut self) -> (u64, u64) {
        let write: Vec<_> = self
            .tracker
            .to_program()
            .map(|(element, value)| (element.clone(), value.clone()))
            .collect();
        let remove: Vec<_> = self.tracker.to_remove().cloned().collect();
        let counts = (write.len() as u64, remove.len() as u64);
        write
            .into_iter()
            .for_each(|(element, value)| self.write(element, value));
        remove.iter().for_each(|element| self.erase(element));
        counts
    }

    /// Whether faults changed since the last call.
    pub(super) const fn take_faults_changed(&mut self) -> bool {
        std::mem::replace(&mut self.faults_changed, false)
    }

    /// The fault of a set.
    pub(super) fn fault(&self, set: SetId) -> Option<&Fault> {
        let digest = set.digest();
        let mut of_set = self
            .faults
            .iter()
            .filter(|(element, _)| element.set() == Some(digest.as_str().as_bytes()));
        of_set.next().map(|(_, fault)| fault)
    }

    /// How many elements each map has.
    pub(super) fn sizes(&self) -> BTreeMap<Table, usize> {
        let mut sizes = BTreeMap::new();
        for element in self.tracker.programmed().keys() {
            *sizes.entry(element.table).or_default() += 1;
        }
        sizes
    }

    /// The records of a set that the kernel holds now, expired ones among them.
    pub(super) fn records_of(&self, set: SetId) -> io::Result<BTreeMap<IpAddr, Timestamp>> {
        let map = &self.maps[&Table::Members];
        let mut records = BTreeMap::new();
        for key in map.keys()? {
            let element = ElementKey {
                table: Table::Members,
                key,
            };
            if element.set() != Some(set.digest().as_str().as_bytes()) {
                continue;
            }
            if let (Some(address), Some(value)) = (element.address(), map.lookup(&element.key)?) {
                records.extend(expiry(&value).map(|expires| (address, expires)));
            }
        }
        Ok(records)
    }

    /// The numbers of members and of pending ones.
    pub(super) fn counts(&self) -> (usize, usize) {
        (
            self.tracker.programmed().len(),
            self.tracker.to_program().count() + self.tracker.to_remove().count(),
        )
    }

    fn want(&mut self, element: ElementKey, value: Vec<u8>) {
        self.tracker.set_desired(element.clone(), value.clone());
        if !self.tracker.is_settled(&element) {
            self.write(element, value);
        }
    }

    fn unwant(&mut self, element: &ElementKey) {
        self.tracker.remove_desired(element);
        if !self.tracker.is_settled(element) {
            self.erase(element);
        }
    }

    fn write(&mut self, element: ElementKey, value: Vec<u8>) {
        match self.maps[&element.table].update(&element.key, &value, Update::Any) {
            Ok(()) => {
                self.clear_fault(&element);
                self.tracker.set_programmed(element, value);
            }
            Err(error) => self.set_fault(element, Fault::Missing(error.to_string())),
        }
    }

    fn erase(&mut self, element: &ElementKey) {
        match self.maps[&element.table].delete(&element.key) {
            Ok(()) => {
                self.clear_fault(element);
                self.tracker.remove_programmed(element);
            }
            Err(error) => self.set_fault(element.clone(), Fault::Surplus(error.to_string())),
        }
    }

    fn clear_fault(&mut self, element: &ElementKey) {
        self.faults_changed |= self.faults.remove(element).is_some();
    }

    fn set_fault(&mut self, element: ElementKey, fault: Fault) {
        let before = self.faults.insert(element, fault.clone());
        self.faults_changed |= before != Some(fault);
    }
}

const fn name(table: Table) -> &'static str {
    match table {
        Table::Members => "egret_members",
        Table::Networks => "egret_networks",
        Table::Ports => "egret_ports",
        Table::NetworkPorts => "egret_net_ports",
        Table::Node => "egret_node",
        Table::Translated => "egret_translated",
    }
}
