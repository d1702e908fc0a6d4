//! Removes the table, and those inside pods.

use egret_kernel::nftables::{Changes, TableReader, TableWriter};

use super::TABLE;
use crate::backend::BackendError;
use crate::backend::netfilter::pod_netns::remove_tables_everywhere;

/// Removes the tables, or only says that they are there. Returns what there was, in words.
///
/// # Errors
/// When the kernel refuses.
pub fn remove(is_removed: bool) -> Result<Vec<String>, BackendError> {
    let failed = |error| BackendError::new("cannot remove the table of nftables", error);
    // Without nf_tables there is no table.
    let Ok(mut reader) = TableReader::open() else {
        return Ok(Vec::new());
    };
    let mut found = remove_tables_everywhere(is_removed)?;
    if !reader.has(TABLE).unwrap_or(false) {
        return Ok(found);
    }
    if is_removed {
        let mut changes = Changes::of(TABLE);
        changes.delete_table();
        TableWriter::open()
            .and_then(|mut writer| writer.commit(changes))
            .map_err(failed)?;
    }
    found.push(format!("table inet {}", TABLE.name));
    Ok(found)
}
