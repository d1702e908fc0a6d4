//! What the legacy flavour holds, read without a process: `x_tables` tells of no change, so whoever wants to know has to
//! look, and look often.
//!
//! A table is one array of entries (`struct ipt_entry`, `struct ip6t_entry` of linux/netfilter_ipv4/ip_tables.h and
//! linux/netfilter_ipv6/ip6_tables.h), which `getsockopt` copies out. Everything of it but the counters is the same as long as nobody
//! changes the table.

use super::Table;
use super::sockopt::{get, open};
use crate::Family;
use nix::errno::Errno;
use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hasher};
use std::os::fd::OwnedFd;

/// A table as it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TableEntries {
    family: Family,
    bytes: Vec<u8>,
}

/// What is told of a table without copying it, in a few microseconds: how large it is, how many entries it has, and where
/// those of the hooks begin. Another one means other rules; the same one does not mean the same rules.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TableSummary(Vec<u8>);

impl TableSummary {
    /// Asks; none where nobody has made the table, for asking would.
    pub fn read(family: Family, table: Table) -> Result<Option<Self>, Errno> {
        if !is_there(family, table) {
            return Ok(None);
        }
        let (socket, level) = open(family)?;
        let mut info = named(table, INFO);
        get(&socket, level, GET_INFO, &mut info)?;
        Ok(Some(Self(info)))
    }
}

impl TableEntries {
    /// Copies a table, which takes the kernel about 1.5 µs per rule; none where nobody has made it, for asking for it would.
    pub fn read(family: Family, table: Table) -> Result<Option<Self>, Errno> {
        /// Somebody changed it between the question for its size and the copy.
        const ATTEMPTS: usize = 8;
        if !is_there(family, table) {
            return Ok(None);
        }
        let (socket, level) = open(family)?;
        let mut outcome = Err(Errno::EAGAIN);
        for _ in 0..ATTEMPTS {
            outcome = copy(&socket, level, table).map(|bytes| Some(Self { family, bytes }));
            if outcome != Err(Errno::EAGAIN) {
                break;
            }
        }
        outcome
    }

    /// A number that is another when anything but a counter is, for as long as this process runs.
    pub fn fingerprint(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        for entry in self.iter() {
            let counters = layout(self.family).counters;
            hasher.write(entry.get(..counters).unwrap_or(entry));
            hasher.write(entry.get(counters + COUNTERS..).unwrap_or_default());
        }
        hasher.finish()
    }

    /// Whether it has a chain of this name.
    pub fn has_chain(&self, name: &str) -> bool {
        self.iter()
            .filter_map(|entry| chain_head(entry, self.family))
            .any(|chain| chain == name.as_bytes())
    }

    /// Packets that met each rule of these chains of users, in the order of the rules; a chain that is not there is left out.
    pub fn packets<'a>(&self, chains: &BTreeSet<&'a str>) -> BTreeMap<&'a str, Vec<u64>> {
        let mut found = BTreeMap::new();
        let mut current: Option<(&'a str, Vec<u64>)> = None;
        for entry in self.iter() {
            match chain_head(entry, self.family) {
                Some(name) => {
                    found.extend(current.take().map(rules_alone));
                    let asked = std::str::from_utf8(name).ok().and_then(|name| chains.get(name));
                    current = asked.map(|name| (*name, Vec::new()));
                }
                None => {
                    if let Some((_, packets)) = &mut current {
                        packets.extend(packets_of(entry, self.family));
                    }
                }
            }
        }
        found
    }

    fn iter(&self) -> impl Iterator<Item = &[u8]> {
        let next = layout(self.family).next_offset;
        let mut rest = self.bytes.as_slice();
        std::iter::from_fn(move || {
            let length = usize::from(half(rest, next)?);
            let entry = rest.get(..length).filter(|entry| entry.len() > next)?;
            rest = &rest[length..];
            Some(entry)
        })
    }
}

/// Whether a table was made, in this namespace.
pub fn is_there(family: Family, table: Table) -> bool {
    let path = match family {
        Family::V4 => "/proc/thread-self/net/ip_tables_names",
        Family::V6 => "/proc/thread-self/net/ip6_tables_names",
    };
    std::fs::read_to_string(path).is_ok_and(|names| names.lines().any(|name| name == table.name()))
}

/// `struct xt_counters`: packets and bytes.
const COUNTERS: usize = 16;
/// `XT_TABLE_MAXNAMELEN`.
const NAME: usize = 32;
/// `IPT_SO_GET_INFO`, `IPT_SO_GET_ENTRIES`; those of IPv6 are the same.
const GET_INFO: i32 = 64;
const GET_ENTRIES: i32 = 65;
/// `struct ipt_getinfo`: the name, then twelve numbers, the last of which is the size of all entries.
const INFO: usize = NAME + 12 * 4 + 4;
/// `struct ipt_get_entries` in front of the entries, which are aligned to 8.
const ENTRIES_HEADER: usize = NAME + 8;

/// Where things are in an entry.
struct EntryLayout {
    target_offset: usize,
    next_offset: usize,
    counters: usize,
}

fn layout(family: Family) -> EntryLayout {
    // Behind `struct ipt_ip` (84 bytes) or `struct ip6t_ip6` (136) and `nfcache`.
    match family {
        Family::V4 => EntryLayout {
            target_offset: 88,
            next_offset: 90,
            counters: 96,
        },
        Family::V6 => EntryLayout {
            target_offset: 140,
            next_offset: 142,
            counters: 152,
        },
    }
}

/// The name of the chain that begins with this entry: the target `ERROR` bears it (`struct xt_error_target`).
fn chain_head(entry: &[u8], family: Family) -> Option<&[u8]> {
    /// `struct xt_entry_target`: size, name (29 octets), revision.
    const TARGET: usize = 32;
    let at = usize::from(half(entry, layout(family).target_offset)?);
    let name = until_nul(entry.get(at + 2..at + TARGET)?);
    (name == b"ERROR").then(|| entry.get(at + TARGET..).map(until_nul))?
}

/// Behind its rules a chain has one entry more, which leads back to where it was called from.
fn rules_alone((chain, mut packets): (&str, Vec<u64>)) -> (&str, Vec<u64>) {
    packets.pop();
    (chain, packets)
}

fn packets_of(entry: &[u8], family: Family) -> Option<u64> {
    let counted = entry.get(layout(family).counters..)?;
    counted.first_chunk().map(|packets| u64::from_ne_bytes(*packets))
}

fn until_nul(bytes: &[u8]) -> &[u8] {
    bytes.split(|byte| *byte == 0).next().unwrap_or_default()
}

fn half(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(*bytes.get(at..)?.first_chunk()?))
}

fn copy(socket: &OwnedFd, level: i32, table: Table) -> Result<Vec<u8>, Errno> {
    let mut info = named(table, INFO);
    get(socket, level, GET_INFO, &mut info)?;
    let size = info[INFO - 4..]
        .first_chunk()
        .map(|size| u32::from_ne_bytes(*size));
    let size = size
        .and_then(|size| usize::try_from(size).ok())
        .ok_or(Errno::EINVAL)?;
    let mut all = named(table, ENTRIES_HEADER + size);
    all[NAME..NAME + 4].copy_from_slice(&info[INFO - 4..]);
    get(socket, level, GET_ENTRIES, &mut all)?;
    Ok(all.split_off(ENTRIES_HEADER))
}

/// A request: the name of the table, and room.
fn named(table: Table, length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    bytes[..table.name().len()].copy_from_slice(table.name().as_bytes());
    bytes
}
