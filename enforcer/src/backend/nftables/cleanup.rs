//! Removes the tables, and those inside pods, and turns off again what was turned on for bridges.

use egret_kernel::nftables::{Changes, TableName, TableReader, TableWriter};

use super::TABLE;
use crate::backend::BackendError;
use crate::backend::netfilter::bridges;
use crate::backend::netfilter::cleanup::Mode;
use crate::backend::netfilter::names::NFTABLES_BRIDGE;
use crate::backend::netfilter::pod_netns::remove_tables_everywhere;

/// Removes the tables, or only says that they are there. Returns what there was, in words.
///
/// # Errors
/// When the kernel refuses.
pub fn remove(mode: Mode) -> Result<Vec<String>, BackendError> {
    // Without nf_tables there is no table.
    let Ok(mut reader) = TableReader::open() else {
        return Ok(Vec::new());
    };
    let mut found = remove_tables_everywhere(mode.removes())?;
    found.extend(turn_off_bridges(&mut reader, mode)?);
    for (table, words) in [(TABLE, "table inet"), (NFTABLES_BRIDGE, "table bridge")] {
        if reader.has(table).unwrap_or(false) {
            if mode.removes() {
                remove_table(table)?;
            }
            found.push(format!("{words} {}", table.name));
        }
    }
    Ok(found)
}

fn remove_table(table: TableName) -> Result<(), BackendError> {
    let mut changes = Changes::of(table);
    changes.delete_table();
    TableWriter::open()
        .and_then(|mut writer| writer.commit(changes))
        .map_err(|error| BackendError::new("cannot remove the table of nftables", error))
}

fn turn_off_bridges(reader: &mut TableReader, mode: Mode) -> Result<Vec<String>, BackendError> {
    let failed = |reason| BackendError::new("cannot turn off what was turned on", reason);
    let table = reader.list(TABLE).map_err(|error| failed(error.to_string()))?;
    let noted = table.map(|table| bridges::noted_in(&table)).unwrap_or_default();
    for (family, bridge) in noted.iter().filter(|_| mode == Mode::Remove) {
        bridges::set(bridge, *family, false).map_err(failed)?;
    }
    let words = |(family, bridge): &(egret_kernel::Family, _)| {
        let bridge: &egret_kernel::iptables::InterfaceName = bridge;
        format!("br_netfilter for the bridge {} in {family:?}", bridge.as_str())
    };
    Ok(noted.iter().map(words).collect())
}
