//! Removes the programs, with what they know.

use std::path::Path;

use super::{Behind, Ebpf, Options};
use crate::backend::netfilter::cleanup::Mode;
use crate::backend::unknown_pods::Stance;
use crate::backend::{Backend as _, BackendError};

/// Removes what is pinned, which detaches the programs, or only says that it is there. Returns what there was, in words.
///
/// # Errors
/// When a pin cannot be removed.
pub fn remove(pin_path: &Path, mode: Mode) -> Result<Vec<String>, BackendError> {
    if !pin_path.exists() {
        return Ok(Vec::new());
    }
    if mode.removes() {
        let options = Options {
            cgroup_root: "/sys/fs/cgroup".into(),
            pin_path: pin_path.to_owned(),
            unknown: Stance::Allow,
            events_per_second: None,
            behind: Behind::Nothing,
        };
        Ebpf::new(options).remove_everything()?;
    }
    Ok(vec![format!("the pins in {}", pin_path.display())])
}
