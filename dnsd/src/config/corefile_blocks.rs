//! The server blocks of a Corefile.

use std::path::Path;

use super::Invalid;
use crate::config::corefile;
use crate::config::model::Plan;

/// The port of a key without one, as in CoreDNS.
pub(super) const PORT: u16 = 53;

/// Reads the Corefile and its imports; also returns the warnings.
pub(super) fn load(path: &Path, port: u16) -> Result<(Plan, Vec<String>), Invalid> {
    let name = path.display().to_string();
    let text = std::fs::read_to_string(path)
        .map_err(|error| Invalid::Corefile(vec![format!("{name}: cannot be read: {error}")]))?;
    let variable = |name: &str| std::env::var(name).ok();
    let read = corefile::read(&text, &name, &variable, &corefile::from_disk, port);
    let lines = |errors: Vec<corefile::Error>| errors.iter().map(ToString::to_string).collect();
    read.map(|(plan, warnings)| (plan, warnings.iter().map(ToString::to_string).collect()))
        .map_err(|errors| Invalid::Corefile(lines(errors)))
}
